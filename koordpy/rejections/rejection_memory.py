# SPDX-License-Identifier: Apache-2.0
"""Remembers rejections by node and request shape, and returns which nodes are closed (numa.md 8.3 to 8.7).

`saw` adds rejected pods, in any order. `update` compares them with the nodes:

- It ignores pods with an `OutOf...` reason that do not fit the totals of the node: these rejections are explained.
- It records pods that run although they are as large as a rejected shape: they disprove the rejections.
- It ends closures of nodes with more free capacity than at the rejection.
- It drops old rejections.

The result depends only on the set of rejected and running pods, not on the order of calls of `saw`. The `MOST_...`
constants limit the memory; the oldest entries are dropped first.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from koordpy.api.natural_order import natural_key
from koordpy.config.node_failures import Rejections
from koordpy.pods.resource_amounts import Amounts, add_amounts
from koordpy.rejections.closed_nodes import NOTHING_CLOSED, ClosedNode, ClosedNodes, ClosedShape
from koordpy.rejections.rejection_reading import OUT_OF, UNEXPECTED
from koordpy.rejections.request_shapes import RequestShape
from koordpy.rejections.strikes import BURST_SECONDS, Rejection, Strikes, count_strikes

MOST_UNSETTLED = 4096
"""Maximum number of rejected pods that were seen since the last `update`."""
MOST_SHAPES = 4096
"""Maximum number of remembered pairs of a node and a shape."""
MOST_REJECTIONS = 256
"""Maximum number of remembered rejections of one shape on one node; also of remembered running pods of one node."""

Cause = Literal["time is over", "more is free", "a pod of that size runs", "the node changed"]
"""Why a closure ended."""


class RejectedPod(NamedTuple):
    """A pod that a kubelet rejected."""

    node: str
    shape: RequestShape
    rejection: Rejection


class RunningPod(NamedTuple):
    """A pod that runs on a node."""

    uid: str
    bound: float
    """Time of its Binding, in seconds since 1970."""
    requests: Amounts


@dataclass(frozen=True, slots=True)
class RejectingNodeFacts:
    """The facts about one node that the memory compares with rejections."""

    free: Amounts
    """Allocatable amounts less the requests of bound pods, by resource; `pods` is the number of further pods."""
    unstarted: Amounts
    """Requests of bound pods that have not started. The kubelet may reject them, too, so if they disappear, their
    capacity does not count as freed. Empty offline."""
    fresh: float
    """Creation of the Node, or the last change of its condition Ready to True, in seconds since 1970: earlier
    rejections are void. 0 if neither is known."""
    running: Sequence[RunningPod]
    state: object = None
    """A value that changes if allocatable amounts, NUMA zones, kubelet policies or devices of the node change; None
    offline."""


class ClosureNews(NamedTuple):
    """A change of a closure, for events."""

    node: str
    shape: str
    """Text of the shape; empty for a closure to several shapes (`ClosedNode`)."""
    closed: ClosedShape | ClosedNode
    ended: Cause | None
    """Why the closure ended; None if it began, or if another strike prolonged it."""


@dataclass(slots=True)
class _ShapeRecord:
    """The history of one shape on one node."""

    shape: RequestShape
    rejections: set[Rejection] = field(default_factory=set)
    openings: list[float] = field(default_factory=list)
    strikes: Strikes | None = None
    """Strikes as of the last `update`; None if there are none."""
    free: Amounts = field(default_factory=dict)
    """Free amounts of the node at the last strike, or when this process first saw it."""
    free_at: float = -1.0
    """Time of the strike that `free` belongs to."""

    @property
    def latest(self) -> float:
        return max(one.time for one in self.rejections)

    def resources(self, given: Iterable[str]) -> list[str]:
        """Returns the resources for which more free capacity ends the closure early. given: resources of the node."""
        own = self.shape.devices
        return [*own] or [r for r in given if r in ("cpu", "memory") or r.startswith("hugepages-")]


@dataclass(slots=True)
class _NodeRecord:
    shapes: dict[bytes, _ShapeRecord] = field(default_factory=dict)
    runs: dict[str, RunningPod] = field(default_factory=dict)
    """uid -> pod that ran on the node since the first remembered rejection."""
    fresh: float = 0.0
    """Last value of `RejectingNodeFacts.fresh`."""
    state: object = None
    """Last value of `RejectingNodeFacts.state`."""


class RejectionMemory:
    """The remembered rejections of all nodes. Not thread-safe."""

    def __init__(self, settings: Rejections) -> None:
        self.settings = settings
        self._unsettled: dict[str, RejectedPod] = {}
        """uid -> rejected pod that `update` has not read yet."""
        self._nodes: dict[str, _NodeRecord] = {}
        self.news: deque[ClosureNews] = deque(maxlen=MOST_SHAPES)
        """Changes of closures since a reader last cleared the deque. If it is full, the oldest changes are dropped."""
        self.counted: deque[tuple[str, str]] = deque(maxlen=MOST_SHAPES)
        """(node, reason) of new rejections since a reader last cleared the deque."""
        self.explained: deque[str] = deque(maxlen=MOST_SHAPES)
        """Reasons of rejections that the node's totals explain, since a reader last cleared the deque."""
        self.closed = NOTHING_CLOSED
        """Result of the last `update`."""

    def saw(self, rejected: RejectedPod) -> None:
        """Adds a rejected pod, which the next `update` reads. The same pod may be added again."""
        if not self.settings.backoff:
            return
        self._unsettled[rejected.rejection.uid] = rejected
        if len(self._unsettled) > MOST_UNSETTLED:
            del self._unsettled[next(iter(self._unsettled))]

    def uids(self) -> set[str]:
        """Returns the uids of the rejected pods that are remembered."""
        shapes = (own for record in self._nodes.values() for own in record.shapes.values())
        return self._unsettled.keys() | {one.uid for own in shapes for one in own.rejections}

    @property
    def is_idle(self) -> bool:
        """True if nothing is remembered, so that `update` would change nothing."""
        return not (self._unsettled or self._nodes)

    @property
    def is_behind(self) -> bool:
        """True if a rejection was added since the last `update`."""
        return bool(self._unsettled)

    def update(self, now: float, look: Callable[[str], RejectingNodeFacts | None], nodes: int) -> ClosedNodes:
        """Returns the closures at time `now` (seconds since 1970). look: returns the facts of a node by name; None if
        the node does not exist. nodes: number of nodes in the cluster."""
        if self.is_idle:
            return self.closed
        facts = {name: look(name) for name in {*self._nodes, *(one.node for one in self._unsettled.values())}}
        self._settle(facts, now)
        for name, record in [*self._nodes.items()]:
            there = facts[name]
            if there is not None:
                self._compare(record, there, now)
            if there is None or not self._remembers(record, now):
                del self._nodes[name]
        self._bound()
        before, self.closed = self.closed, self._closures(facts, now, nodes)
        self._note(before, now)
        return self.closed

    def _settle(self, facts: Mapping[str, RejectingNodeFacts | None], now: float) -> None:
        """Adds the rejections since the last `update`, except for deleted nodes, and except rejections that the node's
        totals explain."""
        for node, shape, seen in self._unsettled.values():
            there = facts[node]
            if there is None:
                continue
            record = self._nodes.get(node)
            known = record.shapes.get(shape.key) if record is not None else None
            if known is not None and any(one.uid == seen.uid for one in known.rejections):
                continue
            rejection = seen._replace(time=min(seen.time, now))
            asked = {"pods": 1, **shape.total}
            fits = all(amount <= there.free.get(resource, 0) for resource, amount in asked.items())
            if rejection.reason.startswith(OUT_OF) and not fits:
                self.explained.append(rejection.reason)
                continue
            record = self._nodes.setdefault(node, _NodeRecord())
            own = record.shapes.setdefault(shape.key, _ShapeRecord(shape)).rejections
            own.add(rejection)
            self.counted.append((node, rejection.reason))
            if len(own) > MOST_REJECTIONS:
                own.discard(min(own))
        self._unsettled.clear()

    def _compare(self, record: _NodeRecord, there: RejectingNodeFacts, now: float) -> None:
        """Compares the rejections of a node with its facts, and counts the strikes of its shapes."""
        record.fresh = max(record.fresh, there.fresh)
        if record.state is not None and record.state != there.state:
            record.fresh = max(record.fresh, now)
        record.state = there.state
        first = min((min(one.rejections).time for one in record.shapes.values()), default=now)
        for run in there.running:
            if run.bound >= first + BURST_SECONDS:
                record.runs[run.uid] = run
        for uid in sorted(record.runs, key=lambda uid: record.runs[uid].bound)[:-MOST_REJECTIONS]:
            del record.runs[uid]
        for own in record.shapes.values():
            self._count(own, record, now)
            strikes = own.strikes
            if strikes is None:
                continue
            if own.free_at != strikes.last:
                own.free, own.free_at = dict(there.free), strikes.last
                add_amounts(own.free, there.unstarted)
            elif strikes.is_closed(now) and any(
                amount > own.free.get(resource, 0)
                for resource in own.resources(there.free)
                if (amount := there.free.get(resource, 0))
            ):
                own.openings.append(now)
                self._count(own, record, now)

    def _count(self, own: _ShapeRecord, record: _NodeRecord, now: float) -> None:
        asked = own.shape.total.items()
        own.strikes = count_strikes(
            (one for one in own.rejections if one.time >= record.fresh),
            successes=[run.bound for run in record.runs.values() if all(run.requests.get(r, 0) >= n for r, n in asked)],
            openings=own.openings,
            settings=self.settings,
            now=now,
        )

    def _remembers(self, record: _NodeRecord, now: float) -> bool:
        """Drops the shapes of a node with only old rejections. Returns False if no shape is left.

        Rejections that no longer count are remembered until they are old, because their pods may be added again and
        must not count twice.
        """
        horizon = 2 * self.settings.max_backoff
        for key, own in [*record.shapes.items()]:
            if now >= own.latest + horizon:
                del record.shapes[key]
        return bool(record.shapes) or now < record.fresh + horizon

    def _bound(self) -> None:
        """Drops the shapes with the oldest last rejections if there are too many."""
        too_many = sum(len(record.shapes) for record in self._nodes.values()) - MOST_SHAPES
        if too_many > 0:
            known = [(own.latest, name, key) for name, one in self._nodes.items() for key, own in one.shapes.items()]
            for _, name, key in sorted(known)[:too_many]:
                del self._nodes[name].shapes[key]

    # -- closures -----------------------------------------------------------------------------------------------------

    def _closures(self, facts: Mapping[str, RejectingNodeFacts | None], now: float, nodes: int) -> ClosedNodes:
        shapes = {
            name: {
                key: ClosedShape(own.shape.text, own.strikes.latest.reason, own.strikes.count, own.strikes.until)
                for key, own in record.shapes.items()
                if own.strikes is not None and own.strikes.is_closed(now)
            }
            for name, record in self._nodes.items()
        }
        found = [(name, whole) for name in self._nodes if (whole := self._closed_node(name, facts[name], now))]
        found.sort(key=lambda one: (-one[1][1].rejections, -one[1][0], natural_key(one[0])))
        most = min(max(1, nodes // 10), nodes - 1)
        return ClosedNodes(
            {name: own for name, own in shapes.items() if own}, {name: whole for name, (_, whole) in found[:most]}
        )

    def _closed_node(self, name: str, there: RejectingNodeFacts | None, now: float) -> tuple[float, ClosedNode] | None:
        """Returns (time of the last rejection, closure) if enough shapes count against a node to close it as a whole.

        None if too few do (numa.md 8.7).
        """
        record = self._nodes[name]
        counting = [
            (own.shape, own.strikes)
            for own in record.shapes.values()
            if own.strikes is not None and there is not None and _counts(own.shape, own.strikes, there.running)
        ]
        ends = [strikes.until for _, strikes in counting if strikes.is_closed(now)]
        if not self.settings.shapes or len(counting) < self.settings.shapes or not ends:
            return None
        common = set(counting[0][0].devices).intersection(*(shape.devices for shape, _ in counting))
        rejections = sum(strikes.count for _, strikes in counting)
        latest = max(strikes.latest.time for _, strikes in counting)
        return latest, ClosedNode(tuple(sorted(common)), UNEXPECTED, len(counting), rejections, max(ends))

    def _note(self, before: ClosedNodes, now: float) -> None:
        """Records which closures began, were prolonged or ended since the last update."""
        for name, shapes in self.closed.shapes.items():
            old = before.shapes.get(name, {})
            for key, shape in shapes.items():
                if key not in old or old[key].rejections != shape.rejections or old[key].until != shape.until:
                    self.news.append(ClosureNews(name, shape.text, shape, None))
        for name, whole in self.closed.nodes.items():
            if before.nodes.get(name) != whole:
                self.news.append(ClosureNews(name, "", whole, None))
        for name, shapes in before.shapes.items():
            for key, shape in shapes.items():
                if key not in self.closed.shapes.get(name, {}):
                    self.news.append(ClosureNews(name, shape.text, shape, self._cause(name, key, shape, now)))

    def _cause(self, name: str, key: bytes, before: ClosedShape, now: float) -> Cause:
        """Returns why a closure ended."""
        record = self._nodes.get(name)
        own = record.shapes.get(key) if record is not None else None
        if now >= before.until:
            return "time is over"
        if record is None or own is None or record.fresh > own.latest:
            return "the node changed"
        return "more is free" if own.strikes is not None else "a pod of that size runs"


def _counts(shape: RequestShape, strikes: Strikes, running: Iterable[RunningPod]) -> bool:
    """Returns True if a shape counts against its node: the reason of its last rejection is a failed device plugin or
    resource manager, and no pod that requests the shape's devices was started since."""
    if strikes.latest.reason != UNEXPECTED:
        return False
    later = (run for run in running if run.bound >= strikes.latest.time + BURST_SECONDS)
    own = shape.devices
    return not any(not own or any(run.requests.get(resource, 0) for resource in own) for run in later)
