"""Which way of choosing GPUs a machine takes: all sets compared, or cliques and blocks where there are too many."""

from functools import lru_cache

from koordpy.cluster.gpus import Machine, Matrix
from koordpy.cluster.partitions import PartitionTable
from koordpy.planning.gpu.board import Board
from koordpy.planning.gpu.choice import Chooser, Objective
from koordpy.planning.gpu.judge import Judged
from koordpy.planning.gpu.large import LargeMachine
from koordpy.planning.gpu.wants import GpuWant, Sets
from koordpy.planning.limits import EXACT_GPUS, JUDGEMENTS_KEPT


class LargeChooser:
    """The same on a machine of more GPUs than EXACT_GPUS."""

    def __init__(self, large: LargeMachine) -> None:
        self.large, self.matrix = large, large.matrix
        self._known: dict[tuple[int, int, tuple[GpuWant, ...]], Sets | None] = {}

    def choose(
        self, free: int, held: int, wants: tuple[GpuWant, ...], objective: Objective = "bottleneck"
    ) -> Sets | None:
        """The GPUs of each pod; of the objectives only the first is known here."""
        key = (free, held, wants)
        if key not in self._known:
            if len(self._known) > JUDGEMENTS_KEPT:
                self._known.clear()
            self._known[key] = self.large.choose(free, held, wants)
        return self._known[key]

    def judge(self, free: int, held: int, wants: tuple[GpuWant, ...]) -> Judged | None:
        """What the choice is worth to a comparison of nodes."""
        sets = self.choose(free, held, wants)
        if sets is None:
            return None
        union = held
        for own, _ in sets:
            union |= own
        return Judged(self.low(union), tuple(sorted(self.low(own) for own, _ in sets)))

    def can(self, free: int, wants: tuple[GpuWant, ...]) -> bool:
        """Whether pods can all be given what they want, as far as the search goes."""
        return self.choose(free, 0, wants) is not None

    def is_exact(self, free: int, held: int, wants: tuple[GpuWant, ...], objective: Objective = "bottleneck") -> bool:
        """Whether the choice is the best of all by all rules."""
        return objective == "bottleneck" and self.large.is_exact(free, held, wants)

    def low(self, mask: int) -> int:
        """Class of the slowest pair of a set."""
        return self.large.low(mask)


@lru_cache(maxsize=4096)
def _shared(
    matrix: Matrix, numa: tuple[int, ...] | None, roots: tuple[str, ...] | None, table: PartitionTable | None
) -> Chooser | LargeChooser:
    board = Board(matrix, numa, roots, table)
    return LargeChooser(LargeMachine(board)) if matrix.pattern.size > EXACT_GPUS else Chooser(board)


def chooser_of(machine: Machine) -> Chooser | LargeChooser:
    """The Chooser of a machine, shared by machines of equal links, places and listed sets."""
    return _shared(machine.matrix, machine.numa, machine.roots, machine.table)
