"""What victims in no quota give to the total that quotas share, and which runtimes follow from it.

Source: quota-fairness.md 4. What pods in the built-in quotas use is taken off that total. In a search for victims it
comes back with the victims among them, before runtimes are computed. A runtime is a step function of what comes back:
it is tabulated where that has few values, and followed in `RUNTIME_STEPS` steps, each rounded down, where it has more.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import gcd

from koordpy.fairness.quota_admission import Admission
from koordpy.plan.limits import RUNTIME_STEPS
from koordpy.preemption.rules.tenant_usage import TenantUsage
from koordpy.preemption.selection.victim_choice import Limit, RuntimeSteps, Terms


class SharedTotal:
    """The total of one choice of victims. every: (option, unit of the pool) of all that can be taken."""

    def __init__(
        self, admission: Admission, holdings: TenantUsage, every: Sequence[tuple[int, int]], *, yields: bool
    ) -> None:
        """yields: whether what pods in no quota give up is added to the total at all."""
        self._admission, self._holdings = admission, holdings
        self._every = every if yields else ()
        self._gives: dict[str, Terms] = {}
        self._limits: dict[tuple[str, int], Mapping[str, int]] = {}

    def gives(self, resource: str) -> Terms:
        """What each option's unit holds of a resource in no quota."""
        known = self._gives.get(resource)
        if known is None:
            held = ((o, self._holdings.held(i).get((), {}).get(resource, 0)) for o, i in self._every)
            known = self._gives[resource] = tuple((o, amount) for o, amount in held if amount)
        return known

    def admits(self, quota: str, resource: str, after: int, terms: Terms) -> Limit | RuntimeSteps | None:
        """What lets a quota end within its limit; None where nothing has to go for that. after: what it would use with
        the beneficiary and all victims; terms: what options free in it."""
        if self.lacks(quota, resource, after, 0) <= 0:
            return None
        gives = self.gives(resource)
        if not gives:
            return Limit(terms, least=self.lacks(quota, resource, after, 0))
        amounts = [amount for _, amount in gives]
        step, most = gcd(*amounts), sum(amounts)
        # a larger total gives no less, but for a unit of rounding: each choice is tried on the draft as well
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
        """What a quota lacks that would use so much, with so much freed of the total."""
        known = self._limits.get((resource, freed))
        if known is None:
            limits = self._admission.admission_limits_after({resource: freed}, resource)
            known = self._limits[resource, freed] = {name: of.get(resource, 0) for name, of in limits.items()}
        return after - known[quota]
