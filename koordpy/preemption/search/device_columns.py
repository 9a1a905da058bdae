# SPDX-License-Identifier: Apache-2.0
"""Adds devices, such as NPUs or devices of resource claims, as numbers to the problem of a search for victims.

Each device family gets a column of the placement problem, with the number of free devices of each node. Each victim
unit gets the number of devices that it frees. These numbers are upper bounds. The dry run (`dry_run.py`) decides which
devices the members get, and whether the links between the devices satisfy the members' requests.
"""

from dataclasses import replace

import numpy as np

from koordpy.devices.family_registry import freeable_columns, freed_devices_of, requested_devices_of
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.placement.problem import Problem
from koordpy.preemption.search.victim_pool import Pool


def with_devices(unit: Unit, problem: Problem, round_state: RoundState) -> tuple[Problem, dict[str, int]]:
    """Returns (the problem with a column of free devices for each family, device family -> its column).

    A family has no column if the members do not request it, or if its method `freeable` returns None. Devices that are
    reserved for other units do not count as free.
    """
    shapes = {m.shape: pod for m, pod in zip(problem.members, unit.members, strict=True) if pod.pending}
    if not any(pod.asks for pod in shapes.values()):
        return problem, {}
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
    return problem, devices


def device_relief(pool: Pool, i: int, family: str, round_state: RoundState) -> dict[int, int]:
    """Returns node position -> devices of a family that evicting unit `i` of the pool frees."""
    out: dict[int, int] = {}
    for pod in pool.units[i].pods:
        held = freed_devices_of(pod, family, round_state.inputs)
        if held:
            node = pool.draft.snapshot.index[pod.node]
            out[node] = out.get(node, 0) + held
    return out
