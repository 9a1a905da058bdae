"""Priority between users (`preemption.acrossUsers`): what rule `priority` may take from another tenant.

Source: docs/rules/preemption.md 3.1. A tenant is a user (gpu-count) or a queue (exact, kai). The lines are the shares
on the nodes that the beneficiary could use (`usable_shares`). Units of another tenant may go if (a) the tenant keeps
min(use, share), or (b) its use is above its share before each unit is taken, and the beneficiary's tenant ends with no
larger excess than it had. Between two ElasticQuotas, for system priorities and for a guarantee the rule does not ask.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil

from koordpy.api.natural_order import NaturalKey, natural_key
from koordpy.fairness.entitlement_lines import ACCELERATORS, Party, Path, above
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.rules.reclaim import Pairs, Reclaim, amount_text, terms_of
from koordpy.preemption.rules.tenant_usage import below
from koordpy.preemption.rules.usable_shares import Tenancy, UsableShares
from koordpy.preemption.search.victim_pool import Mask, Pool
from koordpy.preemption.selection.victim_choice import Branch, Crossing, Either, Limit, Terms
from koordpy.quota.quota_book import QuotaUse


class AcrossUsers:
    """The tenants of the victims of one beneficiary, by their shares on the nodes that it could use."""

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
        """use: of the shares, before the plan; own: whose the beneficiary is; across: `preemption.acrossUsers`;
        by_share: whether fair share is reclaimed, so that its own lines limit priority."""
        self.pool, self.mins, self.own = pool, mins, own
        self.across, self.by_share = across, by_share
        self.holdings = shares.holdings(pool)
        self.lines = Reclaim(pods, pool=pool, use=use, lines=shares.lines, holdings=self.holdings, pod_by_pod=True)
        self.requested = [r for r in self.lines.counted(own.tenant) if self.lines.requested[r]]
        """Resources that the beneficiary asks for and that are shared out to its tenant."""
        self._gates: dict[Path, list[tuple[Party, str, int]] | None] = {}

    # --- who is asked for ---------------------------------------------------------------------------------------------

    def asked(self, i: int) -> Iterator[Tenancy]:
        """Other tenants with pods in a unit for which the rule asks."""
        return (one for one in self.holdings.owned(i) if self._asks(one))

    def _asks(self, other: Tenancy) -> bool:
        if other.tenant == self.own.tenant or (other.is_quota and self.own.is_quota):
            return False
        return bool(self.requested) and self.gate(other) != []

    def any_asked(self, free: Mask) -> bool:
        """Whether the rule asks for a tenant of some units."""
        return any(any(True for _ in self.asked(i)) for i, _ in self.holdings.tally(free))

    def gate(self, other: Tenancy) -> list[tuple[Party, str, int]] | None:
        """What of the beneficiary's own quotas has to go, as (quota, resource, amount), so that the plan is within its
        guarantee against a tenant: nothing where it is within it anyway, None where it has none."""
        own = tuple(below(self.mins.path, other.quota))
        if own not in self._gates:
            self._gates[own] = self._gate(own)
        return self._gates[own]

    def _gate(self, own: Path) -> list[tuple[Party, str, int]] | None:
        mins = self.mins
        if not own or not mins.counted(mins.path[-1]):
            return None
        out = []
        for party in own:
            for resource in mins.counted(party):
                least = above(mins.after(party, resource), mins.lines.share(party, resource))
                if least > mins.used(party, resource):
                    return None
                out += [(party, resource, least)] if least > 0 else []
        return out

    # --- who may go ---------------------------------------------------------------------------------------------------

    def eligible(self, free: Mask) -> Mask:
        """The units that may go by themselves."""
        if self.across == "any" or (self.across == "overShare" and self.by_share) or not self.requested:
            return free
        return self.holdings.of_kinds(free, self._may_go)

    def _may_go(self, i: int) -> bool:
        return all(self.gate(one) is not None or self._leaves_line(i, one.tenant) for one in self.asked(i))

    def _leaves_line(self, i: int, tenant: Party) -> bool:
        if self.across == "never":
            return False
        held = self.held(i, tenant)
        return self._keeps_share(tenant, held) or any(self._passes_on(tenant, r) for r in self.requested)

    def held(self, i: int, tenant: Party) -> Amounts:
        """What a unit's pods of a tenant hold on the nodes that count."""
        out: Amounts = {}
        for path, amounts in self.holdings.held(i).items():
            if path and path[-1] == tenant:
                add_amounts(out, amounts)
        return out

    def _keeps_share(self, tenant: Party, taken: Mapping[str, int]) -> bool:
        """(a) for what is taken of a tenant in all."""
        return all(
            amount <= self.lines.spare(tenant, resource)
            for resource, amount in taken.items()
            if amount and self.lines.lines.counted(tenant, resource)
        )

    def _passes_on(self, tenant: Party, resource: str) -> bool:
        """Whether (b) may hold in a resource: the tenant is above its share, and the beneficiary's would end with no
        larger excess if all that its tenant holds were gone."""
        if not self.lines.lines.counted(tenant, resource) or self.lines.over(tenant, resource) <= 0:
            return False
        return self._excess_lacking(tenant, resource) <= self.lines.used(self.own.tenant, resource)

    def _excess_lacking(self, tenant: Party, resource: str) -> int:
        """What of the beneficiary's own tenant has to go in a resource so that it ends with no larger excess than
        another one has."""
        lines, own = self.lines, self.own.tenant
        mine = lines.after(own, resource) - lines.lines.exact(own, resource)
        theirs = lines.used(tenant, resource) - lines.lines.exact(tenant, resource)
        return max(0, ceil(mine - theirs))

    # --- what must hold together --------------------------------------------------------------------------------------

    def bind(self, own: Mapping[int, int], every: Pairs) -> tuple[list[Limit], list[Crossing], list[Either]]:
        """What must hold of units that go by rule `priority` (unit -> option). every: (option, unit) of all rules."""
        groups: dict[Party, dict[tuple[tuple[Party, str, int], ...] | None, list[int]]] = {}
        for i, o in own.items():
            for one in self.asked(i):
                gate = self.gate(one)
                needs = tuple(gate) if gate is not None else None
                groups.setdefault(one.tenant, {}).setdefault(needs, []).append(o)
        limits: list[Limit] = []
        crossings: list[Crossing] = []
        eithers: list[Either] = []
        carried = self._by_tenant((o, i) for i, o in own.items()) if groups else {}
        leaving = self._by_tenant(every) if groups else {}
        for tenant, gates in groups.items():
            lines = self._line_branches(tenant, carried.get(tenant, {}), leaving)
            for lacking, options in gates.items():
                guarantee = self._guarantee(lacking, every) if lacking is not None else None
                if self.across == "overShare" and self.by_share:
                    continue
                branches = [*([guarantee] if guarantee is not None else []), *lines]
                if any(not branch.limits and not branch.crossings for branch in branches):
                    continue
                only = branches[0] if len(branches) == 1 else None
                if only is not None and not only.crossings:
                    limits += [self._when(limit, options) for limit in only.limits]
                elif only is not None and not only.limits and _inside(only.crossings, options):
                    crossings += only.crossings
                else:
                    eithers.append(Either(tuple(branches), tuple(dict.fromkeys(options))))
        return limits, crossings, eithers

    def _by_tenant(self, pairs: Iterable[tuple[int, int]]) -> dict[Party, dict[int, Amounts]]:
        """Tenant -> option -> what its unit's pods of the tenant hold. pairs: (option, unit)."""
        out: dict[Party, dict[int, Amounts]] = {}
        for o, i in pairs:
            for path, amounts in self.holdings.held(i).items():
                if path and amounts:
                    add_amounts(out.setdefault(path[-1], {}).setdefault(o, {}), amounts)
        return out

    @staticmethod
    def _when(limit: Limit, options: Sequence[int]) -> Limit:
        """The limit of a branch where one of some options is taken."""
        those = frozenset(limit.when)
        when = dict.fromkeys(o for o in options if not those or o in those)
        only = all(o in when for o, _ in limit.terms) and limit.least is None
        return Limit(limit.terms, most=limit.most, least=limit.least, when=() if only else tuple(when))

    def _line_branches(
        self, tenant: Party, held: Mapping[int, Amounts], leaving: Mapping[Party, Mapping[int, Amounts]]
    ) -> list[Branch]:
        """(a), and (b) in each resource, as far as they may hold. held: what units hold that go by the rule; leaving:
        the same by tenant of all rules."""
        if self.across != "overShare":
            return []
        taken = leaving.get(tenant, {})
        resources = sorted({r for amounts in held.values() for r, n in amounts.items() if n})
        kept: list[Limit] = []
        for resource in resources:
            if self.lines.lines.counted(tenant, resource):
                terms, most = terms_of(taken, resource), self.lines.spare(tenant, resource)
                if sum(n for _, n in terms) > most:
                    kept.append(Limit(terms, most=most, when=tuple(o for o in held if held[o].get(resource))))
        out = [Branch(tuple(kept))]
        for resource in self.requested:
            if not self._passes_on(tenant, resource):
                continue
            crossing = Crossing(((terms_of(held, resource), self.lines.over(tenant, resource)),))
            lacking = self._excess_lacking(tenant, resource)
            if not lacking and resources == [resource]:
                return [Branch((), (crossing,))]  # (a) is a part of it
            # the own tenant may have to give some up
            given = _at_least(terms_of(leaving.get(self.own.tenant, {}), resource), lacking) if lacking else ()
            if given is not None:
                out.append(Branch(given, (crossing,)))
        return out

    def _guarantee(self, gate: Iterable[tuple[Party, str, int]], every: Pairs) -> Branch | None:
        """That the plan is within the beneficiary's guarantee; None where it cannot be."""
        out: list[Limit] = []
        for party, resource, least in gate:
            limits = _at_least(terms_of(self.mins.held_in(party, every), resource), least)
            if limits is None:
                return None
            out += limits
        return Branch(tuple(out))

    # --- words --------------------------------------------------------------------------------------------------------

    def refusal(self, free: Mask) -> str:
        """Why a tenant keeps what it has, with its numbers: of the naturally first one of which all of some units
        together would break (a) and (b). Empty where there is none."""
        if self.across != "overShare":
            return ""
        whole = self.pool.without_lent(free)
        tenants: dict[Party, list[tuple[int, int]]] = {}
        for i, number in self.holdings.tally(whole):
            for one in {one.tenant: one for one in self.asked(i)}.values():
                tenants.setdefault(one.tenant, []).append((i, number))
        for tenant in sorted(tenants, key=party_order):
            parts = [(self.held(i, tenant), number) for i, number in tenants[tenant]]
            total: Amounts = {}
            for amounts, number in parts:
                add_amounts(total, {r: n * number for r, n in amounts.items()})
            if not self._keeps_share(tenant, total) and not self._all_pass(tenant, parts, total):
                resource = self._told(tenant, total)
                return f"preemption: {self.uses(tenant, resource)}; {self.would_use(resource)}{_unit(resource)}"
        return ""

    def _all_pass(self, tenant: Party, parts: Sequence[tuple[Amounts, int]], total: Mapping[str, int]) -> bool:
        if self.by_share:
            return False
        return any(
            self._passes_on(tenant, r)
            and not self._excess_lacking(tenant, r)
            and total.get(r, 0) - max((held.get(r, 0) for held, _ in parts), default=0) < self.lines.over(tenant, r)
            for r in self.requested
        )

    def _told(self, tenant: Party, total: Mapping[str, int]) -> str:
        """The resource that is told of: a requested one of which too much would go, if there is one."""
        broken = [
            r
            for r, n in sorted(total.items())
            if self.lines.lines.counted(tenant, r) and n > self.lines.spare(tenant, r)
        ]
        return next((r for r in broken if r in self.requested), (broken or self.requested)[0])

    def uses(self, tenant: Party, resource: str) -> str:
        """`user alice uses 2, share 2`."""
        used, share = self.lines.used(tenant, resource), self.lines.lines.share(tenant, resource)
        return (
            f"{party_name(tenant, resource)} uses {amount_text(resource, used)}, share {amount_text(resource, share)}"
        )

    def would_use(self, resource: str) -> str:
        """`user bob would use 3, share 2`: the beneficiary's tenant."""
        own = self.own.tenant
        after, share = self.lines.after(own, resource), self.lines.lines.share(own, resource)
        name = party_name(own, resource)
        return f"{name} would use {amount_text(resource, after)}, share {amount_text(resource, share)}"


def _inside(crossings: Iterable[Crossing], options: Sequence[int]) -> bool:
    """Whether crossings speak of some options alone."""
    those = frozenset(options)
    return all(o in those for crossing in crossings for terms, _ in crossing.resources for o, _ in terms)


def _at_least(terms: Terms, least: int) -> tuple[Limit, ...] | None:
    return (Limit(terms, least=least),) if sum(n for _, n in terms) >= least else None


def party_order(party: Party) -> tuple[NaturalKey, str]:
    """Natural order of tenants."""
    return natural_key(party.quota or party.user), party.user


def party_name(party: Party, resource: str) -> str:
    """`user alice` where accelerators of users are counted, else `queue alice`."""
    return f"{'user' if resource == ACCELERATORS else 'queue'} {party.quota or party.user}"


def _unit(resource: str) -> str:
    return "" if resource == ACCELERATORS else f" {resource}"
