# SPDX-License-Identifier: Apache-2.0
"""The settings of an Ascend job: its NPU pods, its labels and annotations, and the products that may serve it.

A job is a gang of pods with NPU requests, or a plain pod with one. It has the type `AscendJob` once it has been found
legal; `ascend_jobs` reads and checks it. Source: ascend.md 1, 2 and the beginnings of 4 and 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from koordpy.api import keys
from koordpy.devices.ascend.tables.npu_book import npu_resource
from koordpy.devices.ascend.tables.npu_presets import Preset
from koordpy.pods.pod_info import PodInfo

ChipRequest = tuple[str, int, str]
"""Resource, number of chips, and the product that the pod selects (empty for any)."""


class Tor(Enum):
    """Switch (top-of-rack) affinity of a job, by its label `tor-affinity` (ascend.md 4)."""

    NONE = "none"
    """A job without the label."""
    PADDING = "padding"
    """A large-model job of fewer than 4 NPU pods; it stays under one leaf."""
    FOUNDATION = "foundation model"
    """A large-model job of 4 NPU pods or more."""
    COMMON = "common"
    """A job with the normal schema, which may be placed in any way if nothing better is left."""


@dataclass(frozen=True, slots=True)
class Want:
    """Request of one pod: the resource, the number of chips, and the product rows for which this number is legal.

    The product of a node selects one of the rows.
    """

    resource: str
    request: int
    presets: tuple[Preset, ...]
    """Product rows for which the request is legal."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Logical SuperPoDs of a job: blocks of consecutive ranks that must each share one SuperPoD."""

    chips: int
    """Chips of a block."""
    size: int
    """Nodes of a block."""
    node_chips: int
    """Chips of a node."""
    soft: bool
    """True if incomplete blocks are allowed (label `super-pod-affinity: soft`)."""
    reserve: int
    """Nodes of a SuperPoD that stay unused if possible."""


@dataclass(frozen=True)
class AscendJob:
    """A legal job: its pods, requests and placement rules."""

    name: str
    """Key of the gang or of the plain pod, for messages."""
    pods: tuple[PodInfo, ...]
    """NPU pods in rank order, bound and pending."""
    keys: "JobKeys"
    """Labels and annotations of the job that are read."""
    wants: Mapping[ChipRequest, Want]
    """Request of each kind of pod of the job."""
    tor: Tor = Tor.NONE
    """Switch affinity."""
    needs_super_pod: bool = False
    """True if only nodes with a SuperPoD id are feasible."""
    blocks: Blocks | None = None
    """Logical SuperPoDs; None if the pods are placed as in ascend.md 3."""

    @property
    def multi_pod(self) -> bool:
        """True if the job has more than one NPU pod."""
        return len(self.pods) > 1

    @property
    def own_order(self) -> bool:
        """True if the job has rules with a separate order of goals: switches or SuperPoDs."""
        return self.tor is not Tor.NONE or self.blocks is not None

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """Pod key -> rank among the NPU pods."""
        return {pod.key: rank for rank, pod in enumerate(self.pods)}

    def want(self, pod: PodInfo) -> Want:
        """Returns the request of a pod of the job."""
        return self.wants[asked_of(pod)]

    def signature(self, pod: PodInfo) -> str:
        """Returns a text that is equal for pods of one shape in jobs with equal rules.

        Pods with equal texts share one filter. The rules may be set by pods or by their PodGroup, so the shape does not
        state them.
        """
        found = self._signatures.get(pod.shape)
        if found is None:
            names = ",".join(preset.name for preset in self.want(pod).presets)
            found = f"{names} {self.multi_pod} {self.tor.value} {self.needs_super_pod} {self.blocks}"
            self._signatures[pod.shape] = found
        return found

    @cached_property
    def _signatures(self) -> dict[bytes, str]:
        """Shape of a pod -> its signature, of the pods requested so far."""
        return {}


def asked_of(pod: PodInfo) -> ChipRequest:
    """Returns what distinguishes the request of a pod: the key of `AscendJob.wants`."""
    resource = npu_resource(pod.requests) or ""
    selector = pod.pod.spec.node_selector or {}
    return resource, pod.requests.get(resource, 0), selector.get(keys.ACCELERATOR_TYPE, "")


@dataclass(frozen=True)
class JobKeys:
    """Labels and annotations of a job; absent ones are left out."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Label -> value, from the PodGroup or the pods."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotation -> value, from the PodGroup or the pods."""
