# SPDX-License-Identifier: Apache-2.0
"""The guards harm and surplus: limits on a preemption plan in addition to the rules (docs/rules/preemption.md 3.7).

- Harm: the victims of a rule hold at most a multiple of the accelerators that the plan places (`protection.maxHarm`).
- Surplus: a plan that places members above minMember evicts no core and no broken gang (`preemption.surplusVictims`).

Both are conditions of the choice of victims, so the search finds the least costly plan that satisfies them. If it finds
none, it may search again with a guard waived, to find out whether the guard was the reason. No guard applies to
preemptors of system priority.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import floor

import numpy as np

from koordpy.api import keys
from koordpy.api.quantity import quantity_text
from koordpy.config.configuration import KoordpyConfiguration, MaxHarm
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.victim_pool import Mask, Pool
from koordpy.preemption.selection.preemption_names import NO_GUARD, Guard, RuleName
from koordpy.preemption.selection.victim_choice import Limit, Terms
from koordpy.preemption.selection.victim_units import UnitKind, VictimUnit
from koordpy.quota.quota_book import card_hundredths

CPU = "cpu"
BREAKS_NO_GANG = "preemption: members above minMember break no gang."
_WOULD: Mapping[RuleName, str] = {
    RuleName.CONSOLIDATION: "consolidation: would move",
    RuleName.PRIORITY: "preemption: would evict",
    RuleName.QUOTA: "reclaim: would evict",
    RuleName.FAIR_SHARE: "reclaim: would evict",
}


def factor_of(rule: RuleName, limits: MaxHarm) -> Fraction | None:
    """Returns the maximum harm of a rule's victims, as a multiple of what the plan places; None for no limit."""
    factors = {
        RuleName.PRIORITY: limits.priority,
        RuleName.QUOTA: limits.quota,
        RuleName.FAIR_SHARE: limits.fair_share,
        RuleName.CONSOLIDATION: limits.consolidation,
    }
    factor = factors.get(rule)
    return None if factor is None else Fraction(str(factor))


class PlanGuards:
    """The guards of one preemptor's plan."""

    def __init__(
        self, unit: Unit, pods: Sequence[PodInfo], config: KoordpyConfiguration, waived: frozenset[Guard] = NO_GUARD
    ) -> None:
        """pods: the members of the unit that are placed together. waived: guards that are left out."""
        exempt = min(pod.priority for pod in pods) >= keys.SYSTEM_PRIORITY_FLOOR
        limited = not exempt and Guard.HARM not in waived
        self._factors = {
            rule: factor
            for rule in _WOULD
            if limited and (factor := factor_of(rule, config.protection.max_harm)) is not None
        }
        self._moves = config.consolidation.enabled or config.preemption.across_users == "overShare"
        """True if running units may be moved (steps 3 and 5b)."""
        # accelerators that the plan places, in hundredths; harm is limited to a multiple of it
        self.accelerators = sum(card_hundredths(pod.charged) for pod in pods)
        self.cpu = sum(pod.charged.get(CPU, 0) for pod in pods)
        self.pods = len(pods)
        spares = config.preemption.surplus_victims == "pods" and not exempt and Guard.SURPLUS not in waived
        self._spares_gangs = spares and places_surplus(unit, pods)
        """True if the surplus guard applies to these members."""

    # --- surplus ------------------------------------------------------------------------------------------------------

    def allowed(self, rule: RuleName, pool: Pool, eligible: Mask) -> Mask:
        """Returns [units]: the units of `eligible` that a rule may evict or move under the surplus guard.

        If the guard applies, cores and units of broken gangs are left out. Rule `quota` is exempt, because the min of a
        quota takes precedence over the protection of gangs.
        """
        if not self._spares_gangs or rule is RuleName.QUOTA:
            return eligible
        out = eligible.copy()
        for i in np.nonzero(eligible)[0].tolist():
            out[i] = pool.units[i].kind not in (UnitKind.CORE, UnitKind.BROKEN)
        return out

    # --- harm ---------------------------------------------------------------------------------------------------------

    def harm(self, unit: VictimUnit) -> int:
        """Returns the harm of evicting a unit.

        The measure depends on the members that are placed. If they request accelerators: hundredths of accelerators of
        the unit. If they request only cpu: milli-cores of the unit. If neither: the number of the unit's pods.
        """
        if self.accelerators:
            return unit.devices
        return sum(pod.charged.get(CPU, 0) for pod in unit.pods) if self.cpu else len(unit.pods)

    def most(self, rule: RuleName) -> int | None:
        """Returns the maximum harm of the victims of a rule, in the measure of `harm`; None for no limit."""
        factor = self._factors.get(rule)
        return None if factor is None else floor(factor * (self.accelerators or self.cpu or self.pods))

    def limits(self, rule: RuleName, own: Mapping[int, int], pool: Pool) -> list[Limit]:
        """Returns the harm guard as limits on the victims of one rule; empty if the guard cannot be exceeded.

        own: unit of the pool -> its option under the rule. If the placed members request no accelerators, no victim may
        hold any.
        """
        most = self.most(rule)
        if most is None:
            return []
        out = []
        if not self.accelerators and (holding := _terms((o, pool.units[i].devices) for i, o in own.items())):
            out.append(Limit(holding, most=0))
        terms = _terms((o, self.harm(pool.units[i])) for i, o in own.items())
        if sum(amount for _, amount in terms) > most:
            out.append(Limit(terms, most=most))
        return out

    # --- messages: plans that a guard prevents ------------------------------------------------------------------------

    def may_withhold(self, guard: Guard) -> bool:
        """Returns True if a guard applies to these members, so that it may be the reason why no plan was found."""
        if guard is Guard.SURPLUS:
            return self._spares_gangs
        if guard is Guard.ENTITLEMENT:
            return self._moves
        return any(self._moves or rule is not RuleName.CONSOLIDATION for rule in self._factors)

    def limits_step(self, guard: Guard, rules: Mapping[RuleName, Mask], pool: Pool) -> bool:
        """Returns True if a guard limits the victims of one step. rules: rule of the step -> [units] that it allows."""
        if guard is Guard.SURPLUS:
            return any((mask & ~self.allowed(rule, pool, mask)).any() for rule, mask in rules.items())
        every = ((rule, {i: i for i in np.nonzero(mask)[0].tolist()}) for rule, mask in rules.items())
        return any(self.limits(rule, own, pool) for rule, own in every)

    def withheld(
        self, guard: Guard, victims: Iterable[tuple[RuleName, VictimUnit]], config: KoordpyConfiguration
    ) -> str:
        """Returns the sentence on a plan that a guard prevents, for the message of a pending pod.

        victims: those of the least costly plan without the guard.
        """
        if guard is Guard.SURPLUS:
            return BREAKS_NO_GANG
        units: dict[RuleName, list[VictimUnit]] = {}
        for rule, unit in victims:
            units.setdefault(rule, []).append(unit)
        texts = (self._too_much(rule, some, config.protection.max_harm) for rule, some in units.items())
        return " ".join(filter(None, texts))

    def _too_much(self, rule: RuleName, units: Sequence[VictimUnit], limits: MaxHarm) -> str:
        """Returns a sentence such as `preemption: would evict 24 accelerators for 8, limit 8.`

        Empty if the units are within the limit of their rule.
        """
        factor = factor_of(rule, limits)
        devices, harm = sum(unit.devices for unit in units), sum(map(self.harm, units))
        gain = self.accelerators or self.cpu or self.pods
        if factor is None or (harm <= factor * gain and (self.accelerators or not devices)):
            return ""
        if self.accelerators or devices:
            gain, kind = self.accelerators, "accelerators"
            texts = [_cards(amount) for amount in (devices, gain, _rounded(factor * gain, devices, gain))]
        elif self.cpu:
            kind, texts = CPU, [quantity_text(CPU, amount) for amount in (harm, gain, floor(factor * gain))]
        else:
            kind, texts = "pods", [str(amount) for amount in (harm, gain, floor(factor * gain))]
        if texts[0] == "1":
            kind = kind.removesuffix("s")
        return f"{_WOULD[rule]} {texts[0]} {kind} for {texts[1]}, limit {texts[2]}."


def places_surplus(unit: Unit, pods: Sequence[PodInfo]) -> bool:
    """Returns True if placing the pods gives any of the unit's gangs more members than it lacks of its minimum."""
    return any(
        gang.min_member >= 1
        and sum(pod.gang == gang.ref for pod in pods) > max(0, gang.min_member - len(gang.live) - gang.succeeded)
        for gang in unit.gangs
    )


def _terms(amounts: Iterable[tuple[int, int]]) -> Terms:
    """Returns the (option, amount) pairs with a non-zero amount."""
    return tuple((o, amount) for o, amount in amounts if amount)


def _rounded(limit: Fraction, *amounts: int) -> int:
    """Returns a limit in hundredths, rounded down to whole accelerators, unless one of the amounts is fractional."""
    whole = not any(amount % 100 for amount in amounts)
    return floor(limit / 100) * 100 if whole else floor(limit)


def _cards(hundredths: int) -> str:
    """Returns hundredths of accelerators as a text in whole or decimal accelerators."""
    return f"{hundredths / 100:g}"
