# SPDX-License-Identifier: Apache-2.0
"""Protects tenants from preemption by other tenants' priorities (`preemption.acrossUsers`); for rule `priority` only.

Without this protection, a user could take the whole cluster by giving high priorities to its pods. Source:
docs/rules/preemption.md 3.1. A tenant is a user (mode gpu-count) or a queue (exact, kai). Its share is computed on the
nodes that the preemptor could use (`usable_shares.py`). Units of another tenant may be evicted in two cases:

- (a) The tenant keeps at least min(usage, share).
- (b) The tenant is above its share before each unit is evicted. After the plan, the excess of the preemptor's tenant is
  at most the excess that the other tenant had before the plan. An excess is usage above the unrounded share.

A third case is the guarantee: the plan leaves each of the preemptor's quotas below the LCA within its min. The LCA is
the lowest common ancestor of the two tenants' quotas. The protection does not apply between two ElasticQuotas or to a
preemptor of system priority.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil

from koordpy.api.natural_order import NaturalKey, natural_key
from koordpy.fairness.tenant_entitlements import ACCELERATORS, Path, Tenant, usage_above
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.rules.reclaim import Pairs, Reclaim, amount_text, terms_of
from koordpy.preemption.rules.tenant_usage import path_below
from koordpy.preemption.rules.usable_shares import Tenancy, UsableShares
from koordpy.preemption.search.victim_pool import Mask, Pool
from koordpy.preemption.selection.victim_choice import Branch, Crossing, Either, Limit, Terms
from koordpy.quota.quota_book import QuotaUse


class AcrossUsers:
    """Decides which units of other tenants rule `priority` may evict for one preemptor set."""

    def __init__(
        self,
        pods: Sequence[PodInfo],
        *,
        pool: Pool,
        mins: Reclaim,
        shares: UsableShares,
        use: QuotaUse,
        own: Tenancy,
        across: str,
        by_share: bool,
    ) -> None:
        """mins: the entitlements of quotas. shares: fair shares of tenants on the nodes that the preemptor could use.
        use: usage of tenants on these nodes before the plan. own: the preemptor's tenant. across:
        `preemption.acrossUsers`. by_share: True if fair share is reclaimed (`fairness.reclaim: all`); then the limit of
        that setting replaces (a) and (b)."""
        self.pool, self.mins, self.own = pool, mins, own
        self.across, self.by_share = across, by_share
        self.tenant_usage = shares.tenant_usage(pool)
        self.shares = Reclaim(
            pods, pool=pool, use=use, entitlements=shares.entitlements, tenant_usage=self.tenant_usage, pod_by_pod=True
        )
        """Usage, shares and requests of tenants on the nodes. Used for the numbers only: this object reclaims
        nothing."""
        self.requested = [r for r in self.shares.entitled_resources(own.tenant) if self.shares.requested[r]]
        """Resources that the preemptor requests and in which its tenant has a share. If empty, no tenant is
        protected."""
        self._deficits: dict[Path, list[tuple[Tenant, str, int]] | None] = {}
        """Cache of `guarantee_deficits`: the preemptor's quotas below the LCA -> result."""

    # --- protected tenants --------------------------------------------------------------------------------------------

    def protected_tenants(self, i: int) -> Iterator[Tenancy]:
        """Yields the protected tenants with pods in unit `i` of the pool; never the preemptor's own tenant."""
        return (one for one in self.tenant_usage.owned(i) if self._protects(one))

    def _protects(self, other: Tenancy) -> bool:
        """Returns True if this class protects a tenant.

        False for the preemptor's own tenant, and between two ElasticQuotas. Also False if the plan keeps the
        preemptor's guarantee against that tenant without any eviction.
        """
        if other.tenant == self.own.tenant or (other.is_quota and self.own.is_quota):
            return False
        return bool(self.requested) and self.guarantee_deficits(other) != []

    def protects_any(self, free: Mask) -> bool:
        """Returns True if any unit of the mask has pods of a protected tenant."""
        return any(any(True for _ in self.protected_tenants(i)) for i, _ in self.tenant_usage.tally(free))

    def guarantee_deficits(self, other: Tenancy) -> list[tuple[Tenant, str, int]] | None:
        """Returns what must be evicted from the preemptor's own quotas so that the plan keeps the preemptor's
        guarantee.

        The guarantee against another tenant: the preemptor's quotas below the LCA end within their min. The result is a
        list of (quota, resource, amount). An empty list: the guarantee holds without evictions. None: there is no
        guarantee, or no evictions can make it hold.
        """
        own = tuple(path_below(self.mins.path, other.quota))
        if own not in self._deficits:
            self._deficits[own] = self._guarantee_deficits(own)
        return self._deficits[own]

    def _guarantee_deficits(self, own: Path) -> list[tuple[Tenant, str, int]] | None:
        """Computes `guarantee_deficits` for the preemptor's quotas below the LCA."""
        mins = self.mins
        if not own or not mins.entitled_resources(mins.path[-1]):
            return None
        out = []
        for tenant in own:
            for resource in mins.entitled_resources(tenant):
                least = usage_above(mins.usage_after(tenant, resource), mins.entitlements.share(tenant, resource))
                if least > mins.used(tenant, resource):
                    return None
                out += [(tenant, resource, least)] if least > 0 else []
        return out

    # --- eligible units -----------------------------------------------------------------------------------------------

    def eligible(self, free: Mask) -> Mask:
        """Returns the units of `free` that may be evicted alone. `bind` limits what is evicted together."""
        if self.across == "any" or (self.across == "overShare" and self.by_share) or not self.requested:
            return free
        return self.tenant_usage.of_kinds(free, self._is_evictable)

    def _is_evictable(self, i: int) -> bool:
        """Returns True if, for each protected tenant with pods in the unit, the guarantee, (a) or (b) may allow it."""
        return all(
            self.guarantee_deficits(one) is not None or self._respects_share(i, one.tenant)
            for one in self.protected_tenants(i)
        )

    def _respects_share(self, i: int, tenant: Tenant) -> bool:
        """Returns True if evicting unit `i` alone satisfies (a) for a tenant, or if (b) is possible."""
        if self.across == "never":
            return False
        usage = self.usage_of(i, tenant)
        return self._keeps_share(tenant, usage) or any(self._may_cross(tenant, r) for r in self.requested)

    def usage_of(self, i: int, tenant: Tenant) -> Amounts:
        """Returns what a unit's pods of a tenant use on the nodes that the preemptor could use."""
        out: Amounts = {}
        for path, amounts in self.tenant_usage.usage_of(i).items():
            if path and path[-1] == tenant:
                add_amounts(out, amounts)
        return out

    def _keeps_share(self, tenant: Tenant, taken: Mapping[str, int]) -> bool:
        """Returns True if condition (a) is satisfied. taken: resource -> amount that the plan evicts from the
        tenant."""
        return all(
            amount <= self.shares.spare(tenant, resource)
            for resource, amount in taken.items()
            if amount and self.shares.entitlements.counted(tenant, resource)
        )

    def _may_cross(self, tenant: Tenant, resource: str) -> bool:
        """Returns True if condition (b) is possible for a tenant in a resource.

        It is possible if the tenant is above its share, and if the preemptor's own tenant could give up enough pods to
        end with no larger excess.
        """
        if not self.shares.entitlements.counted(tenant, resource) or self.shares.usage_above(tenant, resource) <= 0:
            return False
        return self._excess_lacking(tenant, resource) <= self.shares.used(self.own.tenant, resource)

    def _excess_lacking(self, tenant: Tenant, resource: str) -> int:
        """Returns the amount that must be evicted from the preemptor's own tenant to satisfy condition (b).

        With this amount evicted and the preemptor placed, its tenant's excess is at most the excess of the other
        tenant.
        """
        shares, own = self.shares, self.own.tenant
        mine = shares.usage_after(own, resource) - shares.entitlements.exact(own, resource)
        theirs = shares.used(tenant, resource) - shares.entitlements.exact(tenant, resource)
        return max(0, ceil(mine - theirs))

    # --- limits on all victims ----------------------------------------------------------------------------------------

    def bind(self, own: Mapping[int, int], every: Pairs) -> tuple[list[Limit], list[Crossing], list[Either]]:
        """Returns the limits on the units that rule `priority` evicts.

        own: unit of the pool -> its option under rule `priority`. every: (option, unit) of all rules. For each
        protected tenant, the guarantee, (a) and (b) are alternatives (`Either`). If only one alternative is possible,
        it is returned as plain limits or crossings, which the solver handles faster.
        """
        # tenant -> result of `guarantee_deficits` as a tuple (None without a guarantee) -> options with pods of the
        # tenant
        groups: dict[Tenant, dict[tuple[tuple[Tenant, str, int], ...] | None, list[int]]] = {}
        for i, o in own.items():
            for one in self.protected_tenants(i):
                deficits = self.guarantee_deficits(one)
                needs = tuple(deficits) if deficits is not None else None
                groups.setdefault(one.tenant, {}).setdefault(needs, []).append(o)
        limits: list[Limit] = []
        crossings: list[Crossing] = []
        eithers: list[Either] = []
        carried = self._by_tenant((o, i) for i, o in own.items()) if groups else {}
        leaving = self._by_tenant(every) if groups else {}
        for tenant, needed in groups.items():
            of_shares = self._share_branches(tenant, carried.get(tenant, {}), leaving)
            for lacking, options in needed.items():
                guarantee = self._guarantee(lacking, every) if lacking is not None else None
                if self.across == "overShare" and self.by_share:
                    continue
                branches = [*([guarantee] if guarantee is not None else []), *of_shares]
                if any(not branch.limits and not branch.crossings for branch in branches):
                    continue
                only = branches[0] if len(branches) == 1 else None
                if only is not None and not only.crossings:
                    limits += [self._conditional(limit, options) for limit in only.limits]
                elif only is not None and not only.limits and _inside(only.crossings, options):
                    crossings += only.crossings
                else:
                    eithers.append(Either(tuple(branches), tuple(dict.fromkeys(options))))
        return limits, crossings, eithers

    def _by_tenant(self, pairs: Iterable[tuple[int, int]]) -> dict[Tenant, dict[int, Amounts]]:
        """Returns tenant -> option -> amounts that the tenant's pods in its unit use. pairs: (option, unit)."""
        out: dict[Tenant, dict[int, Amounts]] = {}
        for o, i in pairs:
            for path, amounts in self.tenant_usage.usage_of(i).items():
                if path and amounts:
                    add_amounts(out.setdefault(path[-1], {}).setdefault(o, {}), amounts)
        return out

    @staticmethod
    def _conditional(limit: Limit, options: Sequence[int]) -> Limit:
        """Returns a limit of the only possible branch as a plain limit, which applies if one of `options` is chosen.

        `when` is left empty if it makes no difference: the limit then holds anyway while none of the options is chosen.
        """
        those = frozenset(limit.when)
        when = dict.fromkeys(o for o in options if not those or o in those)
        only = all(o in when for o, _ in limit.terms) and limit.least is None
        return Limit(limit.terms, most=limit.most, least=limit.least, when=() if only else tuple(when))

    def _share_branches(
        self, tenant: Tenant, usage: Mapping[int, Amounts], leaving: Mapping[Tenant, Mapping[int, Amounts]]
    ) -> list[Branch]:
        """Returns the branches that allow evictions from a tenant: (a), and (b) for each requested resource.

        Branches that cannot be satisfied are left out; with `acrossUsers: never` there are none. usage: option of rule
        `priority` -> amounts that its unit frees of the tenant's usage. leaving: tenant -> option of any rule ->
        amounts that its unit frees.
        """
        if self.across != "overShare":
            return []
        taken = leaving.get(tenant, {})
        resources = sorted({r for amounts in usage.values() for r, n in amounts.items() if n})
        kept: list[Limit] = []
        for resource in resources:
            if self.shares.entitlements.counted(tenant, resource):
                terms, most = terms_of(taken, resource), self.shares.spare(tenant, resource)
                if sum(n for _, n in terms) > most:
                    kept.append(Limit(terms, most=most, when=tuple(o for o in usage if usage[o].get(resource))))
        out = [Branch(tuple(kept))]
        for resource in self.requested:
            if not self._may_cross(tenant, resource):
                continue
            crossing = Crossing(((terms_of(usage, resource), self.shares.usage_above(tenant, resource)),))
            lacking = self._excess_lacking(tenant, resource)
            if not lacking and resources == [resource]:
                return [Branch((), (crossing,))]  # whatever satisfies (a) also satisfies this branch
            # some units of the preemptor's tenant may have to be evicted
            given = _at_least(terms_of(leaving.get(self.own.tenant, {}), resource), lacking) if lacking else ()
            if given is not None:
                out.append(Branch(given, (crossing,)))
        return out

    def _guarantee(self, deficits: Iterable[tuple[Tenant, str, int]], every: Pairs) -> Branch | None:
        """Returns the branch in which the plan keeps the preemptor's guarantee; None if evictions cannot make it hold.

        deficits: result of `guarantee_deficits`, not None.
        """
        out: list[Limit] = []
        for tenant, resource, least in deficits:
            limits = _at_least(terms_of(self.mins.usage_in(tenant, every), resource), least)
            if limits is None:
                return None
            out += limits
        return Branch(tuple(out))

    # --- messages -----------------------------------------------------------------------------------------------------

    def refusal(self, free: Mask) -> str:
        """Returns the sentence on a protected tenant for the message of a pending pod; empty if no tenant is protected.

        It names the first tenant, in natural order, for which evicting all units of `free` would violate (a) and (b).
        """
        if self.across != "overShare":
            return ""
        whole = self.pool.without_lent(free)
        tenants: dict[Tenant, list[tuple[int, int]]] = {}
        for i, number in self.tenant_usage.tally(whole):
            for one in {one.tenant: one for one in self.protected_tenants(i)}.values():
                tenants.setdefault(one.tenant, []).append((i, number))
        for tenant in sorted(tenants, key=tenant_order):
            parts = [(self.usage_of(i, tenant), number) for i, number in tenants[tenant]]
            total: Amounts = {}
            for amounts, number in parts:
                add_amounts(total, {r: n * number for r, n in amounts.items()})
            if not self._keeps_share(tenant, total) and not self._all_may_cross(tenant, parts, total):
                resource = self._message_resource(tenant, total)
                return f"preemption: {self.uses(tenant, resource)}; {self.would_use(resource)}{_unit(resource)}"
        return ""

    def _all_may_cross(self, tenant: Tenant, parts: Sequence[tuple[Amounts, int]], total: Mapping[str, int]) -> bool:
        """Returns True if evicting all units of a tenant satisfies (b) in some resource, with no victims of the
        preemptor's own tenant. parts: (amounts of a unit, number of such units). total: the sum over all of these
        units."""
        if self.by_share:
            return False
        return any(
            self._may_cross(tenant, r)
            and not self._excess_lacking(tenant, r)
            and total.get(r, 0) - max((usage.get(r, 0) for usage, _ in parts), default=0)
            < self.shares.usage_above(tenant, r)
            for r in self.requested
        )

    def _message_resource(self, tenant: Tenant, total: Mapping[str, int]) -> str:
        """Returns the resource that the message names.

        It is a resource in which more would be evicted than `spare` allows, preferably a requested one; else the first
        requested resource.
        """
        broken = [
            r
            for r, n in sorted(total.items())
            if self.shares.entitlements.counted(tenant, r) and n > self.shares.spare(tenant, r)
        ]
        return next((r for r in broken if r in self.requested), (broken or self.requested)[0])

    def uses(self, tenant: Tenant, resource: str) -> str:
        """Returns text such as `user alice uses 2, share 2`."""
        used, share = self.shares.used(tenant, resource), self.shares.entitlements.share(tenant, resource)
        return (
            f"{tenant_name(tenant, resource)} uses {amount_text(resource, used)}, share {amount_text(resource, share)}"
        )

    def would_use(self, resource: str) -> str:
        """Returns text on the preemptor's tenant such as `user bob would use 3, share 2`."""
        own = self.own.tenant
        after, share = self.shares.usage_after(own, resource), self.shares.entitlements.share(own, resource)
        name = tenant_name(own, resource)
        return f"{name} would use {amount_text(resource, after)}, share {amount_text(resource, share)}"


def _inside(crossings: Iterable[Crossing], options: Sequence[int]) -> bool:
    """Returns True if every term of the crossings belongs to one of the given options."""
    those = frozenset(options)
    return all(o in those for crossing in crossings for terms, _ in crossing.resources for o, _ in terms)


def _at_least(terms: Terms, least: int) -> tuple[Limit, ...] | None:
    """Returns the limit that options free at least an amount; None if all options together free less."""
    return (Limit(terms, least=least),) if sum(n for _, n in terms) >= least else None


def tenant_order(tenant: Tenant) -> tuple[NaturalKey, str]:
    """Returns the sort key for the natural order of tenants."""
    return natural_key(tenant.quota or tenant.user), tenant.user


def tenant_name(tenant: Tenant, resource: str) -> str:
    """Returns `user alice` if accelerators of users are counted, else `queue alice`."""
    return f"{'user' if resource == ACCELERATORS else 'queue'} {tenant.quota or tenant.user}"


def _unit(resource: str) -> str:
    """Returns the resource as the end of a message, such as ` cpu`; empty for accelerators."""
    return "" if resource == ACCELERATORS else f" {resource}"
