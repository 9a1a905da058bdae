# SPDX-License-Identifier: Apache-2.0
"""Units that consolidation does not move: units of tenants within their entitlement, and units with an annotation.

Source: docs/rules/preemption.md 3.4. A unit of a quota within its min is not moved for a preemptor that would exceed
its own min. A unit of a user or queue within its share is not moved for a preemptor that would end above its own share.
Tenants and shares are those of `across_users.py`. Annotations by which other tools are kept from evicting a pod are
respected. Live, a pod without a controller is not moved, because nothing would recreate it.
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
    """The check for tenants within their entitlement, for one preemptor."""

    pool: Pool
    mins: Reclaim
    """Entitlements of quotas."""
    users: AcrossUsers | None
    """Shares of tenants; None if no shares are computed, or if the preemptor belongs to no tenant."""
    priority: int
    """Priority of the preemptor."""

    def undisturbed(self, free: Mask) -> Mask:
        """Returns the units that may be moved without disturbing a tenant within its entitlement."""
        if self.priority >= SYSTEM_PRIORITY_FLOOR:
            return free
        out = self.mins.tenant_usage.of_kinds(free, lambda i: next(self._quotas(i), None) is None)
        if self.users is not None and self._ends_above(self.users):
            users = self.users
            out = users.tenant_usage.of_kinds(out, lambda i: next(self._tenants(i, users), None) is None)
        return out

    def refusal(self, units: list[int]) -> str:
        """Returns the sentence for a message if a unit of a plan is protected; empty if none is.

        units: the units that a plan without this check would move. It names the first protecting tenant in natural
        order.
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
        """Yields the quotas of a unit below the LCA that use no more than their min of every resource that it uses."""
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
        """Returns True if the preemptor ends within its guarantee without evictions.

        own: the preemptor's quotas below the LCA, which must all end within their min of each requested resource.
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
        """Yields the tenants of a unit that use no more than their share of all resources that matter.

        These are the counted resources that the unit uses; if it uses none, those that the preemptor requests.
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
    """Returns True if a pod or its PodGroup is marked as not to be moved; live also if the pod has no controller."""
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
