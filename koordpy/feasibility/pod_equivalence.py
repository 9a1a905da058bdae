"""Pods that a plan need not tell apart although their specs differ: same room, same nodes, same worth everywhere.

Members of a gang often differ in what says nothing about where they go, as each with a claim of its own does. As one
kind they are placed by counting; told apart, each is a kind of its own, and no method gets through so many.
"""

from collections.abc import Hashable, Sequence

from koordpy.devices.family_registry import apart
from koordpy.placement.problem import Shape
from koordpy.pods.pod_info import PodInfo


def alike(shapes: Sequence[Shape], pods: Sequence[PodInfo], told: Sequence[bytes]) -> list[int]:
    """For each shape, of which a pod is given, the first one that it need not be told from.

    Only where members ask nothing of each other's places, which knows them by their specs. told: what shapes are told
    apart by besides what they take, as their copies' slots, or all of a pod where nodes may open to it by what happens
    to others.
    """
    first: dict[Hashable, int] = {}
    return [
        first.setdefault((_everything(shape, pod), by), i)
        for i, (shape, pod, by) in enumerate(zip(shapes, pods, told, strict=True))
    ]


def _everything(shape: Shape, pod: PodInfo) -> Hashable:
    """Whatever a placement, a quota or the devices of a node may look at."""
    asked = tuple(sorted(pod.requests.items()))
    return shape.request, shape.allowed.tobytes(), shape.score.tobytes(), asked, pod.owner, apart(pod)
