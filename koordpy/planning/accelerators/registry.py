"""Every family of devices: an `Accelerator` in a module of its own, and one line here (docs/extending.md)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from koordpy.planning.accelerators.base import Accelerator, Given
from koordpy.planning.accelerators.gpus import Gpus
from koordpy.planning.accelerators.npus import Npus

if TYPE_CHECKING:
    from koordpy.planning.figures import Figures

ACCELERATORS: tuple[Accelerator, ...] = (
    Gpus(),
    Npus(),
)


def give(nodes: Mapping[str, int], figures: "Figures") -> Given:
    """Devices of every family for a plan (pod key -> node position), on the draft as it is before it."""
    chips: dict[str, tuple[int, ...]] = {}
    notes: dict[str, dict[str, str]] = {}
    faults: list[str] = []
    for family in ACCELERATORS:
        given = family.give(nodes, figures)
        chips.update(given.chips)
        faults += given.faults
        for key, own in given.notes.items():
            notes.setdefault(key, {}).update(own)
    return Given(chips, notes, tuple(faults))
