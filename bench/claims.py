# SPDX-License-Identifier: Apache-2.0
"""How long gangs with resource claims take, and reading many claims and devices at the start.

`python -m bench.claims`. Processor time on 1,000 nodes of 8 devices in ResourceSlices, the best of some runs.
"""

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from bench.objects import group, node, pod
from bench.timing import Row, milliseconds, timed
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
from koordpy.api.objects import ObjectMeta, Pod, PodResourceClaim, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import make_state
from koordpy.planner.planning_round import plan_round

NODES, DEVICES, CLAIMS, REPEATS = 1000, 8, 10_000, 3
DRIVER = "gpu.example.com"


def _selector(text: str) -> list[DeviceSelector]:
    return [DeviceSelector(cel=CelSelector(expression=text))]


def _slice(name: str) -> ResourceSlice:
    devices = [
        SliceDevice(name=f"d{i}", attributes={"uuid": DeviceAttribute(text=f"GPU-{name}-{i}")}) for i in range(DEVICES)
    ]
    spec = ResourceSliceSpec(driver=DRIVER, pool=ResourcePool(name=name), node_name=name, devices=devices)
    return ResourceSlice(metadata=ObjectMeta(name=name), spec=spec)


def _claim(name: str, *, selector: str = "", allocation: Allocation | None = None) -> ResourceClaim:
    exact = ExactRequest(device_class_name="gpu", selectors=_selector(selector) if selector else [])
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


def _cluster() -> list[Wire]:
    chosen = DeviceClass(
        metadata=ObjectMeta(name="gpu"), spec=DeviceClassSpec(selectors=_selector(f'device.driver == "{DRIVER}"'))
    )
    names = [f"n{i}" for i in range(NODES)]
    return [chosen, *(node(name, {"cpu": "64"}) for name in names), *map(_slice, names)]


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
