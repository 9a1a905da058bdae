# SPDX-License-Identifier: Apache-2.0
"""The input of the functions that propose changes: the pending unit, and the cluster with all other units decided.

From its values (slots, domains, refusals) these functions estimate which changes may help. A trial (`trials.py`) then
decides whether a change does help.
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
    """A pending unit, its cluster, and the capacity that the unit lacks there. A *kind* is a shape of the unit's
    pods."""

    snapshot: Snapshot
    config: KoordpyConfiguration
    unit: Unit
    pod: PodInfo
    """The pod to explain, a member of the unit."""
    plan: RoundPlan
    """The plan of the round without any change."""
    alone: RoundPlan
    """The plan of a round for this unit only, as if no other unit were pending."""

    @cached_property
    def round_state(self) -> RoundState:
        """Round state on the draft of the round, without placements of the unit itself."""
        return RoundState(self.draft_on(self.snapshot), self.config)

    def draft_on(self, snapshot: Snapshot) -> Draft:
        """Returns a draft of a snapshot with the placements and evictions of the round for all other units.

        snapshot: of the case, or one with the same pods and nodes but other quotas.
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
        """The members that a plan must place: of every gang the needed number, lowest ranks first; or the plain pod."""
        return core_members(self.unit)

    @cached_property
    def kinds(self) -> tuple[PodInfo, ...]:
        """One pod of each shape in the core, at most `ADVICE_KINDS` pods. The pod to explain is first if it is
        pending."""
        first: dict[bytes, PodInfo] = {}
        for pod in (self.pod, *self.core) if self.pod.pending else self.core:
            first.setdefault(pod.shape, pod)
        return tuple(first.values())[:ADVICE_KINDS]

    @cached_property
    def hard(self) -> int:
        """Lowest level of the tree with MustGather for the whole unit; 0 (the cluster) without MustGather. A *hard
        domain* is a domain of this level."""
        return hard_level(self.unit, self.round_state) if self.unit.is_gang else 0

    @cached_property
    def domain_of(self) -> list[int]:
        """[nodes] index of each node's hard domain."""
        found: list[int] = self.snapshot.tree.domain_of[self.hard].tolist()
        return found

    @cached_property
    def slots(self) -> Ints:
        """[hard domains] free slots for pods of the shape of `scarcest`."""
        return self.snapshot.tree.levels[self.hard].sums(self.round_state.of(self.scarcest).slots)

    @cached_property
    def scarcest(self) -> PodInfo:
        """A pod of the shape with the fewest free slots in the cluster."""
        return min(self.kinds, key=lambda pod: int(self.round_state.of(pod).slots.sum()))

    @cached_property
    def bound_domains(self) -> frozenset[int]:
        """Indices of the hard domains with bound members of the unit; empty if any hard domain may be chosen."""
        if not self.hard:
            return frozenset()
        index = self.snapshot.index
        return frozenset(self.domain_of[index[pod.node]] for pod in self.unit.members if pod.node in index)

    @cached_property
    def daemons(self) -> dict[str, tuple[PodInfo, ...]]:
        """Node name -> its DaemonSet and mirror pods, bound or pending. A new node that is a copy of it would run them,
        too."""
        out: dict[str, list[PodInfo]] = {}
        for pod in self.snapshot.pods.values():
            if not pod.finished and stays(pod) and (name := pod.node or node_of_daemon(pod.pod)):
                out.setdefault(name, []).append(pod)
        return {name: tuple(pods) for name, pods in out.items()}

    def capacity_when_new(self, node: NodeInfo) -> Amounts:
        """Returns the amounts of a new node like `node` that its DaemonSet and mirror pods leave to other pods."""
        left = dict(node.allocatable)
        for pod in self.daemons.get(node.name, ()):
            add_amounts(left, {PODS: 1, **pod.requests}, -1)
        return {name: max(0, amount) for name, amount in left.items()}

    def may_hold(self, node: int) -> bool:
        """Returns True if the unit may be placed in the hard domain of a node (position)."""
        return not self.bound_domains or self.domain_of[node] in self.bound_domains

    @property
    def needed(self) -> int:
        """Number of members that one plan must place."""
        return len(self.core)

    def grounds(self, pod: PodInfo) -> list[tuple[Refusal, ...]]:
        """Returns, per node, the refusals of all filters for a pod; an empty tuple if the node takes the pod.

        All refusals are listed, not only the first, because a change that removes one refusal is not enough if there
        are two.
        """
        out: list[tuple[Refusal, ...]] = [()] * len(self.snapshot.nodes)
        for word in self.round_state.words(pod):
            for i in np.nonzero(word.which)[0].tolist():
                if (refusal := word.of(i)) is not None:
                    out[i] = (*out[i], refusal)
        return out
