"""What pods ask of GPUs that cannot be read or does nothing: events on the pod live, lines on stderr offline."""

from collections.abc import Iterator

from koordpy.api import keys
from koordpy.cluster.pods import PodInfo
from koordpy.planning.gpu.nodes import UnreadableWish, want_of


def gpu_warnings(pod: PodInfo) -> Iterator[str]:
    """Of a pending pod: wishes that cannot be read, and half a group (gpu-topology.md 5, 6)."""
    labels = pod.pod.metadata.labels
    if (keys.GPU_GROUP_NAME in labels or keys.GPU_GROUP_REPLICA in labels) and pod.group is None:
        yield f"labels {keys.GPU_GROUP_NAME} and {keys.GPU_GROUP_REPLICA} make a group only together"
    if pod.gpus is not None:
        try:
            want_of(pod)
        except UnreadableWish as what:
            yield str(what)
