"""Reserve and backfill (`queue.backfill`): a large unit is not starved by small ones behind it (docs/queueing.md).

EASY backfilling: the first unit of the queue that fails for room, and would fit an empty cluster, gets a reservation:
the earliest time at which enough running pods with a known end will have ended for it to be placed, and the placement
then. Units behind it may use the reserved room only if they will have ended by that time; others get what is left
beside it. Nothing is remembered: snapshot and `now` tell it anew each round, and what is placed in between can only
bring the time forward.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf

import numpy as np

from koordpy.api.counted import counted
from koordpy.api.times import rfc3339
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.reservations import Purpose
from koordpy.cluster.snapshot import Draft, Ints
from koordpy.planning.attempt import Tried, try_unit
from koordpy.planning.figures import Figures
from koordpy.planning.plan import PromisedStart, Proof
from koordpy.planning.queue.known_ends import Runtimes
from koordpy.planning.queue.starvation import AllEnded
from koordpy.planning.units import Unit
from koordpy.planning.victims.search import Preemptor

NO_PROMISE = "no start can be promised: too few running pods say when they end"


def moment(seconds: float) -> str:
    """`2026-01-01T02:00:00Z`, rounded up to a whole second: a promise is not kept a moment late."""
    return rfc3339(ceil(seconds))


@dataclass(frozen=True, slots=True)
class _Promise:
    """A reservation as later units of the round meet it."""

    unit: Unit
    start: float
    nodes: Mapping[str, int]
    """Pod key -> node position."""
    asked: Ints
    """[nodes, resources] what the unit will take."""
    leaving: Mapping[int, Sequence[PodInfo]]
    """Node position -> pods that run there and whose room is counted on: they will have ended by the start."""


class Backfill:
    """The attempts of one round. `attempt` stands in for `try_unit`."""

    def __init__(self, figures: Figures, *, due: Callable[[Unit], bool], search: Preemptor | None) -> None:
        """due: whether the round may place a unit; others are looked at only as far as they hold room.

        search: where units may look for victims, until something is reserved; None where nobody is evicted.
        """
        self._search = search
        self._figures, self._due = figures, due
        self._all_ended = AllEnded(figures)
        self.runtimes = Runtimes(figures.snapshot)
        self._head = False
        """Whether the first unit that lacks room has been met."""
        self._held: _Promise | None = None
        self._told: dict[str, str] = {}
        """Unit -> remark of those that are kept from reserved room."""

    @property
    def reservation(self) -> PromisedStart | None:
        """The round's reservation."""
        held = self._held
        if held is None:
            return None
        names = {key: self._figures.snapshot.nodes[node].name for key, node in held.nodes.items()}
        return PromisedStart(held.unit.id, held.start, names, dict(self._told))

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """(object, text) of annotations that cannot be read."""
        return sorted(self.runtimes.unreadable.items())

    def key(self, unit: Unit, shape: Hashable) -> Hashable:
        """Equal for units that fare alike: of one shape, and on the same side of the reservation."""
        return shape, self._head, self._held is not None and self._ends_in_time(unit, self._held)

    def wanted(self, unit: Unit) -> bool:
        """Whether a unit is to be tried: it is due, or comes before the reservation and may hold room."""
        return self._due(unit) or not self._head

    def attempt(self, unit: Unit) -> Tried:
        """Places one unit on the round's draft, beside the reservation where there is one."""
        if self._held is None:
            outcome = try_unit(unit, self._figures, self._search)
            if self._head or not _lacks_room(outcome):
                return outcome
            found = self._earliest(unit)
            self._head = found is not None or bool(self._all_ended.attempt(unit).nodes)
            if found is not None:
                self._reserve(unit, *found)
                return replace(outcome, remark=f"start promised at {moment(found[0])}")
            return replace(outcome, remark=NO_PROMISE) if self._head else outcome
        return self._beside(unit, self._held)

    # -- the reservation ----------------------------------------------------------------------------------------------

    def _at(self, unit: Unit, end: float) -> Tried:
        """The unit's attempt once every pod with a known end by then has ended."""
        snapshot, main = self._figures.snapshot, self._figures.draft
        draft = Draft(snapshot)
        own = {pod.key for pod in unit.members}
        for key, pod in {**main.evicted, **{pod.key: pod for when, pod in self._ends if when <= end}}.items():
            if key not in own:
                draft.evict(pod)
        for key, node in main.placed.items():
            if self._placed_end(key) > end:
                chips = main.chips.get(key, ())
                draft.assign(snapshot.pods[key], node, main.claims(key), main.allocations(key), chips)
        if (starving := main.aside.get(Purpose.STARVING)) is not None:
            draft.set_aside(Purpose.STARVING, starving)
        return try_unit(unit, self._figures.of_draft(draft))

    @cached_property
    def _ends(self) -> list[tuple[float, PodInfo]]:
        """(end, pod) of the running pods whose end is known, the earliest first."""
        return self.runtimes.known(self._figures.snapshot.pods.values())

    def _placed_end(self, key: str) -> float:
        """End of a pod that this round has placed."""
        pod = self._figures.snapshot.pods[key]
        unit = Unit(id=key, gangs=(), plain=pod) if pod.gang is None else self._figures.groups.unit(pod.gang)
        return self.runtimes.end_from_now(unit)

    def _reserve(self, unit: Unit, start: float, nodes: Mapping[str, int]) -> None:
        snapshot = self._figures.snapshot
        asked = np.zeros_like(snapshot.allocatable)
        for key, node in nodes.items():
            asked[node] += snapshot.asked([snapshot.pods[key]])
        own, places = {pod.key for pod in unit.members}, frozenset(nodes.values())
        leaving: dict[int, list[PodInfo]] = {}
        for end, pod in self._ends:
            node = snapshot.index.get(pod.node, -1)
            if end <= start and node in places and pod.key not in own:
                leaving.setdefault(node, []).append(pod)
        self._held = _Promise(unit, start, nodes, asked, leaving)

    @property
    def aside(self) -> Ints | None:
        """[nodes, resources] what the reservation takes beyond what pods will have left by then, those that run and
        those that this round has placed: counted as used for units that will not have ended."""
        held = self._held
        if held is None:
            return None
        draft, out = self._figures.draft, held.asked.copy()
        for node in frozenset(held.nodes.values()):
            # a victim leaves its room at once, and not a second time
            gone = [pod for pod in held.leaving.get(node, ()) if pod.key not in draft.evicted]
            gone += [pod for key, pod in draft.placed_on.get(node, {}).items() if self._placed_end(key) <= held.start]
            out[node] -= draft.snapshot.asked(gone)
        return np.asarray(np.maximum(out, 0))

    def _earliest(self, unit: Unit) -> tuple[float, Mapping[str, int]] | None:
        """(time, pod key -> node) of the earliest end after which the unit can be placed."""
        own = {pod.key for pod in unit.members}
        ends = {end for end, pod in self._ends if pod.key not in own}
        ends |= {end for key in self._figures.draft.placed if (end := self._placed_end(key)) != inf}
        times = sorted(ends)
        if not times:
            return None
        last = self._at(unit, times[-1])
        if not last.nodes:
            return None
        found = times[-1], last.nodes
        if any(self._figures.of(pod).follows for pod in unit.pending):
            # more room need not help a pod that wants others near it: the times are tried one by one
            for time in times[:-1]:
                tried = self._at(unit, time)
                if tried.nodes:
                    return time, tried.nodes
            return found
        low, high = 0, len(times) - 1
        while low < high:
            middle = (low + high) // 2
            tried = self._at(unit, times[middle])
            if tried.nodes:
                found, high = (times[middle], tried.nodes), middle
            else:
                low = middle + 1
        return found

    # -- beside it ----------------------------------------------------------------------------------------------------

    def _ends_in_time(self, unit: Unit, held: _Promise) -> bool:
        return self.runtimes.end_from_now(unit) <= held.start

    def _beside(self, unit: Unit, held: _Promise) -> Tried:
        aside = None if self._ends_in_time(unit, held) else self.aside
        # a search of its own: victims are those of the draft as it is now
        search = Preemptor(self._figures, self._search.ways) if self._search is not None else None
        if aside is None:
            return try_unit(unit, self._figures, search)
        draft = self._figures.draft
        mark = draft.mark()
        with draft.beside(Purpose.PROMISED, aside):
            outcome = try_unit(unit, self._figures, search)
            slots = [] if outcome.nodes else self._slots(unit)
        if outcome.nodes:
            if self._disturbs(outcome, held):
                draft.undo(mark)
                text = f"it would keep {held.unit.title} from its promised start at {moment(held.start)}"
                self._told[unit.id] = text
                return Tried(unit, Proof.INFEASIBLE, remark=text, behind=True)
            return outcome
        if not _lacks_room(outcome):
            return outcome
        remark = self._kept(unit, held, slots)
        if remark:
            self._told[unit.id] = remark
        return replace(outcome, behind=True, remark=remark)

    def _disturbs(self, outcome: Tried, held: _Promise) -> bool:
        """Whether pods that stay keep the reserved unit from its start by more than the room they take."""
        draft, nodes = self._figures.draft, outcome.nodes or {}
        plain = not any(self._figures.snapshot.pods[key].ties or key in draft.chips for key in nodes)
        plain = plain and not outcome.victims
        plain = plain and not any(draft.allocations(key) or draft.claims(key) for key in nodes)
        if plain and not any(self._figures.of(pod).follows for pod in held.unit.pending):
            return False
        return not self._at(held.unit, held.start).nodes

    def _slots(self, unit: Unit) -> list[Ints]:
        """[nodes] of each shape of the unit: how many of its pods the draft has room for."""
        return [self._figures.of(pod).slots.copy() for pod in {pod.shape: pod for pod in unit.pending}.values()]

    def _kept(self, unit: Unit, held: _Promise, slots: Sequence[Ints]) -> str:
        """How many nodes a unit finds smaller for the reservation; empty where it is none. slots: beside it."""
        smaller = [free > beside for free, beside in zip(self._slots(unit), slots, strict=True)]
        count = int(np.logical_or.reduce(smaller).sum())
        if not count:
            return ""
        return f"room on {counted(count, 'node')} is reserved for {held.unit.title} until {moment(held.start)}"


def _lacks_room(outcome: Tried) -> bool:
    """Proven not to fit: not held by a gate or a quota, nor refused by the check, nor undecided."""
    return outcome.lacks_room and outcome.proof is Proof.INFEASIBLE
