"""The decision log: what each round decided about each unit, and why.

One line a unit at level info for gangs and for every plan with victims, at debug for other plain pods, and the last two
thousand in memory for /debug/decisions: the question "why is it there", or "who evicted it", is asked after the fact.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from koordpy.api.counted_nouns import counted, named
from koordpy.api.natural_order import natural_key
from koordpy.plan.round_plan import GangReport, Nomination, PromisedStart, Proof, RoundPlan, UnitReport

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Place:
    """A pod and its node. rule: under which it is evicted; empty for one that is nominated."""

    pod: str
    node: str
    rule: str = ""


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
    """What is said to a pod that stays pending, or to the first victim; empty where all are placed."""
    beneficiary: str = ""
    """Pod or gang that victims go for; empty for nobody in particular."""
    victims: tuple[Place, ...] = ()
    nominated: tuple[Place, ...] = ()
    """Where the unit is to go once its victims, or pods that are ending, are gone. Nothing is bound by the decision."""
    dry_run: bool = False
    """Nothing of it is carried out."""
    never: bool = False
    """Whether the unit never fits; its proof is `infeasible` then."""

    def line(self) -> str:
        """One line for people, marked where nothing of it is carried out."""
        return f"{'dry run: ' if self.dry_run else ''}{self.text()}"

    def text(self) -> str:
        """The line without that mark."""
        proof = f" ({self.proof}{' (never)' if self.never else ''})" if self.proof != Proof.UNKNOWN else ""
        if self.victims:
            return f"{self._evicts()}{proof}"
        if self.nominated:
            return f"{self.unit}: {self.message}"  # it waits for room that is kept, so no proof speaks of it
        if self.placed:
            where = f" in {self.layer}" if self.layer else ""
            text = f"{self.unit}: {self.placed} of {self.pods} pods on {named(self.nodes)}{where}{proof}"
            return f"{text}; left: {self.message}" if self.message else text
        return f"{self.unit}: {self.message or 'nothing placed'}{proof}"

    def _evicts(self) -> str:
        verb, nominate = ("would evict", "would nominate") if self.dry_run else ("evicts", "nominates")
        rules = Counter(victim.rule for victim in self.victims)
        by = ", ".join(f"{number} {rule}" for rule, number in rules.items()) if len(rules) > 1 else next(iter(rules))
        unit, gains = f"{self.unit}: " if self.unit else "", self.beneficiary or "nobody in particular"
        text = f"{unit}{verb} {counted(len(self.victims), 'pod')} ({by}) for {gains}: "
        text += named([f"{victim.pod} on {victim.node}" for victim in self.victims])
        if not self.nominated:
            return f"{text}; {self.message}"
        return f"{text}; {nominate} {counted(len(self.nominated), 'pod')} to {named(self.nodes)}"


def _gangs(unit: str) -> Sequence[str]:
    """The gangs of a unit, which its id names; none of a plain pod."""
    return unit.removeprefix(GANG).split(",") if unit.startswith(GANG) else ()


_KEPT = 2048
_TOLD = 1 << 14
"""Units that wait of which the last message is kept."""
GANG = "gang:"


class _Packed:
    """The last decisions, thousands of small objects, in one block of memory."""

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
    """Keeps and logs decisions."""

    def __init__(self, *, hold_seconds: float = 0.0, dry_run: bool = False) -> None:
        """hold_seconds: a gang that a gate holds is logged after that long, as it is then: most are complete before.
        dry_run: whether nothing that is recorded is carried out."""
        self._kept, self._dry_run = _Packed(), dry_run
        self._last: dict[str, str] = {}
        self._round = 0, 0.0
        self.decided = 0
        """How many there were ever."""
        self.messages: dict[str, str] = {}
        """Unit -> what was last said to those of its pods that wait; of the units that were told last."""
        self.reservation: PromisedStart | None = None
        """Room that the last round promised to the first that waits."""
        self._hold = hold_seconds
        self._held: dict[str, tuple[float, Decision]] = {}
        """Unit -> when its decision is to be logged, on the clock of `at`, and the last one."""
        self._holder: dict[str, str] = {}
        """Gang -> the unit of those that are held which it is in."""

    def record(self, plan: RoundPlan, *, number: int, at: float) -> None:
        """Takes in one round's plan, but for units with victims: whether these go, `evicts` tells."""
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
        awaiting: dict[str, list[Nomination]] = {}
        for one in plan.awaiting:
            awaiting.setdefault(one.unit, []).append(one)
        gangs = {f"gang:{gang.ref.id}": gang for gang in plan.gangs} if plan.units else {}
        for unit in plan.units:
            if unit.unit in evicting:
                continue
            name, message = unit.unit, messages.get(unit.unit, "")
            decision = _decision(unit, gangs.get(name), number, at, tuple(nodes.get(name, ())), message)
            rooms = tuple(Place(one.pod_key, one.node) for one in awaiting.get(name, ()))
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
        """Forgets what is held of other units with gangs of this one: they are linked, or not, only since then."""
        for gang in _gangs(unit):
            held = self._holder.get(gang, unit)
            if held != unit:
                self._unhold(held)

    def _unhold(self, unit: str) -> None:
        """A unit's decision is held no longer."""
        if self._held.pop(unit, None) is not None:
            for gang in _gangs(unit):
                self._holder.pop(gang, None)

    def evicts(self, plan: RoundPlan, unit: str, *, dry_run: bool) -> None:
        """The victims of a unit in the last round's plan are about to go; unit is empty where nobody gains."""
        victims = sorted(
            (eviction for eviction in plan.evictions if eviction.unit == unit), key=lambda one: natural_key(one.pod_key)
        )
        nominated = tuple(Place(one.pod_key, one.node) for one in plan.nominations if one.unit == unit)
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
            victims=tuple(Place(victim.pod_key, victim.node, victim.rule) for victim in victims),
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
        """When a line that is held back is to be logged; None for never."""
        return min((due for due, _ in self._held.values()), default=None)

    def release(self, at: float) -> None:
        """Logs what was held back until now."""
        for unit, (due, decision) in list(self._held.items()):
            if due <= at:
                self._unhold(unit)
                self._log(decision)

    def _log(self, decision: Decision) -> None:
        level = logging.DEBUG
        if decision.unit.startswith(GANG):
            # the same but for its counts, as while members arrive, is no news
            gist = _NUMBER.sub("#", decision.line())
            level = logging.INFO if self._last.get(decision.unit) != gist else logging.DEBUG
            self._last[decision.unit] = gist
            if len(self._last) > 4096:
                self._last.clear()
        if logger.isEnabledFor(level):
            logger.log(level, "%s", decision.line(), extra={"object": decision.unit})

    def forget(self, there: Callable[[str], bool]) -> None:
        """Lets go of what was last said of units that are not there any more."""
        self.messages = {unit: text for unit, text in self.messages.items() if there(unit)}
        self._last = {unit: gist for unit, gist in self._last.items() if there(unit)}

    def kept(self) -> tuple[Decision, ...]:
        """The last decisions, the latest last."""
        return self._kept.decisions()

    def recent(self) -> list[dict[str, Any]]:
        """The last decisions, the latest first, as plain values."""
        return [asdict(decision) for decision in reversed(self.kept())]


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
