"""Sums for the check of a preemption plan: requests and evictions by quota, limits and minimums of quotas.

Read from the draft as it was before the plan, and computed pod by pod; no code is shared with the search.
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
    """Sums over the pods of one plan. "Below the LCA" are the quotas of one path that another path does not contain."""

    def __init__(self, unit: Unit, nodes: Mapping[str, int], back: Mapping[str, int], at: Round) -> None:
        super().__init__(at, back)
        self.unit, self.nodes = unit, nodes
        self.placed = [self.snapshot.pods[key] for key in nodes]
        self.use = at.round_state.reservations.use(unit, self.draft.quotas, net=True)
        self.requested = {r for pod in self.placed for r, amount in pod.requests.items() if amount > 0}
        self.leaf = self.quotas.quota_of(self.placed[0]) if self.placed else ""
        self.added = self.sum_by_quota(self.placed)

    # --- sums ---------------------------------------------------------------------------------------------------------

    def sum_by_quota(self, pods: Iterable[PodInfo]) -> dict[str, Counter[str]]:
        """Returns quota -> requests of the pods in it and below it."""
        out: dict[str, Counter[str]] = {}
        for pod in pods:
            for name in self.tree.path(self.quotas.quota_of(pod)):
                out.setdefault(name, Counter()).update(pod.requests)
        return out

    def _not_in(self, path: Sequence[str], other: Sequence[str]) -> list[str]:
        theirs = set(other)
        return [name for name in path if name not in theirs]

    def victim_quotas(self, pod: PodInfo) -> list[str]:
        """Returns the quotas of a victim below the LCA."""
        return self._not_in(self.tree.path(self.quotas.quota_of(pod)), self.tree.path(self.leaf))

    def preemptor_quotas(self, pod: PodInfo) -> list[str]:
        """Returns the quotas of the preemptor below the LCA with a victim."""
        return self._not_in(self.tree.path(self.leaf), self.tree.path(self.quotas.quota_of(pod)))

    def counted_resources(self, name: str) -> list[str]:
        """Returns the resources that the members request and a quota limits."""
        return sorted(self.requested & set(self.tree.quotas[name].max))

    def limits_after(self, gone: Iterable[PodInfo]) -> Mapping[str, Mapping[str, int]]:
        """Returns quota -> resource -> limit once some pods are gone.

        Usage of pods in no quota is then shared as well.
        """
        freed: Counter[str] = Counter()
        for pod in gone if self.config.quota.no_quota_yields != "never" else ():
            if self.quotas.quota_of(pod) not in self.tree.quotas:
                freed.update(pod.requests)
        return self.round_state.admission.admission_limits_after(freed)

    def faults_below_min(self, names: Iterable[str], lost: Sums) -> list[str]:
        """Returns the faults of quotas that would violate used_after >= min(used_before, min) in a counted resource."""
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
        """Returns True if the preemptor ends within its guarantee against a pod.

        Checked below the LCA, in the requested resources.
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
        """Returns the quotas of a pod below the LCA that use no more than their min of all that its unit uses."""
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
        return self.round_state.groups.id_of(pod.gang) if pod.gang is not None else pod.key

    @cached_property
    def _gainers(self) -> set[str]:
        """Units that gained by the preemptor's recent evictions, directly or through another such unit."""
        out, newest = set[str](), {self.unit.id}
        while newest:
            newest = {one for unit in newest for one in self.snapshot.yielded.get(unit, ())} - out
            out |= newest
        return out


def of_sums(sums: Sums, name: str, resource: str) -> int:
    """Returns an amount of a quota; 0 for a quota without any."""
    return sums[name][resource] if name in sums else 0


def crosses_once(parts: Sequence[int], over: int | Fraction) -> bool:
    """Returns True if all parts except the largest one sum to less than the excess over an entitlement."""
    return sum(parts) - max(parts, default=0) < over
