"""Where a beneficiary could stand once victims are gone, filters looked at: what is allowed, and what must go first.

Sources: preemption.md 4 and 5, kube-parity.md 1. Nodes of code UnschedulableAndUnresolvable are never emptied.
Filters that look at other pods are asked twice, with all eligible victims there and with all of them gone; a pod that
closes a node by itself is a blocker of it. What more victims may close again (spread, affinity), and what neither
tells, comes out when the plan is checked.
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
    """problem: its shapes are allowed wherever eligible victims alone stand in the way.

    blockers: (shape, node) -> keys of pods each of which must go first. looked_at: keys of eligible pods that some
    filter of a shape looks at. ties: what members ask of each other's places and of the pods that run, and who of these
    may leave.
    """

    problem: Problem
    blockers: dict[tuple[int, int], tuple[str, ...]]
    looked_at: frozenset[str]
    ties: tuple[AffinityTerm, ...] = ()


def find_reachable_nodes(
    unit: Unit, problem: Problem, figures: RoundState, victims: Sequence[PodInfo]
) -> ReachableNodes:
    """What evictions could open of a problem that was built on the draft as it is."""
    index, draft = figures.snapshot.index, figures.draft
    first: dict[int, PodInfo] = {}
    for pod, member in zip(unit.members, problem.members, strict=True):
        if member.shape >= 0:
            first.setdefault(member.shape, pod)
    kinds = [first[i] for i in range(len(problem.shapes))]
    if not any(figures.of(pod).has_rules for pod in kinds):
        return ReachableNodes(problem, {}, frozenset())
    judged = [
        figures.among(pod.gang).judged_beside_victims(pod.shape)
        if pod.gang is not None and figures.concerned(pod)
        else frozenset()
        for pod in kinds
    ]
    standing = [pod for pod in victims if pod.node in index]
    seen: list[list[PodInfo]] = []
    for pod in kinds:
        own = figures.of(pod)
        seen.append([other for other in standing if own.looks_at(other, index[other.node])] if own.has_rules else [])
    relevant = {other.key: other for others in seen for other in others}
    if not relevant:
        return ReachableNodes(problem, {}, frozenset())
    closed = [_unresolvable(pod, figures, judged[i]) for i, pod in enumerate(kinds)]
    # which devices are left, and what leans on pods that may stay, is seen when a choice is tried
    beyond = [word | PLUGINS | {SPREAD, AFFINITY} for word in judged]
    before = [shape.allowed for shape in problem.shapes]
    blockers: dict[tuple[int, int], tuple[str, ...]] = {}
    shapes: list[Shape] = []
    ties = affinity_terms(kinds, problem.interactions, list(relevant.values()), figures)
    with draft.trial(without=relevant.values()):
        for i, pod in enumerate(kinds):
            own = figures.of(pod)
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
    # what members ask of each other is counted there with everybody in place, so it says nothing of who is left
    return ReachableNodes(replace(problem, shapes=tuple(shapes), interactions=()), blockers, frozenset(relevant), ties)


def _unresolvable(pod: PodInfo, figures: RoundState, judged: frozenset[str]) -> Ints:
    """[nodes] 1 where no eviction helps: but for what members decide among themselves."""
    own = figures.of(pod)
    if own.refusal is not None:
        return np.ones(len(figures.snapshot.nodes), dtype=np.int64)
    verdict = own.verdict()
    codes = [0] + [int(r.code is Code.UNRESOLVABLE and r.plugin not in judged) for r in verdict.refusals]
    return np.array(codes, dtype=np.int64)[verdict.which]
