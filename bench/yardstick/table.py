# SPDX-License-Identifier: Apache-2.0
"""The table in Markdown, and figures as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from bench.live.usage import Usage
from bench.yardstick.figures import Goal, Line, Results, advantage

MISSING = "-"
VERDICTS = {True: "yes", False: "NO", None: ""}
HEAD = ("workload", "machine's bound", "{other}", "{ours}", "ratio", "goal", "met", "{other} itself", "{ours} itself")


def amount(value: float | None, unit: str) -> str:
    """A figure with its unit; a dash for one that did not come."""
    if value is None:
        return MISSING
    if unit in ("/s", ""):
        return f"{value:,.0f}{unit}"
    return f"{value:,.0f} {unit}" if unit == "MB" else f"{value:.2f} {unit}"


def goal_text(goal: Goal | None, unit: str, *, other: str) -> str:
    """`<= 2 s`, `512`, `>= 1.2 x kube-scheduler`."""
    if goal is None:
        return ""
    if goal.times_other is not None:
        return f">= {goal.times_other:g} x {other}"
    if goal.at_most is not None:
        return f"<= {goal.at_most:g} {unit}"
    return amount(goal.exactly, unit)


def usage_text(usage: Usage | None) -> str:
    """CPU of the whole run; memory held at its end, and at most."""
    if usage is None:
        return MISSING
    return f"{usage.cpu_s:.1f} s, {usage.resident_bytes / 1e6:,.0f} MB, at most {usage.peak_bytes / 1e6:,.0f} MB"


def entitlements_of(lines: Sequence[Line], results: Results, *, ours: str, other: str, judged: bool) -> list[list[str]]:
    """The cells of one row's lines; what the processes used stands in the first. judged: whether goals are for it."""
    out = []
    for i, line in enumerate(lines):
        own, theirs = results.figure(line, ours), results.figure(line, other)
        times = advantage(line, own, theirs)
        cells = [
            line.what,
            amount(results.bound, line.unit) if line.bounded else "",
            amount(theirs, line.unit),
            amount(own, line.unit),
            "" if times is None else f"{times:.1f}",
            goal_text(line.goal, line.unit, other=other),
            VERDICTS[results.met(line, ours, other) if judged else None],
        ]
        uses = [usage_text(results.usage(name)) if i == 0 else "" for name in (other, ours)]
        out.append([*cells, *uses])
    return out


def markdown(rows: Sequence[Sequence[str]], *, ours: str, other: str) -> str:
    """Rows of cells as a table."""
    head = [cell.format(ours=ours, other=other) for cell in HEAD]
    body = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in body) + "\n"
