"""What is said of a sick GPU that a pod holds, where the node's own figure counts it twice (gpu-topology.md 2)."""

from koordpy.devices.device_family import FamilyRound, Obstruction
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.devices.gpu.gpu_nodes import gpu_nodes
from koordpy.devices.gpu.gpu_view import gpu_view
from koordpy.plan.limits import SICK_GPU_NODES_TRIED
from koordpy.pods.pod_info import PodInfo

_USED_TWICE = (
    "allocatable lacks this GPU and the pod still counts, so that a healthy GPU is not used until the pod is gone"
)


def _holder(pod: str, holds: str) -> Obstruction:
    """The pod that holds a sick GPU. holds: which GPU, as `GPU 0 of node n1`."""
    ends = f"pod {pod} were gone: it holds {holds}, which is not healthy"
    return Obstruction(pod, f"pod {pod} holds {holds}, which is not healthy: {_USED_TWICE}", ends)


def sick_holder(pod: PodInfo, now: FamilyRound) -> Obstruction | None:
    """Returns a pod that holds a sick GPU and whose node takes the waiting pod once the holder is gone, because enough
    healthy GPUs are free there already; None if no node among those tried is one.

    Tries the filters on the draft without the holder. Nodes of which the agent is the device plugin are left out: their
    figure counts a sick GPU once.
    """
    if pod.ask(GPUS) is None:
        return None
    draft, gpus = now.scene.draft, gpu_nodes(now.scene)
    snapshot = draft.snapshot
    tried = 0
    for name in gpu_view(snapshot).sick_held:
        node = snapshot.index.get(name)
        machine = gpus.state(node).by_name if node is not None else None
        if node is None or machine is None or (machine.delivery or gpus.config.delivery) == "device-plugin":
            continue
        known = gpu_view(snapshot).nodes[name]
        free, room = gpus.state(node).free.bit_count(), gpus.room(node, pod)
        if not room < pod.ask(GPUS).count <= min(free, room + (known.held_whole & known.sick).bit_count()):
            continue
        tried += 1
        if tried > SICK_GPU_NODES_TRIED:
            return None
        for key in sorted(known.masks):
            sick = machine.minors_of(known.masks[key] & known.sick)
            if not sick or key in draft.evicted:
                continue
            with draft.trial([snapshot.pods[key]]):
                takes = now.takes(pod, node)
            if takes:
                return _holder(key, f"GPU {sick[0]} of node {name}")
    return None
