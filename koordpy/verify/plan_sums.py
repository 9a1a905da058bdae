# SPDX-License-Identifier: Apache-2.0
"""Computes sums per quota for the check of a plan with victims: amounts that the plan adds and that it removes.

The sums are computed pod by pod, on the draft before the plan, without code of the search for victims.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import PodInfo
from koordpy.verify.eviction_check import EvictedUnit, EvictionCheck, Round

Sums = Mapping[str, Counter[str]]
"""Quota -> amounts by resource."""


class PlanSums(EvictionCheck):
    """Sums over the pods of one plan.

    "Below the LCA" (lowest common ancestor) of two paths of quotas means: the quotas of the one path that the other
    path does not contain.
    """

    def __init__(self, unit: Unit, nodes: Mapping[str, int], back: Mapping[str, int], at: Round) -> None:
        """unit: the preemptor. nodes: pod key -> node position of each placed member. back: key of a moved pod -> its
        new node position. at: the round."""
        super().__init__(at, back)
        self.unit, self.nodes = unit, nodes
        self.placed = [self.snapshot.pods[key] for key in nodes]
        self.use = at.round_state.reservations.use(unit, self.draft.quotas, net=True)
        self.requested = {r for pod in self.placed for r, amount in pod.charged.items() if amount > 0}
        self.leaf = self.quotas.quota_of(self.placed[0]) if self.placed else ""
        self.added = self.sum_by_quota(self.placed)
        """Quota -> sum of the requests of the placed members in it and in quotas below it."""

    # --- sums ---------------------------------------------------------------------------------------------------------

    def sum_by_quota(self, pods: Iterable[PodInfo]) -> dict[str, Counter[str]]:
        """Returns quota -> sum of the requests of the pods in it and in quotas below it."""
        out: dict[str, Counter[str]] = {}
        for pod in pods:
            for name in self.tree.path(self.quotas.quota_of(pod)):
                out.setdefault(name, Counter()).update(pod.charged)
        return out

    def _not_in(self, path: Sequence[str], other: Sequence[str]) -> list[str]:
        """Returns the quotas of a path that another path does not contain."""
        theirs = set(other)
        return [name for name in path if name not in theirs]

    def victim_quotas(self, pod: PodInfo) -> list[str]:
        """Returns the quotas of a victim below the LCA with the preemptor's leaf quota."""
        return self._not_in(self.tree.path(self.quotas.quota_of(pod)), self.tree.path(self.leaf))

    def preemptor_quotas(self, pod: PodInfo) -> list[str]:
        """Returns the quotas of the preemptor below the LCA with a victim's leaf quota."""
        return self._not_in(self.tree.path(self.leaf), self.tree.path(self.quotas.quota_of(pod)))

    def counted_resources(self, name: str) -> list[str]:
        """Returns the resources that the placed members request and that a quota limits, sorted."""
        return sorted(self.requested & set(self.tree.quotas[name].max))

    def limits_after(self, gone: Iterable[PodInfo]) -> Mapping[str, Mapping[str, int]]:
        """Returns quota -> resource -> limit after the given pods are evicted.

        Evicted pods without a quota return capacity to the total that quotas share, which can raise limits.
        """
        freed: Counter[str] = Counter()
        for pod in gone if self.config.quota.no_quota_yields != "never" else ():
            if self.quotas.quota_of(pod) not in self.tree.quotas:
                freed.update(pod.charged)
        return self.round_state.admission.admission_limits_after(freed)

    def faults_below_min(self, names: Iterable[str], lost: Sums) -> list[str]:
        """Returns the faults of quotas that the plan leaves with less than min(usage before, their min) of a resource.

        names: the quotas to check. lost: amounts that each quota loses with the plan.
        """
        faults = []
        for name in dict.fromkeys(names):
            for resource in self.tree.quotas[name].max:
                before, less = self.use.used(name, resource), of_sums(lost, name, resource)
                line, after = min(before, self.tree.quotas[name].least(resource)), before - less
                after += of_sums(self.added, name, resource)
                if less and after < line:
                    faults.append(f"quota {name} would keep {after} of {line} {resource}")
        return faults

    def is_guaranteed(self, pod: PodInfo, lost: Sums) -> bool:
        """Returns True if the preemptor is within its guarantee against a pod after the plan.

        This means: its quotas below the LCA with the pod's quota use at most their min of each requested resource.
        lost: amounts that each quota loses with the plan.
        """
        ours = self.preemptor_quotas(pod)
        if not ours or not self.counted_resources(self.leaf):
            return False
        return all(
            self.use.used(name, r) - of_sums(lost, name, r) + of_sums(self.added, name, r)
            <= self.tree.quotas[name].least(r)
            for name in ours
            for r in self.counted_resources(name)
        )

    def quotas_within_min(self, pod: PodInfo, taken: Sequence[EvictedUnit]) -> list[str]:
        """Returns the quotas of a pod, below the LCA with the preemptor, that use at most their min of all resources
        that the pod's unit uses.

        taken: the units of the plan; one of them contains the pod.
        """
        [unit] = [one for one in taken if pod in one.pods]
        held = self.sum_by_quota(unit.pods)
        return [
            name
            for name in self.victim_quotas(pod)
            if all(
                self.use.used(name, r) <= self.tree.quotas[name].least(r)
                for r, amount in held[name].items()
                if amount and r in self.tree.quotas[name].max
            )
        ]

    def _unit_of(self, pod: PodInfo) -> str:
        """Returns the id of the queue unit of a pod."""
        return self.round_state.groups.id_of(pod.gang) if pod.gang is not None else pod.key

    @cached_property
    def _gainers(self) -> set[str]:
        """Ids of the units for which the preemptor was recently evicted; also units for which one of these was evicted,
        and so on."""
        out, newest = set[str](), {self.unit.id}
        while newest:
            newest = {one for unit in newest for one in self.snapshot.evicted_for.get(unit, ())} - out
            out |= newest
        return out


def of_sums(sums: Sums, name: str, resource: str) -> int:
    """Returns a quota's amount of a resource; 0 if the sums have none."""
    return sums[name][resource] if name in sums else 0


def crosses_once(parts: Sequence[int], over: int | Fraction) -> bool:
    """Returns True if a tenant is above its entitlement before each eviction of its units, if the largest unit is
    evicted last.

    parts: amounts of the evicted units. over: usage above the entitlement before the plan.
    """
    return sum(parts) - max(parts, default=0) < over
