"""The Bindings of one unit on their way, and what may stand in the way of each.

Asked before a gang's first Binding of all its pods, before each Binding of its own pod, and again and again while
claims are waited for: do we lead, is the pod still the one we planned, is the node there and not overbooked by others,
and are the accelerators that it is given by name still free? While nothing of the unit is sent, a node must also say
what it said when it was planned, for the whole unit rests on that.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from koordpy.cache.snapshot import NodeInfo
from koordpy.devices.family_registry import FAMILY_NAMES
from koordpy.engine.binding.volume_writes import PodClaims
from koordpy.engine.engine_context import Context
from koordpy.engine.queue_entry import QueuedPod
from koordpy.engine.staleness import devices_lost, differs, overcommitted
from koordpy.plan.round_plan import Placement
from koordpy.pods.pod_info import PodInfo

OVERTAKEN = frozenset({"pod", "node", "room", "not_sent"}) | FAMILY_NAMES
"""Obstacles that are no fault of the unit or its claims: others came in between, or leadership ended."""
EXPECTED = frozenset({"not_sent", "late", "withdrawn"})
"""Obstacles that are no conflict with others."""


@dataclass(slots=True)
class UnitCommit:
    """The Bindings of one unit of one plan."""

    unit: str
    gang: bool
    began: float
    deadline: float
    """No Binding is sent after this; what is left is planned again (waiting-time)."""
    on_done: Callable[["UnitCommit"], None] | None = None
    total: int = 0
    left: int = 0
    sent: int = 0
    withdrawn: bool = False
    lost: list[str] = field(default_factory=list)
    """Keys of the pods that were not bound."""
    by_others: int = 0
    """Pods that another process had bound to the same nodes."""
    reserving: bool = False
    """Resource claims may have been written for it."""
    jobs: list["PendingBinding"] = field(default_factory=list)


@dataclass(slots=True)
class PendingBinding:
    """One Binding of a unit, with what must be known to take it back."""

    commit: UnitCommit
    info: PodInfo
    placement: Placement
    queued: QueuedPod
    mark: int
    """How often others had put pods on its node when it was planned."""
    node: NodeInfo | None
    """Its node as it was planned."""
    claims: PodClaims | None = None


class Obstacles:
    """Why a Binding must not be sent now; empty texts where it may."""

    def __init__(self, context: Context, *, may_send: Callable[[], bool]) -> None:
        self._feeds, self._state, self._clock = context.feeds, context.state, context.clock
        self._may_send = may_send

    def of_unit(self, commit: UnitCommit) -> str:
        """The first obstacle of any of a unit's Bindings."""
        return next((why for job in commit.jobs if (why := self.of(job))), "")

    def of(self, job: PendingBinding) -> str:
        """`not_sent`, `pod`, `node`, `room`, a family of devices, `late` or `withdrawn`."""
        if not self._may_send():
            return "not_sent"
        key, node = job.placement.pod_key, job.placement.node
        now = self._state.pod(key)
        if now is None or now.uid != job.placement.uid or self._state.assumed_node(key) != node:
            return "pod"
        if now.pod.metadata.deletion_timestamp is not None:
            return "pod"
        there = self._state.nodes.get(node)
        if there is None or (not job.commit.sent and differs(there, job.node)):
            return "node"
        if self._feeds.pods.foreign_marks.get(node, 0) != job.mark and overcommitted(self._state, node):
            return "room"
        if taken := devices_lost(self._state, [job.placement]):
            return taken
        if self._clock() > job.commit.deadline:
            return "late"
        return "withdrawn" if job.commit.withdrawn else ""
