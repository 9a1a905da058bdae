"""Pods that a plan need not tell apart although their specs differ: same room, same nodes, same worth everywhere.

Members of a gang often differ in what says nothing about where they go, as each with a claim of its own does. As one
kind they are placed by counting; told apart, each is a kind of its own, and no method gets through so many.
"""

from collections.abc import Hashable, Sequence

from koordpy.cluster.pods import PodInfo
from koordpy.planning.accelerators.registry import apart
from koordpy.planning.placement.problem import Shape


def alike(shapes: Sequence[Shape], pods: Sequence[PodInfo], ruled: Sequence[bool]) -> list[int]:
    """For each shape, of which a pod is given, the first one that it need not be told from.

    Only where members ask nothing of each other's places, which knows them by their specs. ruled: shapes that stay what
    they are, where nodes may open to them by what happens to other pods.
    """
    first: dict[Hashable, int] = {}
    return [
        first.setdefault((_everything(shape, pod), pod.shape if told else b""), i)
        for i, (shape, pod, told) in enumerate(zip(shapes, pods, ruled, strict=True))
    ]


def _everything(shape: Shape, pod: PodInfo) -> Hashable:
    """Whatever a placement, a quota or the devices of a node may look at."""
    asked = tuple(sorted(pod.requests.items()))
    return shape.request, shape.allowed.tobytes(), shape.score.tobytes(), asked, pod.owner, apart(pod)
