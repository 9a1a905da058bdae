# SPDX-License-Identifier: Apache-2.0
"""Builds the placement problem of a unit: turns its pods, the nodes and the draft into plain numbers.

Pods with equal results of all filters, scores and rules become one shape. A filter that limits the number of pods on a
node, and each kind of device, becomes a further column of `Problem.free`, like a resource that only this unit requests.
Rules among the members become interactions (`placement/member_interactions.py`). Source: gang-network.md sections 2.1,
4, 5.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import lcm

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.devices.cost_registry import unit_costs
from koordpy.devices.family_registry import PLUGINS, equivalence_key, shared_free_devices
from koordpy.feasibility.pod_equivalence import alike
from koordpy.feasibility.round_state import RoundState
from koordpy.feasibility.scarce_resources import avoided_nodes
from koordpy.framework.pod_rule_filter import ANY_NUMBER
from koordpy.gangs.gathered_parts import GatheredPart, has_parts, parts_of
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_constraints import MemberConstraints
from koordpy.placement.member_interactions import InOneDomain
from koordpy.placement.problem import Allowance, Member, Problem, Shape, slots
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.attraction import attraction

BEYOND_PODS = 2**62
"""A number of pods above that of any cluster, and within 64 bits. Larger multiples are reduced to it."""


def hard_level(unit: Unit, round_state: RoundState) -> int:
    """Returns the lowest level of the tree for which a gang of the unit has MustGather with scope `group`. Levels count
    from the cluster (0) down; 0 without MustGather."""
    layers = round_state.snapshot.tree.layers
    levels = [layers.level(r.layer) or 0 for gang in unit.gangs for r in gang.wish.gather if r.whole]
    return max(levels, default=0)


def unit_multiples(unit: Unit, round_state: RoundState) -> dict[int, int]:
    """Returns level -> podCountMultiple above 1 of the unit.

    If several gangs have multiples for one layer, all must be satisfied, so their least common multiple applies, at
    most `BEYOND_PODS`.
    """
    out: dict[int, int] = {}
    for gang in unit.gangs:
        for rule in gang.wish.gather:
            level = round_state.snapshot.tree.layers.level(rule.layer)
            if rule.multiple > 1 and level is not None:
                known = out.get(level, 1)
                both = lcm(known, rule.multiple)
                out[level] = both if both < BEYOND_PODS else max(known, rule.multiple, BEYOND_PODS)
    return dict(sorted(out.items()))


def bounded_multiples(multiples: dict[int, int], shapes: list[Shape], free: Ints, *, bound: int) -> dict[int, int]:
    """Returns the multiples, with large values reduced, because the solver cannot handle very large numbers.

    All multiples above the number of the unit's pods that the cluster can hold have the same effect: only 0 pods in a
    domain satisfy them. bound: number of members that are not pending.
    """
    if not multiples:
        return multiples
    most = bound + 1 + sum(int(slots(free, shape).sum()) for shape in shapes)
    return {level: min(k, max(2, most)) for level, k in multiples.items()}


def build(unit: Unit, round_state: RoundState, *, emptied: bool = False) -> Problem:
    """Returns the Problem of a unit on the draft of the round state.

    The topology keys of an upstream PodGroup (scheduling.k8s.io) are not applied here, but by `partitions`.

    emptied: True for the search of victims. Then devices that are allocated by name count as available, because
    evictions may free them, and filters do not limit the number of pods of a shape on a node. Only the number of free
    devices counts; the check of the plan verifies which devices the victims really free.
    """
    known = round_state.built
    # a unit that does not fit needs the problem three times: to place it, to search victims, and for its message
    if known is None or known[0] is not unit or known[1] != round_state.moment:
        if emptied:
            return _build(unit, round_state, emptied=True)
        known = round_state.built = unit, round_state.moment, _build(unit, round_state, emptied=False)
    if not emptied:
        return known[2]
    if _has_rules(unit, round_state):
        return _build(unit, round_state, emptied=True)
    return replace(known[2], device_costs=None, already_used=None)


def _has_rules(unit: Unit, round_state: RoundState) -> bool:
    """Returns True if a pending pod has filters that depend on other pods, or on devices by name."""
    return any(round_state.of(pod).has_rules for pod in {pod.shape: pod for pod in unit.pending}.values())


def _build(unit: Unit, round_state: RoundState, *, emptied: bool) -> Problem:
    """Builds the problem without a cache. Arguments as in `build`."""
    snapshot = round_state.snapshot
    goal = unit.has_goal
    # numbers: pod shape -> its index for quotas. keyed: key of a pod -> index in `shapes`. copied: pod shape -> indices
    # in `shapes`, because pods of one pod shape may become several shapes of the problem
    numbers: dict[bytes, int] = {}
    keyed: dict[Hashable, int] = {}
    copied: dict[bytes, list[int]] = {}
    shapes: list[Shape] = []
    members: list[Member] = []
    gangs = {gang.ref: i for i, gang in enumerate(unit.gangs)}
    # free capacity: without capacity that is reserved for other pods, and with the columns of member constraints
    free = round_state.draft.free()
    among = member_constraints_of(unit, round_state)  # constraints between members; None without any
    reserved = round_state.available_to(min(unit.pending, key=lambda pod: pod.priority)) if unit.pending else None
    if reserved is not None:
        free[reserved.positions] -= reserved.reserved
    first = free.shape[1]
    if among is not None:
        free = np.concatenate([free, among.capacity], axis=1)
    # further columns of `free`, each [nodes]: free devices of families with shared devices, then limits of filters
    copies: list[Ints] = []
    shared_copies: dict[Hashable, int] = {}  # `Rule.capacity_key` -> column
    shared = shared_free_devices(unit.pending, round_state.inputs) if not emptied else []
    for family, room in shared:
        if reserved is not None:
            for i, node in enumerate(reserved.positions.tolist()):
                room[node] -= family.nominated_devices(reserved.requests(i, snapshot.columns), round_state.inputs)
        copies.append(room)
    devices = free.shape[1]
    tied = among is not None and bool(among.ties or among.one_domain)  # True if interactions refer to pod shapes
    parts = tuple(parts_of(unit, snapshot.tree.layers)) if has_parts(unit) else ()
    inside = _parts_of_pods(parts)
    # members in rank order; a new shape for each new key. `lone`: with a single pod, limits by rules about pods of the
    # same shape need no interaction
    kinds: list[PodInfo] = []  # one pod of each shape in `shapes`
    lone = len(unit.pending) == 1 and not emptied
    for pod in unit.members:
        gang = gangs[pod.gang] if pod.gang is not None else 0
        if not pod.pending:
            members.append(Member(gang=gang, shape=-1, node=snapshot.index.get(pod.node, -1)))
            continue
        # pods of equal spec are different shapes if devices or parts distinguish them
        key = (pod.shape, None if tied else equivalence_key(pod), inside.get(pod.key, ()))
        number = keyed.get(key)
        if number is None:
            number = keyed[key] = len(shapes)
            numbers.setdefault(pod.shape, len(numbers))
            copied.setdefault(pod.shape, []).append(number)
            kinds.append(pod)
            own = round_state.of(pod)
            asks = among.asks.get(pod.shape, ()) if among is not None else ()
            request = (*own.request, *((first + column, amount) for column, amount in asks))
            taken = ((devices + i, family.requested_devices(pod)) for i, (family, _) in enumerate(shared))
            request = (*request, *((column, amount) for column, amount in taken if amount))
            for rule in own.rules if not emptied else ():
                capacity = rule.capacity()
                if capacity is not None:
                    column = shared_copies.setdefault(rule.capacity_key() or id(capacity), free.shape[1] + len(copies))
                    request = (*request, (column, 1))
                    if column == free.shape[1] + len(copies):
                        copies.append(capacity)
            if lone and (held_by := own.copies_alone()) is not None:
                request = (*request, (free.shape[1] + len(copies), 1))
                copies.append(np.minimum(held_by, np.maximum(free[:, 0], 0)))
            # refusals of these plugins do not exclude a node, because other members or evictions may remove the cause
            judged = among.replaced_plugins(pod.shape) if among is not None else frozenset[str]()
            if emptied:
                judged |= PLUGINS
            allowed = own.allowed_beside(judged)
            shapes.append(Shape(request, allowed, (own.soft if goal else own.total).copy()))
        members.append(Member(gang=gang, shape=number))
    # rules of parts, merged shapes, and the goal for devices
    gathered, shapes = _one_domain_rules(parts, inside, kinds, shapes, round_state.draft)
    if copies:
        free = np.concatenate([free, np.stack(copies, axis=1)], axis=1)
    stocks = among.stocks if among is not None else ()
    alone = _alone(kinds, shapes, free, round_state) if not (lone or emptied) else ()
    if len(shapes) > 1 and not tied and not parts:
        # pods with rules about other pods are not merged with pods of another spec: evictions open different nodes
        ruled = [emptied and round_state.of(pod).has_rules for pod in kinds]
        if among is not None and among.one_of:
            ruled = [
                distinct or any(pod.shape in some for some in among.one_of)
                for distinct, pod in zip(ruled, kinds, strict=True)
            ]
        costs = [
            tuple(cost for rule in round_state.of(pod).rules if (cost := rule.cost_key()) is not None) for pod in kinds
        ]
        shapes, kinds, members, alone = _merge_shapes(shapes, kinds, members, alone, ruled, stocks, costs)
    one_of = among.one_of if among is not None else ()
    valued = unit_costs(kinds, unit.members, round_state, gather=goal) if not emptied else None
    return Problem(
        tree=snapshot.tree,
        free=free,
        shapes=tuple(shapes),
        members=tuple(members),
        needs=tuple(unit.need(gang) for gang in unit.gangs) or (1,),
        attract=attraction(unit, unit.pending, round_state) if goal else np.zeros(len(snapshot.nodes), dtype=np.int64),
        name_rank=snapshot.name_rank,
        gather=goal,
        hard=hard_level(unit, round_state),
        multiples=bounded_multiples(
            unit_multiples(unit, round_state), shapes, free, bound=len(unit.members) - len(unit.pending)
        ),
        pipeline=unit.pipeline if goal else 1,
        deterministic_time=round_state.config.solver.deterministic_time,
        watchdog_seconds=round_state.config.solver.wall_time_watchdog,
        interactions=(
            *(among.interactions(copied) if among is not None else ()),
            *gathered,
            *_one_domain(among, copied),
        ),
        allowances=(
            *(
                Allowance(one.remaining, tuple(one.amounts[numbers[pod.shape]] for pod in kinds))
                for one in round_state.admission.allowances(unit, numbers, round_state.draft.quotas)
            ),
            *(Allowance(1, tuple(int(pod.shape in some) for pod in kinds)) for some in one_of),
            *(Allowance(room, tuple(asks.get(pod.shape, 0) for pod in kinds)) for room, asks in stocks),
        ),
        device_costs=valued.table if valued is not None else None,
        already_used=valued.already_used if valued is not None else None,
        scarce=avoided_nodes(unit.members, round_state.inputs) if unit.is_gang and not goal else None,
        copies_by_rules=alone,
    )


def _one_domain(among: MemberConstraints | None, numbers: Mapping[bytes, Sequence[int]]) -> list[InOneDomain]:
    """Returns one rule per set of pod shapes that must be placed in one domain. numbers: pod shape -> its indices in
    `Problem.shapes`."""
    sets = among.one_domain if among is not None else ()
    found = [
        (tuple(number for shape in shapes for number in numbers.get(shape, ())), groups) for shapes, groups in sets
    ]
    return [InOneDomain(meant, groups) for meant, groups in found if meant]


def _parts_of_pods(parts: Sequence[GatheredPart]) -> dict[str, tuple[int, ...]]:
    """Returns pod key -> indices of the parts that the pod is in."""
    out: dict[str, tuple[int, ...]] = {}
    for i, part in enumerate(parts):
        for pod in part.members:
            out[pod.key] = (*out.get(pod.key, ()), i)
    return out


def _one_domain_rules(
    parts: Sequence[GatheredPart],
    inside: Mapping[str, tuple[int, ...]],
    kinds: Sequence[PodInfo],
    shapes: list[Shape],
    draft: Draft,
) -> tuple[list[InOneDomain], list[Shape]]:
    """Returns (rules that put each part into one domain, shapes limited to the nodes that the parts allow).

    A part that already has members on nodes, bound or placed in this round, gets no rule. Instead its shapes are
    limited to the domain of these members; to no node if they are in several domains.

    inside: result of `_parts_of_pods`. kinds: one pod of each shape; pods of one shape are in the same parts.
    """
    ties: list[InOneDomain] = []
    if not parts:
        return ties, shapes
    shapes, index = list(shapes), draft.snapshot.index
    at = {pod.key: index[pod.node] for part in parts for pod in part.members if pod.node in index} | draft.placed
    for i, part in enumerate(parts):
        meant = tuple(number for number, pod in enumerate(kinds) if i in inside.get(pod.key, ()))
        if not meant:
            continue
        groups = part.domains(draft.snapshot)
        used_domains = {int(groups[at[pod.key]]) for pod in part.members if pod.key in at}
        if not used_domains:
            ties.append(InOneDomain(meant, groups))
        allowed = (
            np.isin(groups, list(used_domains)) if len(used_domains) == 1 else np.full(len(groups), not used_domains)
        )
        allowed &= groups >= 0
        for number in meant:
            shapes[number] = replace(shapes[number], allowed=shapes[number].allowed * allowed)
    return ties, shapes


def _alone(kinds: Sequence[PodInfo], shapes: Sequence[Shape], free: Ints, round_state: RoundState) -> tuple[Ints, ...]:
    """Returns `Problem.copies_by_rules`: per shape, [nodes] the number of its pods that a node admits one after the
    other by host ports, spread constraints and (anti-)affinity.

    Empty if these rules limit no shape below its slots. Shapes that are not limited share one array of `ANY_NUMBER`.
    """
    found = [round_state.of(pod).copies_alone() for pod in kinds]
    few = [own is not None and bool((own < slots(free, one)).any()) for own, one in zip(found, shapes, strict=True)]
    if not any(few):
        return ()
    any_number = np.full(len(free), ANY_NUMBER, dtype=np.int64)
    return tuple(own if own is not None and fewer else any_number for own, fewer in zip(found, few, strict=True))


def _merge_shapes(
    shapes: list[Shape],
    kinds: list[PodInfo],
    members: list[Member],
    alone: tuple[Ints, ...],
    ruled: Sequence[bool],
    stocks: Sequence[tuple[int, Mapping[bytes, int]]],
    costs: Sequence[Hashable],
) -> tuple[list[Shape], list[PodInfo], list[Member], tuple[Ints, ...]]:
    """Returns (shapes, kinds, members, alone) with equal shapes merged into one.

    ruled: per shape, True if it may be merged only with pods of equal spec, because its feasible nodes depend on other
    pods. costs: per shape, `Rule.cost_key` of its filters.
    """
    seen = {id(one): one.tobytes() for one in alone}  # shapes without a limit share one array
    copied = [seen[id(one)] for one in alone] or [b""] * len(kinds)
    if stocks:
        amounts = [bytes(repr([asks.get(pod.shape, 0) for _, asks in stocks]), "ascii") for pod in kinds]
        copied = [own + more for own, more in zip(copied, amounts, strict=True)]
    each = zip(ruled, kinds, copied, costs, strict=True)
    distinct = [pod.shape if depends else (own, cost) for depends, pod, own, cost in each]
    first = alike(shapes, kinds, distinct)
    kept = sorted(set(first))
    number = {old: new for new, old in enumerate(kept)}
    moved = [replace(one, shape=number[first[one.shape]]) if one.node is None else one for one in members]
    return [shapes[i] for i in kept], [kinds[i] for i in kept], moved, tuple(alone[i] for i in kept if alone)


def member_constraints_of(unit: Unit, round_state: RoundState) -> MemberConstraints | None:
    """Returns the constraints among the members; None if there are none, as for most units."""
    found = next((pod.gang for pod in unit.pending if pod.gang is not None and round_state.concerned(pod)), None)
    return round_state.member_constraints(found) if found is not None else None


def hard_keys(unit: Unit) -> tuple[str, ...]:
    """Returns the topology keys of the unit's upstream PodGroup: node labels with one value for the nodes of all
    members."""
    return tuple(dict.fromkeys(key for gang in unit.gangs for key in gang.hard_keys))


def partitions(unit: Unit, problem: Problem, round_state: RoundState) -> Iterator[Problem]:
    """Yields one problem per combination of values of the topology keys (`hard_keys`), limited to nodes with these
    values; without keys, the problem itself.
    """
    return (part for _, part in named_partitions(unit, problem, round_state))


def named_partitions(unit: Unit, problem: Problem, round_state: RoundState) -> Iterator[tuple[str, Problem]]:
    """Yields the problems of `partitions`, each with the values joined by `/`; the text is empty without keys.

    All members must share the values, so only the combination of the bound members' nodes is yielded, if there are any.
    Nodes without the labels are never used.
    """
    wanted = hard_keys(unit)
    if not wanted:
        yield "", problem
        return
    nodes = round_state.snapshot.nodes
    # per key: value -> [nodes] 1 if the node has this value
    where: list[dict[str, Ints]] = []
    for key in wanted:
        values: dict[str, list[int]] = {}
        for i, node in enumerate(nodes):
            if node.labels.get(key):
                values.setdefault(node.labels[key], []).append(i)
        masks = {}
        for value, positions in values.items():
            masks[value] = np.zeros(len(nodes), dtype=np.int64)
            masks[value][positions] = 1
        where.append(masks)
    for combination in product(*where):
        mask = np.ones(len(nodes), dtype=np.int64)
        for masks, value in zip(where, combination, strict=True):
            mask = mask * masks[value]
        if mask.any() and all(mask[node] for node in problem.bound.values()):
            shapes = tuple(Shape(s.request, s.allowed * mask, s.score) for s in problem.shapes)
            yield "/".join(combination), replace(problem, shapes=shapes)
