"""The decision log: what each round decided about each unit, and why.

One line a unit at level info for gangs and at debug for plain pods, and the last few hundred in memory for
/debug/decisions: the question "why is it there" is asked after the fact.
"""

import logging
import re
from collections import deque
from dataclasses import dataclass
from typing import Any

from koordpy.planning.plan import GangReport, RoundPlan, UnitReport

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Decision:
    """One unit of one round."""

    round: int
    at: float
    """Seconds since the epoch."""
    unit: str
    pods: int
    placed: int
    proof: str
    layer: str | None
    nodes: tuple[str, ...]
    """Nodes it got, in the order of the plan, each once."""
    message: str
    """What is said to a pod that stays pending; empty where all are placed."""

    def line(self) -> str:
        """One line for people."""
        if self.placed:
            where = f" in {self.layer}" if self.layer else ""
            some = ", ".join(self.nodes[:4]) + (f" and {len(self.nodes) - 4} more" if len(self.nodes) > 4 else "")
            text = f"{self.unit}: {self.placed} of {self.pods} pods on {some}{where} ({self.proof})"
            return f"{text}; left: {self.message}" if self.message else text
        return f"{self.unit}: {self.message or 'nothing placed'} ({self.proof})"


_KEPT = 512


class DecisionLog:
    """Keeps and logs decisions."""

    def __init__(self) -> None:
        self._kept: deque[Decision] = deque(maxlen=_KEPT)
        self._last: dict[str, str] = {}

    def record(self, plan: RoundPlan, *, number: int, at: float) -> None:
        """Takes in one round's plan."""
        nodes: dict[str, dict[str, None]] = {}
        for placement in plan.placements:
            nodes.setdefault(placement.unit, {})[placement.node] = None
        messages: dict[str, str] = {}
        for pending in plan.pending:
            messages.setdefault(pending.unit, pending.message)
        gangs = {f"gang:{gang.ref.id}": gang for gang in plan.gangs} if plan.units else {}
        for unit in plan.units:
            message = messages.get(unit.unit, "")
            self._take(_decision(unit, gangs.get(unit.unit), number, at, tuple(nodes.get(unit.unit, ())), message))

    def _take(self, decision: Decision) -> None:
        self._kept.append(decision)
        line = decision.line()
        gang = decision.unit.startswith("gang:")
        # the same but for its counts, as while members arrive, is no news
        gist = _NUMBER.sub("#", line)
        repeated = self._last.get(decision.unit) == gist
        if gang:
            self._last[decision.unit] = gist
            if len(self._last) > 4096:
                self._last.clear()
        level = logging.INFO if gang and not repeated else logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(level, "%s", line)

    def recent(self) -> list[dict[str, Any]]:
        """The last decisions, the latest first, as plain values."""
        return [{name: getattr(decision, name) for name in Decision.__slots__} for decision in reversed(self._kept)]


def _decision(
    unit: UnitReport, gang: GangReport | None, number: int, at: float, nodes: tuple[str, ...], message: str
) -> Decision:
    return Decision(
        round=number,
        at=at,
        unit=unit.unit,
        pods=len(unit.pod_keys),
        placed=unit.placed,
        proof=unit.proof.value,
        layer=unit.layer or (gang.domain[0] if gang is not None and gang.domain else None),
        nodes=nodes,
        message=message or (gang.message if gang is not None and not unit.placed else ""),
    )
