# SPDX-License-Identifier: Apache-2.0
"""Checks evictions and moves of other tenants' pods (`preemption.acrossUsers`, consolidation; preemption.md 3.1, 3.4).

Shares and usage are computed only on usable nodes: nodes that could take a placed member if they were empty, by their
labels, taints and size. The module computes the usable nodes, usage and demand of each tenant on them, and the
conditions of the rules, pod by pod over the objects. Only the formula of shares is that of the planner.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from koordpy.api import keys
from koordpy.api.keys import SYSTEM_PRIORITY_FLOOR
from koordpy.cache.snapshot import NodeInfo
from koordpy.fairness.tenant_entitlements import Entitlements, entitlements_of
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import Owner, PodInfo
from koordpy.quota.quota_book import CARDS, Quotas, QuotaUse, ShareQueue, card_hundredths
from koordpy.verify.eviction_check import EvictedUnit
from koordpy.verify.plan_check import allows

Known = dict[object, Any]
"""Cache of a round, with two kinds of entries:

- shapes of members -> (shares on the usable nodes, names of these nodes or None for all nodes)
- names of nodes -> [usage on these nodes, number of changes of the draft that the usage includes]
"""
Sums = dict[Owner, Counter[str]]
"""Owner of pods -> sum of their requests."""
GateOpen = Callable[[PodInfo], bool]
"""Returns True if the preemptor is within its guarantee against a pod after the plan (`PlanSums.is_guaranteed`)."""


@dataclass(frozen=True, eq=False)
class _UsableShares:
    """Shares and usage of tenants on the usable nodes."""

    entitlements: Entitlements
    """Shares on these nodes."""
    names: frozenset[str] | None
    """Names of the usable nodes; None for all nodes."""
    use: QuotaUse
    """Usage on these nodes before the plan, including reservations."""


class TenantCheck:
    """Checks the victims and moved pods of other tenants in one plan."""

    def __init__(
        self, unit: Unit, placed: Sequence[PodInfo], round_state: RoundState, known: Known, *, gate_open: GateOpen
    ) -> None:
        """unit: the preemptor. placed: the members that the plan places. known: cache of the round. gate_open: see
        `GateOpen`."""
        self.unit, self.placed, self.round_state, self.known, self.gate_open = (
            unit,
            placed,
            round_state,
            known,
            gate_open,
        )
        self.snapshot, self.config = round_state.snapshot, round_state.config
        self.quotas = round_state.snapshot.quotas
        self.least = min((pod.priority for pod in placed), default=0)
        self._usable_shares: _UsableShares | None = None

    # --- tenants and nodes --------------------------------------------------------------------------------------------

    def tenant(self, pod: PodInfo) -> ShareQueue | None:
        """Returns the user or queue of a pod; None for the system quota."""
        if self.quotas.quota_of(pod) == keys.SYSTEM_QUOTA:
            return None
        if self.config.fairness.mode == "gpu-count":
            return ShareQueue("", self.quotas.user_of(pod))
        return self.quotas.queue_of(pod)

    def _is_quota(self, pod: PodInfo) -> bool:
        """Returns True if the tenant of a pod is an ElasticQuota."""
        if self.quotas.quota_of(pod) not in self.quotas.tree.quotas:
            return False
        return self.config.fairness.mode != "gpu-count" or not pod.owner.user

    def _usable(self) -> frozenset[str] | None:
        """Returns the names of the nodes that could take a member if they were empty; None for all nodes.

        All nodes are used if the remaining nodes have no resource that shares divide, such as no accelerators in mode
        gpu-count.
        """
        members = {pod.shape: pod for pod in self.placed}.values()
        names, every = set[str](), True
        for node in self.snapshot.nodes:
            fits = any(self._could_hold(node, pod) for pod in members)
            if fits:
                names.add(node.name)
            every &= fits or (self.config.fairness.mode == "gpu-count" and not card_hundredths(node.allocatable))
        return None if every else frozenset(names)

    def _could_hold(self, node: NodeInfo, pod: PodInfo) -> bool:
        """Returns True if a node could take a pod if it were empty: by labels, taints, cordon and size."""
        asked = {"pods": 1, **{r: n for r, n in pod.requests.items() if not self.round_state.ignored(r)}}
        return allows(pod, node, self.config) and all(node.allocatable.get(r, 0) >= n for r, n in asked.items())

    @property
    def usable_shares(self) -> _UsableShares | None:
        """Returns entitlements and usage on the usable nodes; None if `fairness.mode` is off."""
        if self._usable_shares is None and self.config.fairness.mode != "off":
            kinds = frozenset(pod.shape for pod in self.placed)
            if kinds not in self.known:
                names = self._usable()
                quotas = self.quotas if names is None else self._quotas_on(names)
                self.known[kinds] = entitlements_of(self.snapshot, self.config.fairness, quotas), names
            shares, names = self.known[kinds]
            if shares is not None:
                self._usable_shares = _UsableShares(shares, names, self._usage_on(names))
        return self._usable_shares

    def _quotas_on(self, names: frozenset[str]) -> Quotas:
        """Returns the quotas as if the cluster had only the named nodes, with capacity, usage and demand there."""
        total, cards = Counter[str](), 0
        for node in self.snapshot.nodes:
            if node.name in names and node.node.metadata.deletion_timestamp is None:
                total.update(node.allocatable)
                cards += card_hundredths(node.allocatable)
        usage: Sums = {}
        waiting: Sums = {}
        nodes = [node for node in self.snapshot.nodes if node.name in names]
        able: dict[bytes, bool] = {}
        for pod in self.snapshot.pods.values():
            if pod.bound and not pod.lost and pod.node in names:
                self._add(usage, pod.owner, pod.charged)
            elif pod.pending:
                if pod.shape not in able:
                    able[pod.shape] = any(self._could_hold(node, pod) for node in nodes)
                if able[pod.shape]:
                    self._add(waiting, pod.owner, pod.demanded)
        return replace(self.quotas, total=dict(total), cards=cards, usage=usage, demand=waiting)

    @staticmethod
    def _add(sums: Sums, owner: Owner, amounts: Mapping[str, int]) -> None:
        """Adds the amounts of a pod to the sum of its owner, in place."""
        sums.setdefault(owner, Counter()).update({**amounts, "pods": 1, CARDS: card_hundredths(amounts)})

    def _usage_on(self, names: frozenset[str] | None) -> QuotaUse:
        """Returns the usage of tenants on the named nodes (None: all nodes) on the draft before the plan, including
        reservations.

        Usage on named nodes is cached for the round, and updated with the later changes of the draft.
        """
        draft, nodes = self.round_state.draft, self.snapshot.nodes
        if names is None:
            return self.round_state.reservations.use(self.unit, draft.quotas, net=True)
        known = self.known.get(names)
        if known is None:
            known = self.known[names] = [QuotaUse(replace(self.quotas, usage={}, demand={})), 0]
            for pod in self.snapshot.pods.values():
                if pod.bound and not pod.lost and pod.node in names:
                    known[0].change(pod, 1)
        use, seen = known
        for pod, position, sign in draft.changes[seen:]:
            if nodes[position].name in names:
                use.change(pod, sign)
        known[1] = len(draft.changes)
        there = {position for position, node in enumerate(nodes) if node.name in names}
        return self.round_state.reservations.use(self.unit, use, net=True, at=there.__contains__)

    # --- protected tenants --------------------------------------------------------------------------------------------

    def asks(self, pod: PodInfo) -> bool:
        """Returns True if `acrossUsers` protects the tenant of a pod from rule `priority` (3.1)."""
        own, other = self.tenant(self.placed[0]), self.tenant(pod)
        if (
            self.usable_shares is None
            or self.least >= SYSTEM_PRIORITY_FLOOR
            or own is None
            or other is None
            or own == other
        ):
            return False
        if self._is_quota(pod) and self._is_quota(self.placed[0]):
            return False
        return bool(self._requested(self.usable_shares)) and not self.gate_open(pod)

    def _requested(self, usable: _UsableShares) -> dict[str, int]:
        """Returns the requests of the placed members, of resources in which their tenant has a share."""
        own, asked = self.tenant(self.placed[0]), Counter[str]()
        for pod in self.placed:
            asked.update(usable.entitlements.amounts(pod.charged))
        return {r: n for r, n in asked.items() if n > 0 and own is not None and usable.entitlements.counted(own, r)}

    def _used_by(self, tenant: ShareQueue, pods: Iterable[PodInfo], usable: _UsableShares) -> Counter[str]:
        """Returns the amounts that a tenant's pods, out of `pods`, use on the usable nodes."""
        out = Counter[str]()
        for pod in pods:
            if self.tenant(pod) == tenant and (usable.names is None or pod.node in usable.names):
                out.update(usable.entitlements.amounts(pod.charged))
        return out

    def _gain(self, tenant: ShareQueue, usable: _UsableShares) -> Counter[str]:
        """Returns the requests of those placed members that belong to a tenant."""
        out = Counter[str]()
        for pod in self.placed:
            if self.tenant(pod) == tenant:
                out.update(usable.entitlements.amounts(pod.charged))
        return out

    # --- the rules ----------------------------------------------------------------------------------------------------

    def preempted(self, taken: Sequence[EvictedUnit], gone: Sequence[PodInfo]) -> list[str]:
        """Returns the faults of victims by rule `priority`: each protected tenant must satisfy condition (a) or (b) of
        3.1.

        taken: victims of the rule. gone: all evicted pods of the plan.
        """
        across = self.config.preemption.across_users
        asked = [pod for one in taken for pod in one.pods if across != "any" and self.asks(pod)]
        usable = self.usable_shares
        if not asked or usable is None:
            return []
        if across == "never":
            return [f"{pod.key} belongs to another tenant" for pod in asked]
        if self.config.fairness.reclaim == "all":
            return []
        own, faults = self.tenant(self.placed[0]), []
        for tenant in dict.fromkeys(self.tenant(pod) for pod in asked):
            if tenant is None or own is None:
                continue
            if self._keeps_share(tenant, taken, gone, usable):
                continue
            units = [self._used_by(tenant, one.pods, usable) for one in taken]
            given, gain = self._used_by(own, gone, usable), self._gain(own, usable)
            if not any(
                self._may_cross(own, tenant, r, gain[r] - given[r], units, usable)
                for r, n in self._requested(usable).items()
            ):
                faults.append(f"{tenant.quota or tenant.user} would lose capacity within its share")
        return faults

    def _keeps_share(
        self, tenant: ShareQueue, taken: Sequence[EvictedUnit], gone: Sequence[PodInfo], usable: _UsableShares
    ) -> bool:
        """Returns True if condition (a) of 3.1 is satisfied: after the plan, the tenant has at least min(usage before,
        share)."""
        lost, gain = self._used_by(tenant, gone, usable), self._gain(tenant, usable)
        usage = self._used_by(tenant, (pod for one in taken for pod in one.pods), usable)
        for resource, amount in usage.items():
            before = usable.entitlements.use(usable.use, tenant, resource)
            line = min(before, usable.entitlements.share(tenant, resource))
            if (
                amount
                and usable.entitlements.counted(tenant, resource)
                and before - lost[resource] + gain[resource] < line
            ):
                return False
        return True

    @staticmethod
    def _may_cross(
        own: ShareQueue,
        tenant: ShareQueue,
        resource: str,
        more: int,
        units: Sequence[Mapping[str, int]],
        usable: _UsableShares,
    ) -> bool:
        """Returns True if condition (b) of 3.1 is satisfied for one resource.

        It has two parts. Before each eviction of a unit, the largest unit last, the tenant is above its share. After
        the plan, the preemptor's tenant (`own`) is at most as far above its share as the tenant was before. more:
        amount that `own` gains.
        """
        shares = usable.entitlements
        if not shares.counted(tenant, resource):
            return False
        use, mine = shares.use(usable.use, tenant, resource), shares.use(usable.use, own, resource)
        for amount in sorted(usage.get(resource, 0) for usage in units):  # the largest unit last
            if use <= shares.share(tenant, resource):
                return False
            use -= amount
        before = shares.use(usable.use, tenant, resource) - shares.exact(tenant, resource)
        return mine + more - shares.exact(own, resource) <= before

    def may_move(self, pods: Sequence[PodInfo], running: Iterable[PodInfo]) -> bool:
        """Returns True if pods may be moved although consolidation is disabled (step 5b of preemption.md 3.4).

        This is allowed for pods of lower priority if `acrossUsers` prevents their eviction by rule `priority`. pods:
        the moved pods. running: all bound pods.
        """
        if not self.config.preemption.enabled or self.config.preemption.across_users != "overShare":
            return False
        if any(pod.preemption_policy == "Never" for pod in self.placed):
            return False
        if any(pod.priority >= self.least for pod in pods):
            return False
        return any(pod.priority < self.least and self.asks(pod) for pod in running)

    def disturbed(self, taken: Sequence[EvictedUnit]) -> list[str]:
        """Returns the faults of moved pods (3.4).

        A pod that is marked as immovable must not be moved. A pod of a tenant within its share must not be moved for a
        tenant that would be above its share after the plan.
        """
        if self.least >= SYSTEM_PRIORITY_FLOOR:
            return []
        faults = [f"{pod.key} must not be moved" for one in taken for pod in one.pods if self._is_marked(pod)]
        usable, own = self.usable_shares, self.tenant(self.placed[0])
        if usable is None or own is None:
            return faults
        shares, wanted, gain = usable.entitlements, self._requested(usable), self._gain(own, usable)
        if not any(shares.use(usable.use, own, r) + gain[r] > shares.share(own, r) for r in wanted):
            return faults
        for one in taken:
            for tenant in {self.tenant(pod) for pod in one.pods if self.asks(pod)}:
                if tenant is None:
                    continue
                usage = [
                    r for r, n in self._used_by(tenant, one.pods, usable).items() if n and shares.counted(tenant, r)
                ]
                counted = usage or [r for r in wanted if shares.counted(tenant, r)]
                if all(shares.use(usable.use, tenant, r) <= shares.share(tenant, r) for r in counted):
                    faults.append(f"{one.pods[0].key} is moved, but {tenant.quota or tenant.user} is within its share")
        return faults

    def _is_marked(self, pod: PodInfo) -> bool:
        """Returns True if a pod or its PodGroup is marked as immovable; in a live cluster also for a pod without a
        controller, because nothing would create it again."""
        notes, group = pod.pod.metadata.annotations, None
        if pod.gang is not None:
            group = self.snapshot.pod_groups.get(pod.gang.key)
        marks = [notes, *([group.metadata.annotations] if group is not None else [])]
        if any(one.get(keys.DEFRAG) == "never" for one in marks):
            return True
        if "descheduler.alpha.kubernetes.io/prefer-no-eviction" in notes:
            return True
        if notes.get("karpenter.sh/do-not-disrupt") not in (None, "false"):
            return True
        refusing = ("cluster-autoscaler.kubernetes.io/safe-to-evict", "kai.scheduler/safe-to-consolidate")
        if any(notes.get(key) == "false" for key in refusing):
            return True
        return self.snapshot.live and not any(owner.controller for owner in pod.pod.metadata.owner_references)
