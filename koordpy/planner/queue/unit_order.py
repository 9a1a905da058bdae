# SPDX-License-Identifier: Apache-2.0
"""The order in which a round tries pending units, and which units have waited too long.

Source: docs/rules/quota-fairness.md 2. The order is: broken gangs, units of system priority, starving units, then a
tree of queues. At each level of the tree, the queue with the lowest key has the next turn; the fairness mode computes
the key (`fairness/order_registry.py`). Units of one queue (jobs) are ordered by priority, age and name. After a unit is
placed, the queues on its path are compared again, because their usage has grown. After a unit that is not placed, the
next unit of the same queue follows.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.config.configuration import Fairness
from koordpy.fairness.order_keys import INFINITE, Job, QueueKeys
from koordpy.fairness.order_registry import ORDERS
from koordpy.gangs.broken_gangs import is_broken
from koordpy.gangs.queue_units import Unit
from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import QuotaUse, ShareQueue


@dataclass(eq=False, slots=True)
class _QueueNode:
    """A queue in the tree of queues. It has jobs, child queues, or both."""

    queue: ShareQueue
    parent: "_QueueNode | None" = None
    jobs: list[Job] = field(default_factory=list)
    """Jobs of this queue without jobs of its children; the next job is the last element."""
    children: list["_QueueNode"] = field(default_factory=list)
    heap: list[Any] = field(default_factory=list)
    """(key, tie-break, child) of each child that has a next job; a heap."""
    ages: list[tuple[float, str]] = field(default_factory=list)
    """(age, unit id) of the jobs of this queue and of all queues below it; the oldest is the last element."""

    def head(self) -> Job:
        """Returns the next job of this queue or of the queues below it."""
        node = self
        while not node.jobs:
            node = node.heap[0][-1]
        return node.jobs[-1]

    @property
    def empty(self) -> bool:
        """True if no job is left in the queue and below it."""
        return not self.jobs and not self.heap


def _by_name(node: _QueueNode) -> Any:
    """Returns the sort key for the natural order of names."""
    return natural_key(node.queue.quota), natural_key(node.queue.user)


class UnitOrder:
    """Iterates over the units in order. The caller must call `placed` after each unit that it has placed."""

    def __init__(
        self, units: list[Unit], *, use: QuotaUse, pods: Iterable[PodInfo], config: Fairness, now: float
    ) -> None:
        """use: usage of users and quotas, which changes with the draft. pods: all pods of the snapshot. now: seconds
        since the epoch."""
        self._use, self._pods = use, pods
        self._config = config
        self._got = False
        """True if the unit that was yielded last was placed."""
        self._gone: set[str] = set()
        """Ids of the units in the tree of queues that were yielded."""
        first: list[Job] = []
        system: list[Job] = []
        rest: list[Job] = []
        for job in sorted(map(Job, units), key=attrgetter("key")):
            broken = job.unit.plain is None and is_broken(job.unit.gangs)
            (first if broken else system if job.priority >= keys.SYSTEM_PRIORITY_FLOOR else rest).append(job)
        starving = sorted((job for job in rest if self._starves(job, now)), key=attrgetter("since"))
        self.starving = frozenset(job.unit.id for job in starving)
        """Ids of units that have waited too long, so that nodes may be reserved for them in this round."""
        self._first = [*first, *system, *starving]
        self._rest = [job for job in rest if job.unit.id not in self.starving]

    def _starves(self, job: Job, now: float) -> bool:
        """Returns True if a unit is starving now.

        After `fairness.starvationAfter` seconds, periods of that length alternate: the unit is starving in one, and not
        in the next. So nodes are not reserved without end for a unit that can never start.
        """
        after = self._config.starvation_after
        waited = now - job.since
        return after > 0 and waited >= after and waited // after % 2 == 1

    def placed(self) -> None:
        """Records that the unit that was yielded last was placed; another queue may have the next turn."""
        self._got = True

    def __iter__(self) -> Iterator[Unit]:
        """Yields the units: first the units outside the tree of queues, then those of the tree."""
        for job in self._first:
            yield job.unit
        # in each turn, the queue with the lowest key yields jobs until one of them is placed
        keys_: QueueKeys = ORDERS[self._config.mode](self._use, self._config, self._pods)
        root = self._tree(keys_)
        losses = self._use.losses
        while not root.empty:
            if losses != self._use.losses:  # usage has decreased: every key may have changed
                losses = self._use.losses
                self._fill(root, keys_)
            leaf = self._descend(root)
            self._got = False
            while leaf.jobs and not self._got:
                job = leaf.jobs.pop()
                self._gone.add(job.unit.id)
                yield job.unit
            if self._got and any(keys_.queue_of_pod(pod) != leaf.queue for pod in job.unit.pending):
                self._fill(root, keys_)  # the unit has members in several queues, so several usages have grown
            else:
                self._ascend(leaf, keys_)

    def _tree(self, keys_: QueueKeys) -> _QueueNode:
        """Builds the tree of queues with their jobs, and computes all keys."""
        root = _QueueNode(ShareQueue(""))
        nodes: dict[ShareQueue, _QueueNode] = {}
        for job in self._rest:
            queue = keys_.queue_of(job)
            node = root
            for one in (*reversed(keys_.above(queue)), queue) if queue not in nodes else (queue,):
                if one not in nodes:
                    nodes[one] = _QueueNode(one, node)
                    node.children.append(nodes[one])
                node = nodes[one]
            node.jobs.append(job)
            at: _QueueNode | None = node
            while at is not None:
                at.ages.append((job.age, job.unit.id))
                at = at.parent
        for node in nodes.values():
            node.jobs.reverse()
            node.ages.sort(reverse=True)
            node.children.sort(key=_by_name)
        root.children.sort(key=_by_name)
        self._fill(root, keys_)
        return root

    def _fill(self, root: _QueueNode, keys_: QueueKeys) -> None:
        """Computes the key of every queue, and sorts the queues of each level by it."""
        order = [root]
        for node in order:
            order.extend(node.children)
        for node in reversed(order):
            node.heap = []
            for child in node.children:
                if not child.empty:
                    node.heap.append(self._entry(child, keys_))
            heapq.heapify(node.heap)

    def _entry(self, node: _QueueNode, keys_: QueueKeys) -> Any:
        """Returns the entry of a queue in the heap of its parent."""
        return keys_.key(node.queue, node.head(), self._oldest(node)), natural_key(node.queue.user), node

    def _oldest(self, node: _QueueNode) -> float:
        """Returns the age of the oldest job that has not had its turn, in the queue or below it."""
        while node.ages and node.ages[-1][1] in self._gone:
            node.ages.pop()
        return node.ages[-1][0] if node.ages else INFINITE

    def _descend(self, root: _QueueNode) -> _QueueNode:
        """Returns the queue that has the next turn.

        It and the queues above it are removed from the heaps until `_ascend` puts them back.
        """
        node = root
        while not node.jobs:
            node = heapq.heappop(node.heap)[-1]
        return node

    def _ascend(self, leaf: _QueueNode, keys_: QueueKeys) -> None:
        """Puts a queue and the queues above it back on the heaps, with new keys; queues without jobs are left out."""
        node = leaf
        while node.parent is not None:
            if not node.empty:
                heapq.heappush(node.parent.heap, self._entry(node, keys_))
            node = node.parent
