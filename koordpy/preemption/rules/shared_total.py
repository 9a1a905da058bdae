# SPDX-License-Identifier: Apache-2.0
"""Computes how evicting pods in no quota raises the runtimes of quotas, as a limit on a choice of victims.

Source: docs/rules/quota-fairness.md 4. The runtime of a quota is the amount that it may use now, a part of a total that
quotas share. Pods in no quota (in the built-in quotas) reduce that total. If such pods are evicted, the amount that
they used is returned to the total, runtimes grow, and a quota may admit the preemptor. The runtime as a function of the
returned amount is tabulated: for every amount if there are few, otherwise in `RUNTIME_STEPS` steps, each rounded down.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import gcd

from koordpy.fairness.quota_admission import Admission
from koordpy.plan.limits import RUNTIME_STEPS
from koordpy.preemption.rules.tenant_usage import TenantUsage
from koordpy.preemption.selection.victim_choice import Limit, RuntimeSteps, Terms


class SharedTotal:
    """The total that quotas share, for one choice of victims: finds how much must be evicted until a quota admits."""

    def __init__(
        self, admission: Admission, tenant_usage: TenantUsage, every: Sequence[tuple[int, int]], *, yields: bool
    ) -> None:
        """tenant_usage: usage of the units by quota. every: (option, unit of the pool) of all units that can be chosen.
        yields: True if capacity that pods in no quota free is added to the total."""
        self._admission, self._holdings = admission, tenant_usage
        self._every = every if yields else ()
        self._gives: dict[str, Terms] = {}
        self._limits: dict[tuple[str, int], Mapping[str, int]] = {}

    def gives(self, resource: str) -> Terms:
        """Returns (option, amount of the resource that its unit's pods in no quota use)."""
        known = self._gives.get(resource)
        if known is None:
            usage = ((o, self._holdings.usage_of(i).get((), {}).get(resource, 0)) for o, i in self._every)
            known = self._gives[resource] = tuple((o, amount) for o, amount in usage if amount)
        return known

    def admits(self, quota: str, resource: str, after: int, terms: Terms) -> Limit | RuntimeSteps | None:
        """Returns the condition on victims under which a quota admits the preemptor; None if no eviction is needed.

        after: usage of the quota with the preemptor placed and before evictions. terms: amounts that the options free
        in the quota. Two sums matter: the amount freed in the quota, and the amount returned to the total. The result
        is a `Limit` if only one of them can help, otherwise `RuntimeSteps`.
        """
        if self.lacks(quota, resource, after, 0) <= 0:
            return None
        gives = self.gives(resource)
        if not gives:
            return Limit(terms, least=self.lacks(quota, resource, after, 0))
        amounts = [amount for _, amount in gives]
        step, most = gcd(*amounts), sum(amounts)
        # `enough`: the smallest returned amount that suffices alone. Bisection is valid because a larger total lowers
        # no runtime, except by one unit of rounding; the dry run would find such an error
        enough = step * bisect_left(
            range(0, most + step, step), True, key=lambda freed: self.lacks(quota, resource, after, freed) <= 0
        )
        if not terms:
            return Limit(gives, least=enough)
        wide = -(-most // (step * RUNTIME_STEPS)) * step
        steps: list[tuple[int, int]] = []
        for freed in sorted({*range(0, most + 1, wide), min(enough, most), most}):
            least = max(0, self.lacks(quota, resource, after, freed))
            if not steps or steps[-1][1] != least:
                steps.append((freed, least))
        return RuntimeSteps(gives, terms, tuple(steps))

    def lacks(self, quota: str, resource: str, after: int, freed: int = 0) -> int:
        """Returns by how much a usage of `after` exceeds the quota's limit; 0 or less if it is within.

        freed: amount of the resource that victims return to the total.
        """
        known = self._limits.get((resource, freed))
        if known is None:
            limits = self._admission.admission_limits_after({resource: freed}, resource)
            known = self._limits[resource, freed] = {name: of.get(resource, 0) for name, of in limits.items()}
        return after - known[quota]
