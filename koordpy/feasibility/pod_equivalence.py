"""Pods that a plan may treat as equal although their specs differ: same requests, same nodes, same scores everywhere.

Members of a gang often differ in fields that do not affect placement, such as the name of a claim. As one kind they are
placed by counting. As separate kinds they are too many for every method.
"""

from collections.abc import Hashable, Sequence

from koordpy.devices.family_registry import apart
from koordpy.placement.problem import Shape
from koordpy.pods.pod_info import PodInfo


def alike(shapes: Sequence[Shape], pods: Sequence[PodInfo], distinct_keys: Sequence[bytes]) -> list[int]:
    """Returns for each shape, given a pod of it, the position of the first shape that is equal to it.

    Only valid if members have no rules about each other, because such rules refer to shapes. distinct_keys: keys that
    also distinguish shapes, such as the slots of their copies, or the whole pod if other pods affect its nodes.
    """
    first: dict[Hashable, int] = {}
    return [
        first.setdefault((_placement_inputs(shape, pod), by), i)
        for i, (shape, pod, by) in enumerate(zip(shapes, pods, distinct_keys, strict=True))
    ]


def _placement_inputs(shape: Shape, pod: PodInfo) -> Hashable:
    """Returns all that a placement, a quota or the devices of a node can depend on."""
    asked = tuple(sorted(pod.requests.items()))
    return shape.request, shape.allowed.tobytes(), shape.score.tobytes(), asked, pod.owner, apart(pod)
