# SPDX-License-Identifier: Apache-2.0
"""How long gangs with resource claims take, reading many claims and devices at the start, and the choice by links.

`python -m bench.claims`. Processor time on 1,000 nodes of 8 devices in ResourceSlices, the best of some runs.
"""

import importlib
import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from msgspec.structs import replace

from bench.objects import group, node, pod
from bench.timing import Row, against, milliseconds, rounds, timed
from koordpy.api.claim_objects import (
    Allocation,
    CelSelector,
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    DeviceResult,
    DeviceResults,
    DeviceSelector,
    ExactRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
)
from koordpy.api.custom_objects import Device, DeviceEntry, DeviceMatrices, DeviceMatrix, DeviceSpec
from koordpy.api.objects import ObjectMeta, Pod, PodResourceClaim, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import make_state
from koordpy.planner.planning_round import plan_round

NODES, DEVICES, CLAIMS, REPEATS = 1000, 8, 10_000, 3
MOST = 16
"""Devices of a node up to which the choice by links is exact."""
DRIVER = "gpu.example.com"


def _selector(text: str) -> list[DeviceSelector]:
    return [DeviceSelector(cel=CelSelector(expression=text))]


def _slice(name: str, count: int = DEVICES) -> ResourceSlice:
    devices = [
        SliceDevice(name=f"d{i}", attributes={"uuid": DeviceAttribute(text=f"GPU-{name}-{i}")}) for i in range(count)
    ]
    spec = ResourceSliceSpec(driver=DRIVER, pool=ResourcePool(name=name), node_name=name, devices=devices)
    return ResourceSlice(metadata=ObjectMeta(name=name), spec=spec)


def _claim(name: str, *, count: int = 1, selector: str = "", allocation: Allocation | None = None) -> ResourceClaim:
    exact = ExactRequest(device_class_name="gpu", count=count, selectors=_selector(selector) if selector else [])
    devices = DeviceClaim(requests=[DeviceRequest(name="gpu", exactly=exact)])
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=ResourceClaimSpec(devices=devices),
        status=ResourceClaimStatus(allocation=allocation),
    )


def _user(name: str, claim: str, gang: str = "") -> Pod:
    made = pod(name, {"cpu": "1"}, gang=gang)
    return replace(
        made, spec=replace(made.spec, resource_claims=[PodResourceClaim(name="c", resource_claim_name=claim)])
    )


def _class() -> DeviceClass:
    selectors = _selector(f'device.driver == "{DRIVER}"')
    return DeviceClass(metadata=ObjectMeta(name="gpu"), spec=DeviceClassSpec(selectors=selectors))


def _links(name: str, count: int) -> Device:
    """A Device with links of four speeds: of a pair, of 4 and of 8 devices, and of the whole node."""
    speeds = {2: 50, 4: 24, 8: 12, 16: 8}

    def speed(i: int, j: int) -> int:
        return next(gbs for size, gbs in speeds.items() if i // size == j // size) if i != j else 0

    matrix = [[speed(i, j) for j in range(count)] for i in range(count)]
    entries = [DeviceEntry(type="gpu", id=f"GPU-{name}-{i}", minor=i) for i in range(count)]
    stated = DeviceMatrices(gpu=[DeviceMatrix(name="bandwidth", topology=json.dumps(matrix))])
    return Device(metadata=ObjectMeta(name=name), spec=DeviceSpec(topologies=stated, devices=entries))


def _linked_node(name: str) -> list[Wire]:
    return [node(name, {"cpu": "64"}), _slice(name, MOST), _links(name, MOST)]


def _cluster() -> list[Wire]:
    names = [f"n{i}" for i in range(NODES)]
    return [_class(), *(node(name, {"cpu": "64"}) for name in names), *map(_slice, names)]


def _state(objects: Sequence[Wire]) -> ClusterState:
    state = make_state()
    for one in objects:
        state.upsert(one)
    return state


def _planned(objects: Sequence[Wire]) -> int:
    return len(plan_round(_state(objects).snapshot(0.0)).placements)


def _read(objects: Sequence[Wire]) -> ClusterState:
    state = _state(objects)
    state.snapshot(0.0)
    return state


def _by_links(counts: Sequence[int]) -> tuple[list[float], int]:
    """Returns (seconds of several rounds that choose devices of a node for claims of a gang, number of pods placed).

    Called in a new process, which knows no tables of links. The import of CP-SAT does not count: the first gang that
    needs the solver takes it, with or without claims.
    """
    importlib.import_module("koordpy.placement.solver.exact_placement")
    linked = [_class(), *_linked_node("n1"), *(_claim(f"c{i}", count=count) for i, count in enumerate(counts))]
    linked += [group("g", len(counts)), *(_user(f"p-{i}", f"c{i}", "g") for i in range(len(counts)))]
    times, plan = rounds(_state(linked), REPEATS)
    return times, len(plan.placements)


def run() -> list[Row]:
    """Rows: gangs of own and shared claims, many claims at the start, a selector over all devices."""
    cluster, rows = _cluster(), list[Row]()

    def row(what: str, objects: list[Wire], note: str) -> None:
        times, placed = timed(partial(_planned, [*cluster, *objects]), REPEATS)
        rows.append((what, milliseconds(min(times)), f"{placed} pods placed, {note}"))

    own: list[Wire] = [_claim(f"c{i}") for i in range(512)]
    members = [_user(f"p-{i}", f"c{i}", "g") for i in range(512)]
    row("a gang of 512 with one claim a member", [group("g", 512), *own, *members], "target 2 s")
    shared: list[Wire] = [group("g", 64), _claim("c"), *(_user(f"p-{i}", "c", "g") for i in range(64))]
    row("a gang of 64 with one claim for all", shared, "target 1 s")
    selector = f'device.attributes["{DRIVER}"].uuid.startsWith("GPU-n9")'
    row(f"a selector over {NODES * DEVICES:,} devices", [_claim("c", selector=selector), _user("p", "c")], "target 1 s")
    asked = _state([*cluster, _claim("c", selector=selector), _user("p", "c")])
    times, _ = rounds(asked, 2)
    rows.append(("that selector in the next round", milliseconds(times[1]), f"first round {milliseconds(times[0])}"))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        scenes = ((8,), (4, 4), (4, 4, 4, 4), (2,) * 8, (4, 3, 2, 1))
        for counts, (times, placed) in zip(scenes, pool.map(_by_links, scenes), strict=True):
            what = f"claims of {', '.join(map(str, counts))} on a node of {MOST} devices by links"
            note = f"{placed} pods placed, first in a process {milliseconds(times[0])}, {against(0.05, times[0])}"
            rows.append((what, milliseconds(min(times)), note.removesuffix("; ")))
    many = [_class(), *(one for i in range(NODES) for one in _linked_node(f"n{i}"))]
    times, plan = rounds(_state([*many, _claim("c", count=8), _user("p", "c")]), REPEATS)
    note = f"{len(plan.placements)} pods placed, first {milliseconds(times[0])}"
    rows.append((f"a claim of 8 on {NODES:,} nodes of {MOST} devices by links", milliseconds(min(times)), note))
    results = (
        DeviceResult(request="gpu", driver=DRIVER, pool=f"n{i // DEVICES % NODES}", device=f"d{i % DEVICES}")
        for i in range(CLAIMS)
    )
    held = [
        _claim(f"h{i}", allocation=Allocation(devices=DeviceResults(results=[one]))) for i, one in enumerate(results)
    ]
    times, _ = timed(partial(_read, [*cluster, *held]), REPEATS)
    rows.append((f"read {CLAIMS:,} claims and take a snapshot", milliseconds(min(times)), "target 3 s"))
    return rows


if __name__ == "__main__":
    for what, time_, note in run():
        print(f"{what:<66}{time_:>16}  {note}", flush=True)
