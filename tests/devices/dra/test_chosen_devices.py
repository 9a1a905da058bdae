# SPDX-License-Identifier: Apache-2.0
"""Which devices of a node a simulation gives where links, shares and counters meet (dra.md 6)."""

from pathlib import Path
from typing import Any

import pytest

from tests.devices.dra.test_simulated_claims import claim, device_class, node, offered, pod
from tests.workloads.cluster import Json, simulate, workload

PLACES = {"root": "resource.kubernetes.io/pcieRoot", "numa": "resource.kubernetes.io/numaNode"}


def device(name: str, root: str = "", numa: int | None = None, **more: Any) -> Json:
    places = {PLACES["root"]: {"string": root}} if root else {}
    places |= {PLACES["numa"]: {"int": numa}} if numa is not None else {}
    return {"name": name, "attributes": places, **more}


def shared(name: str, memory: str, *places: Any) -> Json:
    return device(name, *places, allowMultipleAllocations=True, capacity={"memory": {"value": memory}})


def request(name: str = "r", memory: str = "", **more: Any) -> Json:
    capacity = {"capacity": {"requests": {"memory": memory}}} if memory else {}
    return {"name": name, "exactly": {"deviceClassName": "gpu", **capacity, **more}}


ANY = request()
WAITS = {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
CASES: dict[str, tuple[list[Json], list[list[Json]], list[str]]] = {
    "an equal device without binding conditions": (
        [device("d0", **WAITS), device("d1"), shared("s", "1")],
        [[ANY]],
        ["d1"],
    ),
    "a share of the device that the plan begins": (
        [shared("d0", "80"), shared("d1", "80")],
        [[request(memory="40")], [request(memory="40")]],
        ["d0", "d0"],
    ),
    # d0 and d2 have one root on two NUMA nodes; without d1, the devices left are a pair of one root and one of NUMA 0
    "places that form no groups": (
        [device("d0", "r", 1), device("d1", "", 1), device("d2", "r", 0), device("d3", "q", 0), device("d4", "", 0)],
        [[request()]],
        ["d1"],
    ),
    # d2 has no memory, so it is not left as a partner of s0
    "devices left without the capacity": (
        [shared("s1", "9", "", 1), shared("s3", "9", "", 1), shared("s0", "9", "", 0), device("d2", "", 0)],
        [[request(memory="5")]],
        ["s0"],
    ),
    # the share of s leaves room in it; a pod without linked devices has no slow ring
    "a pod that gets a whole device or a share": (
        [device("d0"), device("d1", "r", 0), shared("s", "80", "r", 0), device("d3")],
        [[ANY], [request(count=2), request(memory="10")]],
        ["d0", "d1", "d3", "s"],
    ),
}


@pytest.mark.parametrize(("devices", "pods", "given"), CASES.values(), ids=CASES)
def test_devices_of_a_node(devices: list[Json], pods: list[list[Json]], given: list[str], tmp_path: Path) -> None:
    claims = [claim(f"c{i}{k}", request=one) for i, own in enumerate(pods) for k, one in enumerate(own)]
    gang = workload("scheduling.sigs.k8s.io/v1alpha1", "PodGroup", "g", {"minMember": len(pods)})
    members = [pod(f"p{i}", *(f"c{i}{k}" for k in range(len(own)))) for i, own in enumerate(pods)]
    for one in members:
        one["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": "g"}
    out = simulate(tmp_path, node("n1"), device_class(), offered(*devices), *claims, gang, *members).document
    assert [one["device"] for each in out["claims"] for one in each["results"]] == given
