# SPDX-License-Identifier: Apache-2.0
"""Consolidation: moves running units so that a preemptor fits, and places all of them again in the same plan.

To move a pod is to evict it; its controller recreates it, and the scheduler binds the new pod to the planned node. All
moved pods must have new nodes before any pod is evicted. The planner's placement finds the nodes, and the draft
reserves the capacity and the devices there. Off by default (docs/rules/preemption.md 3.4). Four kinds of pods are not
moved: pods with constraints on other pods (affinity, spread, ports, volumes), pods of a gang below its minimum, pods
that share devices with a pod that does not move, and pods that a gate or quota would block once they are pending,
because they would get no node.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec.structs import replace as changed

from koordpy.api.keys import SYSTEM_PRIORITY_FLOOR
from koordpy.cache.snapshot import Ints
from koordpy.devices.family_registry import requested_devices_of
from koordpy.devices.move_registry import moved_together, returning_devices
from koordpy.devices.rule_registry import deal_returning, device_gate, place_returning
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.gathered_parts import has_parts
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import gate
from koordpy.placement.problem import Problem, at_most, without_nodes
from koordpy.plan.limits import MOVES, RETURN_TRIES
from koordpy.pods.family_books import NO_DEVICES, AllocatedDevices
from koordpy.pods.pod_info import PodInfo, pod_info
from koordpy.preemption.rules.entitlement import wants_to_stay
from koordpy.preemption.search.victim_pool import Mask, Pool
from koordpy.preemption.selection.victim_choice import Limit, MovedKind, Rejoin, Return
from koordpy.preemption.selection.victim_units import UnitKind, VictimUnit
from koordpy.problems.problem_building import build, hard_keys, hard_level, unit_multiples
from koordpy.problems.unit_placement import Question, place_unit


@dataclass(frozen=True, slots=True)
class Back:
    """A moved pod as it will be recreated (`pod`, pending), and the position of its new node (`node`)."""

    pod: PodInfo
    node: int
    devices: AllocatedDevices = field(default_factory=lambda: NO_DEVICES)
    """Devices on the new node that are reserved for the pod."""


def as_pending(pod: PodInfo, round_state: RoundState) -> PodInfo:
    """Returns the pod as its controller recreates it: pending, without a node, otherwise equal."""
    wire = pod.pod
    fresh = changed(wire, spec=changed(wire.spec, node_name=""))
    snapshot = round_state.snapshot
    names, looked_for = snapshot.scheduler_names, snapshot.looked_for
    info = pod_info(fresh, scheduler_names=names, looked_for=looked_for, readers=snapshot.readers)
    return changed(info, owner=pod.owner, claimed=pod.claimed)


def movable(pool: Pool, free: Mask, round_state: RoundState, *, priority: int) -> Mask:
    """Returns [units]: the units of `free` that may be moved for a preemptor.

    priority: of the preemptor; units of higher priority are not moved. If movable pods times nodes exceed `MOVES`, the
    expensive checks are left out, and the result is a superset: the search refuses such a number anyway.
    """
    every = free & pool.evictable & (pool.priority <= priority)
    out, pods = every.copy(), 0
    for i in np.nonzero(every)[0].tolist():
        unit = pool.units[i]
        fixed = unit.kind is UnitKind.BROKEN or pool.foreign(i) or any(map(round_state.depends_on_pods, unit.pods))
        if not fixed and priority < SYSTEM_PRIORITY_FLOOR:
            fixed = any(wants_to_stay(pod, round_state.snapshot) for pod in unit.pods)
        out[i] = not fixed and not _is_blocked_when_pending(unit, round_state)
        pods += len(unit.pods) if out[i] else 0
        if pods * len(round_state.snapshot.nodes) > MOVES:
            return every
    return _that_move_together(pool, out, round_state)


def _that_move_together(pool: Pool, some: Mask, round_state: RoundState) -> Mask:
    """Returns [units]: the units of `some` without those that share devices with a pod that none of the units has."""
    out, units = some.copy(), pool.units
    beside: dict[int, frozenset[str]] = {}
    for i in np.nonzero(some)[0].tolist():
        found = moved_together(units[i].pods, round_state.draft)
        if found is None:
            out[i] = False
        elif found:
            beside[i] = found
    left = beside
    while left:
        movable_uids = {pod.uid for i in beside if out[i] for pod in units[i].pods}
        left = {i: uids for i, uids in beside.items() if out[i] and not uids <= movable_uids}
        out[list(left)] = False
    return out


def companions(
    units: Mapping[int, VictimUnit], options: Mapping[int, Sequence[int]], round_state: RoundState
) -> Iterator[Limit]:
    """Yields the limits that let units with shared devices move only together.

    units: position in the pool -> unit. options: position in the pool -> options of the unit.
    """
    beside = {i: found for i, unit in units.items() if (found := moved_together(unit.pods, round_state.draft))}
    by_uid: dict[str, list[int]] = {}
    for i in beside:
        for pod in units[i].pods:
            by_uid.setdefault(pod.uid, []).append(i)
    for i, uids in beside.items():
        for uid in sorted(uids - {pod.uid for pod in units[i].pods}):
            terms = tuple((o, 1) for other in by_uid.get(uid, ()) for o in options[other])
            yield Limit(terms, least=1, when=tuple(options[i]))


def _is_blocked_when_pending(moved: VictimUnit, round_state: RoundState) -> bool:
    """Returns True if a gate or a quota would block the pods of a unit once they are pending, so that they get no node.

    Quotas block pods in a parent quota, and pods below an unreadable quota.
    """
    quotas = round_state.snapshot.quotas
    own = [quotas.quota_of(pod) for pod in moved.pods]
    if any((quota := quotas.tree.quotas.get(name)) is not None and quota.is_parent for name in own):
        return True
    if any(quotas.tree.closed(name) for name in own):
        return True
    first, again = moved.pods[0], {pod.key: as_pending(pod, round_state) for pod in moved.pods}
    if first.gang is None:
        return device_gate(Unit(id=first.key, gangs=(), plain=again[first.key]), round_state) is not None
    unit = round_state.groups.unit(first.gang).with_changes(lambda pod: again.get(pod.key, pod))
    if has_parts(unit):  # a placement of only some members would ignore the constraints between parts of the gang
        return True
    return gate(unit, round_state.groups) is not None or device_gate(unit, round_state) is not None


def returns_of(
    unit: VictimUnit,
    round_state: RoundState,
    *,
    devices: Mapping[str, int],
    counted: Mapping[str, tuple[tuple[int, int], ...]],
) -> tuple[Return, ...]:
    """Returns the pods of a unit that must be placed again if the unit is moved: their number per kind of pod.

    devices: device family -> column of the problem. counted: pod key -> further (column, amount) of its request.
    """
    number = Counter[MovedKind]()
    for pod in unit.pods:
        kind = kind_of(as_pending(pod, round_state), unit.group, round_state, devices=devices)
        more = counted.get(pod.key, ())
        number[replace(kind, request=(*kind.request, *more)) if more else kind] += 1
    return tuple(Return(pods, kind) for kind, pods in number.items())


def rejoins_of(units: Mapping[int, VictimUnit], round_state: RoundState) -> tuple[Rejoin, ...]:
    """Returns constraints on the nodes of gang members after a move, one `Rejoin` for each GangGroup with a moved unit.

    The members must share a domain of their hard layer. They must also share a domain of the lowest layer that they
    share now, or of a lower layer. units: position of a unit in the choice -> unit.
    """
    taking: dict[str, list[int]] = {}
    for number, unit in units.items():
        for pod in unit.pods:
            taking.setdefault(pod.key, []).append(number)
    out: dict[str, Rejoin] = {}
    tree, index = round_state.snapshot.tree, round_state.snapshot.index
    for moved in units.values():
        first = moved.pods[0]
        if first.gang is None or moved.group in out:
            continue
        whole = round_state.groups.unit(first.gang)
        at = [(index[pod.node], pod.key) for pod in whole.members if pod.bound and pod.node in index]
        level = max(tree.lowest_common([node for node, _ in at])[0], hard_level(whole, round_state))
        common = [tree.domain_of[level]] if level else []
        common += [_values(key, round_state) for key in hard_keys(whole)]
        multiples = tuple((tree.domain_of[number], k) for number, k in unit_multiples(whole, round_state).items())
        if common or multiples:
            members = tuple((node, tuple(taking.get(key, ()))) for node, key in at)
            out[moved.group] = Rejoin(moved.group, members, tuple(common), multiples)
    return tuple(out.values())


def _values(key: str, round_state: RoundState) -> Ints:
    """Returns [nodes]: the value of a label as a number; nodes with equal values have equal numbers; -1 without the
    label."""
    known: dict[str, int] = {}
    values = (node.labels.get(key) for node in round_state.snapshot.nodes)
    return np.array([known.setdefault(value, len(known)) if value else -1 for value in values], dtype=np.int64)


def kind_of(again: PodInfo, group: str, round_state: RoundState, *, devices: Mapping[str, int]) -> MovedKind:
    """Returns the kind of a recreated pod: its requests, the nodes that accept it, and its GangGroup.

    group: id of the GangGroup; empty for a plain pod. devices: device family -> column of the problem.
    """
    own = round_state.of(again)
    found = ((column, requested_devices_of(again, family)) for family, column in devices.items())
    cards = tuple((column, number) for column, number in found if number)
    nodes = np.nonzero(own.static.before.fits)[0].tolist() if own.refusal is None else ()
    return MovedKind((*own.request, *cards), tuple(nodes), group)


class Returning:
    """Places moved units again on the draft.

    planned: the solver's placement of moved pods, which is tried first: kind of pods -> node -> number of pods; may be
    empty. devices: device family -> column of the problem.
    """

    def __init__(
        self, round_state: RoundState, *, planned: Mapping[MovedKind, Mapping[int, int]], devices: Mapping[str, int]
    ) -> None:
        self._round_state, self._devices = round_state, devices
        self._planned: dict[MovedKind, dict[int, int]] = {}
        for kind, nodes in planned.items():
            own = self._planned.setdefault(self._without_counts(kind), {})
            for node, pods in nodes.items():
                own[node] = own.get(node, 0) + pods

    def _without_counts(self, kind: MovedKind) -> MovedKind:
        """Returns a kind without the columns that only the choice of moves has (`returns_of`)."""
        width, own = self._round_state.draft.used.shape[1], set(self._devices.values())
        return replace(kind, request=tuple(one for one in kind.request if one[0] < width or one[0] in own))

    def place(self, chosen: Sequence[VictimUnit]) -> list[Back] | None:
        """Places every moved unit again on the draft, the largest unit first.

        Returns the moved pods with their new nodes. Returns None if a unit does not fit, or if the lowest common layer
        of a gang would be higher than before. Expects a draft with the units evicted and the preemptor placed. The new
        placements stay on the draft.
        """
        draft, order = self._round_state.draft, _joined_by_group(chosen)
        order.sort(key=lambda unit: (-unit.devices, -len(unit.pods), unit.importance))
        if not order:
            return []  # the members fit without a move
        # the amounts that decide which unit is the largest do not count all devices: a unit that fails comes first then
        for _ in range(len(order)):
            mark, planned = draft.mark(), {kind: dict(nodes) for kind, nodes in self._planned.items()}
            out, failed = self._place_in_order(order)
            if failed is None:
                return out
            draft.undo(mark)
            self._planned = planned
            if failed is order[0] or not any(map(self._round_state.concerned, failed.pods)):
                break
            order.remove(failed)
            order.insert(0, failed)
        return None

    def _place_in_order(self, order: Sequence[VictimUnit]) -> tuple[list[Back], VictimUnit | None]:
        """Places moved units one after another; returns (the moved pods, the unit that does not fit or None)."""
        round_state, out = self._round_state, list[Back]()
        tree, index = round_state.snapshot.tree, round_state.snapshot.index
        for moved in order:
            again = {pod.key: as_pending(pod, round_state) for pod in moved.pods}
            unit, before = _unit(moved, again, round_state)
            back = self._unit_back(unit, again, moved.group)
            at = [one.node for one in back or ()]
            at += [index[pod.node] for pod in unit.members if pod.bound and pod.node in index]
            if back is None or tree.lowest_common(at)[0] < before:
                return out, moved
            out += back
        return out, None

    def _unit_back(self, unit: Unit, again: Mapping[str, PodInfo], group: str) -> list[Back] | None:
        """Places one moved unit: first jobs that a device family places by its rules, then other pods.

        again: pod key -> recreated pod. group: id of the GangGroup. Returns None if a pod gets no node.
        """
        round_state = self._round_state
        out: list[Back] = []
        left = dict(again)
        for pods, nodes in place_returning(tuple(again.values()), round_state):
            back, _ = self._assign_returning(pods, nodes)
            if back is None:
                return None
            out += back
            for pod in pods:
                del left[pod.key]
        if left:
            names = round_state.snapshot.nodes
            placed_unit = unit.with_bound({one.pod.key: names[one.node].name for one in out})
            back = self._place_again(placed_unit, left, group)
            if back is None:
                return None
            out += back
        return out

    def _assign_returning(
        self, pods: Sequence[PodInfo], nodes: Mapping[str, int]
    ) -> tuple[list[Back] | None, frozenset[int]]:
        """Assigns pods to their new nodes on the draft.

        Returns (the moved pods, nodes that lack devices for their pods). The moved pods are None, and nothing is
        assigned, if a pod has no node, or not enough devices there.
        """
        round_state = self._round_state
        if len(nodes) < len(pods):
            return None, frozenset()
        places = [(pod, nodes[pod.key]) for pod in pods]
        dealt, own = deal_returning(places, round_state), returning_devices(places, round_state)
        if dealt is None or own.lacking:
            return None, own.lacking
        given = {key: {**dealt.get(key, NO_DEVICES), **own.devices.get(key, NO_DEVICES)} for key in nodes}
        out = [Back(pod, node, given[pod.key]) for pod, node in places]
        for one in out:
            round_state.draft.assign(one.pod, one.node, devices=one.devices)
        return out, frozenset()

    def _place_again(self, unit: Unit, again: Mapping[str, PodInfo], group: str) -> list[Back] | None:
        """Places pods by the planner's placement, if possible on the planned nodes; None if the pods do not fit.

        Each planned pod that is used is subtracted from `_planned`. Nodes that lack devices are left out of the next
        try.
        """
        round_state = self._round_state
        pods = [again[pod.key] for pod in unit.members if pod.key in again]
        if unit.plain is None and any(map(round_state.concerned, pods)):
            # members may limit each other by their devices
            round_state = round_state.of_changed(unit).of_view(round_state.view)
        problem = build(unit, round_state)
        kinds = {key: kind_of(pod, group, round_state, devices=self._devices) for key, pod in again.items()}
        planned = self._within(unit, problem, kinds)
        if planned is not None:
            back, _ = self._assign_returning(pods, _placed(unit, planned, round_state))
            if back is not None:
                for one in back:
                    left = self._planned[kinds[one.pod.key]]
                    left[one.node] = left.get(one.node, 0) - 1
                return back
        for _ in range(RETURN_TRIES):
            back, lacking = self._assign_returning(pods, _placed(unit, problem, round_state))
            if back is not None or not lacking:
                return back
            problem = without_nodes(problem, lacking)
        return None

    def _within(self, unit: Unit, problem: Problem, kinds: Mapping[str, MovedKind]) -> Problem | None:
        """Returns the problem restricted to the planned nodes; None if nothing is planned."""
        if not all(self._planned.get(kind) for kind in kinds.values()):
            return None
        coming: dict[int, dict[MovedKind, None]] = {}
        for member, pod in zip(problem.members, unit.members, strict=True):
            if pod.key in kinds:
                coming.setdefault(member.shape, {})[kinds[pod.key]] = None
        most: dict[int, dict[int, int]] = {}
        for shape, own in coming.items():
            number = Counter[int]()
            for kind in own:
                number.update({node: pods for node, pods in self._planned[kind].items() if pods > 0})
            most[shape] = dict(number)
        return at_most(problem, most)


def _joined_by_group(chosen: Sequence[VictimUnit]) -> list[VictimUnit]:
    """Joins the units of one GangGroup, because the new nodes of the group's members depend on each other."""
    alone = [unit for unit in chosen if not unit.group]
    groups: dict[str, list[VictimUnit]] = {}
    for unit in chosen:
        if unit.group:
            groups.setdefault(unit.group, []).append(unit)
    for units in groups.values():
        pods = tuple(pod for unit in units for pod in unit.pods)
        alone.append(units[0] if len(units) == 1 else changed(units[0], pods=pods))
    return alone


def _placed(unit: Unit, problem: Problem, round_state: RoundState) -> dict[str, int]:
    """Returns pod key -> node of the pending members; empty if they do not fit."""
    found = place_unit(unit, problem, round_state, Question.TRIAL)
    return {unit.members[rank].key: node for rank, node in found.nodes.items()}


def _unit(moved: VictimUnit, again: dict[str, PodInfo], round_state: RoundState) -> tuple[Unit, int]:
    """Returns (the queue unit with its moved pods pending, level of the lowest domain that all members share now).

    The level is 0, the cluster, for a plain pod.
    """
    first = moved.pods[0]
    if first.gang is None:
        return Unit(id=first.key, gangs=(), plain=again[first.key]), 0
    whole = round_state.groups.unit(first.gang)
    index = round_state.snapshot.index
    at = [index[pod.node] for pod in whole.members if pod.bound and pod.node in index]
    unit = whole.with_changes(lambda pod: again.get(pod.key, pod if pod.bound else None))
    return unit, round_state.snapshot.tree.lowest_common(at)[0]
