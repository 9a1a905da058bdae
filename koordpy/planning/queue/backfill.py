"""Reserve and backfill (`queue.backfill`): a large unit is not starved by small ones behind it (docs/queueing.md).

EASY backfilling: the first unit of the queue that fails for room, and would fit an empty cluster, gets a reservation:
the earliest time at which enough running pods with a known end will have ended for it to be placed, and the placement
then. Units behind it may use the reserved room only if they will have ended by that time; others get what is left
beside it. Nothing is remembered: snapshot and `now` tell it anew each round, and what is placed in between can only
bring the time forward.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf

import numpy as np

from koordpy.api.counted import counted
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Draft, Ints
from koordpy.planning.attempt import Tried, try_unit
from koordpy.planning.figures import Figures, PlannerCache
from koordpy.planning.plan import Proof, Reservation
from koordpy.planning.queue.known_ends import Runtimes
from koordpy.planning.units import Groups, Unit
from koordpy.planning.victims.search import Preemptor

NO_PROMISE = "no start can be promised: too few running pods say when they end"


def moment(seconds: float) -> str:
    """`2026-01-01T02:00:00Z`, rounded up to a whole second: a promise is not kept a moment late."""
    whole = -int(-seconds // 1)
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class _Held:
    """A reservation as later units of the round meet it."""

    unit: Unit
    start: float
    nodes: Mapping[str, int]
    """Pod key -> node position."""
    figures: Figures
    """The round's, with the reserved room that no pod leaves until then taken off."""
    lacking: Ints
    """[nodes, resources] what the reservation takes of a node beyond what pods will have left there by then; negative
    where they leave more."""


class Backfill:
    """The attempts of one round. `attempt` stands in for `try_unit`."""

    def __init__(
        self,
        groups: Groups,
        figures: Figures,
        cache: PlannerCache | None,
        *,
        due: Callable[[Unit], bool],
        search: Preemptor | None = None,
    ) -> None:
        """due: whether the round may place a unit; others are looked at only as far as they hold room.

        search: where units may look for victims, until something is reserved; None where nobody is evicted.
        """
        self._search = search
        self._groups, self._figures, self._cache, self._due = groups, figures, cache, due
        self.runtimes = Runtimes(figures.snapshot)
        self._head = False
        """Whether the first unit that lacks room has been met."""
        self._held: _Held | None = None
        self._told: dict[str, str] = {}
        """Unit -> remark of those that are kept from reserved room."""
        self._known: list[tuple[float, PodInfo]] | None = None

    @property
    def reservation(self) -> Reservation | None:
        """The round's reservation."""
        held = self._held
        if held is None:
            return None
        names = {key: self._figures.snapshot.nodes[node].name for key, node in held.nodes.items()}
        return Reservation(held.unit.id, held.start, names, dict(self._told))

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
            outcome = try_unit(unit, self._groups, self._figures, self._search)
            if self._head or not _lacks_room(outcome):
                return outcome
            found = self._earliest(unit)
            self._head = found is not None or bool(self._at(unit, inf).nodes)
            if found is not None:
                self._reserve(unit, *found)
                return replace(outcome, remark=f"start promised at {moment(found[0])}")
            return replace(outcome, remark=NO_PROMISE) if self._head else outcome
        return self._beside(unit, self._held)

    # -- the reservation ----------------------------------------------------------------------------------------------

    def _at(self, unit: Unit, end: float) -> Tried:
        """The unit's attempt once every pod that ends by then has ended; infinite: every pod but its own."""
        snapshot, main = self._figures.snapshot, self._figures.draft
        draft = Draft(snapshot)
        own = {pod.key for pod in unit.members}
        gone = dict(main.evicted)
        if end == inf:
            gone.update((key, pod) for key, pod in snapshot.pods.items() if pod.bound)
        else:
            gone.update((pod.key, pod) for when, pod in self._ends if when <= end)
            for key, node in main.placed.items():
                if self._placed_end(key) > end:
                    _copy(snapshot.pods[key], node, main, draft)
            draft.used += _kept_back(main)
        for key, pod in gone.items():
            if key not in own:
                draft.evict(pod)
        return try_unit(unit, self._groups, Figures(draft, self._figures.config, self._cache))

    @property
    def _ends(self) -> list[tuple[float, PodInfo]]:
        """(end, pod) of the running pods whose end is known, the earliest first."""
        if self._known is None:
            self._known = self.runtimes.known(self._figures.snapshot.pods.values())
        return self._known

    def _placed_end(self, key: str) -> float:
        """End of a pod that this round has placed."""
        pod = self._figures.snapshot.pods[key]
        unit = Unit(id=key, gangs=(), plain=pod) if pod.gang is None else self._groups.unit(pod.gang)
        return self.runtimes.end_from_now(unit)

    def _reserve(self, unit: Unit, start: float, nodes: Mapping[str, int]) -> None:
        snapshot, main = self._figures.snapshot, self._figures.draft
        lacking = np.zeros_like(snapshot.allocatable)
        for key, node in nodes.items():
            _add(lacking[node], snapshot.pods[key], snapshot.columns, 1)
        own = {pod.key for pod in unit.members}
        for end, pod in self._ends:
            node = snapshot.index.get(pod.node, -1)
            if end <= start and node >= 0 and pod.key not in own and pod.key not in main.evicted:
                _add(lacking[node], pod, snapshot.columns, -1)
        draft = Draft(snapshot)
        for pod in main.evicted.values():
            draft.evict(pod)
        for key, node in main.placed.items():
            if self._placed_end(key) <= start:
                _add(lacking[node], snapshot.pods[key], snapshot.columns, -1)
            _copy(snapshot.pods[key], node, main, draft)
        draft.used += _kept_back(main)
        reserved = np.unique(np.array(sorted(nodes.values()), dtype=np.int64))
        others = np.ones(len(lacking), dtype=bool)
        others[reserved] = False
        lacking[others] = 0
        draft.used += np.maximum(lacking, 0)
        figures = Figures(draft, self._figures.config, self._cache)
        figures.promises.keep(self._figures.promises.awaited)
        self._held = _Held(unit, start, nodes, figures, lacking)

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

    def _ends_in_time(self, unit: Unit, held: _Held) -> bool:
        return self.runtimes.end_from_now(unit) <= held.start

    def _beside(self, unit: Unit, held: _Held) -> Tried:
        in_time = self._ends_in_time(unit, held)
        figures = self._figures if in_time else held.figures
        mark = figures.draft.mark()
        # a search of its own: victims are those of the draft that it is tried on, and as it is now
        search = Preemptor(self._groups, figures, self._search.ways) if self._search is not None else None
        outcome = try_unit(unit, self._groups, figures, search)
        if outcome.nodes:
            if not in_time and self._disturbs(outcome, held):
                figures.draft.undo(mark)
                text = f"it would keep {held.unit.title} from its promised start at {moment(held.start)}"
                self._told[unit.id] = text
                return Tried(unit, Proof.INFEASIBLE, remark=text, figures=figures)
            self._both(outcome, figures.draft, held, in_time=in_time)
            return outcome
        if in_time or not _lacks_room(outcome):
            return outcome
        remark = self._kept(unit, held)
        if remark:
            self._told[unit.id] = remark
        return replace(outcome, figures=held.figures, remark=remark)

    def _both(self, outcome: Tried, made: Draft, held: _Held, *, in_time: bool) -> None:
        """Carries a placement and its victims over to the other draft.

        The room of a pod that ends in time is left again by then; that of a victim that would have ended by then is
        there now, and will not come a second time.
        """
        snapshot = self._figures.snapshot
        other = held.figures.draft if in_time else self._figures.draft
        ends = {pod.key: end for end, pod in self._ends} if outcome.victims else {}
        for pod in (pod for victim in outcome.victims for pod in victim.unit.pods):
            if ends.get(pod.key, inf) <= held.start:
                self._leave(held, pod, snapshot.index.get(pod.node, -1), 1)
            other.evict(pod)
        for key, node in (outcome.nodes or {}).items():
            pod = snapshot.pods[key]
            if in_time:
                self._leave(held, pod, node, -1)
            _copy(pod, node, made, other)
        if outcome.victims:
            held.figures.forget()

    def _leave(self, held: _Held, pod: PodInfo, node: int, sign: int) -> None:
        """What pods leave of a reserved node by the start changes by one pod: what is taken off follows."""
        if node not in held.nodes.values():
            return
        before = np.maximum(held.lacking[node], 0)
        _add(held.lacking[node], pod, self._figures.snapshot.columns, sign)
        held.figures.draft.used[node] += np.maximum(held.lacking[node], 0) - before

    def _disturbs(self, outcome: Tried, held: _Held) -> bool:
        """Whether pods that stay keep the reserved unit from its start by more than the room they take."""
        draft, nodes = held.figures.draft, outcome.nodes or {}
        plain = not any(self._figures.snapshot.pods[key].ties or key in draft.chips for key in nodes)
        plain = plain and not outcome.victims
        plain = plain and not any(draft.allocations(key) or draft.claims(key) for key in nodes)
        if plain and not any(self._figures.of(pod).follows for pod in held.unit.pending):
            return False
        mark = self._figures.draft.mark()
        for victim in outcome.victims:
            for pod in victim.unit.pods:
                self._figures.draft.evict(pod)
        for key, node in nodes.items():
            _copy(self._figures.snapshot.pods[key], node, draft, self._figures.draft)
        tried = self._at(held.unit, held.start)
        self._figures.draft.undo(mark)
        return not tried.nodes

    def _kept(self, unit: Unit, held: _Held) -> str:
        """How many nodes a unit finds smaller for the reservation; empty where it is none."""
        smaller = np.zeros(len(self._figures.snapshot.nodes), dtype=bool)
        for pod in {pod.shape: pod for pod in unit.pending}.values():
            smaller |= self._figures.of(pod).slots > held.figures.of(pod).slots
        count = int(smaller.sum())
        if not count:
            return ""
        return f"room on {counted(count, 'node')} is reserved for {held.unit.title} until {moment(held.start)}"


def _kept_back(draft: Draft) -> Ints:
    """[nodes, resources] what counts as used on a draft beside pods: nodes held for a starving unit."""
    snapshot = draft.snapshot
    out = draft.used - snapshot.used
    for key, node in draft.placed.items():
        _add(out[node], snapshot.pods[key], snapshot.columns, -1)
    for pod in draft.evicted.values():
        node = snapshot.index.get(pod.node, -1)
        if node >= 0:
            _add(out[node], pod, snapshot.columns, 1)
    return np.asarray(out)


def _lacks_room(outcome: Tried) -> bool:
    """Proven not to fit: not held by a gate or a quota, nor refused by the check, nor undecided."""
    return outcome.lacks_room and outcome.proof is Proof.INFEASIBLE


def _add(row: Ints, pod: PodInfo, columns: Mapping[str, int], sign: int) -> None:
    row[0] += sign
    for name, amount in pod.requests.items():
        row[columns[name]] += sign * amount


def _copy(pod: PodInfo, node: int, made: Draft, into: Draft) -> None:
    """Places a pod on another draft as it was placed on the first."""
    into.assign(pod, node, made.claims(pod.key), made.allocations(pod.key), made.chips.get(pod.key, ()))
