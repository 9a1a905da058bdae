"""The interface of preemption rules: the rules of preemption.md 3 as options and limits of a choice.

A rule reads numbers only (`Law`); `victim_rules.py` lists all rules. The units that a rule allows are then chosen by
cost, tried on the draft with all filters, and checked; so a rule need not know nodes, gangs or disruption budgets.
Entitlements (min, share) are constants of the round; usage is the draft's before the plan. "Below the LCA" means the
quotas on a path under the lowest common ancestor of the preemptor's leaf quota and the victim's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from koordpy.api import keys
from koordpy.api.keys import SYSTEM_PRIORITY_FLOOR
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.fairness.entitlement_lines import EntitlementLines, Tenant
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.preemption.rules.across_users import AcrossUsers
from koordpy.preemption.rules.entitlement import Entitlement
from koordpy.preemption.rules.plan_guards import PlanGuards
from koordpy.preemption.rules.reclaim import Pairs, Reclaim, ShareReclaim, terms_of
from koordpy.preemption.rules.shared_total import SharedTotal
from koordpy.preemption.rules.usable_shares import TenantShares
from koordpy.preemption.search.victim_pool import Mask, Pool
from koordpy.preemption.selection.preemption_names import NO_GUARD, Guard, RuleName
from koordpy.preemption.selection.victim_choice import Crossing, Either, Limit, RuntimeSteps, Shortfall, Terms
from koordpy.quota.preemption_history import gainers

Options = Mapping[RuleName, Mapping[int, int]]
"""Rule -> unit of the pool -> option."""


@dataclass(frozen=True, eq=False)
class Together:
    """Limits on all chosen options of all rules together."""

    limits: list[Limit] = field(default_factory=list)
    runtimes: list[RuntimeSteps] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    eithers: list[Either] = field(default_factory=list)
    shortfalls: list[Shortfall] = field(default_factory=list)


class Law:
    """The inputs of the rules for one preemptor set."""

    def __init__(
        self,
        unit: Unit,
        pods: Sequence[PodInfo],
        pool: Pool,
        round_state: RoundState,
        *,
        mins: EntitlementLines,
        lines: EntitlementLines | None,
        tenants: TenantShares,
        waived: frozenset[Guard] = NO_GUARD,
    ) -> None:
        """pods: the members of the unit that are placed together. mins: entitlements of quotas. lines: fair shares;
        None if fair share is not reclaimed. tenants: shares on the nodes that some pods could use. waived: guards that
        are left out."""
        self._tenants, self.waived = tenants, waived
        self.use = use = round_state.reservations.use(unit, round_state.draft.quotas, net=True)
        self.unit, self.pods, self.pool, self.round_state, self.config = (
            unit,
            pods,
            pool,
            round_state,
            round_state.config,
        )
        self.protection = PlanGuards(unit, pods, round_state.config, waived)
        gained = gainers(round_state.snapshot.yielded, unit.id)
        self.mins = Reclaim(pods, pool=pool, use=use, lines=mins, gainers=gained)
        self.fair = ShareReclaim(pods, pool=pool, use=use, lines=lines, gainers=gained) if lines is not None else None
        self.tree = use.quotas.tree
        self.yields = self.config.quota.no_quota_yields != "never" and self.config.quota.enable_runtime_quota
        """True if capacity that victims in no quota free is shared out to quotas."""
        self.priority = min(pod.priority for pod in pods)
        """The lowest priority of the members to be placed."""

    @cached_property
    def users(self) -> AcrossUsers | None:
        """Priority between users; None if no tenant is protected by it.

        That is so in mode off, for pods of the system quota, for system priorities, and for pods that request nothing
        that is shared.
        """
        if self.priority >= SYSTEM_PRIORITY_FLOOR or (shares := self._tenants.of(self.pods)) is None:
            return None
        own = shares.tenancy(self.pods[0])
        if own is None:
            return None
        found = AcrossUsers(
            self.pods,
            pool=self.pool,
            mins=self.mins,
            shares=shares,
            use=shares.use(self.unit),
            own=own,
            across=self.config.preemption.across_users,
            by_share=self.fair is not None,
        )
        return found if found.requested else None

    @cached_property
    def entitlement(self) -> Entitlement:
        """Units of tenants within their entitlement, which moves for the preemptor must not disturb."""
        return Entitlement(self.pool, self.mins, self.users, self.priority)

    @property
    def admissible(self) -> bool:
        """True if evictions could let the quotas admit the unit.

        Victims are preemptible, so evictions cannot reduce non-preemptible usage.
        """
        asked: dict[str, Amounts] = {}
        for pod in self.pods:
            for party in self.mins.lines.path(pod) if pod.owner.rigid else ():
                add_amounts(asked.setdefault(party.quota, {}), pod.requests)
        for name, amounts in asked.items():
            quota = self.tree.quotas[name]
            for resource in quota.max:
                amount = amounts.get(resource, 0)
                if amount and self.use.rigid_used(name, resource) + amount > quota.least(resource):
                    return False
        return True

    # --- limits on all victims ---------------------------------------------------------------------------------------

    def add_admission(self, out: Together, every: Pairs) -> None:
        """Adds limits such that every quota of the members admits them all once the victims are gone."""
        total: SharedTotal | None = None
        needed: dict[Terms, int] = {}
        for party, asked in self.mins.requests.items():
            for resource in self.tree.quotas[party.quota].max:
                after = self.mins.after(party, resource)
                if not asked.get(resource):
                    continue
                total = total or SharedTotal(self.round_state.admission, self.mins.holdings, every, yields=self.yields)
                if total.lacks(party.quota, resource, after) <= 0:
                    continue
                found = total.admits(party.quota, resource, after, terms_of(self.mins.held_in(party, every), resource))
                if isinstance(found, RuntimeSteps):
                    out.runtimes.append(found)
                elif found is not None and found.least is not None:
                    needed[found.terms] = max(found.least, needed.get(found.terms, 0))
        # of a quota and those above it, the largest shortfall of the same victims decides
        out.limits.extend(Limit(terms, least=least) for terms, least in needed.items())

    def add_shortfalls(self, out: Together, options: Options) -> None:
        """Adds cost level 6: accelerators by which leaf quotas fall below min(used_before, min)."""
        taken: dict[tuple[Tenant, str], list[tuple[int, int]]] = {}
        for rule in (RuleName.QUOTA, RuleName.FAIR_SHARE):
            for i, o in options.get(rule, {}).items():
                for path, amounts in self.mins.holdings.held(i).items():
                    for resource, amount in amounts.items() if path else ():
                        if amount and self.mins.lines.counted(path[-1], resource) and resource in keys.ACCELERATORS:
                            scale = 1 if resource in keys.HUNDREDTHS else 100
                            taken.setdefault((path[-1], resource), []).append((o, amount * scale))
        for (leaf, resource), terms in taken.items():
            slack = self.mins.spare(leaf, resource) * (1 if resource in keys.HUNDREDTHS else 100)
            if sum(n for _, n in terms) > slack:
                out.shortfalls.append(Shortfall(tuple(terms), slack))


class VictimRule(ABC):
    """One rule: the victims that it allows for a waiting unit, and the limits on all chosen victims."""

    name: RuleName
    reason: str
    """Reason of the event on each victim."""
    keeps_budgets: bool = True
    """True if no PodDisruptionBudget may be violated; else each violation costs (level 1)."""

    above_priority: bool = True
    """True if the rule may allow pods of the preemptor's priority or higher."""

    def is_open(self, snapshot: Snapshot, config: KoordpyConfiguration) -> bool:
        """Returns False if the rule allows no victim in a round; then candidate pods need not be read."""
        return True

    @abstractmethod
    def units(self, law: Law, free: Mask) -> Mask:
        """Returns [units of law.pool]: the units of `free` that the rule allows, each by itself.

        law: quotas, shares and priorities for the preemptor.
        """

    def closed(self, law: Law) -> str:
        """Returns why the rule allows no victim alone, although it may with other rules; empty if it does."""
        return ""

    def bind(self, law: Law, out: Together, own: Mapping[int, int], every: Pairs) -> None:
        """Adds limits on all chosen victims.

        own: unit -> its option by this rule. every: (option, unit) of all rules.
        """
        return

    def why(self, law: Law, unit: int) -> str:
        """Returns the numbers that allow the eviction of a unit, for the event on its pods."""
        return ""
