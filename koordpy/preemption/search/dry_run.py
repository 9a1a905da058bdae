# SPDX-License-Identifier: Apache-2.0
"""The dry run of a set of victims: evicts them from the draft, places the preemptor with all filters, and undoes both.

Source: docs/rules/preemption.md 5 and 6. If the preemptor does not fit, the dry run also finds the reason: nodes that
need one more eviction (`overfull`), or nodes on which no pod of the preemptor is allowed (`closed_places`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from koordpy.devices.family_registry import allocate, is_counted, is_refused
from koordpy.devices.rule_registry import place_members, rules_decide
from koordpy.feasibility.round_state import RoundState
from koordpy.placement.problem import Problem, at_most, only_ranks
from koordpy.plan.round_plan import Proof
from koordpy.pods.family_books import NO_DEVICES
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.preemption_plan import Notes
from koordpy.preemption.search.preemptor_sets import PreemptorSet
from koordpy.preemption.search.relocation import Back, Returning
from koordpy.preemption.search.victim_pool import Pool
from koordpy.preemption.selection.victim_choice import Layout, Load
from koordpy.problems.problem_building import build
from koordpy.problems.unit_placement import Question, fits_somewhere, place_unit

Places = Mapping[tuple[int, int], int]
"""(shape of the preemptors' problem, node position) -> number of pods."""


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """Result of one dry run: the placement of the members, or no placement."""

    nodes: Mapping[int, int] = field(default_factory=dict)
    """Rank of a member -> node position, with the victims evicted; empty if the members do not fit."""
    notes: Notes = field(default_factory=dict)
    """Pod key -> annotations of the member's Binding."""
    back: tuple[Back, ...] = ()
    """Moved pods with their new nodes; empty if victims are evicted."""
    sure: bool = True
    """If no placement was found: True if this is proven, False if the members may fit. Without meaning after a
    success."""


class DryRun:
    """Dry runs for one preemptor set. Units are given as positions in the pool."""

    def __init__(self, preemptors: PreemptorSet, pool: Pool, round_state: RoundState) -> None:
        self.preemptors, self.pool, self.round_state = preemptors, pool, round_state

    @contextmanager
    def without_units(self, units: Sequence[int]) -> Iterator[None]:
        """Within the context, the given units are evicted from the draft."""
        # `no_good_set` ignores limits between units, so `units` may contain the core of a gang and some of its surplus
        with self.round_state.draft.trial(without=(pod for i in units for pod in self.pool.units[i].pods)):
            yield

    def place(self, units: Sequence[int], places: Places | None = None, share: float = 1.0) -> DryRunResult:
        """Evicts the given units, and returns the placement of the members.

        places: the only (shape, node) pairs that are tried; None for all. share: time limit, as a fraction of the time
        limit of an ordinary placement.
        """
        with self.without_units(units):
            return self._place(places, share)

    def fits(self, units: Sequence[int], share: float = 1.0) -> bool:
        """Returns True if the members fit once the given units are evicted. share: as for `place`."""
        unit, round_state = self.preemptors.unit, self.round_state
        if not is_counted(self.preemptors.pods, round_state.inputs) or rules_decide(unit, round_state):
            return bool(self.place(units).nodes)
        with self.without_units(units):
            found = fits_somewhere(unit, self._preemptor_problem(share), round_state)
            return bool(self._place().nodes) if found is None else found

    def place_and_return(self, units: Sequence[int], layout: Layout) -> DryRunResult:
        """Evicts the given units, and returns the nodes of the members and the new nodes of the units, which are moved.

        First the members get their best placement, without regard to the moved pods. If the moved pods do not fit
        beside it, the placement of `layout` is tried, in which the solver has also placed the moved pods.
        """
        with self.without_units(units):
            sure = True
            for places in (None, layout.places) if layout.places else (None,):
                found = self._place(places)
                sure &= found.sure
                if not found.nodes:
                    # without a layout: the members do not fit even before the units are placed again, which is a proof.
                    # With a layout: other layouts were not tried
                    sure &= places is None
                    break
                with self.round_state.draft.trial():
                    back = self._place_moved(found.nodes, units, layout)
                if back is not None:
                    return DryRunResult(found.nodes, found.notes, tuple(back))
            else:
                # the sums allow it, but not every choice of devices and their links was tried
                sure = False
            return DryRunResult(sure=sure)

    def _place(self, places: Places | None = None, share: float = 1.0) -> DryRunResult:
        """Returns the placement of the members on the draft as it is now. places, share: as for `place`."""
        # first by the rules of a device family, if one applies; else by the ordinary placement
        preemptors, round_state = self.preemptors, self.round_state
        unit = preemptors.unit
        own = place_members(unit, [pod.key for pod in preemptors.pods], round_state)
        if own is not None:
            return DryRunResult(
                {rank: own.nodes[pod.key] for rank, pod in enumerate(unit.members) if pod.key in own.nodes}, own.notes
            )
        problem = self._preemptor_problem(share)
        if places is not None:
            problem = _within(problem, preemptors.problem, places)
        found = place_unit(unit, problem, round_state, Question.TRIAL)
        if len(found.nodes) < len(problem.pending):
            return DryRunResult(sure=found.proof is not Proof.UNKNOWN)
        if is_refused({unit.members[rank].key: node for rank, node in found.nodes.items()}, round_state):
            # each member may find enough devices and links, but not all of them together
            return DryRunResult(sure=False)
        return DryRunResult(dict(found.nodes))

    def _place_moved(self, nodes: Mapping[int, int], units: Sequence[int], moved: Layout) -> list[Back] | None:
        """Returns the new nodes of moved units beside the preemptor; None if a unit does not fit.

        nodes: rank -> node of the members. units: the moved units. moved: the solver's layout, with the planned nodes
        of moved pods.
        """
        draft, round_state = self.round_state.draft, self.round_state
        seats = {self.preemptors.unit.members[rank].key: node for rank, node in sorted(nodes.items())}
        allocation = allocate(seats, round_state)
        if allocation.faults:
            return None
        for key, node in seats.items():
            draft.assign(round_state.snapshot.pods[key], node, devices=allocation.devices.get(key, NO_DEVICES))
        back = Returning(round_state, planned=moved.returns, devices=self.preemptors.devices.families)
        return back.place([self.pool.units[i] for i in units])

    # --- reasons of a failure -----------------------------------------------------------------------------------------

    def overfull(
        self, units: Sequence[int], places: Places, among: Sequence[int]
    ) -> list[tuple[Load, tuple[int, ...]]]:
        """Returns the nodes that cannot take the new pods which the solver placed there (`places`).

        Each entry is (part of the node's load, units of `among`). The part is a smallest one that is still rejected. At
        least one of the units must be evicted before the node takes it. Only valid if more evictions never close a
        node.
        """
        out = []
        with self.without_units(units):
            now = self._current_shapes()
            if now is None:
                return []
            loads: dict[int, dict[int, int]] = {}
            for (shape, node), pods in places.items():
                loads.setdefault(node, {})[shape] = pods
            for node, load in loads.items():
                if self._can_take(node, load, now):
                    continue
                least = self._smallest_rejected(node, load, now)
                rest = [i for i in among if i not in units and self._may_close(i, node)]
                needed = self._required_units(node, least, now, rest)
                out.append((Load(node, tuple(sorted(least.items()))), needed))
        return out

    def closed_places(self, units: Sequence[int], places: Places) -> tuple[tuple[int, int], ...]:
        """Returns the (shape, node) keys of `places` for which the filters allow no pod once the given units are
        evicted."""
        problem = self.preemptors.problem
        with self.without_units(units):
            whole = self._current_problem()
            now = {problem.members[rank].shape: whole.members[rank].shape for rank in problem.pending}
            return tuple(place for place in places if not whole.shapes[now[place[0]]].allowed[place[1]])

    def opens(self, units: Sequence[int], problem: Problem) -> bool:
        """Returns True if evicting the given units allows members on nodes that `problem` forbids."""
        with self.without_units(units):
            whole, now = self._current_problem(), self._current_shapes()
            return now is None or any(
                bool(((whole.shapes[to].allowed > 0) & (problem.shapes[of].allowed == 0)).any())
                for of, to in now.items()
            )

    def _current_shapes(self) -> dict[int, int] | None:
        """Returns shape of the preemptors' problem -> shape in the problem that is built on the current draft.

        None if, because of the evictions, members of one shape now have different shapes.
        """
        whole, problem = self._current_problem(), self.preemptors.problem
        out: dict[int, int] = {}
        for rank in problem.pending:
            if out.setdefault(problem.members[rank].shape, whole.members[rank].shape) != whole.members[rank].shape:
                return None
        return out

    def _current_problem(self) -> Problem:
        """Returns the placement problem of the preemptors' unit, built on the current draft."""
        return build(self.preemptors.unit, self.round_state)

    def _preemptor_problem(self, share: float = 1.0) -> Problem:
        """Returns the preemptors' problem, built on the current draft. share: as for `place`."""
        problem = only_ranks(self._current_problem(), set(self.preemptors.problem.pending))
        return replace(problem, deterministic_time=problem.deterministic_time * share)

    def _can_take(self, node: int, load: Mapping[int, int], now: Mapping[int, int]) -> bool:
        """Returns True if a node takes a load, by its filters and by sums of requests.

        load: shape of the preemptors' problem -> number of pods. now: result of `_current_shapes`.
        """
        whole = self._current_problem()
        requested: dict[int, int] = {}
        for shape, pods in load.items():
            own = whole.shapes[now[shape]]
            if not own.allowed[node]:
                return False
            for column, amount in own.request:
                requested[column] = requested.get(column, 0) + pods * amount
        return all(amount <= whole.free[node, column] for column, amount in requested.items())

    def _smallest_rejected(self, node: int, load: Mapping[int, int], now: Mapping[int, int]) -> dict[int, int]:
        """Returns a smallest part of a load that the node rejects: with one pod less of any shape, it is accepted."""
        least = dict(load)
        for shape in load:
            while least[shape] > 0:
                fewer = {**least, shape: least[shape] - 1}
                if self._can_take(node, {s: pods for s, pods in fewer.items() if pods}, now):
                    break
                least = fewer
        return {shape: pods for shape, pods in least.items() if pods}

    def _required_units(
        self, node: int, load: Mapping[int, int], now: Mapping[int, int], rest: Sequence[int]
    ) -> tuple[int, ...]:
        """Returns units of `rest`. At least one of them must be evicted before a node takes a load.

        It evicts the other units of `rest` from the draft one after another, as long as the load is still rejected.
        """
        draft = self.round_state.draft
        needed = []
        for i in rest:
            mark = draft.mark()
            draft.evict_all(self.pool.units[i].pods)
            if (own := self._current_shapes()) is None or self._can_take(node, load, own):
                draft.undo(mark)
                needed.append(i)
        return tuple(needed)

    def _may_close(self, i: int, node: int) -> bool:
        """Returns True if a unit may be a reason why a node is closed: it has pods there, or affinity or spread depends
        on it."""
        unit = self.pool.units[i]
        if any(at == node for at, _ in self.pool.free_of(i)):
            return True
        index = self.round_state.snapshot.index
        wide = [own for pod in self._kinds() if (own := self.round_state.of(pod)).pulled]
        return any(own.looks_at(pod, index[pod.node]) for own in wide for pod in unit.pods if pod.node in index)

    def _kinds(self) -> list[PodInfo]:
        """Returns one pod of each shape of the preemptors."""
        return list({pod.shape: pod for pod in self.preemptors.pods}.values())


def _within(problem: Problem, wanted: Problem, places: Places) -> Problem:
    """Returns a problem that allows at most the pods of `places` on each node.

    wanted: the preemptors' problem, to which `places` refers; shapes may have other numbers in `problem`.
    """
    shapes = dict.fromkeys((wanted.members[rank].shape, problem.members[rank].shape) for rank in wanted.pending)
    most: dict[int, dict[int, int]] = {}
    for was, now in shapes:
        here = most.setdefault(now, {})
        for (shape, node), pods in places.items():
            if shape == was:
                here[node] = here.get(node, 0) + pods
    return at_most(problem, most)
