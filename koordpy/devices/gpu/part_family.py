"""Parts of devices as a family that refuses pods: no part is served yet (gpu-topology.md 1)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from koordpy.api.objects import Pod
from koordpy.config.configuration import Gpu, KoordpyConfiguration
from koordpy.config.part_names import ANNOTATIONS
from koordpy.devices.device_family import Family, FamilyRound
from koordpy.devices.gpu.gpu_filter import PLUGIN
from koordpy.devices.gpu.part_asks import PARTS, part_ask
from koordpy.framework.filter_protocol import Code, Refusal
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plan.round_plan import FamilyAllocation
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.device_asks import AskReader
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts


class PartAskReader(AskReader):
    """Reads the `PartAsk` of pending pods."""

    family = PARTS
    annotations = frozenset(ANNOTATIONS)

    def __init__(self, config: Gpu) -> None:
        self._config = config

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Any:
        return part_ask(pod, requests, self._config.parts, self._config.resources) if pending else None

    def shape(self, pod: Pod, ask: Any) -> Any:
        return [key for key in ANNOTATIONS if key in pod.metadata.annotations]


class PartAsks(Family):
    """Requests for parts of devices and for virtual devices, by resource names and by annotations."""

    name = PARTS
    title = "parts of devices"

    def reader(self, config: KoordpyConfiguration) -> AskReader:
        return PartAskReader(config.gpu)

    def refusal(self, pod: PodInfo, scene: FilterInputs) -> Refusal | None:
        refusal = pod.ask(PARTS).refusal
        return Refusal(PLUGIN, Code.UNRESOLVABLE, (refusal,)) if refusal else None

    def rules(self, pod: PodInfo, scene: FilterInputs) -> Iterator[Rule]:
        yield from ()

    def give(self, nodes: Mapping[str, int], now: FamilyRound) -> FamilyAllocation:
        return FamilyAllocation()

    def by_number(self, pod: PodInfo) -> Sequence[str]:
        counted: Sequence[str] = pod.ask(PARTS).counted
        return counted

    def warnings(self, pod: PodInfo) -> Iterator[str]:
        ask = pod.ask(PARTS)
        yield from (*((ask.refusal,) if ask.refusal else ()), *ask.ignored)
