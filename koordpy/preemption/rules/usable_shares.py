# SPDX-License-Identifier: Apache-2.0
"""Fair shares on the nodes that a pending unit could use, for the protection of tenants from rule `priority`.

A tenant may be within its share of the whole cluster, but hold all nodes of one GPU model. So shares are computed on
the set N of nodes that could take a member of the pending unit if they were empty (docs/rules/preemption.md 3.1). The
total is the capacity of N. The demand of a tenant is the usage of its pods on N, plus its pending pods that could use a
node of N. If N has all accelerators of the cluster, these are the ordinary shares. Demand on N is summed once a round;
usage follows the draft.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordpy.fairness.tenant_entitlements import Entitlements, Path, Tenant, entitlements_of
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import Owner, PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.rules.tenant_usage import TenantUsage
from koordpy.preemption.search.victim_pool import Pool
from koordpy.preemption.selection.victim_units import VictimUnit
from koordpy.quota.quota_book import Quotas, QuotaUse, card_hundredths, in_sums

Nodes = NDArray[np.bool_]
ALL = None
"""Value of a parameter `nodes` that means all nodes of the cluster, instead of a mask."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The tenant of a pod."""

    tenant: Tenant
    """The user (gpu-count) or the queue (exact, kai)."""
    is_quota: bool
    """True if the tenant is an ElasticQuota, rather than a user by label or namespace."""
    quota: Path
    """The pod's ElasticQuota and those above it, from the top down; empty for a pod in no quota."""


class PodTenants:
    """Finds the tenant of each pod, and whether the pod counts: whether it is on one of the nodes.

    Separate from `UsableShares`, which refers to `UsableHoldings`, because a reference cycle would keep the snapshot in
    memory.
    """

    def __init__(
        self, round_state: RoundState, entitlements: Entitlements, mins: Entitlements, nodes: Nodes | None
    ) -> None:
        """entitlements: shares on the nodes. mins: entitlements of ElasticQuotas. nodes: [nodes], or `ALL`."""
        self._round_state, self._of_shares, self._mins, self._nodes = round_state, entitlements, mins, nodes
        self._tenancies: dict[Owner, Tenancy | None] = {}

    def tenancy(self, pod: PodInfo) -> Tenancy | None:
        """Returns the tenant of a pod; None for a pod of the system quota."""
        if pod.owner not in self._tenancies:
            path, quotas = self._of_shares.path(pod), self._round_state.snapshot.quotas
            by_quota = quotas.quota_of(pod) in quotas.tree.quotas
            is_quota = by_quota and (bool(path and path[-1].quota) or not pod.owner.user)
            self._tenancies[pod.owner] = Tenancy(path[-1], is_quota, self._mins.path(pod)) if path else None
        return self._tenancies[pod.owner]

    def counts(self, pod: PodInfo) -> bool:
        """Returns True if a bound pod is on one of the nodes."""
        node = self._round_state.snapshot.index.get(pod.node, -1)
        return self._nodes is ALL or (node >= 0 and bool(self._nodes[node]))


class UsableShares:
    """Fair shares on one set of nodes, with the usage of tenants there on the draft."""

    def __init__(
        self,
        round_state: RoundState,
        entitlements: Entitlements,
        quotas: Quotas,
        nodes: Nodes | None,
        mins: Entitlements,
    ) -> None:
        """nodes: [nodes] mask, or `ALL`. quotas: capacity, usage and demand on these nodes. mins: entitlements of
        ElasticQuotas."""
        self.entitlements = entitlements
        self._round_state, self._quotas, self._nodes = round_state, quotas, nodes
        self._use, self._seen = QuotaUse(quotas), 0
        self._holdings: tuple[Pool, UsableHoldings] | None = None
        self._tenants = PodTenants(round_state, entitlements, mins, nodes)

    def use(self, unit: Unit) -> QuotaUse:
        """Returns the usage of tenants on these nodes on the draft, including the reservations that are closed to the
        unit."""
        round_state, nodes = self._round_state, self._nodes
        if nodes is ALL:
            return round_state.reservations.use(unit, round_state.draft.quotas, net=True)
        changes = round_state.draft.changes
        for pod, node, sign in changes[self._seen :]:
            if nodes[node]:
                self._use.change(pod, sign)
        self._seen = len(changes)
        return round_state.reservations.use(unit, self._use, net=True, at=lambda node: node >= 0 and bool(nodes[node]))

    def tenant_usage(self, pool: Pool) -> "UsableHoldings":
        """Returns the usage of the victim units, counting only pods on these nodes."""
        if self._holdings is None or self._holdings[0] is not pool:
            usage = UsableHoldings(pool.units, pool.foreign, self.entitlements, self._tenants)
            self._holdings = pool, usage
        return self._holdings[1]

    def tenancy(self, pod: PodInfo) -> Tenancy | None:
        """Returns the tenant of a pod; None for a pod of the system quota."""
        return self._tenants.tenancy(pod)


class UsableHoldings(TenantUsage):
    """Usage of the victim units by tenant on one set of nodes. Pods on other nodes count as 0."""

    def __init__(
        self,
        units: Sequence[VictimUnit],
        foreign: Callable[[int], bool],
        entitlements: Entitlements,
        tenants: PodTenants,
    ) -> None:
        super().__init__(units, foreign, entitlements)
        self._tenants = tenants
        self._owned: dict[Collection[Owner], frozenset[Tenancy]] = {}

    def usage_of(self, i: int) -> "dict[Path, Amounts]":
        """Returns path of a tenant -> amounts that the unit's pods use on the nodes.

        A tenant with pods only on other nodes has an entry without amounts.
        """
        found = self._usage.get(i)
        if found is None:
            pods = self.units[i].pods
            kind = (self._tenants.counts(pods[0]), pods[0].owner, *pods[0].charged.items()) if len(pods) == 1 else i
            found = self._usage[i] = self._of_kind.setdefault(kind, {})
            for pod in pods if not found else ():
                own = found.setdefault(self.entitlements.path(pod), {})
                if self._tenants.counts(pod):
                    add_amounts(own, self.entitlements.amounts(pod.charged))
        return found

    def owned(self, i: int) -> frozenset[Tenancy]:
        """Returns the tenants of the unit's pods, except the system quota."""
        owners = frozenset(pod.owner for pod in self.units[i].pods)
        if owners not in self._owned:
            pods = {pod.owner: pod for pod in self.units[i].pods}
            found = (self._tenants.tenancy(pod) for pod in pods.values())
            self._owned[owners] = frozenset(one for one in found if one is not None)
        return self._owned[owners]

    def kind(self, i: int) -> object:
        """Returns a key that is equal for units with equal usage and equal tenants."""
        return super().kind(i), self.owned(i)


class TenantShares:
    """The shares of a round, cached by set of nodes."""

    def __init__(self, round_state: RoundState, mins: Entitlements) -> None:
        self._round_state, self._mins = round_state, mins
        self._known: dict[bytes | None, UsableShares | None] = {}

    def of(self, pods: Iterable[PodInfo]) -> UsableShares | None:
        """Returns the shares on the nodes that could take at least one of the given pods; None in mode off."""
        round_state = self._round_state
        if round_state.config.fairness.mode == "off":
            return None
        kinds = {pod.shape: pod for pod in pods}
        usable = np.any([round_state.could_hold(pod) for pod in kinds.values()], axis=0)
        nodes = ALL if bool((usable | ~self._sharing).all()) else usable
        key = nodes.tobytes() if nodes is not ALL else None
        if key not in self._known:
            quotas = round_state.snapshot.quotas if nodes is ALL else self._quotas_on(nodes)
            entitlements = entitlements_of(round_state.snapshot, round_state.config.fairness, quotas)
            own = (
                UsableShares(round_state, entitlements, quotas, nodes, self._mins) if entitlements is not None else None
            )
            self._known[key] = own
        return self._known[key]

    @cached_property
    def _sharing(self) -> Nodes:
        """[nodes] True for a node with a resource that is shared out. In mode gpu-count, these are the nodes with
        accelerators."""
        nodes = self._round_state.snapshot.nodes
        if self._round_state.config.fairness.mode != "gpu-count":
            return np.ones(len(nodes), dtype=bool)
        return np.array([card_hundredths(node.allocatable) > 0 for node in nodes], dtype=bool)

    def _quotas_on(self, nodes: Nodes) -> Quotas:
        """Returns the quotas with capacity, usage and demand on the given nodes only."""
        snapshot, round_state = self._round_state.snapshot, self._round_state
        every, index = snapshot.quotas, snapshot.index
        inside = int(nodes.sum()) * 2 <= len(nodes)
        """True to add up the amounts on the given nodes; False to subtract the amounts on the other nodes from the
        total. The smaller of the two sets of nodes is summed."""
        counted = set(np.nonzero(nodes if inside else ~nodes)[0].tolist())
        total: Amounts = {} if inside else dict(every.total)
        usage: dict[Owner, Amounts] = {} if inside else {owner: dict(sums) for owner, sums in every.usage.items()}
        sign, cards = (1, 0) if inside else (-1, every.cards)
        for position in sorted(counted):
            node = snapshot.nodes[position]
            if not node.going:
                add_amounts(total, node.allocatable, sign)
                cards += sign * card_hundredths(node.allocatable)
        for pod in snapshot.pods.values():
            # a pod on an unknown node is on none of the given nodes; one on a lost node is in no share (repair.md 4.1)
            if pod.bound and not pod.lost and (index[pod.node] in counted if pod.node in index else not inside):
                add_amounts(usage.setdefault(pod.owner, {}), in_sums(pod.charged), sign)
        waiting = {owner: dict(sums) for owner, sums in every.demand.items()}
        able: dict[bytes, bool] = {}
        for pod in snapshot.pending:
            if pod.shape not in able:
                able[pod.shape] = bool((round_state.could_hold(pod) & nodes).any())
            if not able[pod.shape]:
                add_amounts(waiting.setdefault(pod.owner, {}), in_sums(pod.demanded), -1)
        return replace(every, total=total, usage=usage, demand=waiting, cards=cards)
