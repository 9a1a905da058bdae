"""Who is next: the order of the units of one round, and which of them have waited too long.

Source: quota-fairness.md section 2. Half-bound gangs come first, then system priorities, then starving jobs, then
a tree of queues: at each level the queue with the least key goes first, and after every placement the queues
on the way to it are compared anew. Each mode is a way to give a queue its key; jobs inside one queue go by priority,
age and name. A job that failed gives its turn to the next one of its queue.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from koordpy.api import keys
from koordpy.api.config import Fairness
from koordpy.api.natural import natural_key
from koordpy.cluster.quotas import Queue, QuotaUse
from koordpy.cluster.resources import Amounts
from koordpy.planning.queues import QueueShares, counts, queue_ages, queue_shares
from koordpy.planning.units import Unit

_INFINITE = float("inf")
_MOST_COMPARED = 300
_WITHIN = (*keys.GPU_RESOURCES, *keys.NPU_RESOURCES, "cpu", "memory")
"""The resources that KAI-Scheduler knows."""


def half_bound(unit: Unit) -> bool:
    """Whether a gang of the unit has some members bound, but fewer than its minimum."""
    return any(0 < len(gang.bound) < gang.min_member for gang in unit.gangs)


class Job:
    """One unit with what the order looks at."""

    __slots__ = ("age", "key", "priority", "since", "unit")

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        plain = unit.plain
        self.priority = plain.priority if plain is not None else max(pod.priority for pod in unit.pending)
        self.age = plain.created if plain is not None else min(pod.created for pod in unit.members)
        self.since = plain.created if plain is not None else min(pod.created for pod in unit.pending)
        """When it began to wait: a gang that runs does not wait, a new member of it does."""
        name = plain.key if plain is not None else unit.gangs[0].key
        self.key: Any = (-self.priority, self.age, tuple(natural_key(part) for part in name.split("/", 1)), unit.id)

    def requests(self) -> Amounts:
        """What its pending members ask for."""
        if self.unit.plain is not None:
            return self.unit.plain.requests
        out: Amounts = {}
        for pod in self.unit.pending:
            for name, amount in pod.requests.items():
                out[name] = out.get(name, 0) + amount
        return out


def _turn(job: Job) -> Any:
    return job.key


@dataclass(eq=False, slots=True)
class _Node:
    """A queue: with jobs of its own, or with queues below it, or both."""

    queue: Queue
    parent: "_Node | None" = None
    jobs: list[Job] = field(default_factory=list)
    """Its own, the next one last."""
    children: list["_Node"] = field(default_factory=list)
    heap: list[Any] = field(default_factory=list)
    """(key, tie-break, child) of the children that have a job to offer."""
    ages: list[tuple[float, str]] = field(default_factory=list)
    """(age, unit id) of the jobs in it and below it, the oldest last."""

    def head(self) -> Job:
        """The job it offers."""
        node = self
        while not node.jobs:
            node = node.heap[0][-1]
        return node.jobs[-1]

    @property
    def empty(self) -> bool:
        return not self.jobs and not self.heap


class UnitOrder:
    """Gives the units one by one; tell it with `placed` when the last one was."""

    def __init__(self, units: list[Unit], *, use: QuotaUse, config: Fairness, now: float) -> None:
        """use: what users and quotas hold; it changes with the draft. now: seconds since the epoch."""
        self._use = use
        self._config = config
        self._got = False
        self._gone: set[str] = set()
        jobs = [Job(unit) for unit in units]
        first: list[Job] = []
        system: list[Job] = []
        rest: list[Job] = []
        for job in jobs:
            half = job.unit.plain is None and half_bound(job.unit)
            (first if half else system if job.priority >= keys.SYSTEM_PRIORITY_FLOOR else rest).append(job)
        first.sort(key=_turn)
        system.sort(key=_turn)
        starving = sorted((job for job in rest if self._starves(job, now)), key=lambda job: (job.since, job.key))
        self.starving = frozenset(job.unit.id for job in starving)
        """Ids of the units that have waited too long, in a period in which they may hold nodes."""
        self._first = [*first, *system, *starving]
        self._rest = [job for job in rest if job.unit.id not in self.starving]

    def _starves(self, job: Job, now: float) -> bool:
        after = self._config.starvation_after
        waited = now - job.since
        return after > 0 and waited >= after and waited // after % 2 == 1

    def placed(self) -> None:
        """The unit that was given last has been placed; the next queue's turn follows."""
        self._got = True

    def __iter__(self) -> Iterator[Unit]:
        for job in self._first:
            yield job.unit
        keys_: _Keys = _MODES[self._config.mode](self._use, self._config, self._rest)
        root = self._tree(keys_)
        losses = self._use.losses
        while not root.empty:
            if losses != self._use.losses:  # somebody lost pods: every key may have changed
                losses = self._use.losses
                self._fill(root, keys_)
            leaf = self._descend(root)
            self._got = False
            while leaf.jobs and not self._got:
                job = leaf.jobs.pop()
                self._gone.add(job.unit.id)
                yield job.unit
            self._ascend(leaf, keys_)

    def _tree(self, keys_: "_Keys") -> _Node:
        root = _Node(Queue(""))
        nodes: dict[Queue, _Node] = {}
        for job in self._rest:
            queue = keys_.queue_of(job)
            node = nodes.get(queue)
            if node is None:
                node = nodes[queue] = _Node(queue)
                below = node
                for above in keys_.above(queue):
                    parent = nodes.get(above)
                    known = parent is not None
                    if parent is None:
                        parent = nodes[above] = _Node(above)
                    below.parent = parent
                    parent.children.append(below)
                    below = parent
                    if known:
                        break
                if below.parent is None:
                    below.parent = root
                    root.children.append(below)
            node.jobs.append(job)
            at: _Node | None = node
            while at is not None:
                at.ages.append((job.age, job.unit.id))
                at = at.parent
        for node in nodes.values():
            node.jobs.sort(key=_turn, reverse=True)
            node.ages.sort(reverse=True)
        self._fill(root, keys_)
        return root

    def _fill(self, root: _Node, keys_: "_Keys") -> None:
        """Gives every queue its key, the lowest first."""
        order = [root]
        for node in order:
            order.extend(node.children)
        for node in reversed(order):
            node.heap = []
            for child in node.children:
                if not child.empty:
                    node.heap.append(self._entry(child, keys_))
            heapq.heapify(node.heap)

    def _entry(self, node: _Node, keys_: "_Keys") -> Any:
        return keys_.key(node.queue, node.head(), self._oldest(node)), natural_key(node.queue.user), node

    def _oldest(self, node: _Node) -> float:
        """Age of the oldest job that has not had its turn, in the queue or below it."""
        while node.ages and node.ages[-1][1] in self._gone:
            node.ages.pop()
        return node.ages[-1][0] if node.ages else _INFINITE

    def _descend(self, root: _Node) -> _Node:
        """The queue whose turn it is; it and the queues above it are off their heaps until `_ascend`."""
        node = root
        while not node.jobs:
            node = heapq.heappop(node.heap)[-1]
        return node

    def _ascend(self, leaf: _Node, keys_: "_Keys") -> None:
        node = leaf
        while node.parent is not None:
            if not node.empty:
                heapq.heappush(node.parent.heap, self._entry(node, keys_))
            node = node.parent


class _Keys:
    """How one mode compares queues; smaller goes first. This one: mode off, one queue."""

    def __init__(self, use: QuotaUse, config: Fairness, jobs: list[Job]) -> None:
        self.use, self.config = use, config

    def queue_of(self, job: Job) -> Queue:
        return Queue("", "")

    def above(self, queue: Queue) -> tuple[Queue, ...]:
        """The queues above one, the nearest first."""
        return ()

    def key(self, queue: Queue, job: Job, oldest: float) -> Any:
        """oldest: age of the oldest pending job in the queue."""
        return ()


class _ByCount(_Keys):
    """gpu-count: users by accelerators per weight."""

    def queue_of(self, job: Job) -> Queue:
        return Queue("", self.use.quotas.user_of(job.unit.members[0]))

    def key(self, queue: Queue, job: Job, oldest: float) -> Any:
        held, weight = self.use.user_devices(queue.user), self.config.weights.get(queue.user, 1)
        ratio: Any = (Fraction(held) / Fraction(weight) if held else 0) if weight else _INFINITE
        return ratio, oldest, natural_key(queue.user)


class _ByShare(_Keys):
    """What exact and kai share: a tree of queues with shares of the round."""

    def __init__(self, use: QuotaUse, config: Fairness, jobs: list[Job]) -> None:
        super().__init__(use, config, jobs)
        self.quotas = use.quotas
        oldest: dict[Queue, float] = {}
        for job in jobs:
            queue = self.queue_of(job)
            oldest[queue] = min(oldest.get(queue, _INFINITE), job.age)
        self.ages = queue_ages(self.quotas, oldest)
        self.shares: QueueShares = queue_shares(self.quotas, config, self.ages)
        self.limits = {name: quota.max for name, quota in self.quotas.tree.quotas.items()}

    def queue_of(self, job: Job) -> Queue:
        return self.quotas.queue_of(job.unit.members[0])

    def above(self, queue: Queue) -> tuple[Queue, ...]:
        return tuple(Queue(name) for name in reversed(self.quotas.tree.path(queue.quota)[:-1]))

    def quota(self, queue: Queue, resource: str) -> int:
        return self.quotas.tree.quotas[queue.quota].least(resource) if queue.quota else 0

    def name(self, queue: Queue) -> Any:
        return natural_key(queue.quota or queue.user), queue.user


class _Exact(_ByShare):
    """Queues by what they hold of their exact share."""

    def key(self, queue: Queue, job: Job, oldest: float) -> Any:
        asked = job.requests()
        shares = self.shares.exact.get(queue, {})
        within = all(
            self.use.queue(queue, r) + amount <= self.quota(queue, r)
            for r, amount in asked.items()
            if amount and counts(self.quotas, queue, r)
        )
        ratio: Any = 0
        idle = False
        for resource, share in shares.items():
            held = self.use.queue(queue, resource)
            if share:
                ratio = max(ratio, Fraction(held) / share)
            elif held > 0:
                ratio = _INFINITE
            else:
                idle |= bool(asked.get(resource))
        return not within, idle, ratio, self.use.queue_devices(queue), oldest, self.name(queue)


class _Kai(_ByShare):
    """Queues as KAI-Scheduler compares them, cpu, memory and accelerators."""

    def __init__(self, use: QuotaUse, config: Fairness, jobs: list[Job]) -> None:
        super().__init__(use, config, jobs)
        self._most: dict[Queue, Mapping[str, Any]] = {}
        self._depths: dict[Queue, int] = {}

    def allocatable(self, queue: Queue) -> Mapping[str, Any]:
        """Resource -> min(limit, max(quota, share)); constants of the round."""
        found = self._most.get(queue)
        if found is None:
            limits = self.limits.get(queue.quota, {}) if queue.quota else {}
            found = self._most[queue] = {
                r: min(limits.get(r, _INFINITE), max(self.quota(queue, r), share))
                for r, share in self.shares.whole.get(queue, {}).items()
                if r in _WITHIN
            }
        return found

    def key(self, queue: Queue, job: Job, oldest: float) -> Any:
        asked = job.requests()
        shares, most = self.shares.whole.get(queue, {}), self.allocatable(queue)
        held = {r: self.use.queue(queue, r) for r in most}
        after = {r: held[r] + asked.get(r, 0) for r in most}
        return (
            bool(held) and all(held[r] > shares[r] for r in held),
            any(after[r] > self.quota(queue, r) for r in after),
            any(after[r] > 0 and not most[r] for r in after),
            max((Fraction(after[r]) / most[r] for r in after if most[r]), default=Fraction(0)),
            max((Fraction(held[r]) / most[r] for r in held if most[r]), default=Fraction(0)),
            self._depth(queue),
            self.ages.get(queue, oldest),
            self.name(queue),
        )

    def _depth(self, queue: Queue) -> int:
        """How many siblings' allocatables lie below a queue's one below the other: a smaller allocatable goes first."""
        if queue not in self._depths:
            parent = self._parent(queue)
            self._depths.update(self._chains([one for one in self.ages if self._parent(one) == parent]))
            self._depths.setdefault(queue, 0)
        return self._depths[queue]

    def _parent(self, queue: Queue) -> str:
        return self.quotas.tree.quotas[queue.quota].parent if queue.quota else ""

    def _chains(self, queues: list[Queue]) -> dict[Queue, int]:
        """Queue -> length of the longest chain of smaller allocatables; an uncounted resource is unlimited.

        Of very many different ones the sums of their parts decide, which puts every smaller one first as well.
        """
        names = sorted({name for queue in queues for name in self.allocatable(queue)})
        vectors = {q: tuple(self.allocatable(q).get(name, _INFINITE) for name in names) for q in queues}
        order = sorted(set(vectors.values()))
        if len(names) == 1 or len(order) > _MOST_COMPARED:
            top = [max((v[i] for v in order if v[i] < _INFINITE), default=1) or 1 for i in range(len(names))]
            sums = {v: sum(x / m if x < _INFINITE else _INFINITE for x, m in zip(v, top, strict=True)) for v in order}
            place = {total: at for at, total in enumerate(sorted(set(sums.values())))}
            return {queue: place[sums[vector]] for queue, vector in vectors.items()}
        depth: dict[tuple[Any, ...], int] = {}
        for vector in order:  # whatever is smaller in every part comes before it
            below = [d for v, d in depth.items() if all(x <= y for x, y in zip(v, vector, strict=True))]
            depth[vector] = max(below, default=-1) + 1
        return {queue: depth[vector] for queue, vector in vectors.items()}


_MODES: Mapping[str, type[_Keys]] = {"off": _Keys, "gpu-count": _ByCount, "exact": _Exact, "kai": _Kai}
