# SPDX-License-Identifier: Apache-2.0
"""Victims for pods that a node admits only while some of its zones are in use (numa.md 3, 6 and 7).

The kubelet takes the first zones that are free. So evicting more pods can make it take a zone that suits a pod less.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from tests.numa.test_zone_placements import Cluster, container, gpu_node, gpu_pod, gpus, in_zone, node, pod, report

FAST_IN_ZONE_1 = [[0, 8, 8, 8], [8, 0, 8, 8], [8, 8, 0, 48], [8, 8, 48, 0]]
"""GPUs 0 and 1 are in zone 0, 2 and 3 in zone 1; only those in zone 1 have a fast link."""


def device(name: str, number: int, matrix: list[list[int]] | None = None) -> dict[str, Any]:
    """A Device of two zones with equally many GPUs. number: of all GPUs."""
    devices = [
        {"type": "gpu", "minor": i, "id": f"GPU-{i}", "health": True, "topology": {"nodeID": 2 * i // number}}
        for i in range(number)
    ]
    topologies = {"gpu": [{"name": "bandwidth", "topology": json.dumps(matrix)}]} if matrix else {}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {"devices": devices, "topologies": topologies},
    }


def with_gpus(*minors: int) -> dict[str, str]:
    """The annotation of a pod that holds GPUs by name."""
    own = [str(one) for one in minors]
    return {keys.GPU_ALLOCATION: json.dumps({"allocatedGPUs": {"0": own}, "visibleGPUs": own})}


class Victims(Cluster):
    def evicted(self) -> list[str]:
        """Pods that are evicted in a run."""
        return sorted(one["pod"] for one in self._run("simulate", "--evicted", "drop")["evictions"])


FAST = {keys.GPU_MIN_BANDWIDTH: "40"}
FAST_PAIR = (
    node("n1", **{"nvidia.com_gpu": "4"}),
    device("n1", 4, FAST_IN_ZONE_1),
)


UNKNOWN = (
    {**gpu_node("n1"), "metadata": {"name": "n1", "labels": {keys.NUMA_POLICY: "SingleNUMANode"}}},
    device("n1", 8),
)
"""A node with zones from its Device, which are not known while a pod has unknown GPUs."""


@pytest.mark.parametrize(
    ("free", "running", "evicted"),
    [
        # x has the fast GPUs; if y went as well, the kubelet would take zone 0 with its slow link
        ((1, 0), [("x", (2, 3)), ("y", (0,))], ["x"]),
        # nothing keeps the kubelet from zone 0, so no eviction helps
        ((2, 0), [("x", (2, 3))], []),
    ],
)
def test_a_victim_is_spared_if_it_keeps_the_kubelet_from_slow_gpus(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    free: tuple[int, int],
    running: list[tuple[str, tuple[int, ...]]],
    evicted: list[str],
) -> None:
    own = [gpu_pod(name, len(minors), on="n1", annotations=with_gpus(*minors)) for name, minors in running]
    pending = gpu_pod("p", 2, annotations=FAST, priority=10)
    found = Victims(
        tmp_path, capsys, *FAST_PAIR, report("n1", "single-numa-node", "pod", gpus(*free, size=2)), *own, pending
    )
    assert found.evicted() == evicted


@pytest.mark.parametrize(
    ("held", "wanted", "evicted", "zones"),
    [
        (6, 4, ["x"], {0: {"nvidia.com/gpu": "4"}}),
        # once x has left, the kubelet aligns GPUs again, and no zone has 6
        (4, 6, [], None),
    ],
)
def test_a_node_aligns_gpus_again_once_a_pod_with_unknown_gpus_is_evicted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    held: int,
    wanted: int,
    evicted: list[str],
    zones: dict[int, dict[str, str]] | None,
) -> None:
    found = Victims(tmp_path, capsys, *UNKNOWN, gpu_pod("x", held, on="n1"), gpu_pod("p", wanted, priority=10))
    assert found.evicted() == evicted
    if evicted:
        assert found.zones("p") == zones


DEMAND = {keys.NUMA_SPEC: '{"numaTopologyPolicy": "SingleNUMANode"}'}
NEVER = "never fits: no placement on the empty cluster"
NO_CARDS = pod("p", container(memory="1Gi"), annotations=DEMAND)
"""A pod with a demand that no node with zones of GPUs alone aligns."""


@pytest.mark.parametrize(
    ("wanted", "held", "stays", "reason"),
    [
        # once x has left, n1 aligns 4 GPUs, but never 6
        (gpu_pod("p", 4, annotations=DEMAND), 2, False, "Unschedulable"),
        (gpu_pod("p", 6, annotations=DEMAND), 2, False, "NeverFits"),
        (gpu_pod("p", 6), 4, False, "NeverFits"),
        (NO_CARDS, 2, False, "NeverFits"),
        # a pod of a DaemonSet never leaves: n1 aligns no GPU, so it meets no demand and refuses no pod without one
        (gpu_pod("p", 4, annotations=DEMAND), 2, True, "NeverFits"),
        (gpu_pod("p", 6), 2, True, ""),
    ],
)
def test_a_node_with_unknown_gpus_never_fits_a_pod_that_its_empty_zones_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wanted: Any, held: int, stays: bool, reason: str
) -> None:
    """Pod x, with unknown GPUs, is on n1. n2 has one GPU and no zones."""
    running = gpu_pod("x", held, on="n1")
    if stays:
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
        running["metadata"]["ownerReferences"] = [owner]
    pending = Victims(tmp_path, capsys, *UNKNOWN, node("n2", **{"nvidia.com_gpu": "1"}), running, wanted).pending()
    assert [one["reason"] for one in pending] == ([reason] if reason else [])
    assert all((NEVER in one["message"]) == (reason == "NeverFits") for one in pending)


def test_bound_members_with_unknown_gpus_remain_on_the_empty_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside its own member n1 aligns no GPU. So the gang fits once y has left, although no zone has 6 GPUs."""
    gang = {keys.GANG_NAME: "g", keys.GANG_MIN: "2"}
    members = [gpu_pod("m0", 1, on="n1", annotations=gang), gpu_pod("m1", 6, annotations=gang)]
    [pending] = Victims(tmp_path, capsys, *UNKNOWN, gpu_pod("y", 2, on="n1"), *members).pending()
    assert (pending["pod"], pending["reason"]) == ("m1", "Unschedulable")


def test_a_victim_is_spared_if_it_keeps_an_init_container_from_a_narrow_zone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The init container takes a whole CPU and ties the pod to its zone. Zone 0 can be emptied only in part, because
    h is more important. Without w, whose CPUs fill zone 0, the init container would take zone 0."""
    zone = {"cpu": ("4", "4", "0"), "nvidia.com/gpu": ("4", "4", "0")}
    zones = [zone, {**zone, "cpu": ("4", "4", "4")}]
    whole = {"cpu": "4", "memory": "1Gi"}
    record = {"numaNodeResources": [{"node": 0, "resources": {"cpu": "4"}}]}
    pending = pod(
        "p",
        container(cpu="1", memory="1Gi", nvidiacom_gpu="4"),
        inits=[container("i", cpu="1", memory="1Gi")],
        priority=10,
    )
    found = Victims(
        tmp_path,
        capsys,
        gpu_node("n1"),
        report("n1", "single-numa-node", "container", zones),
        pod("w", container(**whole), on="n1", annotations={keys.RESOURCE_STATUS: json.dumps(record)}),
        gpu_pod("h", 1, on="n1", annotations=in_zone(0, 1), priority=100),
        gpu_pod("v", 3, on="n1", annotations=in_zone(0, 3)),
        gpu_pod("x", 4, on="n1", annotations=in_zone(1, 4)),
        pending,
    )
    assert found.evicted() == ["x"]
