# SPDX-License-Identifier: Apache-2.0
"""Decides which nodes are lost, so that the members of gangs on these nodes no longer count (repair.md 4.1).

A node is lost if its object is deleted, if it has had a taint of `LOST_TAINTS` for `repair.lostAfter`, or if a
condition of `repair.lostConditions` has been True for that time. Cordons, drains and taints of autoscalers do not mark
a node as lost. The functions are pure: they read one node object and the time of the snapshot. O(taints + conditions).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from koordpy.api.objects import Node, Pod, Taint
from koordpy.api.times import seconds
from koordpy.config.node_failures import Repair
from koordpy.pods.tolerations import tolerated_forever

LOST_TAINTS = frozenset(
    ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service")
)
"""Keys of the NoExecute taints that mark a node as lost."""


class LossCause(StrEnum):
    """Why a node is lost; the values appear in `gangs[].repair.lost` of simulate's output."""

    NODE_GONE = "NodeGone"
    NODE_TAINT = "NodeTaint"
    NODE_CONDITION = "NodeCondition"


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a bound pod is lost with its node."""

    cause: LossCause
    detail: str = ""
    """Key of the taint or type of the condition; empty if the node's object is deleted."""

    @property
    def text(self) -> str:
        """The cause as in the condition Degraded of a PodGroup."""
        match self.cause:
            case LossCause.NODE_GONE:
                return "node is gone"
            case LossCause.NODE_TAINT:
                return f"taint {self.detail}"
            case LossCause.NODE_CONDITION:
                return f"condition {self.detail}"


GONE = Loss(LossCause.NODE_GONE)


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that is lost, although its object exists."""

    taints: tuple[Taint, ...]
    """The taints of `LOST_TAINTS` that mark it as lost; empty if only a condition does."""
    condition: str
    """Type of the first condition of `repair.lostConditions` that marks it as lost; empty if only taints do."""

    def loss_of(self, pod: Pod) -> Loss | None:
        """Returns why a pod on the node is lost; None if the pod tolerates all the taints without a time limit and no
        condition marks the node."""
        for taint in self.taints:
            if not tolerated_forever(taint, pod.spec.tolerations):
                return Loss(LossCause.NODE_TAINT, taint.key)
        return Loss(LossCause.NODE_CONDITION, self.condition) if self.condition else None


def may_be_lost(node: Node, settings: Repair) -> bool:
    """Returns True if a node has a taint or condition that marks it as lost, now or once `repair.lostAfter` has
    passed."""
    return any(True for _ in _marks(node, settings))


def reported_losses(node: Node, settings: Repair) -> frozenset[str]:
    """Returns the types of `repair.lostConditions` that are True on a node, whether or not it is lost already."""
    if not settings.lost_conditions:
        return frozenset()
    return frozenset(one.type for one in node.status.conditions if one.status == "True") & {*settings.lost_conditions}


def lost_node(node: Node, now: float, settings: Repair) -> LostNode | None:
    """Returns the marks by which a node is lost; None if it is not lost. now: seconds since the epoch."""
    taints: list[Taint] = []
    condition = ""
    for since, mark in _marks(node, settings):
        if now < since + settings.lost_after:
            continue
        if isinstance(mark, Taint):
            taints.append(mark)
        else:
            condition = condition or mark
    return LostNode(tuple(taints), condition) if taints or condition else None


def next_loss(node: Node, now: float, settings: Repair) -> float | None:
    """Returns when the next mark of a node takes effect, in seconds since the epoch; None if no mark is waiting."""
    ends = (since + settings.lost_after for since, _ in _marks(node, settings))
    return min((end for end in ends if end > now), default=None)


def _marks(node: Node, settings: Repair) -> Iterator[tuple[float, Taint | str]]:
    """Yields (since, mark) of each taint and condition type that marks a node as lost.

    since: seconds since the epoch; 0 (long ago) if the object states no time.
    """
    for taint in node.spec.taints:
        if taint.key in LOST_TAINTS and taint.effect == "NoExecute":
            yield seconds(taint.time_added), taint
    if settings.lost_conditions:
        states = {one.type: one for one in node.status.conditions if one.status == "True"}
        for name in settings.lost_conditions:
            if name in states:
                yield seconds(states[name].last_transition_time), name
