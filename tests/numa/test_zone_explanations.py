# SPDX-License-Identifier: Apache-2.0
"""What simulate and explain say about zones: missing amounts, and gangs that never fit.

Sources: docs/rules/numa.md 2 and 10, docs/rules/gang-network.md 6.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from tests.numa.test_zone_placements import Cluster, container, gpu_node, gpu_pod, node, pod, report

SINGLE = "single-numa-node"


def cpus(*free: int, size: int = 16) -> list[dict[str, tuple[str, str, str]]]:
    return [{"cpu": (str(size), str(size), str(one))} for one in free]


def device(name: str, *zones: int) -> dict[str, Any]:
    """A Device with one GPU for each given zone."""
    gpus = [
        {"type": "gpu", "minor": i, "id": f"GPU-{i}", "health": True, "topology": {"nodeID": zone, "socketID": zone}}
        for i, zone in enumerate(zones)
    ]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {"devices": gpus},
    }


def minors(*some: int) -> dict[str, str]:
    """A record that a pod has GPUs by name."""
    return {keys.DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": one} for one in some]})}


def both_zones(*free: tuple[int, int]) -> list[dict[str, tuple[str, str, str]]]:
    """Zones of 4 GPUs and 16 CPUs. free: (GPUs, CPUs) that are free in each zone."""
    return [{"nvidia.com/gpu": ("4", "4", str(gpu)), "cpu": ("16", "16", str(cpu))} for gpu, cpu in free]


@pytest.mark.parametrize(
    ("free", "line"),
    [
        (((2, 6), (2, 6)), "node n1 had 2 more cpu and 1 more nvidia.com/gpu free in NUMA zone 0"),
        (((2, 6), (2, 8)), "node n1 had 1 more nvidia.com/gpu free in NUMA zone 1"),
        (((2, 8), (3, 6)), "node n1 had 1 more nvidia.com/gpu free in NUMA zone 0"),
        (((3, 6), (2, 8)), "node n1 had 2 more cpu free in NUMA zone 0"),
    ],
)
def test_the_zone_that_lacks_the_fewest_resources_is_named(
    free: tuple[tuple[int, int], ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = {
        "nvidiacom_gpu": str(sum(4 - gpu for gpu, _ in free)),
        "cpu": str(sum(16 - cpu for _, cpu in free)),
        "memory": "1Gi",
    }
    cluster = Cluster(
        tmp_path,
        capsys,
        gpu_node("n1"),
        report("n1", SINGLE, "pod", both_zones(*free)),
        pod("x", container(**used), on="n1", priority=100),
        pod("p", container(cpu="8", memory="1Gi", nvidiacom_gpu="3")),
    )
    lines = cluster.explain("p")["wouldFitIf"]
    assert [one for one in lines if "NUMA zone" in one] == [line]


@pytest.mark.parametrize(
    ("used", "wanted", "line"),
    [
        ((0, 4), 4, ["node n1 had 1 more nvidia.com/gpu free in NUMA zone 0"]),
        ((0, 1, 4), 4, ["node n1 had 2 more nvidia.com/gpu free in NUMA zone 0"]),
        ((0, 1, 4, 5), 3, ["node n1 had 1 more nvidia.com/gpu free in NUMA zone 0"]),
        ((0, 4), 5, []),
    ],
)
def test_gpus_of_the_device_are_missing_in_a_zone(
    used: tuple[int, ...], wanted: int, line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With zones from the Device, the line is tried with GPUs freed by name. Of zones that lack one resource each, the
    lowest is named."""
    labelled = gpu_node("n1")
    labelled["metadata"]["labels"] = {keys.NUMA_POLICY: "SingleNUMANode"}
    cluster = Cluster(
        tmp_path,
        capsys,
        labelled,
        device("n1", 0, 0, 0, 0, 1, 1, 1, 1),
        *(gpu_pod(f"x{one}", 1, on="n1", annotations=minors(one)) for one in used),
        gpu_pod("p", wanted),
    )
    assert [one for one in cluster.explain("p")["wouldFitIf"] if "NUMA zone" in one] == line


@pytest.mark.parametrize(
    ("free", "wanted", "line"),
    [
        # the first container that finds too little, beside those before it
        ((3, 3), (4, 1), ["node n1 had 1 more nvidia.com/gpu free in NUMA zone 0"]),
        # zone 0 lacks more for the second container than other pods have there
        ((4, 2), (3, 3), ["node n1 had 1 more nvidia.com/gpu free in NUMA zone 1"]),
        ((3, 3), (5, 1), []),
        ((3, 3), (1, 5), []),
    ],
)
def test_the_line_is_about_the_container_that_is_rejected_first(
    free: tuple[int, int],
    wanted: tuple[int, int],
    line: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    used = sum(4 - one for one in free)
    containers = [container(f"c{i}", nvidiacom_gpu=str(number)) for i, number in enumerate(wanted)]
    cluster = Cluster(
        tmp_path,
        capsys,
        gpu_node("n1"),
        report("n1", SINGLE, "container", [{"nvidia.com/gpu": ("4", "4", str(one))} for one in free]),
        gpu_pod("x", used, on="n1", priority=100),
        pod("p", *containers),
    )
    assert [one for one in cluster.explain("p")["wouldFitIf"] if "NUMA zone" in one] == line


@pytest.mark.parametrize(
    ("policy", "members", "cpu", "x", "said"),
    [
        (SINGLE, 5, 6, 0, "never fits: the cluster has room for 4 members, 5 are required"),
        (SINGLE, 4, 6, 6, "needed 4, available in the cluster: 3"),
        ("restricted", 3, 10, 0, "never fits: the cluster has room for 2 members, 3 are required"),
        ("best-effort", 5, 6, 0, ""),
    ],
)
def test_a_gang_with_more_members_than_empty_zones_take_never_fits(
    policy: str, members: int, cpu: int, x: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """x: CPUs of a pod that uses a part of zone 0 now."""
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": members},
    }
    pods = [pod(f"g-{i}", container(cpu=str(cpu), memory="1Gi")) for i in range(members)]
    for one in pods:
        one["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": "g"}
    used = [pod("x", container(cpu=str(x), memory="1Gi"), on="n1")] if x else []
    machine = node("n1")
    machine["status"]["allocatable"]["cpu"] = "34"
    cluster = Cluster(
        tmp_path, capsys, machine, report("n1", policy, "pod", cpus(17 - x, 17, size=17)), group, *used, *pods
    )
    pending = cluster.pending()
    assert len(pending) == (members if said else 0)
    assert all(
        said in one["message"] and one["reason"] == ("NeverFits" if "never" in said else "Unschedulable")
        for one in pending
    )


@pytest.mark.parametrize(
    ("level", "aligned"),
    [
        ({}, True),
        ({"requests": {}, "limits": {}}, True),
        ({"requests": {"cpu": "4", "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "1Gi"}}, False),
        ({"limits": {"memory": "1Gi"}}, False),
        ({"requests": {"hugepages-2Mi": "2Mi"}, "limits": {"hugepages-2Mi": "2Mi"}}, False),
    ],
)
def test_only_requests_of_the_pod_as_a_whole_keep_cpus_from_being_aligned(
    level: dict[str, Any], aligned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = node("n1")
    machine["status"]["allocatable"]["hugepages-2Mi"] = "1Gi"
    cluster = Cluster(
        tmp_path,
        capsys,
        machine,
        report("n1", SINGLE, "pod", cpus(16, 16)),
        pod("p", container(cpu="4", memory="1Gi"), resources=level),
    )
    assert cluster.zones("p") == ({0: {"cpu": "4"}} if aligned else None)
