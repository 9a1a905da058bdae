# SPDX-License-Identifier: Apache-2.0
"""The rows that the end-to-end test shows to autoscalers have every reason, from every place that decides one."""

import ast
from pathlib import Path

import koordpy
from koordpy.plan.pending_reason import Reason
from tests.autoscalers.rows import GATED
from tests.autoscalers.table import LATE, ROWS, SHOWN

ROOT = Path(koordpy.__file__).parent
OFFLINE = {Reason.NEVER_FITS}
"""Reasons that no condition states."""
OTHERS = {
    "engine/status/upstream_status.py",
    "plan/pending_reason.py",
    "plan/round_plan.py",
    "simulation/simulated_rounds.py",
}
"""Modules that pass on reasons which other modules have decided."""
GATE = "Gate"


def places(source: str) -> dict[str, list[str]]:
    """Returns function -> what decides a reason in it, in the order of the lines: `Gate`, or the name of a reason.

    A reason that is compared, or that is an argument of a gate, is left out.
    """
    found: dict[str, list[tuple[int, int, str]]] = {}

    def look(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Compare | ast.MatchClass):
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == GATE:
            found.setdefault(function, []).append((node.lineno, node.col_offset, GATE))
            return
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason":
            found.setdefault(function, []).append((node.lineno, node.col_offset, node.attr))
        for child in ast.iter_child_nodes(node):
            look(child, function)

    look(ast.parse(source), "")
    return {function: [what for *_, what in sorted(own)] for function, own in found.items() if function}


def test_every_reason_has_a_row() -> None:
    reasons = {row.reason for row in ROWS}
    assert reasons == {*Reason, GATED} - OFFLINE
    pods = [name for row in (*ROWS, *LATE) for name in row.pending]
    assert len(set(pods)) == len(pods)


def test_every_place_that_decides_a_reason_has_a_row_or_a_cause() -> None:
    rows = {row.name: row for row in (*ROWS, *LATE)}
    found: dict[str, list[str]] = {}
    for path in ROOT.rglob("*.py"):
        module = str(path.relative_to(ROOT))
        for function, own in places(path.read_text()).items() if module not in OTHERS else ():
            found[f"{module}:{function}"] = own
    assert {place: len(own) for place, own in found.items()} == {place: len(own) for place, own in SHOWN.items()}
    for place, own in found.items():
        for what, shown in zip(own, SHOWN[place], strict=True):
            assert shown in rows or shown.startswith("not live: "), (place, shown)
            if what != GATE and shown in rows:
                assert rows[shown].reason == Reason[what], (place, shown)


def test_rows_of_gates_say_their_gate() -> None:
    """Two rows with one reason would else show the same gate."""
    rules = ("attempts/reason_rules.py", "report/pending_messages.py")
    gates = [name for place, own in SHOWN.items() if not place.startswith(rules) for name in own]
    shown = [name for name in gates if not name.startswith("not live: ")]
    assert len(set(shown)) == len(shown)
    assert [row.name for row in (*ROWS, *LATE) if row.name in shown and not row.text] == []
