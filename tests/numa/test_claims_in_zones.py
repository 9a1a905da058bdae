# SPDX-License-Identifier: Apache-2.0
"""Devices of claims for pods that demand alignment: in the zones of the pod, or in a common zone (numa.md 7)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from tests.numa.test_zone_placements import UU, Cluster, U, container, node, pod, report

DRA = "resource.k8s.io/v1"
DRIVER = "gpu.example.com"
NUMA_NODE = "resource.kubernetes.io/numaNode"
DEMAND = {keys.NUMA_SPEC: '{"numaTopologyPolicy": "SingleNUMANode"}'}
Zones = Sequence[int | list[int] | None]
"""Zone of each device: a number, a list, or None for a device without the attribute."""


def slice_of(name: str, zones: Zones) -> dict[str, Any]:
    def device(i: int, zone: int | list[int] | None) -> dict[str, Any]:
        value = {"ints": zone} if isinstance(zone, list) else {"int": zone}
        return {"name": f"d{i}", **({"attributes": {NUMA_NODE: value}} if zone is not None else {})}

    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    devices = [device(i, zone) for i, zone in enumerate(zones)]
    spec = {"driver": DRIVER, "pool": pool, "nodeName": name, "devices": devices}
    return {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


CLASS = {"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}


def claim(name: str, count: int) -> dict[str, Any]:
    request = {"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": count}}
    return {
        "apiVersion": DRA,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def user(name: str, *, cpu: int = 0, demand: bool = True, gang: str = "") -> dict[str, Any]:
    """A pod with the claim of its name; cpu: whole CPUs of a Guaranteed pod, 0 for none."""
    box = container(cpu=str(cpu), memory="1Gi") if cpu else container()
    made = pod(
        name,
        box,
        resourceClaims=[{"name": "c", "resourceClaimName": name}],
        annotations=DEMAND if demand else {},
    )
    made["metadata"]["uid"] = f"uid-{name}"
    if gang:
        made["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": gang}
    return made


def cpus(*free: int) -> list[dict[str, tuple[str, str, str]]]:
    return [{"cpu": ("4", "4", str(one))} for one in free]


@pytest.mark.parametrize(
    ("zones", "count", "demand", "want"),
    [
        ((0, 1, 0), 2, True, {"d0", "d2"}),
        ((0, 1, 2), 2, True, None),
        ((0, 1, 2), 2, False, {"d0", "d1"}),
        ((0, 1, 0), 3, True, None),
        ((0, None, 1), 2, True, {"d0", "d1"}),  # a device without the attribute is not compared
        (([0, 1], 2, 1), 2, True, {"d0", "d2"}),
        (([0, 1], [1, 2], [0, 2]), 3, True, {"d0", "d1", "d2"}),  # each two have a zone in common
    ],
)
@pytest.mark.parametrize("policy", ["", "none", "best-effort"])
def test_devices_of_a_pod_without_aligned_requests_are_in_common_zones(
    zones: Zones,
    count: int,
    demand: bool,
    want: set[str] | None,
    policy: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """policy: of the node's report; empty for a node without a report, which does not refuse the pod."""
    reports = [report("n1", policy, "pod", cpus(4, 4))] if policy else []
    cluster = Cluster(
        tmp_path, capsys, node("n1"), *reports, CLASS, slice_of("n1", zones), claim("p", count),
        user("p", demand=demand),
    )  # fmt: skip
    assert cluster.devices("p") == want


@pytest.mark.parametrize(
    ("free", "zones", "count", "demand", "want"),
    [
        ((4, 4), (1, 0, 0), 2, True, {"d1", "d2"}),
        ((1, 4), (0, 1, 0, 1), 2, True, {"d1", "d3"}),
        ((4, 4), (1, 1, 0), 2, True, None),  # the kubelet takes zone 0
        ((4, 4), (1, 1, 0), 2, False, {"d0", "d1"}),
        ((1, 4), ([0, 1], 0, 1), 2, True, {"d0", "d2"}),
    ],
)
def test_devices_are_in_the_zones_of_the_pod(
    free: tuple[int, int],
    zones: Zones,
    count: int,
    demand: bool,
    want: set[str] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    used = [pod("x", container(cpu=str(4 - one), memory="1Gi"), on="n1") for one in free if one < 4]
    cluster = Cluster(
        tmp_path, capsys, node("n1"), report("n1", "single-numa-node", "pod", cpus(*free)), *used, CLASS,
        slice_of("n1", zones), claim("p", count), user("p", cpu=2, demand=demand),
    )  # fmt: skip
    assert cluster.devices("p") == want


@pytest.mark.parametrize("gang", ["", "g"])
def test_pods_of_a_plan_get_devices_in_their_own_zones(
    gang: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first pod fills zone 0, so the second one is in zone 1."""
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": 2},
    }
    cluster = Cluster(
        tmp_path, capsys, node("n1"), report("n1", "single-numa-node", "pod", cpus(4, 4)), group, CLASS,
        slice_of("n1", (1, 0)), claim("p0", 1), claim("p1", 1), user("p0", cpu=4, gang=gang),
        user("p1", cpu=4, gang=gang),
    )  # fmt: skip
    assert (cluster.devices("p0"), cluster.devices("p1")) == ({"d1"}, {"d0"})


@pytest.mark.parametrize(
    ("used", "code"),
    [
        (0, UU),  # an empty node gives zone 0 to the pod, where no device is
        (4, None),
        (-4, U),  # the pod in zone 1 may leave it
    ],
)
def test_the_refusal_says_whether_other_zones_may_help(
    used: int, code: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """used: CPUs that a pod uses in zone 0; below 0 in zone 1. The only device is in zone 1."""
    free = (4 - max(0, used), 4 + min(0, used))
    pods = [pod("x", container(cpu=str(abs(used)), memory="1Gi"), on="n1")] if used else []
    cluster = Cluster(
        tmp_path, capsys, node("n1"), report("n1", "single-numa-node", "pod", cpus(*free)), *pods, CLASS,
        slice_of("n1", (1,)), claim("p", 1), user("p", cpu=2),
    )  # fmt: skip
    found = cluster.refusal("p")
    assert found == ((code, "cannot allocate all claims") if code else None)


@pytest.mark.parametrize("policy", ["", "none", "best-effort", "single-numa-node"])
@pytest.mark.parametrize(
    ("zones", "cpu", "here", "want"),
    [
        # zones of the devices, CPUs of the pod, cards that the node itself has: devices of the pod
        ((1, 0, 0), 0, 0, {"d1", "d2"}),
        ((1, 0, None), 0, 0, {"d0", "d2"}),
        ((1, 0), 0, 0, None),
        ((1, 0, 0), 0, 4, None),  # a device plugin serves the node, and the kubelet aligns nothing of the pod
    ],
)
def test_devices_for_extended_resources_are_in_common_zones(
    policy: str,
    zones: Zones,
    cpu: int,
    here: int,
    want: set[str] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A pod asks for two cards, which devices serve on nodes without cards (dra.md 8)."""
    box = container(**{"example.com_card": "2"}, **({"cpu": str(cpu), "memory": "1Gi"} if cpu else {}))
    machine = node("n1", **({"example.com_card": str(here)} if here else {}))
    reports = [report("n1", policy, "pod", cpus(4, 4))] if policy else []
    cards = {**CLASS, "spec": {"extendedResourceName": "example.com/card"}}
    pending = pod("p", box, annotations=DEMAND)
    cluster = Cluster(tmp_path, capsys, machine, *reports, cards, slice_of("n1", zones), pending)
    bound = "p" in cluster.nodes()
    assert bound is (want is not None)
    if want is not None:
        assert cluster.devices("p-extended-resources-sim") == want
