# SPDX-License-Identifier: Apache-2.0
"""Finds shapes of gang members that a plan may treat as one shape although their pod specs differ.

Members often differ in fields that do not affect placement, such as the name of a claim: they have equal requests,
equal feasible nodes and equal scores. As one shape they can be placed by counting. As separate shapes they may be too
many for every placement method.
"""

from collections.abc import Hashable, Sequence

from koordpy.devices.family_registry import equivalence_key
from koordpy.placement.problem import Shape
from koordpy.pods.pod_info import PodInfo


def alike(shapes: Sequence[Shape], pods: Sequence[PodInfo], distinct_keys: Sequence[Hashable]) -> list[int]:
    """Returns for each shape the index of the first shape that is equal to it for placement, which may be its own
    index.

    Only valid if members have no rules about each other, because such rules refer to shapes.

    pods: one pod of each shape. distinct_keys: for each shape a further key that must be equal, too: the slots of its
    copies and the devices that it gets, or the whole pod if other pods affect its nodes.
    """
    first: dict[Hashable, int] = {}
    return [
        first.setdefault((_placement_inputs(shape, pod), by), i)
        for i, (shape, pod, by) in enumerate(zip(shapes, pods, distinct_keys, strict=True))
    ]


def _placement_inputs(shape: Shape, pod: PodInfo) -> Hashable:
    """Returns everything in a shape on which a placement, a quota or the devices of a node can depend, as one key."""
    asked = tuple(sorted(pod.charged.items()))
    return shape.request, shape.allowed.tobytes(), shape.score.tobytes(), asked, pod.owner, equivalence_key(pod)
