# SPDX-License-Identifier: Apache-2.0
"""Parts of devices as a device family: it only refuses pods, because no part is allocated yet (gpu-topology.md 1)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from koordpy.api.objects import Pod
from koordpy.config.configuration import Gpu, KoordpyConfiguration
from koordpy.config.part_names import ANNOTATIONS
from koordpy.devices.device_family import Family
from koordpy.devices.family_round import FamilyRound
from koordpy.devices.gpu.gpu_filter import PLUGIN
from koordpy.devices.gpu.part_asks import PARTS, part_ask
from koordpy.framework.filter_protocol import Refusal, wrong_ask
from koordpy.framework.pod_rule_filter import Rule
from koordpy.plan.round_plan import FamilyAllocation
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.device_asks import AskReader
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.resource_amounts import Amounts


class PartAskReader(AskReader):
    """Reads the `PartAsk` of pending pods. Bound pods have none, because they are not placed again."""

    family = PARTS
    annotations = frozenset(ANNOTATIONS)

    def __init__(self, config: Gpu) -> None:
        self._config = config

    def read(self, pod: Pod, requests: Amounts, *, pending: bool) -> Any:
        """Implements `AskReader.read`."""
        return part_ask(pod, requests, self._config.parts, self._config.resources) if pending else None

    def shape(self, pod: Pod, ask: Any) -> Any:
        """Implements `AskReader.shape`: the annotations about parts that the pod has."""
        return [key for key in ANNOTATIONS if key in pod.metadata.annotations]


class PartAsks(Family):
    """Requests for parts of devices and for virtual devices, by resource names and by annotations."""

    name = PARTS
    title = "parts of devices"

    def reader(self, config: KoordpyConfiguration) -> AskReader:
        """Implements `Family.reader`."""
        return PartAskReader(config.gpu)

    def refusal(self, pod: PodInfo, inputs: FilterInputs) -> Refusal | None:
        """Implements `Family.refusal`."""
        refusal = pod.ask(PARTS).refusal
        return wrong_ask(PLUGIN, refusal) if refusal else None

    def rules(self, pod: PodInfo, inputs: FilterInputs) -> Iterator[Rule]:
        """Implements `Family.rules`: yields nothing, because a pod is refused on all nodes or on none."""
        yield from ()

    def allocate(self, nodes: Mapping[str, int], now: FamilyRound) -> FamilyAllocation:
        """Implements `Family.allocate`: no part is allocated."""
        return FamilyAllocation()

    def counted_resources(self, pod: PodInfo) -> Sequence[str]:
        """Implements `Family.counted_resources`."""
        counted: Sequence[str] = pod.ask(PARTS).counted
        return counted

    def warnings(self, pod: PodInfo) -> Iterator[str]:
        """Implements `Family.warnings`: yields the refusal, then annotations that are ignored."""
        ask = pod.ask(PARTS)
        yield from (*((ask.refusal,) if ask.refusal else ()), *ask.ignored)
