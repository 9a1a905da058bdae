# SPDX-License-Identifier: Apache-2.0
"""Messages about a sick GPU that a pod still uses, so that a waiting pod cannot get a healthy GPU (gpu-topology.md 2).

Sick means unhealthy by the Device. The kubelet removes a sick GPU from the node's allocatable, and still counts the pod
that uses it. So the scheduler sees one GPU fewer than the node has, until that pod is gone.
"""

from koordpy.devices.family_round import FamilyRound, Obstruction
from koordpy.devices.gpu.gpu_machine import GPUS
from koordpy.devices.gpu.gpu_nodes import gpu_nodes
from koordpy.devices.gpu.gpu_view import gpu_view
from koordpy.plan.limits import SICK_GPU_NODES_TRIED
from koordpy.pods.pod_info import PodInfo

_COUNTED_TWICE = (
    "allocatable excludes this GPU and the pod is still counted, so a healthy GPU stays unused until the pod is gone"
)


def _obstruction_of(pod: str, holds: str) -> Obstruction:
    """Returns the obstruction of a pod (key) that uses a sick GPU. holds: the GPU, as `GPU 0 of node n1`."""
    ends = f"pod {pod} were deleted (it uses {holds}, which is unhealthy)"
    return Obstruction(pod, f"pod {pod} uses {holds}, which is unhealthy: {_COUNTED_TWICE}", ends)


def sick_holder(pod: PodInfo, now: FamilyRound) -> Obstruction | None:
    """Returns a pod that uses a sick GPU and so prevents a waiting pod from getting healthy GPUs; None if none is
    found.

    Only nodes with enough free healthy GPUs are tried, at most `SICK_GPU_NODES_TRIED`. A node is tried with all
    filters, on the draft without the pod that uses the sick GPU. Nodes with koordpy's device plugin are left out,
    because their allocatable is corrected (`sick_gpus`).
    """
    if pod.ask(GPUS) is None:
        return None
    draft, gpus = now.inputs.draft, gpu_nodes(now.inputs)
    snapshot = draft.snapshot
    tried = 0
    for name in gpu_view(snapshot).sick_held:
        node = snapshot.index.get(name)
        machine = gpus.state(node).by_name if node is not None else None
        if node is None or machine is None or (machine.delivery or gpus.config.delivery) == "device-plugin":
            continue
        known = gpu_view(snapshot).nodes[name]
        free, room = gpus.state(node).free.bit_count(), gpus.usable_gpus(node, pod)
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
                return _obstruction_of(key, f"GPU {sick[0]} of node {name}")
    return None
