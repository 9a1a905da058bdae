"""GPUs as a family of devices (gpu-topology.md 4 and 5); how they are chosen is in `koordpy.planning.gpu`."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from koordpy.api import keys
from koordpy.cluster.gpu_env import is_injected
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Ints
from koordpy.planning.accelerators.base import Accelerator, FamilyRound, Given, NodeWorth
from koordpy.planning.filters.base import Refusal
from koordpy.planning.filters.gpu_devices import PLUGIN, GPUDevices, gpu_refusal
from koordpy.planning.filters.rules import Rule
from koordpy.planning.gpu.allocation import allocate
from koordpy.planning.gpu.between import by_count, gpu_room, standing_nodes
from koordpy.planning.scene import Scene

MARK = "GPUTopology"
"""Mean mark of the links of the set that a pod alone would get (gpu-topology.md 3)."""
_WISHES = (keys.GPU_MIN_BANDWIDTH, keys.GPU_PARTITION_SPEC)


class Gpus(Accelerator):
    """Known by name where nodes have Devices, else by their number alone."""

    plugin = PLUGIN

    def asks(self, pod: PodInfo) -> bool:
        return pod.gpus is not None

    def refusal(self, pod: PodInfo, scene: Scene) -> Refusal | None:
        return gpu_refusal(pod)

    def rules(self, pod: PodInfo, scene: Scene) -> Iterator[Rule]:
        # else the count of GPUs decides alone
        if (
            scene.snapshot.gpus.nodes
            or scene.config.gpu.delivery == "env"
            or any(key in pod.pod.metadata.annotations for key in _WISHES)
            or scene.snapshot.gpus.partition_policies
            or (pod.gpus is not None and is_injected(pod.pod, pod.gpus.resources))
        ):
            yield GPUDevices(pod, scene.gpus)

    def apart(self, pod: PodInfo) -> Hashable:
        notes = pod.pod.metadata.annotations
        return pod.gpus, pod.group, *(notes.get(key) for key in _WISHES)

    def room(self, pods: Sequence[PodInfo], scene: Scene) -> Ints | None:
        return gpu_room(pods, scene.gpus) if any(pod.gpus is not None for pod in pods) else None

    def asked(self, pod: PodInfo) -> int:
        return pod.gpus.count if pod.gpus is not None else 0

    def of_requests(self, held: Mapping[str, int], scene: Scene) -> int:
        return scene.gpus.cards(held)

    def worth(
        self, kinds: Sequence[PodInfo], members: Sequence[PodInfo], now: FamilyRound, *, gather: bool
    ) -> NodeWorth | None:
        if all(pod.gpus is None for pod in kinds):
            return None
        table = by_count(kinds, now.scene.gpus)
        if table is None:
            return None
        return NodeWorth(table, None if gather else standing_nodes(members, now.scene.gpus))

    def give(self, nodes: Mapping[str, int], now: FamilyRound) -> Given:
        if not now.scene.gpus.view.nodes:
            return Given()
        pods = now.scene.snapshot.pods
        return allocate([(pods[key], node) for key, node in nodes.items()], now.scene.gpus)

    def mark(self, pod: PodInfo, scene: Scene) -> tuple[str, Callable[[int], float | None]] | None:
        return MARK, lambda node: scene.gpus.mean_mark(node, pod)

    def warnings(self, pod: PodInfo) -> Sequence[str]:
        wrong = gpu_refusal(pod)
        return wrong.reasons if wrong is not None else ()
