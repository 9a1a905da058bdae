# SPDX-License-Identifier: Apache-2.0
"""Selects the method of choosing GPUs on a machine: comparison of all sets, or the heuristic for large machines."""

from functools import lru_cache

from koordpy.devices.gpu.choice.gpu_choice import Board, Chooser
from koordpy.devices.gpu.choice.large_chooser import LargeChooser
from koordpy.devices.gpu.gpu_machine import Machine
from koordpy.plan.limits import EXACT_GPUS


@lru_cache(maxsize=4096)
def _shared(board: Board) -> Chooser | LargeChooser:
    """Returns the chooser of a board, one object for equal boards."""
    return LargeChooser(board) if board.matrix.pattern.size > EXACT_GPUS else Chooser(board)


def chooser_of(machine: Machine) -> Chooser | LargeChooser:
    """Returns the chooser of a machine. Machines with equal links, places and listed sets share it, and so its
    cache."""
    return _shared(Board(machine.matrix, machine.numa, machine.roots, machine.table))
