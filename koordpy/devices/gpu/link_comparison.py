# SPDX-License-Identifier: Apache-2.0
"""Link classes over all machines, so that links between GPUs of different machines can be compared.

Measured bandwidths differ by noise, so bandwidths are grouped into classes; class 0 is the slowest. Source:
gpu-topology.md 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koordpy.config.configuration import Gpu
from koordpy.devices.gpu.gpu_links import class_floors
from koordpy.devices.gpu.gpu_machine import BANDWIDTH, Machine


@dataclass(frozen=True, eq=False)
class Comparison:
    """Classes over the links of all machines (gpu-topology.md 3)."""

    source: str
    """`bandwidth` if measured values are compared, `links` if link classes are, `mixed` if both have to be compared."""
    ranks: Mapping[int, int]
    """kB/s of a pair -> its class over all machines, 0 for the slowest."""
    classes: int
    """Number of classes."""


NO_LINKS = Comparison(BANDWIDTH, {0: 0}, 1)
"""The comparison if no machine has known links: one class."""


def compare_links(machines: list[Machine], config: Gpu) -> Comparison:
    """Returns the comparison of machines: by measured bandwidths if each machine has them, else by link classes.

    If some machines have only measured values and others only classes, their values are compared as given (`mixed`).
    """
    matrices = list({id(m.matrix): m.matrix for m in machines if m.has_matrix}.values())
    if not matrices:
        return NO_LINKS
    source = BANDWIDTH if all(m.measured is not None for m in matrices) else "links"
    mixed = source == "links" and any(m.links is None for m in matrices)
    values: set[int] = set()
    for matrix in matrices:
        if source == "links" and matrix.links is not None and not mixed:
            values.update(one.bandwidth_kbs if one is not None else 0 for row in matrix.links for one in row)
        else:
            values.update(matrix.floors)
            values.update(cell for i, row in enumerate(matrix.measured or ()) for cell in row[:i])
    values.add(0)
    if source == "links" and not mixed:
        floors = {value: value for value in values}
    else:
        floors = class_floors(values, gap=config.class_gap, width=config.class_width)
    number = {floor: i for i, floor in enumerate(sorted(set(floors.values())))}
    ranks = {value: number[floor] for value, floor in floors.items()}
    return Comparison("mixed" if mixed else source, ranks, len(number))
