"""What an Ascend job is and asks: its NPU pods, its keys, the presets it may use.

A job is a gang whose pods request NPUs, or a plain pod that does. Source: ascend.md 1, 2 and the heads of 4 and 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from koordpy.api import keys
from koordpy.devices.ascend.tables.npu_book import npu_resource
from koordpy.devices.ascend.tables.npu_presets import Preset
from koordpy.pods.pod_info import PodInfo

Asked = tuple[str, int, str]
"""Resource, chips of it, and the product that the pod selects (empty for any)."""


class Tor(Enum):
    """What a job asks of the switches."""

    NONE = "none"
    PADDING = "padding"
    FOUNDATION = "foundation model"
    COMMON = "common"


@dataclass(frozen=True, slots=True)
class Want:
    """What one pod asks: chips of a resource, by one of the presets, whichever a node is of."""

    resource: str
    request: int
    presets: tuple[Preset, ...]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Logical SuperPoDs of a job. size: nodes of a block; reserve: nodes of a SuperPoD kept; whole: chips of a node."""

    chips: int
    size: int
    whole: int
    soft: bool
    reserve: int


@dataclass(frozen=True)
class AscendJob:
    """A legal job. pods: its NPU pods in rank order, bound and pending. needs_super_pod: only nodes with an id will do;
    blocks: None where the pods are placed as section 3 says."""

    name: str
    pods: tuple[PodInfo, ...]
    keys: "JobKeys"
    wants: Mapping[Asked, Want]
    tor: Tor = Tor.NONE
    needs_super_pod: bool = False
    blocks: Blocks | None = None

    @property
    def several(self) -> bool:
        """Whether the job has more than one NPU pod."""
        return len(self.pods) > 1

    @property
    def own_order(self) -> bool:
        """Whether it has an order of goals of its own: switches or SuperPoDs."""
        return self.tor is not Tor.NONE or self.blocks is not None

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """Pod key -> rank among the NPU pods."""
        return {pod.key: rank for rank, pod in enumerate(self.pods)}

    def want(self, pod: PodInfo) -> Want:
        """What a pod of the job asks."""
        return self.wants[asked_of(pod)]

    def signature(self, pod: PodInfo) -> str:
        """Equal for pods of one shape whose jobs go by the same rules, whether the pods or their PodGroup say so."""
        found = self._signatures.get(pod.shape)
        if found is None:
            names = ",".join(preset.name for preset in self.want(pod).presets)
            found = f"{names} {self.several} {self.tor.value} {self.needs_super_pod} {self.blocks}"
            self._signatures[pod.shape] = found
        return found

    @cached_property
    def _signatures(self) -> dict[bytes, str]:
        """By shape of the pods asked about so far."""
        return {}


def asked_of(pod: PodInfo) -> Asked:
    """What pods of one Want have in common."""
    resource = npu_resource(pod.requests) or ""
    selector = pod.pod.spec.node_selector or {}
    return resource, pod.requests.get(resource, 0), selector.get(keys.ACCELERATOR_TYPE, "")


@dataclass(frozen=True)
class JobKeys:
    """Labels and annotations of a job; absent ones are left out."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
