"""Thresholds of the planner stand in one table: no other module has numbers that decide how far it goes."""

import ast
from pathlib import Path

import koordpy.planning

ROOT = Path(koordpy.planning.__file__).parent
KNOWN = {
    # encodings: widths of fields, signs, what stands for never
    "victim_selection/cover.py": {"LEVEL_BITS", "_SHIFT"},
    "victim_selection/gathered.py": {"_NEVER", "_BITS"},
    "solver/regions.py": {"_LEAST"},
    "solver/budget.py": {"_SEED"},
    "placement/goals.py": {"_FAR"},
    "placement/cost_tables.py": {"INT64_LIMIT"},
    "scores/nodes.py": {"_EXACT_BELOW", "_IMAGE_MIN_BYTES", "_IMAGE_MAX_BYTES"},  # the latter of kube-scheduler
    "queue/standing.py": {"_HUNDREDTHS"},
    "gpu/nodes.py": {"MOST_GPUS"},
    "gpu/partitioning.py": {"FORBIDDEN", "_ROOM"},
    "accelerators/npus_between.py": {"_MOST"},
    "build.py": {"BEYOND_PODS"},
    # rules of the formats and of what is said
    "victims/terminating.py": {"_LISTED"},
    "words/evictions.py": {"DEFAULT_GRACE_SECONDS"},
    "nominated_capacity.py": {"STUCK_SECONDS"},
    "gangs.py": {"DEFAULT_WAITING_SECONDS"},
    "filters/dra.py": {"MAX_CONSUMERS"},
    "ascend/jobs.py": {"PADDING_BELOW"},
    "ascend/division.py": {"_MESH", "_EVERY"},
    "ascend/chips.py": {"DIES"},
    "words/suggestions.py": {"NEAREST", "NAMED"},
    "words/denial.py": {"_LISTED_DOMAINS"},
}


def numbers(path: Path) -> set[str]:
    """Names of the numbers that a module has at its top level."""
    found = set()
    for one in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
            parts = list(ast.walk(one.value))
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            if all(
                isinstance(part, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop) for part in parts
            ):
                value = eval(compile(ast.Expression(one.value), str(path), "eval"))  # of constants alone
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_every_threshold_is_in_the_table() -> None:
    found = {str(path.relative_to(ROOT)): numbers(path) for path in sorted(ROOT.rglob("*.py"))}
    assert len(found.pop("limits.py")) > 40
    assert {path: names for path, names in found.items() if names} == KNOWN


def test_each_threshold_says_its_unit_and_is_read() -> None:
    table = (ROOT / "limits.py").read_text(encoding="utf-8")
    body = ast.parse(table).body
    others = "".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py") if path.name != "limits.py")
    for one, after in zip(body[1:], [*body[2:], None], strict=True):
        if isinstance(one, ast.Assign):
            [target] = one.targets
            assert isinstance(target, ast.Name)
            assert target.id in others
            assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant), target.id
