# SPDX-License-Identifier: Apache-2.0
"""How queues are compared in the order of a round: the interface `QueueKeys`, and the modes off and gpu-count.

The queue with the smallest key has the next turn (`planner/queue/unit_order.py`). The other modes are in separate
modules (`order_registry.py`).
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from koordpy.api.natural_order import natural_key
from koordpy.config.configuration import Fairness
from koordpy.fairness.queue_shares import queue_ages, queue_shares
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import PodInfo, total_charges
from koordpy.pods.resource_amounts import Amounts
from koordpy.quota.quota_book import CARDS, QuotaUse, ShareQueue

INFINITE = float("inf")


class Job:
    """One pending unit with the values that the order compares.

    age: creation of the unit, in seconds since the epoch. key: sort key within a queue, the smallest first: higher
    priority, older, natural order of names.
    """

    __slots__ = ("age", "key", "priority", "since", "unit")

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        plain = unit.plain
        self.priority = unit.priority
        self.age = plain.created if plain is not None else unit.age
        self.since = plain.created if plain is not None else unit.waits_since
        """Start of the wait in seconds since the epoch. For a running gang, it is the start of the wait of its new
        members."""
        name = plain.key if plain is not None else unit.gangs[0].key
        self.key: Any = (-self.priority, self.age, tuple(natural_key(part) for part in name.split("/", 1)), unit.id)

    def requests(self) -> Amounts:
        """Returns the sum of the requests of the unit's pending members, as quotas count them."""
        return self.unit.plain.charged if self.unit.plain is not None else total_charges(self.unit.pending)


class QueueKeys:
    """How one mode compares queues; the queue with the smallest key is next.

    This base class is mode off: all pods are in one queue.
    """

    def __init__(self, use: QuotaUse, config: Fairness, pods: Iterable[PodInfo]) -> None:
        """use: usage of users and quotas, which changes as units are placed. pods: all known pods."""
        self.use, self.config = use, config

    def queue_of(self, job: Job) -> ShareQueue:
        """Returns the queue of a job: that of the unit's first member, which has the lowest index."""
        return self.queue_of_pod(job.unit.members[0])

    def queue_of_pod(self, pod: PodInfo) -> ShareQueue:
        """Returns the queue of a pod."""
        return ShareQueue("", "")

    def above(self, queue: ShareQueue) -> tuple[ShareQueue, ...]:
        """Returns the queues above a queue, the nearest first; empty for a queue at the top."""
        return ()

    def key(self, queue: ShareQueue, job: Job, oldest: float) -> Any:
        """Returns the sort key of a queue. job: its next job. oldest: creation time of its oldest pending job, in
        seconds."""
        return ()


class ByShare(QueueKeys):
    """Base of the modes exact and kai: queues in a tree, with the fair share of each queue in this round."""

    def __init__(self, use: QuotaUse, config: Fairness, pods: Iterable[PodInfo]) -> None:
        super().__init__(use, config, pods)
        self.quotas = use.quotas
        self.ages = queue_ages(self.quotas, self.oldest(pods))
        self.shares = queue_shares(self.quotas, config, self.ages)

    def oldest(self, pods: Iterable[PodInfo]) -> Mapping[ShareQueue, float]:
        """Returns queue -> creation time of its oldest job, which decides ties when shares are rounded.

        Empty in mode exact, because unrounded shares are compared there.
        """
        return {}

    def queue_of_pod(self, pod: PodInfo) -> ShareQueue:
        """Returns the quota of a pod, or its user if it is in no quota."""
        return self.quotas.queue_of(pod)

    def above(self, queue: ShareQueue) -> tuple[ShareQueue, ...]:
        """Returns the quotas above a quota, the nearest first; empty for a user."""
        return tuple(ShareQueue(name) for name in reversed(self.quotas.tree.path(queue.quota)[:-1]))

    def quota(self, queue: ShareQueue, resource: str) -> int:
        """Returns the guaranteed amount of a queue: min of the ElasticQuota, 0 for a user."""
        return self.quotas.tree.quotas[queue.quota].least(resource) if queue.quota else 0

    def name(self, queue: ShareQueue) -> Any:
        """Returns a sort key for the natural order of names."""
        return natural_key(queue.quota or queue.user), queue.user


class CountOrder(QueueKeys):
    """Mode gpu-count: orders users by the accelerators that they use, divided by their weight."""

    def queue_of_pod(self, pod: PodInfo) -> ShareQueue:
        """Returns the user of a pod as a queue."""
        return ShareQueue("", self.use.quotas.user_of(pod))

    def key(self, queue: ShareQueue, job: Job, oldest: float) -> Any:
        """Returns (accelerators per weight, oldest job, name). A user of weight 0 comes last."""
        held, weight = self.use.user(queue.user, CARDS), self.config.weights.get(queue.user, 1)
        ratio: Any = (Fraction(held) / Fraction(weight) if held else 0) if weight else INFINITE
        return ratio, oldest, natural_key(queue.user)
