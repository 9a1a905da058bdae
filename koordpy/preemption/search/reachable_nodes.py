"""The nodes that victims could open for a preemptor, with all filters, and the units that must be evicted first.

Sources: preemption.md 4 and 5, kube-parity.md 1. Nodes with code UnschedulableAndUnresolvable are never emptied.
Filters that depend on other pods run twice, with all eligible victims and without them. A pod that closes a node by
itself is a blocker of it. The dry run decides the rest: nodes that more victims would close again (spread, affinity),
and nodes for which the two runs are not enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.family_registry import PLUGINS
from koordpy.feasibility.round_state import RoundState
from koordpy.framework.filter_protocol import Code
from koordpy.gangs.queue_units import Unit
from koordpy.placement.problem import Problem, Shape
from koordpy.plan.limits import BLOCKERS
from koordpy.plugins.interpod_affinity import PLUGIN as AFFINITY
from koordpy.plugins.topology_spread import PLUGIN as SPREAD
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.affinity_terms import AffinityTerm, affinity_terms


@dataclass(frozen=True, eq=False)
class ReachableNodes:
    """The nodes that victims could open for a preemptor."""

    problem: Problem
    """The problem; its shapes are also allowed on nodes that only eligible victims block."""
    blockers: dict[tuple[int, int], tuple[str, ...]]
    """(shape, node) -> keys of pods that must all be evicted first."""
    looked_at: frozenset[str]
    """Keys of eligible pods that a filter of a shape depends on."""
    ties: tuple[AffinityTerm, ...] = ()
    """Affinity and spread constraints with members and with running pods that may be evicted."""


def find_reachable_nodes(
    unit: Unit, problem: Problem, round_state: RoundState, victims: Sequence[PodInfo]
) -> ReachableNodes:
    """Returns the nodes that evictions could open, for a problem that was built on the draft as it is."""
    index, draft = round_state.snapshot.index, round_state.draft
    first: dict[int, PodInfo] = {}
    for pod, member in zip(unit.members, problem.members, strict=True):
        if member.shape >= 0:
            first.setdefault(member.shape, pod)
    kinds = [first[i] for i in range(len(problem.shapes))]
    if not any(round_state.of(pod).has_rules for pod in kinds):
        return ReachableNodes(problem, {}, frozenset())
    judged = [
        round_state.among(pod.gang).judged_beside_victims(pod.shape)
        if pod.gang is not None and round_state.concerned(pod)
        else frozenset()
        for pod in kinds
    ]
    standing = [pod for pod in victims if pod.node in index]
    seen: list[list[PodInfo]] = []
    for pod in kinds:
        own = round_state.of(pod)
        seen.append([other for other in standing if own.looks_at(other, index[other.node])] if own.has_rules else [])
    relevant = {other.key: other for others in seen for other in others}
    if not relevant:
        return ReachableNodes(problem, {}, frozenset())
    closed = [_unresolvable(pod, round_state, judged[i]) for i, pod in enumerate(kinds)]
    # the dry run checks which devices remain, and constraints on pods that may stay
    beyond = [word | PLUGINS | {SPREAD, AFFINITY} for word in judged]
    before = [shape.allowed for shape in problem.shapes]
    blockers: dict[tuple[int, int], tuple[str, ...]] = {}
    shapes: list[Shape] = []
    ties = affinity_terms(kinds, problem.interactions, list(relevant.values()), round_state)
    with draft.trial(without=relevant.values()):
        for i, pod in enumerate(kinds):
            own = round_state.of(pod)
            after = own.allowed_beside(beyond[i])
            shape = problem.shapes[i]
            masked = np.where(closed[i], 0, np.maximum(before[i], after))
            shapes.append(replace(shape, allowed=masked))
            opening = (after > 0) & (masked > 0) & (before[i] == 0)
            if opening.any() and len(seen[i]) <= BLOCKERS:
                for other in seen[i]:
                    back = own.allowed_with(other, index[other.node], beyond[i])
                    for node in np.nonzero(opening & (back == 0))[0].tolist():
                        blockers[i, node] = (*blockers.get((i, node), ()), other.key)
    # interactions between members were counted with all victims present, so they are dropped
    return ReachableNodes(replace(problem, shapes=tuple(shapes), interactions=()), blockers, frozenset(relevant), ties)


def _unresolvable(pod: PodInfo, round_state: RoundState, judged: frozenset[str]) -> Ints:
    """Returns [nodes]: 1 where no eviction helps, apart from constraints that members satisfy among themselves."""
    own = round_state.of(pod)
    if own.refusal is not None:
        return np.ones(len(round_state.snapshot.nodes), dtype=np.int64)
    verdict = own.verdict()
    codes = [0] + [int(r.code is Code.UNRESOLVABLE and r.plugin not in judged) for r in verdict.refusals]
    return np.array(codes, dtype=np.int64)[verdict.which]
