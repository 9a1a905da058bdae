# SPDX-License-Identifier: Apache-2.0
"""The interface by which NUMA zones limit the choice of GPUs: the GPUs that the kubelet may give to a pod, and node
costs.

The kubelet chooses the zones of a pod before its device plugin chooses GPUs. So GPUs are chosen inside these zones
(docs/rules/numa.md 6). Nodes are better if pods need few zones there, and if zones without pods stay so. This module
only declares the interface; the view of the family of NUMA zones implements `ZoneSource`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from koordpy.cache.snapshot import Ints
from koordpy.devices.gpu.gpu_machine import GpuAsk
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo

ZONES = "numa"
"""Name of the family of NUMA zones."""


class PodZones(NamedTuple):
    """GPUs that the kubelet may give to one pod, as masks."""

    mask: int
    """GPUs in the zones of the pod; 0 if zones do not limit the pod."""
    containers: tuple[int, ...] = ()
    """GPUs in the zones of each container, as in `GpuAsk.per_container`; empty if all have the zones of the pod."""


def have_enough(free: int, asks: Sequence[GpuAsk], zones: Sequence[PodZones]) -> bool:
    """Returns whether free GPUs (mask) inside their zones suffice for pods and for their containers, all together.

    asks: request of each pod. Zones that overlap are compared in pairs.
    """
    parts: list[tuple[int, int]] = []
    """(number of GPUs, mask of those that may be chosen)."""
    for ask, one in zip(asks, zones, strict=True):
        own = [*zip(ask.per_container, one.containers, strict=True)] if one.containers else []
        parts += [*own, (ask.count - sum(count for count, _ in own), one.mask)]
    masks = {mask for _, mask in parts if mask}
    together = {one | other for one in masks for other in masks}
    return all(
        sum(count for count, mask in parts if mask and not mask & ~union) <= (free & union).bit_count()
        for union in together
    )


class ZoneLimits(Protocol):
    """The zones of all nodes on a draft. node: position; pods: pods of a plan on the node, in the order of
    admission."""

    @property
    def width(self) -> int:
        """Length of the result of `cost`."""

    def keys(self) -> Ints:
        """Returns [nodes] a number that is equal for nodes on which `gpu_masks` and `cost` have equal results."""

    def gpu_masks(self, node: int, pods: Sequence[PodInfo]) -> Sequence[PodZones] | None:
        """Returns the GPUs that each pod may get; None if zones limit no pod there."""

    def cost(self, node: int, pods: Sequence[PodInfo]) -> tuple[int, ...]:
        """Returns the cost of the zones that pods take.

        Sums over nodes are compared from left to right; lower is better.
        """

    def pod_costs(self, pod: PodInfo) -> Ints:
        """Returns [nodes] the cost of the zones that one pod takes; in the order of `cost`."""


class ZoneSource(Protocol):
    """A view of NUMA zones."""

    def zone_limits(self, inputs: FilterInputs) -> ZoneLimits | None:
        """Returns the zones on the draft of `inputs`; None if zones limit nothing."""


def zone_limits_of(inputs: FilterInputs) -> ZoneLimits | None:
    """Returns the zones on a draft, as the choice of GPUs reads them; None in a cluster without NUMA data."""
    source: ZoneSource | None = inputs.snapshot.families.get(ZONES)  # type: ignore[assignment]
    return source.zone_limits(inputs) if source is not None else None
