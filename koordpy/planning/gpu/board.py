"""What tells the GPUs of a machine apart: machines that are equal in this share every choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from koordpy.cluster.gpus import Matrix
from koordpy.cluster.partitions import PartitionTable, aligned_table


@dataclass(frozen=True)
class Board:
    """Links, NUMA node and PCIe root of each GPU (None where any lacks it), and the listed sets of the Device."""

    matrix: Matrix
    numa: tuple[int, ...] | None
    roots: tuple[str, ...] | None
    table: PartitionTable | None

    @cached_property
    def listed(self) -> PartitionTable | None:
        """The sets to be kept whole: those of the Device, else aligned blocks where links do not tell GPUs apart."""
        one_class = self.matrix.source != "" and self.matrix.pattern.classes == 1
        return self.table or (aligned_table(self.matrix.pattern.size) if one_class else None)

    @property
    def places(self) -> list[Sequence[object]]:
        """NUMA node, then PCIe root, of each GPU; left out where a GPU does not tell."""
        return [of for of in (self.numa, self.roots) if of is not None]
