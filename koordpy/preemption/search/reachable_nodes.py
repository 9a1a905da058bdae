# SPDX-License-Identifier: Apache-2.0
"""Finds the nodes that evictions could open for a preemptor, and the pods that must be evicted first.

Sources: docs/rules/preemption.md 4 and 5, kube-parity.md 1. A running pod can exclude the preemptor from a node by
anti-affinity, host ports or spread. Filters that depend on other pods run twice: with all eligible victims present, and
with all of them evicted. A node that passes only in the second run can be opened. A victim that alone closes the node
is its blocker. Nodes with code UnschedulableAndUnresolvable cannot be opened. The dry run decides about nodes that more
evictions would close again (spread, affinity), and about nodes for which the two runs are not enough.
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
    """The placement problem with the nodes that evictions could open, and the conditions under which they open."""

    problem: Problem
    """The placement problem. A shape is also allowed on nodes from which only eligible victims exclude it."""
    blockers: dict[tuple[int, int], tuple[str, ...]]
    """(shape, node) -> keys of the pods that must all be evicted before a pod of the shape is allowed on the node."""
    looked_at: frozenset[str]
    """Keys of eligible pods that a filter of a shape depends on."""
    ties: tuple[AffinityTerm, ...] = ()
    """Affinity and spread constraints with members and with running pods that may be evicted."""


def find_reachable_nodes(
    unit: Unit, problem: Problem, round_state: RoundState, victims: Sequence[PodInfo]
) -> ReachableNodes:
    """Returns the nodes that evictions could open.

    problem: built on the draft as it is. victims: all evictable pods.
    """
    # per shape, the victims that a filter depends on; if there are none, evictions open nodes only by freeing capacity
    index, draft = round_state.snapshot.index, round_state.draft
    first: dict[int, PodInfo] = {}
    for pod, member in zip(unit.members, problem.members, strict=True):
        if member.shape >= 0:
            first.setdefault(member.shape, pod)
    kinds = [first[i] for i in range(len(problem.shapes))]
    if not any(round_state.of(pod).has_rules for pod in kinds):
        return ReachableNodes(problem, {}, frozenset())
    judged = [
        round_state.member_constraints(pod.gang).replaced_plugins_with_victims(pod.shape)
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
    # devices, zones, spread and affinity depend on which victims stay, so the model and the dry run decide about them
    free = [{rule.plugin for rule in round_state.of(pod).rules if not rule.is_monotone} for pod in kinds]
    beyond = [word | own | PLUGINS | {SPREAD, AFFINITY} for word, own in zip(judged, free, strict=True)]
    before = [shape.allowed for shape in problem.shapes]
    blockers: dict[tuple[int, int], tuple[str, ...]] = {}
    shapes: list[Shape] = []
    ties = affinity_terms(kinds, problem.interactions, list(relevant.values()), round_state)
    with draft.trial(without=relevant.values()):
        # without all relevant victims: the allowed nodes; then each victim alone is put back, to find the blockers
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
    # `interactions` were counted with all victims present, so they are replaced by `ties`
    return ReachableNodes(replace(problem, shapes=tuple(shapes), interactions=()), blockers, frozenset(relevant), ties)


def _unresolvable(pod: PodInfo, round_state: RoundState, judged: frozenset[str]) -> Ints:
    """Returns [nodes]: 1 where no eviction helps (code UnschedulableAndUnresolvable), else 0.

    judged: plugins that are ignored here, because the members themselves can satisfy these constraints.
    """
    own = round_state.of(pod)
    if own.refusal is not None:
        return np.ones(len(round_state.snapshot.nodes), dtype=np.int64)
    verdict = own.verdict()
    codes = [0] + [int(r.code is Code.UNRESOLVABLE and r.plugin not in judged) for r in verdict.refusals]
    return np.array(codes, dtype=np.int64)[verdict.which]
