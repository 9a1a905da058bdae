# SPDX-License-Identifier: Apache-2.0
"""Adds devices, such as NPUs or devices of resource claims, as numbers to the problem of a search for victims.

Each device family gets a column of the placement problem, with the number of free devices of each node. Each victim
unit gets the number of devices that it frees. These numbers are upper bounds. The dry run (`dry_run.py`) decides which
devices the members get, and whether the links between the devices satisfy the members' requests.

The columns by which devices and volumes limit the members of a gang (`MemberConstraints.freed`) are in the problem
already; victim units free amounts of these, too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from koordpy.devices.family_registry import freeable_columns, freed_devices_of, requested_devices_of
from koordpy.feasibility.round_state import RoundState
from koordpy.framework.device_limits import FreedAmounts
from koordpy.gangs.queue_units import Unit
from koordpy.placement.problem import Problem
from koordpy.preemption.search.victim_pool import Pool
from koordpy.problems.problem_building import member_constraints_of


@dataclass(frozen=True, slots=True)
class DeviceColumns:
    """The columns of a problem that evictions relieve by freeing devices."""

    families: Mapping[str, int] = field(default_factory=dict)
    """Device family -> its column, with the number of free devices."""
    limits: Mapping[int, FreedAmounts] = field(default_factory=dict)
    """Column by which devices or volumes limit the members of a gang -> the amounts that evictions add to it."""

    def __bool__(self) -> bool:
        return bool(self.families or self.limits)


def with_devices(unit: Unit, problem: Problem, round_state: RoundState) -> tuple[Problem, DeviceColumns]:
    """Returns (the problem with a column of free devices for each family, all columns that devices limit).

    A family has no column if the members do not request it, or if its method `freeable` returns None. Devices that are
    reserved for other units do not count as free.
    """
    among = member_constraints_of(unit, round_state)
    freed = among.freed if among is not None else {}
    limits = {len(round_state.snapshot.columns) + column: amounts for column, amounts in freed.items()}
    shapes = {m.shape: pod for m, pod in zip(problem.members, unit.members, strict=True) if pod.pending}
    if not any(pod.asks for pod in shapes.values()):
        return problem, DeviceColumns({}, limits)
    reserved = round_state.available_to(min(unit.pending, key=lambda pod: pod.priority))
    kept: dict[int, dict[str, int]] = {}
    for i, node in enumerate(reserved.positions.tolist() if reserved is not None else ()):
        assert reserved is not None
        kept[node] = reserved.requests(i, round_state.snapshot.columns)
    devices: dict[str, int] = {}
    for family, free in freeable_columns(tuple(shapes.values()), round_state.inputs, kept).items():
        devices[family] = column = problem.free.shape[1]
        asked = {i: number for i, pod in shapes.items() if (number := requested_devices_of(pod, family))}
        requests = tuple(
            replace(shape, request=(*shape.request, (column, asked[i]))) if i in asked else shape
            for i, shape in enumerate(problem.shapes)
        )
        problem = replace(problem, free=np.concatenate([problem.free, free[:, None]], axis=1), shapes=requests)
    return problem, DeviceColumns(devices, limits)


def device_relief(
    pool: Pool, i: int, columns: DeviceColumns, round_state: RoundState
) -> Iterator[tuple[int, int, int]]:
    """Yields (node position, column, amount) that evicting unit `i` of the pool frees at most."""
    index = pool.draft.snapshot.index
    for pod in pool.units[i].pods:
        for family, column in columns.families.items():
            if held := freed_devices_of(pod, family, round_state.inputs):
                yield index[pod.node], column, held
        for column, freed in columns.limits.items():
            for node, amount in freed(pod).items():
                yield node, column, amount
