"""What pods ask of GPUs that cannot be read or does nothing: events on the pod live, lines on stderr offline."""

from collections.abc import Iterable

from koordpy.api import keys
from koordpy.planning.gpu.nodes import Unreadable, want_of
from koordpy.planning.units import Unit


def pod_warnings(units: Iterable[Unit]) -> list[tuple[str, str]]:
    """(object, text) of pending pods: wishes that cannot be read, and half a group (gpu-topology.md sections 5, 6)."""
    out: list[tuple[str, str]] = []
    for unit in units:
        for pod in unit.pending:
            labels = pod.pod.metadata.labels
            if (keys.GPU_GROUP_NAME in labels or keys.GPU_GROUP_REPLICA in labels) and pod.group is None:
                text = f"labels {keys.GPU_GROUP_NAME} and {keys.GPU_GROUP_REPLICA} make a group only together"
                out.append((f"Pod/{pod.key}", text))
            if pod.gpus is not None:
                try:
                    want_of(pod)
                except Unreadable as what:
                    out.append((f"Pod/{pod.key}", str(what)))
    return out
