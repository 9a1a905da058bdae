# SPDX-License-Identifier: Apache-2.0
"""Thresholds of the planner stand in one table: no other module has numbers that decide how far it goes."""

import ast
from pathlib import Path

from tests.structure.rooms import PACKAGE, PLANNER

KNOWN = {
    # encodings: widths of fields, signs, what stands for never
    "preemption/selection/node_covers.py": {"LEVEL_BITS", "_SHIFT"},
    "preemption/selection/gathered_victims.py": {"_NEVER", "_BITS"},
    "placement/solver/regions.py": {"_LEAST"},
    "placement/solver/time_budget.py": {"_SEED"},
    "placement/goals.py": {"_FAR"},
    "placement/cost_tables.py": {"INT64_LIMIT"},
    "plugins/node_scores.py": {"_EXACT_BELOW", "_IMAGE_MIN_BYTES", "_IMAGE_MAX_BYTES"},  # kube-scheduler's
    "planner/queue/queue_rank.py": {"_HUNDREDTHS"},
    "devices/ascend/family/npu_node_costs.py": {"_MOST"},
    "problems/problem_building.py": {"BEYOND_PODS"},
    "devices/gpu/gpu_links.py": {"KBS_PER_GBS", "MAX_GBS"},
    "devices/gpu/gpu_nodes.py": {"MOST_GPUS"},
    "devices/links/device_partitioning.py": {"FORBIDDEN", "_MAX_TOTAL"},
    "devices/gpu/gpu_partitions.py": {"SCORE_SCALE"},
    # rules of the formats and of what is said
    "preemption/search/ending_pods.py": {"_LISTED"},
    "report/eviction_words.py": {"DEFAULT_GRACE_SECONDS"},
    "reservations/reservation_ledger.py": {"STUCK_SECONDS"},
    "gangs/gang_settings.py": {"DEFAULT_WAITING_SECONDS"},
    "explain/advice/priority_changes.py": {"_HIGHEST", "_LAST"},
    "devices/dra/cel.py": {"MAX_BYTES"},
    "devices/dra/cel_syntax.py": {"MAX_LOOPS"},
    "devices/dra/cel_values.py": {"MAX_EXPONENT", "MAX_DIGITS", "NANO"},
    "devices/dra/filters/claim_requests.py": {"MAX_RESULTS"},
    "devices/dra/filters/extended_amounts.py": {"UNLIMITED"},
    "devices/links/link_board.py": {"NO_LIMIT"},
    "devices/dra/filters/min_bandwidth.py": {"MOST_GBS"},
    "devices/dra/filters/node_links.py": {"KBS", "UNKNOWN"},
    "verify/bandwidth_check.py": {"KBS_IN_GBS"},
    "devices/numa/numa_filter.py": {"_MOST"},
    "devices/numa/zone_sets.py": {"MOST_ZONES"},
    "devices/dra/filters/device_shares.py": {"MAX_AMOUNT"},
    "devices/ascend/tables/ascend_jobs.py": {"PADDING_BELOW"},
    "devices/ascend/tables/chip_division.py": {"_MESH", "_RING", "_EVERY"},
    "devices/ascend/tables/chip_costs.py": {"DIES"},
    "devices/ascend/tables/npu_book.py": {"MOST_CHIPS"},
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
    paths = [path for room in PLANNER for path in sorted((PACKAGE / room).rglob("*.py"))]
    found = {str(path.relative_to(PACKAGE)): numbers(path) for path in paths}
    assert len(found.pop("plan/limits.py")) > 40
    assert {path: names for path, names in found.items() if names} == KNOWN


def test_each_threshold_says_its_unit_and_is_read() -> None:
    table = (PACKAGE / "plan/limits.py").read_text(encoding="utf-8")
    body = ast.parse(table).body
    package = PACKAGE.rglob("*.py")
    others = "".join(path.read_text(encoding="utf-8") for path in package if path != PACKAGE / "plan/limits.py")
    for one, after in zip(body[1:], [*body[2:], None], strict=True):
        if isinstance(one, ast.Assign):
            [target] = one.targets
            assert isinstance(target, ast.Name)
            assert target.id in others
            assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant), target.id
