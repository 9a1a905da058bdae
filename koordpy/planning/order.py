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
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.quotas import Queue, QuotaUse
from koordpy.cluster.resources import Amounts
from koordpy.planning.queues import QueueShares, counts, queue_ages, queue_shares
from koordpy.planning.units import Unit

_INFINITE = float("inf")
_WITH_A_SHARE, _WITHOUT_A_SHARE, _BEYOND_ANY_SHARE = range(3)
"""Queues of mode exact: who has a share, who asks without one and holds nothing, who holds without one."""
_ACCELERATORS = (*keys.GPU_RESOURCES, *keys.NPU_RESOURCES)
_KINDS = (("cpu",), ("memory",), _ACCELERATORS)
"""The resources that KAI-Scheduler knows."""
_WITHIN = tuple(resource for kind in _KINDS for resource in kind)


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


def _by_name(node: _Node) -> Any:
    return natural_key(node.queue.quota), natural_key(node.queue.user)


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
            if self._got and any(keys_.queue_of_pod(pod) != leaf.queue for pod in job.unit.pending):
                self._fill(root, keys_)  # members in other queues: these hold more now, too
            else:
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
            node.children.sort(key=_by_name)
        root.children.sort(key=_by_name)
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
        """The queue of a job: that of its member with the lowest index."""
        return self.queue_of_pod(job.unit.members[0])

    def queue_of_pod(self, pod: PodInfo) -> Queue:
        return Queue("", "")

    def above(self, queue: Queue) -> tuple[Queue, ...]:
        """The queues above one, the nearest first."""
        return ()

    def key(self, queue: Queue, job: Job, oldest: float) -> Any:
        """oldest: age of the oldest pending job in the queue."""
        return ()


class _ByCount(_Keys):
    """gpu-count: users by accelerators per weight."""

    def queue_of_pod(self, pod: PodInfo) -> Queue:
        return Queue("", self.use.quotas.user_of(pod))

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

    def queue_of_pod(self, pod: PodInfo) -> Queue:
        return self.quotas.queue_of(pod)

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
        ratio, standing = Fraction(0), _WITH_A_SHARE
        for resource, share in shares.items():
            held = self.use.queue(queue, resource)
            if share:
                ratio = max(ratio, Fraction(held) / share)
            elif held > 0:
                standing = _BEYOND_ANY_SHARE  # its ratio is infinite
            elif asked.get(resource):
                standing = max(standing, _WITHOUT_A_SHARE)
        if standing == _BEYOND_ANY_SHARE:
            ratio = Fraction(0)
        return not within, standing, ratio, self.use.queue_devices(queue), oldest, self.name(queue)


class _Kai(_ByShare):
    """Queues as KAI-Scheduler compares them, cpu, memory and accelerators."""

    def __init__(self, use: QuotaUse, config: Fairness, jobs: list[Job]) -> None:
        super().__init__(use, config, jobs)
        self._most: dict[Queue, Mapping[str, Any]] = {}
        named = {r for quota in self.quotas.tree.quotas.values() for r in quota.min}
        asked = {r for shares in self.shares.whole.values() for r in shares}
        self._resources = [r for r in _WITHIN if r in named or r in asked]

    def allocatable(self, queue: Queue) -> Mapping[str, Any]:
        """Resource that is counted -> min(limit, max(quota, share)); constants of the round."""
        found = self._most.get(queue)
        if found is None:
            limits = self.limits.get(queue.quota, {}) if queue.quota else {}
            shares = self.shares.whole.get(queue, {})
            found = self._most[queue] = {
                r: min(limits.get(r, _INFINITE), max(self.quota(queue, r), shares.get(r, 0)))
                for r in self._resources
                if counts(self.quotas, queue, r)
            }
        return found

    def key(self, queue: Queue, job: Job, oldest: float) -> Any:
        asked = job.requests()
        shares, most = self.shares.whole.get(queue, {}), self.allocatable(queue)
        held = {r: self.use.queue(queue, r) for r in most}
        after = {r: held[r] + asked.get(r, 0) for r in most}
        return (
            self._above(queue, held, shares),
            any(after[r] > self.quota(queue, r) for r in after),
            any(after[r] > 0 and not most[r] for r in after),
            _dominant(after, most),
            _dominant(held, most),
            self._weakness(queue, oldest),
        )

    def _weakness(self, queue: Queue, oldest: float) -> "_Weakness":
        most = self.allocatable(queue)
        return _Weakness(tuple(most.get(r) for r in self._resources), self.ages.get(queue, oldest), self.name(queue))

    def _above(self, queue: Queue, held: Mapping[str, int], shares: Mapping[str, Any]) -> bool:
        """Whether a queue holds more than its share of each kind that it counts; what nobody asks nobody exceeds."""
        kinds = [kind for kind in _KINDS if any(counts(self.quotas, queue, r) for r in kind)]
        return bool(kinds) and all(
            sum(_weighed(r, held[r]) for r in kind if r in held)
            > sum(_weighed(r, shares.get(r, 0)) for r in kind if r in held)
            for kind in kinds
        )


@dataclass(frozen=True, slots=True)
class _Weakness:
    """What KAI-Scheduler looks at last: a smaller allocatable goes first, where neither is smaller the older queue.

    most: per resource, None where it is not counted, which is compared with nothing. Of two queues this decides as the
    rule says; of more it may go round in a circle, which no order can satisfy.
    """

    most: tuple[Any, ...]
    age: float
    name: Any

    def __lt__(self, other: "_Weakness") -> bool:
        less = more = False
        for mine, theirs in zip(self.most, other.most, strict=True):
            if mine is not None and theirs is not None:
                less |= mine < theirs
                more |= mine > theirs
        if less != more:
            return less
        return bool((self.age, self.name) < (other.age, other.name))


def _dominant(amounts: Mapping[str, int], most: Mapping[str, Any]) -> Any:
    """The largest part of what may be had; infinite where something is held of which nothing may."""
    if any(amount > 0 and not most[r] for r, amount in amounts.items()):
        return _INFINITE
    return max((Fraction(amount) / most[r] for r, amount in amounts.items() if most[r]), default=Fraction(0))


def _weighed(resource: str, amount: Any) -> Any:
    """An amount in its own units, of accelerators in hundredths of a device."""
    return amount * 100 if resource in _ACCELERATORS and resource not in keys.HUNDREDTHS else amount


_MODES: Mapping[str, type[_Keys]] = {"off": _Keys, "gpu-count": _ByCount, "exact": _Exact, "kai": _Kai}
