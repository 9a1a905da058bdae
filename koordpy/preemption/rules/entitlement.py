# SPDX-License-Identifier: Apache-2.0
"""Decides which units consolidation must not move: those of tenants within their entitlement, and marked units.

Source: docs/rules/preemption.md 3.4. A unit of a quota within its min is not moved for a preemptor that would exceed
its own min. A unit of a user or queue within its share is not moved for a preemptor that would end above its own share.
Tenants and shares are those of `across_users.py`. A unit is marked by an annotation with which its owner or another
tool forbids moving or evicting it. In the live scheduler, a pod without a controller is not moved, because nothing
would recreate it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.api.keys import SYSTEM_PRIORITY_FLOOR
from koordpy.cache.snapshot import Snapshot
from koordpy.fairness.tenant_entitlements import Tenant
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.rules.across_users import AcrossUsers, tenant_name, tenant_order
from koordpy.preemption.rules.reclaim import Reclaim
from koordpy.preemption.rules.tenant_usage import path_below
from koordpy.preemption.search.victim_pool import Mask, Pool


@dataclass(frozen=True, eq=False)
class Entitlement:
    """Finds the units that must not be moved for one preemptor, because their tenants are within an entitlement."""

    pool: Pool
    mins: Reclaim
    """Entitlements of quotas."""
    users: AcrossUsers | None
    """Shares of tenants; None if no shares are computed, or if the preemptor belongs to no tenant."""
    priority: int
    """Priority of the preemptor."""

    def undisturbed(self, free: Mask) -> Mask:
        """Returns the units of `free` that may be moved: no tenant of the unit is protected by its entitlement."""
        if self.priority >= SYSTEM_PRIORITY_FLOOR:
            return free
        out = self.mins.tenant_usage.of_kinds(free, lambda i: next(self._quotas(i), None) is None)
        if self.users is not None and self._ends_above(self.users):
            users = self.users
            out = users.tenant_usage.of_kinds(out, lambda i: next(self._tenants(i, users), None) is None)
        return out

    def refusal(self, units: list[int]) -> str:
        """Returns the sentence for the message if this check protects one of the given units; empty if it protects
        none.

        units: the units that a plan without this check would move. The sentence names the first protected tenant in
        natural order.
        """
        found: list[tuple[Tenant, str]] = []
        for i in units:
            found += [(tenant, f"quota {tenant.quota} is within its min") for tenant in self._quotas(i)]
            if self.users is not None and self._ends_above(self.users):
                found += [
                    (tenant, f"{tenant_name(tenant, self.users.requested[0])} is within its share")
                    for tenant in self._tenants(i, self.users)
                ]
        return f"consolidation: {min(found, key=lambda one: tenant_order(one[0]))[1]}" if found else ""

    def _quotas(self, i: int) -> Iterator[Tenant]:
        """Yields the quotas of a unit below the LCA that use at most their min of every resource that the unit uses.

        The LCA is the lowest common ancestor of the quotas of the unit and of the preemptor.
        """
        mins, usage = self.mins, self.mins.tenant_usage
        for path in usage.usage_of(i):
            if not self._is_guaranteed(tuple(path_below(mins.path, path))):
                for tenant in path_below(path, mins.path):
                    amounts = usage.below(i, mins.path)[tenant]
                    if all(
                        mins.used(tenant, resource) <= mins.entitlements.share(tenant, resource)
                        for resource, amount in amounts.items()
                        if amount and mins.entitlements.counted(tenant, resource)
                    ):
                        yield tenant

    def _is_guaranteed(self, own: tuple[Tenant, ...]) -> bool:
        """Returns True if all of the preemptor's quotas in `own` end within their min without evictions.

        own: the preemptor's quotas below the LCA. Only requested resources are compared.
        """
        mins = self.mins
        if not own or not mins.entitled_resources(mins.path[-1]):
            return False
        return all(
            mins.usage_after(tenant, resource) <= mins.entitlements.share(tenant, resource)
            for tenant in own
            for resource in mins.entitled_resources(tenant)
        )

    @staticmethod
    def _ends_above(users: AcrossUsers) -> bool:
        """Returns True if the preemptor's tenant would end above its share of a requested resource."""
        shares, own = users.shares, users.own.tenant
        return any(
            shares.usage_after(own, resource) > shares.entitlements.share(own, resource) for resource in users.requested
        )

    @staticmethod
    def _tenants(i: int, users: AcrossUsers) -> Iterator[Tenant]:
        """Yields the tenants of a unit that use at most their share of each compared resource.

        Compared are the counted resources that the unit uses; if it uses none, the resources that the preemptor
        requests.
        """
        shares = users.shares
        for one in users.protected_tenants(i):
            usage = [
                r for r, n in users.usage_of(i, one.tenant).items() if n and shares.entitlements.counted(one.tenant, r)
            ]
            resources = usage or [r for r in users.requested if shares.entitlements.counted(one.tenant, r)]
            if all(shares.used(one.tenant, r) <= shares.entitlements.share(one.tenant, r) for r in resources):
                yield one.tenant


def wants_to_stay(pod: PodInfo, snapshot: Snapshot) -> bool:
    """Returns True if an annotation of the pod or its PodGroup forbids moving it; live also for a pod without
    controller."""
    notes = pod.pod.metadata.annotations
    group = snapshot.pod_groups.get(pod.gang.key) if pod.gang is not None else None
    return (
        notes.get(keys.DEFRAG) == "never"
        or (group is not None and group.metadata.annotations.get(keys.DEFRAG) == "never")
        or keys.PREFER_NO_EVICTION in notes
        or notes.get(keys.DO_NOT_DISRUPT, "false") != "false"
        or notes.get(keys.SAFE_TO_EVICT) == "false"
        or notes.get(keys.SAFE_TO_CONSOLIDATE) == "false"
        or (snapshot.live and pod.pod.metadata.controller is None)
    )
