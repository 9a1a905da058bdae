# SPDX-License-Identifier: Apache-2.0
"""What pods request of GPUs: without regard to a machine (`PodWant`), and on one machine (`GpuWant`).

A request has the number of GPUs, a minimum bandwidth, and the sets of GPUs that a partition table lists.
"""

from dataclasses import dataclass
from functools import lru_cache

from koordpy.devices.gpu.gpu_machine import Machine, Matrix
from koordpy.devices.gpu.gpu_partitions import Partition
from koordpy.devices.links.device_masks import bits_of


@dataclass(frozen=True, slots=True)
class PodWant:
    """What one pod requests of GPUs, on any machine."""

    count: int
    """GPUs of the pod."""
    containers: tuple[int, ...]
    """GPUs of each container, as in `GpuAsk.per_container`."""
    least_kbs: int = 0
    """Minimum bandwidth in kB/s of all pairs of its GPUs; 0 for no minimum."""
    restricted: bool = False
    """True if only sets of a partition table may be allocated."""
    ring_bandwidth: int | None = None
    """Ring bandwidth in bytes that a listed set must state; None for no requirement."""


@dataclass(frozen=True, slots=True)
class GpuWant:
    """What one pod requests of the GPUs of one machine."""

    count: int
    """GPUs of the pod."""
    containers: tuple[int, ...]
    """GPUs of each container, as in `GpuAsk.per_container`."""
    near: tuple[int, ...] | None = None
    """[GPUs] mask of the GPUs that are linked to this GPU at the minimum bandwidth or above; None for no minimum."""
    listed: tuple[Partition, ...] | None = None
    """Listed sets of the pod's size; None if the machine has no partition table."""
    must: bool = False
    """True if only listed sets may be allocated; False if they are only preferred."""
    within: int = 0
    """Mask of the GPUs that the pod may get, in the NUMA zones that the kubelet uses; 0 for all."""

    def allows(self, mask: int) -> bool:
        """Returns whether a set has no GPU that the pod may not get."""
        return not self.within or not mask & ~self.within

    def linked(self, mask: int) -> bool:
        """Returns whether all pairs of a set have the minimum bandwidth."""
        near = self.near
        return near is None or all(mask & ~near[i] & ~(1 << i) == 0 for i in bits_of(mask))

    @property
    def plain(self) -> bool:
        """True if every set of the right size meets the request equally: no bandwidth, listed sets or zones matter."""
        return self.near is None and not self.listed and not self.must and not self.within


def want_on(machine: Machine, want: PodWant, within: int = 0) -> GpuWant:
    """Returns what a pod requests on a machine. within: as in `GpuWant`."""
    listed = None
    if machine.table is not None:
        listed = tuple(one for one in machine.table.of(want.count) if _states(one, want.ring_bandwidth))
    near = _near(machine.matrix, want.least_kbs) if want.least_kbs and want.count > 1 else None
    return GpuWant(want.count, want.containers, near, listed, machine.honor or want.restricted, within)


def _states(one: Partition, asked: int | None) -> bool:
    """Returns whether a listed set states the ring bandwidth that a pod asks for; True if it asks for none."""
    return asked is None or (one.ring_bandwidth is not None and one.ring_bandwidth >= asked)


@lru_cache(maxsize=4096)
def _near(matrix: Matrix, least_kbs: int) -> tuple[int, ...]:
    """Returns, for each GPU, the mask of GPUs linked to it at `least_kbs` or above in both directions."""
    known = matrix.source != ""
    return tuple(
        sum(1 << j for j, kbs in enumerate(row) if j != i and known and kbs >= least_kbs)
        for i, row in enumerate(matrix.lowest)
    )


Sets = tuple[tuple[int, tuple[int, ...]], ...]
"""For each pod: mask of its GPUs, and mask of each of its containers."""
