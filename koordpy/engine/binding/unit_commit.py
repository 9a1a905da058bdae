# SPDX-License-Identifier: Apache-2.0
"""Records of the Bindings in progress, by unit, their order on a node (`NodeOrder`), and the checks right before each
Binding (`Obstacles`).

A Binding is sent only if this process leads, the pod has the planned uid, its node is the planned object (same uid)
and has capacity for the pod, its planned devices are still free, and its kubelet has not rejected such a pod since the
plan was made (numa.md 8.6). Before the first Binding of a unit, the labels and taints of its nodes must also be the
same as in the plan, because the placement of the whole unit depends on them.

All pods of a gang are checked before its first Binding; then each pod before its own Binding. While claims are being
bound, all pods of the unit are checked repeatedly.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from koordpy.cache.snapshot import NodeInfo
from koordpy.devices.family_registry import FAMILY_NAMES
from koordpy.engine.binding.volume_writes import PodClaims
from koordpy.engine.engine_context import Context
from koordpy.engine.queue_entry import QueuedPod
from koordpy.engine.staleness import devices_lost, differs, is_overcommitted, is_replaced, lacks_capacity_of
from koordpy.plan.round_plan import Placement
from koordpy.pods.pod_info import PodInfo

STALE_CAUSES = frozenset({"pod", "node", "room", "not_sent"}) | FAMILY_NAMES
"""Obstacles for which the unit's pods get no condition, because the cluster changed or leadership ended. The names of
device families mean that a planned device is not available any more."""
EXPECTED = frozenset({"not_sent", "late", "withdrawn"})
"""Obstacles that the metric of conflicts does not count."""


@dataclass(slots=True)
class UnitCommit:
    """The Bindings of one unit of one plan."""

    unit: str
    gang: bool
    """True if the unit is a gang, so that its Bindings depend on each other."""
    began: float
    """Clock time at which the round began."""
    deadline: float
    """Clock time after which no Binding is sent, by the gang's waiting-time. The remaining pods are planned again."""
    on_done: Callable[["UnitCommit"], None] | None = None
    """Called once, when the outcomes of all Bindings are known; None for no call."""
    total: int = 0
    """Number of Bindings."""
    left: int = 0
    """Number of Bindings without a known outcome."""
    sent: int = 0
    """Number of Bindings that were sent."""
    withdrawn: bool = False
    """True if no Binding of the unit may be sent any more."""
    lost: list[str] = field(default_factory=list)
    """Keys of pods that were not bound."""
    by_others: int = 0
    """Number of pods that another process bound to their planned nodes."""
    reserving: bool = False
    """True if resource claims may have been written for the unit."""
    jobs: list["PendingBinding"] = field(default_factory=list)
    """All Bindings, in the order of the plan; empty once all outcomes are known."""


@dataclass(slots=True)
class PendingBinding:
    """One Binding in progress, with the data that is needed to queue the pod again if the Binding fails.

    placement: the pod's place in the plan. queued: the pod's record in the scheduling queue.
    """

    commit: UnitCommit
    info: PodInfo
    placement: Placement
    queued: QueuedPod
    mark: int
    """The node's number in `PodChanges.foreign_marks` when the unit was submitted. The number changes when another
    scheduler binds a pod to the node."""
    node: NodeInfo | None
    """The node when the unit was submitted; None if it did not exist."""
    claims: PodClaims | None = None
    """Claims that must be bound before the pod; None if there are none."""


class NodeOrder:
    """The order of the Bindings to a node with NUMA data: one at a time, in the order of the plan (numa.md 7).

    The kubelet gives a pod zones from what the pods that it admitted before have left. If Bindings to one node were
    sent at the same time, pods could arrive in another order than planned, and later pods would be rejected.
    """

    def __init__(self, context: Context) -> None:
        self._state = context.state
        self._waiting: dict[str, deque[PendingBinding]] = {}
        """Node to which a Binding is being sent -> Bindings that wait; only nodes with NUMA data."""

    def of(self, job: PendingBinding) -> PendingBinding | None:
        """Returns the Binding if it may be sent now; None if another one to its node is being sent.

        In that case `next_to` returns it later. After each Binding the caller sends those of `next_to`, until None.
        """
        node = job.placement.node
        if node in self._waiting:
            self._waiting[node].append(job)
            return None
        # a pod without devices and zones takes none that another pod could get
        if job.placement.devices and any(book.predicts_admission(node) for book in self._state.families.values()):
            self._waiting[node] = deque()
        return job

    def next_to(self, node: str) -> PendingBinding | None:
        """Returns the next Binding to a node after one was answered; None if none waits."""
        waiting = self._waiting.get(node)
        if waiting:
            return waiting.popleft()
        self._waiting.pop(node, None)
        return None


class SendPermission:
    """A callable that returns True while Bindings may be sent: this process leads and is not stopping."""

    def __init__(self, may_write: Callable[[], bool]) -> None:
        """may_write: returns True while this process leads."""
        self._may_write = may_write
        self.stopping = False

    def __call__(self) -> bool:
        return not self.stopping and self._may_write()


class Obstacles:
    """Finds reasons why a Binding must not be sent now. An empty text means that it may be sent."""

    def __init__(self, context: Context, *, may_send: SendPermission) -> None:
        self._feeds, self._state, self._clock = context.feeds, context.state, context.clock
        self._may_send, self._now = may_send, context.now

    def of_unit(self, commit: UnitCommit) -> str:
        """Returns the first obstacle of any of the unit's Bindings; empty for none."""
        return next((why for job in commit.jobs if (why := self.of(job))), "")

    def of_next(self, job: PendingBinding) -> str:
        """Returns the obstacle of the Binding that is to be sent now; empty for none. Before the first Binding of a
        gang it withdraws the gang if one of its Bindings has an obstacle, so that no member is bound."""
        commit = job.commit
        if commit.gang and not commit.sent and not commit.withdrawn:
            commit.withdrawn = bool(self.of_unit(commit))
        return self.of(job)

    def of(self, job: PendingBinding) -> str:
        """Returns the obstacle of one Binding as a word for metrics; empty for none.

        `not_sent`: leadership has ended, or this process is stopping. `pod`: the pod is deleted, replaced, or not
        assumed on this node any more. `node`: the node is removed, recreated or changed, or its kubelet has rejected
        such a pod since the plan. `room`: another scheduler has used up the capacity, or the node has less than before.
        Name of a device family: a planned device is not available. `late`: the unit's deadline has passed. `withdrawn`:
        the Bindings of the unit were withdrawn.
        """
        if not self._may_send():
            return "not_sent"
        key, node = job.placement.pod_key, job.placement.node
        now = self._state.pod(key)
        if now is None or now.uid != job.placement.uid or self._state.assumed_node(key) != node:
            return "pod"
        if now.pod.metadata.deletion_timestamp is not None:
            return "pod"
        current, planned = self._state.nodes.get(node), job.node
        if current is None or planned is None or is_replaced(current, planned):
            return "node"
        if not job.commit.sent and differs(self._state, current, planned):
            return "node"
        rejections = self._state.rejections
        if rejections is not None and rejections.takes_no(now, node, self._now()):
            return "node"
        # pods placed by this process do not overcommit a node, so the check is needed only after a foreign Binding, or
        # if the node has less capacity than before
        is_loaded = self._feeds.pods.foreign_marks.get(node, 0) != job.mark
        if (is_loaded or lacks_capacity_of(current, planned, now.requests)) and is_overcommitted(
            self._state, current, now.requests
        ):
            return "room"
        if lost := devices_lost(self._state, [job.placement]):
            return lost
        if self._clock() > job.commit.deadline:
            return "late"
        return "withdrawn" if job.commit.withdrawn else ""
