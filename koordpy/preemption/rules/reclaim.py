# SPDX-License-Identifier: Apache-2.0
"""Reclaim: a tenant below its entitlement takes capacity back from tenants that use more than their entitlement.

The entitlement of a quota is its min (docs/rules/preemption.md 3.2). The entitlement of a user or queue is its fair
share (3.3; only with `fairness.reclaim: all`). Tenants form a tree. For two tenants, only the parts of their paths
below their lowest common ancestor (LCA) are compared, because the ancestors above contain both. The excess of a tenant
is its usage above its entitlement; its spare amount may be evicted without going below the entitlement. For shares, the
excess is also compared with the unrounded share, so that rounding alone never causes an eviction.
"""

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from koordpy.api.keys import DEFAULT_QUOTA
from koordpy.api.quantity import quantity_text
from koordpy.fairness.tenant_entitlements import ACCELERATORS, Entitlements, Path, Tenant, evictable_amount, usage_above
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.rules.tenant_usage import TenantUsage, path_below
from koordpy.preemption.search.victim_pool import Mask, Pool
from koordpy.preemption.selection.victim_choice import Crossing, Limit, Terms
from koordpy.quota.quota_book import QuotaUse

Pairs = Sequence[tuple[int, int]]
"""(option, position of its unit in the pool) of all options of a choice."""


class Reclaim:
    """What one preemptor set may reclaim by one kind of entitlement: eligible units, limits, and the numbers for
    messages."""

    def __init__(
        self,
        pods: Sequence[PodInfo],
        *,
        pool: Pool,
        use: QuotaUse,
        entitlements: Entitlements,
        units_that_gained: Collection[str] = (),
        tenant_usage: TenantUsage | None = None,
        pod_by_pod: bool | None = None,
    ) -> None:
        """pods: the members to be placed. use: usage of tenants on the draft, before the plan. entitlements: mins or
        fair shares. units_that_gained: ids of the units that gained by a recent eviction of the preemptor, directly or
        along a chain of evictions. tenant_usage: usage of the victim units by tenant; None: computed for all nodes.
        pod_by_pod: True if each member counts in its own tenants, False if all members count in the tenants of the
        first one, None for the default of the entitlements."""
        self.pool, self.use, self.entitlements, self.units_that_gained = pool, use, entitlements, units_that_gained
        self.protected_gainer = ""
        """Id of a unit that only the protection of gainers excludes (3.6); empty for none. Set by `eligible`."""
        self.path = entitlements.path(pods[0])
        """Path of the preemptor: its tenants from the top down; empty if it has no entitlement."""
        self.tenant_usage = tenant_usage if tenant_usage is not None else pool.tenant_usage(entitlements)
        self.requested: Amounts = {}
        """Resource -> counted requests of all members."""
        self.requests: dict[Tenant, Amounts] = {}
        """Tenant -> resource -> requests of the members that belong to the tenant or to a tenant below it."""
        for pod in pods:
            amounts = {resource: n for resource, n in entitlements.amounts(pod.charged).items() if n > 0}
            add_amounts(self.requested, amounts)
            for tenant in (
                entitlements.path(pod) if (entitlements.pod_by_pod if pod_by_pod is None else pod_by_pod) else self.path
            ):
                add_amounts(self.requests.setdefault(tenant, {}), amounts)

    # --- one tenant -------------------------------------------------------------------------------------------------

    def entitled_resources(self, tenant: Tenant) -> list[str]:
        """Returns the requested resources for which a tenant has an entitlement."""
        return [resource for resource in sorted(self.requested) if self.entitlements.counted(tenant, resource)]

    def used(self, tenant: Tenant, resource: str) -> int:
        """Returns the usage of a tenant before the plan."""
        return self.entitlements.use(self.use, tenant, resource)

    def usage_after(self, tenant: Tenant, resource: str) -> int:
        """Returns the usage of one of the preemptor's tenants with the preemptor placed and no victim evicted."""
        return self.used(tenant, resource) + self._added(tenant, resource)

    def _added(self, tenant: Tenant, resource: str) -> int:
        """Returns what the preemptor requests in a tenant; 0 for a tenant that is not on the preemptor's path."""
        return self.requests.get(tenant, {}).get(resource, 0)

    def usage_above(self, tenant: Tenant, resource: str) -> int:
        """Returns the usage of a tenant above its entitlement, rounded up; 0 or less if it uses no more than that."""
        return usage_above(self.used(tenant, resource), self.entitlements.share(tenant, resource))

    def spare(self, tenant: Tenant, resource: str) -> int:
        """Returns the amount that may be evicted from a tenant such that it keeps min(used before the plan,
        entitlement).

        The members that the plan places in the tenant count as usage, so they increase the amount.
        """
        return evictable_amount(self.used(tenant, resource), self.entitlements.share(tenant, resource)) + self._added(
            tenant, resource
        )

    @cached_property
    def closing_reason(self) -> str:
        """Returns why the preemptor may not reclaim, with numbers: its tenant would end above its entitlement.

        Empty if it may reclaim, or if it requests no resource with an entitlement.
        """
        for tenant in self.path[-1:]:
            for resource in self.entitled_resources(tenant):
                after = self.usage_after(tenant, resource)
                if after > self.entitlements.share(tenant, resource):
                    return f"reclaim: {self._usage_text(tenant, resource, 'would use', after)}"
        return ""

    # --- eligible units ---------------------------------------------------------------------------------------------

    def eligible(self, free: Mask) -> Mask:
        """Returns the units of `free` that belong to other tenants, if all of these are above their entitlement.

        Left out are units with pods of other schedulers. Also left out are units that gained by an eviction of the
        preemptor, if they are protected (3.6).
        """
        if not self.path or not self.entitled_resources(self.path[-1]):
            return np.zeros(len(free), dtype=bool)
        known: dict[Path, bool] = {}

        def passes(i: int) -> bool:
            usage = self.tenant_usage.usage_of(i)
            for path in usage:
                if path not in known:
                    known[path] = path[-1:] != self.path[-1:] and bool(path) and self._is_above(path)
            return not self.pool.foreign(i) and all(known[path] for path in usage) and self._frees_requested(usage)

        out = self.tenant_usage.of_kinds(free, passes)
        for i in np.nonzero(out)[0].tolist() if self.units_that_gained else ():
            if self.has_gained(i) and self._is_protected(i):
                out[i], self.protected_gainer = False, self.pool.unit_id(i)
        return out

    def units_in_no_quota(self, free: Mask) -> Mask:
        """Returns the units of `free` with pods in the default quota, for `quota.noQuotaYields: always`.

        The default quota counts as a top quota with min 0. Pods of the same unit in other quotas must be in quotas
        above their min. Units with pods of other schedulers are left out.
        """
        out = np.zeros(len(free), dtype=bool)
        quotas = self.use.quotas
        used = any(self.use.used(DEFAULT_QUOTA, r) > 0 for r in self.requested)
        if not used or not self.path or not self.entitled_resources(self.path[-1]):
            return out
        for i in np.nonzero(free)[0].tolist():
            usage = self.tenant_usage.usage_of(i)
            if () not in usage or self.pool.foreign(i):
                continue
            alone = (pod for pod in self.pool.units[i].pods if not self.entitlements.path(pod))
            others = (path for path in usage if path)
            out[i] = all(quotas.quota_of(pod) == DEFAULT_QUOTA for pod in alone) and all(
                path[-1:] != self.path[-1:] and self._is_above(path) for path in others
            )
        return out

    def has_gained(self, i: int) -> bool:
        """Returns True if a unit gained by an eviction of the preemptor."""
        return self.pool.unit_id(i) in self.units_that_gained

    def _is_protected(self, i: int) -> bool:
        """Returns True if the preemptor may not evict a unit that gained by its eviction (3.6).

        In this class (quotas) it may not if the eviction of the unit alone brings a quota below its min.
        """
        return not self.keeps_entitlements(i)

    def _is_above(self, path: Path) -> bool:
        """Returns True if every tenant of a path below the LCA uses more than its entitlement of a requested
        resource."""
        return all(
            any(self.usage_above(tenant, r) > 0 for r in self.entitled_resources(tenant))
            for tenant in path_below(path, self.path)
        )

    def _frees_requested(self, usage: Mapping[Path, Amounts]) -> bool:
        """Returns True if evicting a unit that uses these amounts can help.

        Always True in this class, because reclaim by quota has no such condition (3.2). `ShareReclaim` overrides it:
        the unit must free a requested resource.
        """
        return True

    def keeps_entitlements(self, i: int) -> bool:
        """Returns True if the eviction of a unit alone brings no other tenant below its entitlement."""
        return all(
            amount <= self.spare(tenant, resource)
            for tenant, amounts in self.tenant_usage.below(i, self.path).items()
            for resource, amount in amounts.items()
            if amount and self.entitlements.counted(tenant, resource)
        )

    # --- limits on all victims --------------------------------------------------------------------------------------

    def usage_in(self, tenant: Tenant, every: Pairs) -> dict[int, Amounts]:
        """Returns option -> amounts that its unit uses in a tenant or below it, wherever the LCA is."""
        out: dict[int, Amounts] = {}
        for o, i in every:
            for path, amounts in self.tenant_usage.usage_of(i).items():
                if tenant in path:
                    add_amounts(out.setdefault(o, {}), amounts)
        return out

    def entitlement_limits(self, own: Mapping[int, int], every: Pairs) -> list[Limit]:
        """Returns limits such that the preemptor's tenants below the LCA end within their entitlement.

        own: unit of the pool -> its option under the rule. The limit of a tenant applies if an option is chosen for
        which the tenant is below the LCA. every: all options, because victims of other rules also lower the tenant's
        usage.
        """
        when: dict[Tenant, list[int]] = {}
        for i, o in own.items():
            for path in self.tenant_usage.usage_of(i):
                for tenant in path_below(self.path, path):
                    when.setdefault(tenant, []).append(o)
        out: list[Limit] = []
        for tenant, options in when.items():
            usage: dict[int, Amounts] | None = None
            for resource in self.entitled_resources(tenant):
                least = usage_above(self.usage_after(tenant, resource), self.entitlements.share(tenant, resource))
                if least > 0:
                    usage = self.usage_in(tenant, every) if usage is None else usage
                    out.append(Limit(terms_of(usage, resource), least=least, when=tuple(options)))
        return out

    def crossings(self, own: Mapping[int, int]) -> list[Crossing]:
        """Returns the conditions that each tenant below the LCA is above its entitlement before each of its units is
        evicted.

        For at least one requested resource, (evicted amount - largest unit) < usage before the plan - entitlement. A
        condition that holds even if all units are evicted is left out.
        """
        out: list[Crossing] = []
        for tenant, usage in self._evicted_amounts(own).items():
            resources = []
            for resource in self.entitled_resources(tenant):
                terms = tuple((o, amounts.get(resource, 0)) for o, amounts in usage.items())
                resources.append((terms, self.usage_above(tenant, resource)))
            open_at_most = [
                sum(n for _, n in terms) - max((n for _, n in terms), default=0) < room for terms, room in resources
            ]
            if not any(open_at_most):
                out.append(Crossing(tuple(resources)))
        return out

    def floors(self, own: Mapping[int, int], every: Pairs) -> list[Limit]:
        """Returns limits that leave each other tenant at least min(used before the plan, entitlement)."""
        out: list[Limit] = []
        for tenant, taken in self._evicted_amounts(own).items():
            usage = self.usage_in(tenant, every)
            for resource in sorted({resource for amounts in usage.values() for resource in amounts}):
                if not self.entitlements.counted(tenant, resource):
                    continue
                terms, most = terms_of(usage, resource), self.spare(tenant, resource)
                when = self._options_with_floor(taken, resource)
                if when and sum(n for _, n in terms) > most:
                    only = all(o in when for o, _ in terms)
                    out.append(Limit(terms, most=most, when=() if only else when))
        return out

    def _options_with_floor(self, taken: Mapping[int, Amounts], resource: str) -> tuple[int, ...]:
        """Returns the options that are limited by the entitlement of a tenant in a resource: all options.

        taken: option of the rule -> amounts that its unit uses in the tenant. `ShareReclaim` returns only the options
        that free the resource.
        """
        return tuple(taken)

    def _evicted_amounts(self, own: Mapping[int, int]) -> dict[Tenant, dict[int, Amounts]]:
        """Returns tenant below the LCA -> option -> amounts that its unit uses there."""
        out: dict[Tenant, dict[int, Amounts]] = {}
        for i, o in own.items():
            for tenant, amounts in self.tenant_usage.below(i, self.path).items():
                out.setdefault(tenant, {})[o] = dict(amounts)
        return out

    # --- messages ---------------------------------------------------------------------------------------------------

    def why(self, i: int) -> str:
        """Returns the numbers that allow the eviction of a unit, for the event on the unit's pods.

        Example: `quota b uses 12 of min 8 nvidia.com/gpu, quota a gets 4 of min 4`.
        """
        resource, uses = self._overuse(i)
        own = self.path[-1]
        line = quantity_text(resource, int(self.entitlements.share(own, resource)))
        gets = quantity_text(resource, self.requests[own].get(resource, 0))
        return f"{uses}, quota {own.quota} gets {gets} of min {line}"

    def _overuse(self, i: int) -> tuple[str, str]:
        """Returns (resource, text): the resource in which the tenant of the unit's first pod exceeds its
        entitlement, and its numbers."""
        path = next(iter(self.tenant_usage.usage_of(i)))
        if not path:
            used = {r: self.use.used(DEFAULT_QUOTA, r) for r in self.entitled_resources(self.path[-1])}
            resource = next((r for r, amount in used.items() if amount), next(iter(used)))
            return resource, f"quota {DEFAULT_QUOTA} uses {quantity_text(resource, used[resource])} of min 0 {resource}"
        tenant = (path_below(path, self.path) or path)[-1]
        over = [r for r in self.entitled_resources(tenant) if self.usage_above(tenant, r) > 0]
        resource = (over or self.entitled_resources(tenant))[0]
        return resource, self._usage_text(tenant, resource, "uses", self.used(tenant, resource))

    def _usage_text(self, tenant: Tenant, resource: str, verb: str, amount: int) -> str:
        """Returns text such as `quota b uses 12 of min 8 nvidia.com/gpu`."""
        line = quantity_text(resource, int(self.entitlements.share(tenant, resource)))
        return f"quota {tenant.quota} {verb} {quantity_text(resource, amount)} of min {line} {resource}"


class ShareReclaim(Reclaim):
    """Reclaim by fair share: as `Reclaim`, with two more protections.

    No flip: no plan may reverse which of two tenants is further above its share. A unit that gained by a recent
    eviction of the preemptor is never evicted for the preemptor (3.6).
    """

    def _is_protected(self, i: int) -> bool:
        """Returns True for every unit that gained: a share never justifies taking back what a unit gained."""
        return True

    def _frees_requested(self, usage: Mapping[Path, Amounts]) -> bool:
        """Returns True if the unit uses a resource that the preemptor requests."""
        return any(amounts.get(resource) for amounts in usage.values() for resource in self.requested)

    def _is_above(self, path: Path) -> bool:
        """Returns True if the tenants of a path below the LCA are above their share, and evicting there causes no flip.

        The flip is ruled out between the two leaf tenants, and between the two children of the LCA.
        """
        theirs, mine = path_below(path, self.path), path_below(self.path, path)
        pairs = {(mine[-1], theirs[-1]), (mine[0], theirs[0])} if mine and theirs else set()
        return bool(theirs) and super()._is_above(path) and all(self._no_flip(own, other) for own, other in pairs)

    def _no_flip(self, own: Tenant, other: Tenant) -> bool:
        """Returns True if, in some requested resource, the preemptor's tenant ends with a smaller excess than the other
        tenant.

        The excess is usage above the unrounded share: of the preemptor's tenant after the plan, of the other tenant
        before it. Victims in the preemptor's own tenant are not subtracted. Otherwise a tenant at its share could evict
        one of its own pods to reclaim by share, that pod would preempt by priority, and so on without end (3.6).
        """
        for resource in self.entitled_resources(other):
            if self.usage_above(other, resource) <= 0 or not self.entitlements.counted(own, resource):
                continue
            mine = self.usage_after(own, resource) - self.entitlements.exact(own, resource)
            if mine < self.used(other, resource) - self.entitlements.exact(other, resource):
                return True
        return False

    def _options_with_floor(self, taken: Mapping[int, Amounts], resource: str) -> tuple[int, ...]:
        """Returns the options with units that use the resource."""
        return tuple(o for o, amounts in taken.items() if amounts.get(resource))

    def why(self, i: int) -> str:
        """Returns the numbers that allow the eviction, such as `user bob uses 4, share 2; user alice gets 2`."""
        resource, uses = self._overuse(i)
        return f"{uses}; {_tenant_text(self.path[-1])} gets {amount_text(resource, self.requested.get(resource, 0))}"

    def _usage_text(self, tenant: Tenant, resource: str, verb: str, amount: int) -> str:
        """Returns text such as `user bob uses 4, share 2`."""
        share = amount_text(resource, self.entitlements.share(tenant, resource))
        return f"{_tenant_text(tenant)} {verb} {amount_text(resource, amount)}, share {share}"


def terms_of(usage: Mapping[int, Amounts], resource: str) -> Terms:
    """Returns (option, amount of the resource) for the options with an amount above 0."""
    return tuple((o, amounts[resource]) for o, amounts in usage.items() if amounts.get(resource))


def _tenant_text(tenant: Tenant) -> str:
    """Returns `quota NAME` or `user NAME`."""
    return f"quota {tenant.quota}" if tenant.quota else f"user {tenant.user}"


def amount_text(resource: str, amount: int | Fraction) -> str:
    """Returns an amount as text; accelerators, which are counted in hundredths, as a number of devices."""
    value = Fraction(amount)
    if resource == ACCELERATORS:
        value /= 100
    if value.denominator != 1:
        return f"{float(value):g}"
    return str(int(value)) if resource == ACCELERATORS else quantity_text(resource, int(value))
