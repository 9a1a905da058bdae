# SPDX-License-Identifier: Apache-2.0
"""The input of the generators of changes: the pending unit, and the cluster after the decisions for all other units.

Its values are estimates from which generators choose promising changes. Whether a change helps is decided by a trial.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import PODS, Ints, NodeInfo, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.fairness.quota_admission import core_members
from koordpy.feasibility.round_state import RoundState
from koordpy.framework.filter_protocol import Refusal
from koordpy.gangs.queue_units import Unit
from koordpy.plan.limits import ADVICE_KINDS
from koordpy.plan.round_plan import RoundPlan
from koordpy.pods.daemon_pods import node_of_daemon
from koordpy.pods.pod_info import PodInfo, stays
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.problems.problem_building import hard_level


@dataclass(frozen=True)
class Case:
    """A pending unit, its cluster, and what the unit lacks there."""

    snapshot: Snapshot
    config: KoordpyConfiguration
    unit: Unit
    pod: PodInfo
    """The pod to explain, a member of the unit."""
    plan: RoundPlan
    """The round as it is planned without any change."""
    alone: RoundPlan
    """The round that plans this unit only, as if no other unit were pending."""

    @cached_property
    def round_state(self) -> RoundState:
        """Round state on the draft of the round, without placements of the unit itself."""
        return RoundState(self.draft_on(self.snapshot), self.config)

    def draft_on(self, snapshot: Snapshot) -> Draft:
        """Returns a draft of a snapshot with the placements and evictions of the round for all other units.

        snapshot: that of the case, or one with the same pods and nodes but other limits.
        """
        draft, own = Draft(snapshot), {pod.key for pod in self.unit.members}
        for eviction in self.plan.evictions:
            if eviction.unit != self.unit.id and eviction.pod_key not in own:
                draft.evict(self.snapshot.pods[eviction.pod_key])
        for one in self.plan.placements:
            if one.pod_key not in own:
                pod = self.snapshot.pods[one.pod_key]
                draft.assign(pod, self.snapshot.index[one.node], one.claims, one.devices)
        return draft

    @cached_property
    def core(self) -> tuple[PodInfo, ...]:
        """The members that a plan must place: of every gang the needed number of lowest rank, or the plain pod."""
        return core_members(self.unit)

    @cached_property
    def kinds(self) -> tuple[PodInfo, ...]:
        """One pod of each shape of the core, first that of the pod to explain; at most `ADVICE_KINDS`."""
        first: dict[bytes, PodInfo] = {}
        for pod in (self.pod, *self.core) if self.pod.pending else self.core:
            first.setdefault(pod.shape, pod)
        return tuple(first.values())[:ADVICE_KINDS]

    @cached_property
    def hard(self) -> int:
        """Deepest level with MustGather for the whole unit; 0 (the cluster) without one. A *hard domain* is on it."""
        return hard_level(self.unit, self.round_state) if self.unit.is_gang else 0

    @cached_property
    def domain_of(self) -> list[int]:
        """[nodes] index of the node's hard domain."""
        found: list[int] = self.snapshot.tree.domain_of[self.hard].tolist()
        return found

    @cached_property
    def slots(self) -> Ints:
        """[hard domains] free slots of the scarcest kind (`scarcest`)."""
        return self.snapshot.tree.levels[self.hard].sums(self.round_state.of(self.scarcest).slots)

    @cached_property
    def scarcest(self) -> PodInfo:
        """A pod of the shape with the fewest free slots in the cluster."""
        return min(self.kinds, key=lambda pod: int(self.round_state.of(pod).slots.sum()))

    @cached_property
    def usage_in(self) -> frozenset[int]:
        """Indices of the hard domains with bound members of the unit; empty if any hard domain may be chosen."""
        if not self.hard:
            return frozenset()
        index = self.snapshot.index
        return frozenset(self.domain_of[index[pod.node]] for pod in self.unit.members if pod.node in index)

    @cached_property
    def daemons(self) -> dict[str, tuple[PodInfo, ...]]:
        """Node name -> its DaemonSet and mirror pods, bound or not, which a new node like it would run too."""
        out: dict[str, list[PodInfo]] = {}
        for pod in self.snapshot.pods.values():
            if not pod.finished and stays(pod) and (name := pod.node or node_of_daemon(pod.pod)):
                out.setdefault(name, []).append(pod)
        return {name: tuple(pods) for name, pods in out.items()}

    def capacity_when_new(self, node: NodeInfo) -> Amounts:
        """Returns the amounts that a new node like `node` has for other pods than its DaemonSet and mirror pods."""
        left = dict(node.allocatable)
        for pod in self.daemons.get(node.name, ()):
            add_amounts(left, {PODS: 1, **pod.requests}, -1)
        return {name: max(0, amount) for name, amount in left.items()}

    def may_hold(self, node: int) -> bool:
        """Returns True if the unit may be placed in the hard domain of a node (position)."""
        return not self.usage_in or self.domain_of[node] in self.usage_in

    @property
    def needed(self) -> int:
        """Number of members that one plan must place."""
        return len(self.core)

    def grounds(self, pod: PodInfo) -> list[tuple[Refusal, ...]]:
        """Returns, per node, the refusals of all filters for a pod; an empty tuple if the node takes the pod.

        All are listed, not only the first, because a remedy for one is not enough if two filters refuse.
        """
        out: list[tuple[Refusal, ...]] = [()] * len(self.snapshot.nodes)
        for word in self.round_state.words(pod):
            for i in np.nonzero(word.which)[0].tolist():
                if (refusal := word.of(i)) is not None:
                    out[i] = (*out[i], refusal)
        return out
