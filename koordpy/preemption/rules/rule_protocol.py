# SPDX-License-Identifier: Apache-2.0
"""The interface of preemption rules: which victim units a rule allows, and limits on all chosen victims.

A rule reads its inputs from `RuleInputs`; `victim_rules.py` lists all rules. A rule need not know nodes, gangs or
PodDisruptionBudgets: the search chooses among the allowed units by cost, and tries each set on the draft with all
filters.

Terms of the rules: an entitlement is the min of a quota or the share of a tenant; it is constant within a round. Usage
is that of the draft before the plan. The LCA is the lowest common ancestor of the leaf quotas of the preemptor and of
the victim; "below the LCA" means the quotas on a path from the LCA (exclusive) to the leaf (inclusive).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from koordpy.api import keys
from koordpy.api.keys import SYSTEM_PRIORITY_FLOOR
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.fairness.tenant_entitlements import Entitlements, Mins, Tenant, entitlements_of
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
from koordpy.quota.preemption_history import units_that_gained

Options = Mapping[RuleName, Mapping[int, int]]
"""Rule -> position of a unit in the pool -> option of the unit under the rule."""


@dataclass(frozen=True, eq=False)
class CombinedLimits:
    """Limits on all chosen options of all rules together.

    Each rule appends to the lists. Their types are in `victim_choice.py`.
    """

    limits: list[Limit] = field(default_factory=list)
    runtimes: list[RuntimeSteps] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    eithers: list[Either] = field(default_factory=list)
    shortfalls: list[Shortfall] = field(default_factory=list)


class RoundEntitlements:
    """The entitlements of a round: mins of quotas and shares of tenants. Each is computed at its first use."""

    def __init__(self, round_state: RoundState) -> None:
        self._round_state = round_state

    @cached_property
    def mins(self) -> Mins:
        """Mins of quotas."""
        return Mins(self._round_state.snapshot.quotas)

    @cached_property
    def shares(self) -> Entitlements | None:
        """Fair shares of tenants on all nodes; None in mode off."""
        return entitlements_of(self._round_state.snapshot, self._round_state.config.fairness)

    @property
    def reclaimed(self) -> Entitlements | None:
        """Fair shares of tenants, if `fairness.reclaim: all`; else None."""
        return self.shares if self._round_state.config.fairness.reclaim == "all" else None

    @cached_property
    def usable(self) -> TenantShares:
        """Fair shares of tenants, limited to the nodes that a set of pods could use (`usable_shares.py`)."""
        return TenantShares(self._round_state, self.mins)


class RuleInputs:
    """The inputs of the rules for one preemptor set: its members, entitlements, usage, and guards."""

    def __init__(
        self,
        unit: Unit,
        pods: Sequence[PodInfo],
        pool: Pool,
        round_state: RoundState,
        entitlements: RoundEntitlements,
        waived: frozenset[Guard] = NO_GUARD,
    ) -> None:
        """pods: the members of the unit that are placed together. waived: guards that this search ignores."""
        self._entitlements, self.waived = entitlements, waived
        self.use = use = round_state.reservations.use(unit, round_state.draft.quotas, net=True)
        """Usage of quotas and users before the plan, including the reservations that are closed to the unit."""
        self.unit, self.pods, self.pool, self.round_state, self.config = (
            unit,
            pods,
            pool,
            round_state,
            round_state.config,
        )
        self.protection = PlanGuards(unit, pods, round_state.config, waived)
        self.tree = use.quotas.tree
        self.raises_runtimes = self.config.quota.no_quota_yields != "never" and self.config.quota.enable_runtime_quota
        """True if evicting pods in no quota can raise the runtimes of quotas (`shared_total.py`)."""
        self.priority = min(pod.priority for pod in pods)
        """The lowest priority of the members to be placed."""

    @cached_property
    def mins(self) -> Reclaim:
        """Reclaim by the min of quotas. Rules use it only if the snapshot has quotas (`tree.quotas`)."""
        entitlements = self._entitlements.mins
        return Reclaim(
            self.pods, pool=self.pool, use=self.use, entitlements=entitlements, units_that_gained=self._gained
        )

    @cached_property
    def fair(self) -> ShareReclaim | None:
        """Reclaim by fair share; None if fair share is not reclaimed."""
        if (entitlements := self._entitlements.reclaimed) is None:
            return None
        return ShareReclaim(
            self.pods, pool=self.pool, use=self.use, entitlements=entitlements, units_that_gained=self._gained
        )

    @cached_property
    def _gained(self) -> frozenset[str]:
        """Ids of the units that gained by a recent eviction of the preemptor."""
        evicted_for = self.round_state.snapshot.evicted_for
        return units_that_gained(evicted_for, self.unit.id) if evicted_for else frozenset()

    @cached_property
    def users(self) -> AcrossUsers | None:
        """The protection of other tenants from rule `priority`; None if it does not apply to the preemptor.

        It does not apply in mode off, to pods of the system quota, to system priorities, and to pods that request no
        resource that is shared out. It is not needed if all running pods are of the preemptor's tenant.
        """
        if self.priority >= SYSTEM_PRIORITY_FLOOR:
            return None
        if not self.round_state.snapshot.quotas.has_other_tenants(self.pods[0]):
            return None
        if (shares := self._entitlements.usable.of(self.pods)) is None:
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
        """The check of consolidation for units that must not move, because their tenants are within an entitlement."""
        return Entitlement(self.pool, self.mins, self.users, self.priority)

    @property
    def admissible(self) -> bool:
        """False if no eviction can make the quotas admit the unit, because non-preemptible pods would exceed a min.

        Victims are preemptible, so evictions do not reduce non-preemptible usage.
        """
        asked: dict[str, Amounts] = {}
        for pod in self.pods:
            for tenant in self.mins.entitlements.path(pod) if pod.owner.rigid else ():
                add_amounts(asked.setdefault(tenant.quota, {}), pod.charged)
        for name, amounts in asked.items():
            quota = self.tree.quotas[name]
            for resource in quota.max:
                amount = amounts.get(resource, 0)
                if amount and self.use.rigid_used(name, resource) + amount > quota.least(resource):
                    return False
        return True

    # --- limits on all victims ---------------------------------------------------------------------------------------

    def add_admission(self, out: CombinedLimits, every: Pairs) -> None:
        """Adds limits such that every quota of the members admits all members once the victims are gone.

        every: (option, unit of the pool) of all options; empty if units are moved, because moves free nothing in
        quotas.
        """
        if not self.tree.quotas:
            return
        total: SharedTotal | None = None
        needed: dict[Terms, int] = {}
        for tenant, asked in self.mins.requests.items():
            for resource in self.tree.quotas[tenant.quota].max:
                after = self.mins.usage_after(tenant, resource)
                if not asked.get(resource):
                    continue
                total = total or SharedTotal(
                    self.round_state.admission, self.mins.tenant_usage, every, yields=self.raises_runtimes
                )
                if total.lacks(tenant.quota, resource, after) <= 0:
                    continue
                found = total.admits(
                    tenant.quota, resource, after, terms_of(self.mins.usage_in(tenant, every), resource)
                )
                if isinstance(found, RuntimeSteps):
                    out.runtimes.append(found)
                elif found is not None and found.least is not None:
                    needed[found.terms] = max(found.least, needed.get(found.terms, 0))
        # a quota and its ancestors may need an amount from the same victims: only the largest amount is kept
        out.limits.extend(Limit(terms, least=least) for terms, least in needed.items())

    def add_shortfalls(self, out: CombinedLimits, options: Options) -> None:
        """Adds cost level 6: accelerators, in hundredths, by which leaf quotas fall below min(used before the plan,
        min).

        Only victims of the two reclaim rules count (`quota` and `fair-share`).
        """
        taken: dict[tuple[Tenant, str], list[tuple[int, int]]] = {}
        for rule in (RuleName.QUOTA, RuleName.FAIR_SHARE):
            for i, o in options.get(rule, {}).items():
                for path, amounts in self.mins.tenant_usage.usage_of(i).items():
                    for resource, amount in amounts.items() if path else ():
                        if (
                            amount
                            and self.mins.entitlements.counted(path[-1], resource)
                            and resource in keys.ACCELERATORS
                        ):
                            scale = 1 if resource in keys.HUNDREDTHS else 100
                            taken.setdefault((path[-1], resource), []).append((o, amount * scale))
        for (leaf, resource), terms in taken.items():
            slack = self.mins.spare(leaf, resource) * (1 if resource in keys.HUNDREDTHS else 100)
            if sum(n for _, n in terms) > slack:
                out.shortfalls.append(Shortfall(tuple(terms), slack))


class VictimRule(ABC):
    """A reason that permits evictions: which units a pending unit may evict, and limits on all chosen victims."""

    name: RuleName
    """Name of the rule in results and metrics."""
    reason: str
    """Reason of the event on each victim, such as `Preempted`."""
    keeps_budgets: bool = True
    """True if victims of the rule may not violate a PodDisruptionBudget. False: a violation is allowed, but it has a
    cost (level 1)."""

    above_priority: bool = True
    """True if the rule may allow victims with the preemptor's priority or a higher one."""

    def is_open(self, snapshot: Snapshot, config: KoordpyConfiguration) -> bool:
        """Returns False if the rule allows no victim in the whole round; then candidate pods need not be read for
        it."""
        return True

    @abstractmethod
    def units(self, rule_inputs: RuleInputs, free: Mask) -> Mask:
        """Returns [units of rule_inputs.pool]: the units of `free` that the rule allows to be evicted alone.

        `bind` limits what is evicted together.
        """

    def closing_reason(self, rule_inputs: RuleInputs) -> str:
        """Returns why the rule, applied alone, evicts nothing; empty if it may evict.

        Even if the text is not empty, the rule applies in the step of all rules together: victims of other rules may
        lower the usage of the preemptor's tenant.
        """
        return ""

    def bind(self, rule_inputs: RuleInputs, out: CombinedLimits, own: Mapping[int, int], every: Pairs) -> None:
        """Adds the limits of the rule on all chosen victims.

        own: unit of the pool -> its option under this rule. every: (option, unit) of all rules.
        """
        return

    def why(self, rule_inputs: RuleInputs, unit: int) -> str:
        """Returns the numbers that allow the eviction of a unit, for the event on its pods."""
        return ""
