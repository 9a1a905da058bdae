# SPDX-License-Identifier: Apache-2.0
"""The decision log: records the decision of each round about each unit, with its reason.

Each round logs one line for each unit. The level is info for plans with victims, and for a gang if its line differs
from its previous line in more than numbers; otherwise debug. Lines of units that a gate blocks may be delayed. The last
decisions stay in memory for /debug/decisions, because users ask later why a pod was placed or evicted.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from koordpy.api.counted_nouns import count_noun, name_first
from koordpy.api.natural_order import natural_key
from koordpy.plan.round_plan import GangReport, Placement, PromisedStart, Proof, RoundPlan, UnitReport

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class PodOnNode:
    """A victim or a nominated pod, and its node."""

    pod: str
    node: str
    rule: str = ""
    """Rule under which a victim is evicted; empty for a nominated pod."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of one round about one unit."""

    round: int
    at: float
    """Seconds since the epoch."""
    unit: str
    pods: int
    placed: int
    proof: str
    layer: str | None
    nodes: tuple[str, ...]
    """Nodes of the placed pods; if there are victims, nodes of the nominated pods. In the order of the plan, each
    once."""
    message: str
    """Message of the victims if there are any, else of the first pod that stays pending; empty if all pods are
    placed."""
    beneficiary: str = ""
    """Pod or gang for which the victims are evicted; empty if they are not evicted for a particular one."""
    victims: tuple[PodOnNode, ...] = ()
    nominated: tuple[PodOnNode, ...] = ()
    """Pods of the unit with the nodes that are reserved for them until victims and terminating pods are gone."""
    dry_run: bool = False
    """True if the decision is not carried out."""
    never: bool = False
    """True if the unit would not fit an empty cluster; its proof is `infeasible` then."""

    def line(self) -> str:
        """Returns one line about the decision, with the prefix `dry run: ` if it is not carried out."""
        return f"{'dry run: ' if self.dry_run else ''}{self.text()}"

    def text(self) -> str:
        """Returns one line about the decision, without the prefix of a dry run."""
        never = ", also on an empty cluster" if self.never else ""
        proof = f" (proof: {self.proof}{never})" if self.proof != Proof.UNKNOWN else ""
        if self.victims:
            return f"{self._evicts()}{proof}"
        if self.nominated:
            return f"{self.unit}: {self.message}"  # the unit waits for reserved capacity, which needs no proof
        if self.placed:
            where = f", lowest common layer {self.layer}" if self.layer else ""
            pods, nodes = count_noun(self.pods, "pod"), name_first(self.nodes)
            text = f"{self.unit}: places {self.placed} of {pods} on {nodes}{where}{proof}"
            return f"{text}; still pending: {self.message}" if self.message else text
        return f"{self.unit}: {self.message or 'nothing placed'}{proof}"

    def _evicts(self) -> str:
        verb, nominate = ("would evict", "would nominate") if self.dry_run else ("evicts", "nominates")
        rules = Counter(victim.rule for victim in self.victims)
        by = ", ".join(f"{number} by rule {rule}" for rule, number in rules.items())
        by = f" ({by})" if len(rules) > 1 else f" by rule {next(iter(rules))}"
        unit, gains = f"{self.unit}: " if self.unit else "", f" for {self.beneficiary}" if self.beneficiary else ""
        text = f"{unit}{verb} {count_noun(len(self.victims), 'pod')}{by}{gains}: "
        text += name_first([f"{victim.pod} on {victim.node}" for victim in self.victims])
        if not self.nominated:
            return f"{text}; {self.message}"
        return f"{text}; {nominate} {count_noun(len(self.nominated), 'pod')} to {name_first(self.nodes)}"


def _gangs(unit: str) -> Sequence[str]:
    """Returns the gangs of a unit, from its id; empty for a plain pod."""
    return unit.removeprefix(GANG).split(",") if unit.startswith(GANG) else ()


_KEPT = 2048
"""Number of decisions that are stored; for a short time there may be twice as many."""
_TOLD = 1 << 14
"""Maximum number of pending units in `DecisionLog.messages`."""
GANG = "gang:"


class _Packed:
    """The last decisions, encoded in one block of memory instead of thousands of small objects."""

    def __init__(self) -> None:
        self._lines, self._count = bytearray(), 0

    def append(self, decision: Decision) -> None:
        self._lines += _encoder.encode(decision) + b"\n"
        self._count += 1
        if self._count == 2 * _KEPT:
            self._lines, self._count = bytearray().join(one + b"\n" for one in self._last()), _KEPT

    def _last(self) -> list[bytearray]:
        return self._lines.splitlines()[-_KEPT:]

    def decisions(self) -> tuple[Decision, ...]:
        return tuple(map(_decoder.decode, self._last()))


_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Decision)


class DecisionLog:
    """Records and logs decisions."""

    def __init__(self, *, hold_seconds: float = 0.0, dry_run: bool = False) -> None:
        """hold_seconds: seconds by which the line of a gang is delayed if a gate blocks it. Most such gangs are
        complete by then. dry_run: True if plans are not carried out."""
        self._kept, self._dry_run = _Packed(), dry_run
        self._last: dict[str, str] = {}
        self._round = 0, 0.0
        self.decided = 0
        """Number of decisions recorded since the start."""
        self.messages: dict[str, str] = {}
        """Unit -> last message of its pending pods, or of its last eviction; for at most `_TOLD` units."""
        self.reservation: PromisedStart | None = None
        """Start that the last round promised to the first pending unit; None if it promised none."""
        self._hold = hold_seconds
        self._held: dict[str, tuple[float, Decision]] = {}
        """Unit with a delayed line -> (time at which the line is logged, on the clock of `at`; the unit's last
        decision)."""
        self._holder: dict[str, str] = {}
        """Gang -> the unit that contains it and that has a delayed line."""

    def record(self, plan: RoundPlan, *, number: int, at: float) -> None:
        """Records the plan of a round. Units with victims are recorded by `evicts` once their victims are evicted."""
        self._round = number, at
        self.reservation = plan.reservation
        evicting = {eviction.unit for eviction in plan.evictions}
        nodes: dict[str, dict[str, None]] = {}
        for placement in plan.placements:
            nodes.setdefault(placement.unit, {})[placement.node] = None
        messages: dict[str, str] = {}
        ungated: set[str] = set()
        for pending in plan.pending:
            messages.setdefault(pending.unit, pending.message)
            if not pending.gated:
                ungated.add(pending.unit)
        awaiting: dict[str, list[Placement]] = {}
        for one in plan.awaiting_nominations:
            awaiting.setdefault(one.unit, []).append(one)
        gangs = {f"gang:{gang.ref.id}": gang for gang in plan.gangs} if plan.units else {}
        for unit in plan.units:
            if unit.unit in evicting:
                continue
            name, message = unit.unit, messages.get(unit.unit, "")
            decision = _decision(unit, gangs.get(name), number, at, tuple(nodes.get(name, ())), message)
            rooms = tuple(PodOnNode(one.pod_key, one.node) for one in awaiting.get(name, ()))
            decision = replace(decision, nominated=rooms, dry_run=self._dry_run)
            self._keep(decision)
            if self._held:
                self._supersede(name)
            if message and name not in ungated and not decision.placed:
                due = self._held[name][0] if name in self._held else at + self._hold
                self._held[name] = due, decision
                self._holder.update(dict.fromkeys(_gangs(name), name))
            else:
                self._unhold(name)
                self._log(decision)
        self.release(at)

    def _supersede(self, unit: str) -> None:
        """Drops delayed lines of other units that have gangs of this unit, because the links between gangs have
        changed."""
        for gang in _gangs(unit):
            held = self._holder.get(gang, unit)
            if held != unit:
                self._unhold(held)

    def _unhold(self, unit: str) -> None:
        """Ends the delay of a unit's decision."""
        if self._held.pop(unit, None) is not None:
            for gang in _gangs(unit):
                self._holder.pop(gang, None)

    def evicts(self, plan: RoundPlan, unit: str, *, dry_run: bool) -> None:
        """Records that the victims of a unit in the last round's plan are being evicted.

        unit: empty if the victims are not evicted for a particular unit.
        """
        victims = sorted(
            (eviction for eviction in plan.evictions if eviction.unit == unit), key=lambda one: natural_key(one.pod_key)
        )
        nominated = tuple(PodOnNode(one.pod_key, one.node) for one in plan.nominations if one.unit == unit)
        report = next((one for one in plan.units if one.unit == unit), None)
        messages = dict.fromkeys(victim.message for victim in victims)
        number, at = self._round
        decision = Decision(
            round=number,
            at=at,
            unit=unit,
            pods=len(report.pod_keys) if report is not None else 0,
            placed=0,
            proof=(report.proof if report is not None and nominated else Proof.UNKNOWN).value,
            layer=None,
            nodes=tuple(dict.fromkeys(one.node for one in nominated)),
            message=next(iter(messages)) if nominated else "; ".join(messages),
            beneficiary=victims[0].beneficiary or "",
            victims=tuple(PodOnNode(victim.pod_key, victim.node, victim.rule) for victim in victims),
            nominated=nominated,
            dry_run=dry_run,
        )
        self._unhold(unit)
        self._last.pop(unit, None)
        self._keep(decision)
        logger.info("%s", decision.line())

    def _keep(self, decision: Decision) -> None:
        self._kept.append(decision)
        self.decided += 1
        self.messages.pop(decision.unit, None)
        if decision.victims and decision.unit:
            self.messages[decision.unit] = decision.text().removeprefix(f"{decision.unit}: ")
        elif decision.message:
            self.messages[decision.unit] = decision.message
        if len(self.messages) > _TOLD:
            del self.messages[next(iter(self.messages))]

    def next_due(self) -> float | None:
        """Returns the time at which the next delayed line is due; None if no line is delayed."""
        return min((due for due, _ in self._held.values()), default=None)

    def release(self, at: float) -> None:
        """Logs the delayed lines that are due."""
        for unit, (due, decision) in list(self._held.items()):
            if due <= at:
                self._unhold(unit)
                self._log(decision)

    def _log(self, decision: Decision) -> None:
        level = logging.DEBUG
        if decision.unit.startswith(GANG):
            # a line that differs from the previous one only in numbers, as while members are created, is logged at
            # debug
            gist = _NUMBER.sub("#", decision.line())
            level = logging.INFO if self._last.get(decision.unit) != gist else logging.DEBUG
            self._last[decision.unit] = gist
            if len(self._last) > 4096:
                self._last.clear()
        if logger.isEnabledFor(level):
            logger.log(level, "%s", decision.line(), extra={"object": decision.unit})

    def forget(self, there: Callable[[str], bool]) -> None:
        """Drops the last messages and lines of units that no longer exist."""
        self.messages = {unit: text for unit, text in self.messages.items() if there(unit)}
        self._last = {unit: gist for unit, gist in self._last.items() if there(unit)}

    def last_decisions(self) -> tuple[Decision, ...]:
        """Returns the last decisions, the oldest first."""
        return self._kept.decisions()

    def recent(self) -> list[dict[str, Any]]:
        """Returns the last decisions as plain values, the latest first."""
        return [asdict(decision) for decision in reversed(self.last_decisions())]


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
        never=bool(unit.never),
    )
