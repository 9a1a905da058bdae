# SPDX-License-Identifier: Apache-2.0
"""Every rule by which a pending unit may evict running pods: reclaim by min, priority, and reclaim by fair share.

A rule is a `VictimRule`, and one line in `VICTIM_RULES`; docs/extending.md shows how to add one. Rules are tried in
order, each alone, then all together. Consolidation and the eviction of stale gangs are not in this list, because they
are planned separately (`rule_steps.py`, `planner/actions/release_stale_gangs.py`).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.preemption.rules.reclaim import Pairs
from koordpy.preemption.rules.rule_protocol import CombinedLimits, Options, RuleInputs, VictimRule
from koordpy.preemption.search.victim_pool import Mask
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.preemption.selection.victim_choice import Limit


class ReclaimMin(VictimRule):
    """Quotas reclaim their min from quotas that use more than their min (preemption.md 3.2)."""

    name = RuleName.QUOTA
    reason = "Reclaimed"

    def is_open(self, snapshot: Snapshot, config: KoordpyConfiguration) -> bool:
        """Returns True if there are quotas, and neither `fairness.reclaim: off` nor `acrossQuotas: any` turns the rule
        off.

        With `acrossQuotas: any`, rule `priority` ignores the min of quotas. The two rules would then evict each other's
        pods without end.
        """
        reclaims = config.fairness.reclaim != "off" and config.preemption.across_quotas != "any"
        return reclaims and bool(snapshot.quotas.tree.quotas)

    def units(self, rule_inputs: RuleInputs, free: Mask) -> Mask:
        """Returns the units of other quotas that use more than their min; with `quota.noQuotaYields: always` also units
        of the default quota."""
        out = rule_inputs.mins.eligible(free)
        return (
            out | rule_inputs.mins.units_in_no_quota(free)
            if rule_inputs.config.quota.no_quota_yields == "always"
            else out
        )

    def closing_reason(self, rule_inputs: RuleInputs) -> str:
        """Returns a sentence with numbers if the preemptor's quota would end above its min; else empty."""
        return rule_inputs.mins.closing_reason

    def bind(self, rule_inputs: RuleInputs, out: CombinedLimits, own: Mapping[int, int], every: Pairs) -> None:
        """Adds: the preemptor's quotas end within their min, and a victim's quotas are above their min before each
        eviction."""
        out.limits.extend(rule_inputs.mins.entitlement_limits(own, every))
        out.crossings.extend(rule_inputs.mins.crossings(own))
        # a unit that gained by an eviction of the preemptor may not bring its quota below min, not even as the last
        # evicted unit; otherwise the two units would evict each other in turn (3.6)
        if gained := {i: o for i, o in own.items() if rule_inputs.mins.has_gained(i)}:
            out.limits.extend(rule_inputs.mins.floors(gained, every))

    def why(self, rule_inputs: RuleInputs, unit: int) -> str:
        """Returns the usage and min of the two quotas.

        Example: `quota b uses 12 of min 8 cpu, quota a gets 4 of min 4`.
        """
        return rule_inputs.mins.why(unit)


class Preempt(VictimRule):
    """Evicts units of strictly lower priority (preemption.md 3.1), unless an entitlement of another quota or tenant
    protects them."""

    name = RuleName.PRIORITY
    reason = "Preempted"
    keeps_budgets = False
    above_priority = False

    def is_open(self, snapshot: Snapshot, config: KoordpyConfiguration) -> bool:
        """Returns True if `preemption.enabled` is set."""
        return config.preemption.enabled

    def units(self, rule_inputs: RuleInputs, free: Mask) -> Mask:
        """Returns units of lower priority that could be evicted alone without breaking an entitlement."""
        out = self.units_of_any_tenant(rule_inputs, free)
        if rule_inputs.config.preemption.across_users == "any" or not out.any() or rule_inputs.users is None:
            return out
        return rule_inputs.users.eligible(out)

    def units_of_any_tenant(self, rule_inputs: RuleInputs, free: Mask) -> Mask:
        """Returns the units that the rule would allow without the protection of users and queues (`acrossUsers`)."""
        if any(pod.preemption_policy == "Never" for pod in rule_inputs.pods):
            return np.zeros(len(free), dtype=bool)
        out = np.asarray(free & (rule_inputs.pool.priority < rule_inputs.priority))
        if rule_inputs.config.preemption.across_quotas != "any" and rule_inputs.tree.quotas:
            out = rule_inputs.mins.tenant_usage.of_kinds(out, self._within_quotas(rule_inputs))
        return out

    def _within_quotas(self, rule_inputs: RuleInputs) -> Callable[[int], bool]:
        """Returns a condition on units: evicting the unit alone leaves every other quota min(used before the plan,
        min).

        With `acrossQuotas: never`, only units of the preemptor's leaf quota and units in no quota pass.
        """
        mins, across = rule_inputs.mins, rule_inputs.config.preemption.across_quotas

        def passes(i: int) -> bool:
            if across == "never":
                return all(not path or path == mins.path for path in mins.tenant_usage.usage_of(i))
            return mins.keeps_entitlements(i)

        return passes

    def bind(self, rule_inputs: RuleInputs, out: CombinedLimits, own: Mapping[int, int], every: Pairs) -> None:
        """Adds: all victims together leave other quotas their min, and other tenants their share."""
        if rule_inputs.config.preemption.across_quotas == "overMin" and rule_inputs.tree.quotas:
            out.limits.extend(rule_inputs.mins.floors(own, every))
        if rule_inputs.fair is not None:
            out.limits.extend(rule_inputs.fair.floors(own, every))
        if rule_inputs.config.preemption.across_users != "any" and rule_inputs.users is not None:
            limits, crossings, eithers = rule_inputs.users.bind(own, every)
            out.limits.extend(limits)
            out.crossings.extend(crossings)
            out.eithers.extend(eithers)


class ReclaimShare(VictimRule):
    """Users and queues reclaim their share from users and queues that use more than their share (preemption.md 3.3)."""

    name = RuleName.FAIR_SHARE
    reason = "Reclaimed"

    def is_open(self, snapshot: Snapshot, config: KoordpyConfiguration) -> bool:
        """Returns True with `fairness.reclaim: all`, except in mode off."""
        return config.fairness.reclaim == "all" and config.fairness.mode != "off"

    def units(self, rule_inputs: RuleInputs, free: Mask) -> Mask:
        """Returns the units of tenants above their share.

        The eviction of a unit alone must bring no quota below its min.
        """
        if rule_inputs.fair is None:
            return np.zeros(len(free), dtype=bool)
        return rule_inputs.mins.tenant_usage.of_kinds(
            rule_inputs.fair.eligible(free), rule_inputs.mins.keeps_entitlements
        )

    def closing_reason(self, rule_inputs: RuleInputs) -> str:
        """Returns a sentence with numbers if the preemptor's tenant would end above its share; else empty."""
        return rule_inputs.fair.closing_reason if rule_inputs.fair is not None else ""

    def bind(self, rule_inputs: RuleInputs, out: CombinedLimits, own: Mapping[int, int], every: Pairs) -> None:
        """Adds: quotas keep their min, the preemptor's tenants end within their share, and a victim's tenants are above
        their share before each eviction."""
        if rule_inputs.fair is not None:
            out.limits.extend(rule_inputs.mins.floors(own, every))
            out.limits.extend(rule_inputs.fair.entitlement_limits(own, every))
            out.crossings.extend(rule_inputs.fair.crossings(own))

    def why(self, rule_inputs: RuleInputs, unit: int) -> str:
        """Returns the usage and share of the two tenants, such as `user bob uses 4, share 2; user alice gets 2`."""
        return rule_inputs.fair.why(unit) if rule_inputs.fair is not None else ""


VICTIM_RULES: tuple[VictimRule, ...] = (
    ReclaimMin(),
    Preempt(),
    ReclaimShare(),
)
BY_NAME: Mapping[RuleName, VictimRule] = {rule.name: rule for rule in VICTIM_RULES}


def steps(rule_inputs: RuleInputs, free: Mask) -> list[dict[RuleName, Mask]]:
    """Returns the steps, each as rule -> [units] that it may evict: each open rule alone, then all open rules together.

    free: [units] that may be evicted before any rule is applied. A rule that allows no unit has no step.
    """
    known = [rule for rule in VICTIM_RULES if rule.is_open(rule_inputs.pool.draft.snapshot, rule_inputs.config)]
    may = [rule.units(rule_inputs, free & rule_inputs.pool.evictable if rule.keeps_budgets else free) for rule in known]
    may = [
        rule_inputs.protection.allowed(rule.name, rule_inputs.pool, mask) for rule, mask in zip(known, may, strict=True)
    ]
    wide = {rule.name: mask for rule, mask in zip(known, may, strict=True) if mask.any()}
    alone = [{name: mask} for name, mask in wide.items() if not BY_NAME[name].closing_reason(rule_inputs)]
    return alone + ([wide] if len(wide) > 1 else [])


def split_steps(rules: Sequence[dict[RuleName, Mask]]) -> tuple[list[dict[RuleName, Mask]], list[dict[RuleName, Mask]]]:
    """Splits `steps` of docs/rules/preemption.md 1 into (steps 4 and 5, steps 6 and 7), because step 5b comes between
    them."""
    early = [{RuleName.QUOTA}, {RuleName.PRIORITY}]
    first = [step for step in rules if set(step) in early]
    return first, [step for step in rules if set(step) not in early]


def combined_limits(
    rule_inputs: RuleInputs, options: Options, budgets: Sequence[tuple[int, Mapping[int, int]]]
) -> CombinedLimits:
    """Returns the limits on all chosen options: of quotas, guards, rules, and PodDisruptionBudgets.

    options: rule -> unit of the pool -> option. budgets: for each PodDisruptionBudget (number of evictions that it
    allows, unit -> number of its pods that the budget covers).
    """
    out = CombinedLimits()
    every = [(o, i) for own in options.values() for i, o in own.items()]
    # moved pods are placed again, so they free nothing in their quotas or in the total that quotas share
    rule_inputs.add_admission(out, every if RuleName.CONSOLIDATION not in options else [])
    for name, own in options.items():
        out.limits.extend(rule_inputs.protection.limits(name, own, rule_inputs.pool))
        rule = BY_NAME.get(name)
        if rule is not None:
            rule.bind(rule_inputs, out, own, every)
        if rule is None or rule.keeps_budgets:
            for allowed, covered in budgets:
                when = tuple(o for i, o in own.items() if i in covered)
                terms = tuple((o, covered[i]) for o, i in every if i in covered)
                if when and sum(n for _, n in terms) > allowed:
                    out.limits.append(Limit(terms, most=allowed, when=when if len(options) > 1 else ()))
    rule_inputs.add_shortfalls(out, options)
    return out
