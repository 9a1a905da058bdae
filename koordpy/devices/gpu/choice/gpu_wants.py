"""The wishes of pods for GPUs, without a machine and on one machine: sizes, thresholds, listed sets."""

from dataclasses import dataclass
from functools import lru_cache

from koordpy.devices.gpu.choice.gpu_submasks import bits_of
from koordpy.devices.gpu.gpu_machine import Machine, Matrix
from koordpy.devices.gpu.gpu_partitions import Partition


@dataclass(frozen=True, slots=True)
class PodWant:
    """The wishes of one pod for GPUs."""

    count: int
    """GPUs of the pod."""
    containers: tuple[int, ...]
    """GPUs of each container, as in `GpuAsk.beside`."""
    least_kbs: int = 0
    """Bandwidth in kB/s that all pairs of its GPUs must have; 0 for no threshold."""
    restricted: bool = False
    """True if only sets of a partition table may be allocated."""
    ring_bandwidth: int | None = None
    """Ring bandwidth in bytes that a listed set must state; None for no requirement."""


@dataclass(frozen=True, slots=True)
class GpuWant:
    """The wishes of one pod on a machine."""

    count: int
    containers: tuple[int, ...]
    near: tuple[int, ...] | None = None
    """Mask, for each GPU, of the GPUs with a link above the threshold; None for no threshold."""
    listed: tuple[Partition, ...] | None = None
    """Listed sets of the pod's size; None if the machine has no partition table."""
    must: bool = False
    """True if only listed sets may be allocated."""

    def linked(self, mask: int) -> bool:
        """Returns whether all pairs of a set meet the threshold."""
        near = self.near
        return near is None or all(mask & ~near[i] & ~(1 << i) == 0 for i in bits_of(mask))

    @property
    def plain(self) -> bool:
        """True if neither a threshold nor a listed set distinguishes sets of the size."""
        return self.near is None and not self.listed and not self.must


def want_on(machine: Machine, want: PodWant) -> GpuWant:
    """Returns the wishes of a pod on a machine."""
    listed = None
    if machine.table is not None:
        listed = tuple(one for one in machine.table.of(want.count) if _states(one, want.ring_bandwidth))
    near = _near(machine.matrix, want.least_kbs) if want.least_kbs and want.count > 1 else None
    return GpuWant(want.count, want.containers, near, listed, machine.honor or want.restricted)


def _states(one: Partition, asked: int | None) -> bool:
    return asked is None or (one.ring_bandwidth is not None and one.ring_bandwidth >= asked)


@lru_cache(maxsize=4096)
def _near(matrix: Matrix, least_kbs: int) -> tuple[int, ...]:
    """Returns, for each GPU, the mask of GPUs linked to it at a bandwidth or above in both directions."""
    known = matrix.source != ""
    return tuple(
        sum(1 << j for j, kbs in enumerate(row) if j != i and known and kbs >= least_kbs)
        for i, row in enumerate(matrix.lowest)
    )


Sets = tuple[tuple[int, tuple[int, ...]], ...]
"""Per pod: mask of its GPUs, and mask of each container."""
