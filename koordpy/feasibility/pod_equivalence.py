# SPDX-License-Identifier: Apache-2.0
"""Finds gang members that a plan may treat as equal although their specs differ.

Members often differ in fields that do not affect placement, such as the name of a claim: they have the same requests,
the same feasible nodes and the same scores everywhere. As one shape they are placed by counting. As separate shapes
they may be too many for every method.
"""

from collections.abc import Hashable, Sequence

from koordpy.devices.family_registry import equivalence_key
from koordpy.placement.problem import Shape
from koordpy.pods.pod_info import PodInfo


def alike(shapes: Sequence[Shape], pods: Sequence[PodInfo], distinct_keys: Sequence[bytes]) -> list[int]:
    """Returns, per shape, the index of the first shape that is equal to it for placement; its own index if none is.

    Only valid if members have no rules about each other, because such rules refer to shapes.

    pods: a pod of each shape. distinct_keys: per shape a further key, which must also be equal: the slots of its
    copies, or the whole pod if other pods affect its nodes.
    """
    first: dict[Hashable, int] = {}
    return [
        first.setdefault((_placement_inputs(shape, pod), by), i)
        for i, (shape, pod, by) in enumerate(zip(shapes, pods, distinct_keys, strict=True))
    ]


def _placement_inputs(shape: Shape, pod: PodInfo) -> Hashable:
    """Returns everything about a shape that a placement, a quota or the devices of a node can depend on, as a key."""
    asked = tuple(sorted(pod.charged.items()))
    return shape.request, shape.allowed.tobytes(), shape.score.tobytes(), asked, pod.owner, equivalence_key(pod)
