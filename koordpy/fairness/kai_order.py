# SPDX-License-Identifier: Apache-2.0
"""Mode kai of the queue order: compares queues as KAI-Scheduler does, by cpu, memory and accelerators."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from koordpy.api import keys
from koordpy.config.configuration import Fairness
from koordpy.fairness.order_keys import INFINITE, ByShare, Job
from koordpy.fairness.queue_shares import counts, oldest_jobs
from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import QuotaUse, ShareQueue

_KINDS = (("cpu",), ("memory",), keys.ACCELERATORS)
"""The kinds of resources that KAI-Scheduler compares; all accelerators together are one kind."""
_WITHIN = tuple(resource for kind in _KINDS for resource in kind)


class Kai(ByShare):
    """Orders queues as KAI-Scheduler does, by cpu, memory and accelerators."""

    def __init__(self, use: QuotaUse, config: Fairness, pods: Iterable[PodInfo]) -> None:
        super().__init__(use, config, pods)
        self._most: dict[ShareQueue, Mapping[str, Any]] = {}
        named = {r for quota in self.quotas.tree.quotas.values() for r in quota.min}
        asked = {r for shares in self.shares.whole.values() for r in shares}
        self._resources = [r for r in _WITHIN if r in named or r in asked]

    def oldest(self, pods: Iterable[PodInfo]) -> Mapping[ShareQueue, float]:
        """Returns queue -> creation time of its oldest job. KAI-Scheduler's shares and order depend on it."""
        return oldest_jobs(self.quotas.queue_of, pods)

    def allocatable(self, queue: ShareQueue) -> Mapping[str, Any]:
        """Returns counted resource -> min(limit, max(quota, share)); constant within a round.

        KAI-Scheduler calls this amount allocatable, and compares usage relative to it.
        """
        found = self._most.get(queue)
        if found is None:
            limits = self.quotas.tree.quotas[queue.quota].max if queue.quota else {}
            shares = self.shares.whole.get(queue, {})
            found = self._most[queue] = {
                r: min(limits.get(r, INFINITE), max(self.quota(queue, r), shares.get(r, 0)))
                for r in self._resources
                if counts(self.quotas, queue, r)
            }
        return found

    def key(self, queue: ShareQueue, job: Job, oldest: float) -> Any:
        """Returns the sort key of a queue; the smallest is next.

        KAI-Scheduler's criteria in order: the queue is not above its share; it is within its quota with the next job;
        it uses no resource without an allocatable amount; a smaller dominant ratio (`_dominant`) with the job; a
        smaller one without the job; then `_Weakness`.
        """
        asked = job.requests()
        shares, most = self.shares.whole.get(queue, {}), self.allocatable(queue)
        usage = {r: self.use.queue(queue, r) for r in most}
        after = {r: usage[r] + asked.get(r, 0) for r in most}
        return (
            self._above(queue, usage, shares),
            any(after[r] > self.quota(queue, r) for r in after),
            any(after[r] > 0 and not most[r] for r in after),
            _dominant(after, most),
            _dominant(usage, most),
            self._weakness(queue, oldest),
        )

    def _weakness(self, queue: ShareQueue, oldest: float) -> "_Weakness":
        """Returns the last criterion of the key. oldest: replaces the age if the queue has none."""
        most = self.allocatable(queue)
        return _Weakness(tuple(most.get(r) for r in self._resources), self.ages.get(queue, oldest), self.name(queue))

    def _above(self, queue: ShareQueue, usage: Mapping[str, int], shares: Mapping[str, Any]) -> bool:
        """Returns True if a queue uses more than its share of every kind of resource that is counted for it.

        A kind that the queue does not request does not exceed its share, so such a queue is not above its share.
        """
        kinds = [kind for kind in _KINDS if any(counts(self.quotas, queue, r) for r in kind)]
        return bool(kinds) and all(
            sum(_weighed(r, usage[r]) for r in kind if r in usage)
            > sum(_weighed(r, shares.get(r, 0)) for r in kind if r in usage)
            for kind in kinds
        )


@dataclass(frozen=True, slots=True)
class _Weakness:
    """KAI-Scheduler's last criterion: the queue with smaller allocatable amounts is first, else the older queue.

    The relation is not transitive: three or more queues may form a cycle, which no order can satisfy.
    """

    most: tuple[Any, ...]
    """Allocatable amount of each resource; None for a resource that is not counted, which is not compared."""
    age: float
    name: Any

    def __lt__(self, other: "_Weakness") -> bool:
        """Returns True if no amount is larger and one is smaller.

        If that holds for both queues or for neither, compares ages.
        """
        less = more = False
        for mine, theirs in zip(self.most, other.most, strict=True):
            if mine is not None and theirs is not None:
                less |= mine < theirs
                more |= mine > theirs
        if less != more:
            return less
        return bool((self.age, self.name) < (other.age, other.name))


def _dominant(amounts: Mapping[str, int], most: Mapping[str, Any]) -> Any:
    """Returns the dominant ratio: the largest ratio of an amount to its maximum; infinite if an amount has a maximum of
    0."""
    if any(amount > 0 and not most[r] for r, amount in amounts.items()):
        return INFINITE
    return max((Fraction(amount) / most[r] for r, amount in amounts.items() if most[r]), default=Fraction(0))


def _weighed(resource: str, amount: Any) -> Any:
    """Returns an amount in the units of the resource; accelerators in hundredths of a device."""
    return amount * 100 if resource in keys.ACCELERATORS and resource not in keys.HUNDREDTHS else amount
