"""What the pods of one choice want, in terms of one machine: sizes, thresholds, listed sets."""

from dataclasses import dataclass
from functools import lru_cache

from koordpy.devices.gpu.choice.gpu_submasks import bits_of
from koordpy.devices.gpu.gpu_machine import Machine, Matrix
from koordpy.devices.gpu.gpu_partitions import Partition


@dataclass(frozen=True, slots=True)
class PodWant:
    """GPUs that one pod wants. containers: `GpuAsk.beside`; least_kbs: what all its pairs must have, 0 for none;
    restricted: whether only listed sets will do; ring_bandwidth: what a listed set must state."""

    count: int
    containers: tuple[int, ...]
    least_kbs: int = 0
    restricted: bool = False
    ring_bandwidth: int | None = None


@dataclass(frozen=True, slots=True)
class GpuWant:
    """A PodWant on a machine. near: per GPU those linked fast enough, None for no threshold; listed: listed sets of the
    size, None where the machine has no table; must: whether nothing but these will do."""

    count: int
    containers: tuple[int, ...]
    near: tuple[int, ...] | None = None
    listed: tuple[Partition, ...] | None = None
    must: bool = False

    def linked(self, mask: int) -> bool:
        """Whether all pairs of a set are as fast as asked."""
        near = self.near
        return near is None or all(mask & ~near[i] & ~(1 << i) == 0 for i in bits_of(mask))

    @property
    def plain(self) -> bool:
        """Whether any set of the size is a candidate like any other."""
        return self.near is None and not self.listed and not self.must


def want_on(machine: Machine, want: PodWant) -> GpuWant:
    """A pod's want on a machine."""
    listed = None
    if machine.table is not None:
        listed = tuple(one for one in machine.table.of(want.count) if _states(one, want.ring_bandwidth))
    near = _near(machine.matrix, want.least_kbs) if want.least_kbs and want.count > 1 else None
    return GpuWant(want.count, want.containers, near, listed, machine.honor or want.restricted)


def _states(one: Partition, asked: int | None) -> bool:
    return asked is None or (one.ring_bandwidth is not None and one.ring_bandwidth >= asked)


@lru_cache(maxsize=4096)
def _near(matrix: Matrix, least_kbs: int) -> tuple[int, ...]:
    """Per GPU, those that it is linked to at a bandwidth or above, both directions."""
    known = matrix.source != ""
    return tuple(
        sum(1 << j for j, kbs in enumerate(row) if j != i and known and kbs >= least_kbs)
        for i, row in enumerate(matrix.lowest)
    )


Sets = tuple[tuple[int, tuple[int, ...]], ...]
"""Per pod: its GPUs, and those of each container."""
