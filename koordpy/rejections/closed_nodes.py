# SPDX-License-Identifier: Apache-2.0
"""Defines `ClosedNodes`: the nodes that take no pods of some request shapes at one moment (numa.md 8.6 and 8.7).

A closure keeps pods from a node after its kubelet has rejected such pods. `RejectionMemory` computes the closures; the
record is immutable. Each Snapshot has one, for the filter NodeRepair, messages, `backedOff` of simulations, and
suggestions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Pod
from koordpy.api.times import rfc3339
from koordpy.rejections.request_shapes import request_shape


@dataclass(frozen=True, slots=True)
class ClosedShape:
    """The closure of a node to one request shape, which its kubelet has rejected."""

    text: str
    """Requests of the shape (`RequestShape.text`)."""
    reason: str
    """Reason of the last rejection."""
    rejections: int
    """Number of strikes (`strikes.py`)."""
    until: float
    """End of the closure, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class ClosedNode:
    """The closure of a node that rejected pods of several shapes because a device plugin or resource manager failed."""

    resources: tuple[str, ...]
    """Device resources that all these shapes request. The node is closed to pods that request one of them; if the tuple
    is empty, to every pod."""
    reason: str
    shapes: int
    """Number of shapes that count against the node."""
    rejections: int
    """Sum of the strikes of these shapes."""
    until: float
    """End of the closure, in seconds since 1970: the latest end of the closures of these shapes."""


@dataclass(frozen=True, slots=True)
class ClosedNodes:
    """The closures of all nodes; both mappings are empty if there are none."""

    shapes: Mapping[str, Mapping[bytes, ClosedShape]]
    """Node -> `RequestShape.key` -> closure."""
    nodes: Mapping[str, ClosedNode]

    def __bool__(self) -> bool:
        return bool(self.shapes or self.nodes)

    def takes_no(self, pod: Pod, requests: Mapping[str, int], node: str) -> bool:
        """Returns True if a node is closed to a pod. requests: requests of the whole pod."""
        whole = self.nodes.get(node)
        if whole is not None and (not whole.resources or any(requests.get(one, 0) for one in whole.resources)):
            return True
        return node in self.shapes and request_shape(pod).key in self.shapes[node]

    def without(self, nodes: Sequence[str]) -> "ClosedNodes":
        """Returns the closures as if the given nodes took all pods again."""
        return replace(
            self,
            shapes={name: shapes for name, shapes in self.shapes.items() if name not in nodes},
            nodes={name: closed for name, closed in self.nodes.items() if name not in nodes},
        )

    def document(self) -> list[dict[str, object]]:
        """Returns `backedOff` of a SimulationResult: by node, closed nodes before closed shapes (numa.md 10)."""
        return [*self._entries()]

    def _entries(self) -> Iterator[dict[str, object]]:
        for node in sorted({*self.shapes, *self.nodes}, key=natural_key):
            if (whole := self.nodes.get(node)) is not None:
                yield _entry(node, None, whole.resources, whole)
            for shape in sorted(self.shapes.get(node, {}).values(), key=lambda one: (one.text, one.until)):
                yield _entry(node, shape.text, (), shape)


def _entry(
    node: str, shape: str | None, resources: Sequence[str], closed: ClosedShape | ClosedNode
) -> dict[str, object]:
    return {
        "node": node,
        "shape": shape,
        "resources": list(resources),
        "reason": closed.reason,
        "rejections": closed.rejections,
        "until": rfc3339(closed.until),
    }


NOTHING_CLOSED = ClosedNodes({}, {})
