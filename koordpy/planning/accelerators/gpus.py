"""GPUs as a family of devices (gpu-topology.md); how they are chosen is in `koordpy.planning.gpu`."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from koordpy.api import keys
from koordpy.cluster.pods import PodInfo
from koordpy.planning.accelerators.base import Accelerator, Given
from koordpy.planning.filters.base import Refusal
from koordpy.planning.filters.gpu_devices import GPUDevices, gpu_refusal
from koordpy.planning.filters.rules import Rule
from koordpy.planning.gpu.allocation import allocate

if TYPE_CHECKING:
    from koordpy.planning.figures import Figures
    from koordpy.planning.scene import Scene

_WISHES = (keys.GPU_MIN_BANDWIDTH, keys.GPU_PARTITION_SPEC)


class Gpus(Accelerator):
    """Known by name where nodes have Devices, else by their number alone."""

    def refusal(self, pod: PodInfo, scene: "Scene") -> Refusal | None:
        return gpu_refusal(pod)

    def rules(self, pod: PodInfo, scene: "Scene") -> Iterator[Rule]:
        if pod.gpus is None:
            return
        # else the count of GPUs decides alone
        if (
            scene.snapshot.gpus.nodes
            or scene.config.gpu.delivery == "env"
            or any(key in pod.pod.metadata.annotations for key in _WISHES)
            or scene.partition_policies
        ):
            yield GPUDevices(pod, scene.gpus)

    def give(self, nodes: Mapping[str, int], figures: "Figures") -> Given:
        pods = figures.snapshot.pods
        placed = [(pods[key], node) for key, node in nodes.items() if pods[key].gpus is not None]
        if not placed or not figures.gpus.view.nodes:
            return Given()
        given = allocate(placed, figures.gpus)
        return Given(given.chips, given.notes, given.faults)
