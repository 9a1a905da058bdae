# SPDX-License-Identifier: Apache-2.0
"""Placements by NUMA zones: examples and rules of numa.md 1, 4, 5 and 7."""

import json
from pathlib import Path
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.cli.main import main

Zones = list[dict[str, tuple[str, str, str]]]
"""Resource -> (capacity, allocatable, available) of each zone."""


def node(name: str, **amounts: str) -> dict[str, Any]:
    given = {"cpu": "64", "memory": "256Gi", "pods": "110", **{k.replace("_", "/", 1): v for k, v in amounts.items()}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": given}}


def report(name: str, policy: str, scope: str, zones: Zones) -> dict[str, Any]:
    listed = [
        {
            "name": f"node-{i}",
            "type": "Node",
            "resources": [
                {"name": key, "capacity": c, "allocatable": a, "available": f} for key, (c, a, f) in zone.items()
            ],
        }
        for i, zone in enumerate(zones)
    ]
    attributes = [
        {"name": "topologyManagerPolicy", "value": policy},
        {"name": "topologyManagerScope", "value": scope},
    ]
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": attributes,
        "zones": listed,
    }


def gpus(*free: int, size: int = 4) -> Zones:
    return [{"nvidia.com/gpu": (str(size), str(size), str(one))} for one in free]


def both(gpu: int, cpu: int, *, gpu_free: tuple[int, int], capacity: int = 16) -> Zones:
    return [
        {
            "nvidia.com/gpu": (str(gpu), str(gpu), str(one)),
            "cpu": (str(capacity), str(cpu), str(cpu)),
        }
        for one in gpu_free
    ]


def container(name: str = "main", **amounts: str) -> dict[str, Any]:
    own = {k.replace("_", "/", 1).replace("nvidiacom", "nvidia.com"): v for k, v in amounts.items()}
    return {"name": name, "image": "img", "resources": {"requests": own, "limits": own}}


def pod(
    name: str, *containers: dict[str, Any], on: str = "", inits: list[dict[str, Any]] | None = None, **spec: Any
) -> dict[str, Any]:
    annotations = spec.pop("annotations", {})
    body: dict[str, Any] = {"schedulerName": "koord-scheduler", "containers": list(containers), **spec}
    if on:
        body["nodeName"] = on
    if inits:
        body["initContainers"] = inits
    meta = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body, "status": {}}


def gpu_pod(name: str, number: int, *, on: str = "", **more: Any) -> dict[str, Any]:
    return pod(name, container(nvidiacom_gpu=str(number)), on=on, **more)


def in_zone(zone: int, number: int) -> dict[str, str]:
    """A record that a pod has GPUs in a zone."""
    text = {"numaNodeResources": [{"node": zone, "resources": {"nvidia.com/gpu": str(number)}}]}
    return {keys.RESOURCE_STATUS: json.dumps(text)}


class Cluster:
    """Manifests, and what the offline commands say about them."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str], *objects: dict[str, Any]) -> None:
        self._file, self._capsys = path / "in.json", capsys
        self._file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def _run(self, *arguments: str) -> Any:
        main([*arguments, "-f", str(self._file), "-o", "json"])
        self.out = self._capsys.readouterr()
        return json.loads(self.out.out)

    def nodes(self) -> dict[str, str]:
        """Pod -> node of the bound pods."""
        return {one["pod"]: one["node"] for one in self._run("simulate")["bindings"]}

    def pending(self) -> list[dict[str, Any]]:
        """Pods that are pending at the end of the simulation."""
        found: list[dict[str, Any]] = self._run("simulate")["pending"]
        return found

    def devices(self, claim: str) -> set[str] | None:
        """Devices that a claim has at the end of the simulation; None for none."""
        found = next(one for one in self._run("simulate")["claims"] if one["name"] == claim)
        return {one["device"] for one in found["results"]} or None

    def zones(self, name: str) -> Any:
        """Annotation of a bound pod that records its zones."""
        found = self._run("simulate")["bindings"]
        text = next(one["annotations"].get(keys.RESOURCE_STATUS) for one in found if one["pod"] == name)
        return {one["node"]: one["resources"] for one in json.loads(text)["numaNodeResources"]} if text else None

    def explain(self, name: str) -> Any:
        return self._run("explain", "--pod", f"default/{name}")

    def refusal(self, name: str, on: str = "n1") -> tuple[str, str] | None:
        """(code, message) with which a node refuses a pod; None if it takes it."""
        found = next(one for one in self.explain(name)["nodes"] if one["node"] == on)
        return (found["reasons"][0]["code"], found["reasons"][0]["message"]) if found["reasons"] else None


U, UU = "Unschedulable", "UnschedulableAndUnresolvable"
GPU_NODE = {"nvidia.com_gpu": "8"}


def gpu_node(name: str) -> dict[str, Any]:
    return node(name, **GPU_NODE)


def test_example_1_only_one_zone_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = [
        gpu_node("n1"),
        gpu_node("n2"),
        report("n1", "single-numa-node", "pod", gpus(3, 3)),
        report("n2", "single-numa-node", "pod", gpus(2, 4)),
        gpu_pod("x0", 1, on="n1"),
        gpu_pod("x1", 1, on="n1"),
        gpu_pod("y", 2, on="n2"),
    ]
    four = Cluster(tmp_path, capsys, *fixed, gpu_pod("p", 4))
    assert four.refusal("p") == (U, "cannot align pod")
    assert four.nodes()["p"] == "n2"
    three = Cluster(tmp_path, capsys, *fixed, gpu_pod("p", 3))
    assert three.nodes()["p"] == "n1"


@pytest.mark.parametrize(
    ("gpu", "cpu", "free", "want"),
    [
        (6, 10, (4, 4), (UU, "cannot align pod")),  # widths 2 and 1
        (6, 24, (4, 4), None),
        (4, 0, (3, 3), (U, "cannot align pod")),  # width 1, and only both zones have 4 free
    ],
)
def test_example_2_widths_of_restricted(
    gpu: int,
    cpu: int,
    free: tuple[int, int],
    want: tuple[str, str] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    used = [gpu_pod(f"x{i}", 4 - one, on="n1") for i, one in enumerate(free) if one < 4]
    amounts = {"nvidiacom_gpu": str(gpu), "memory": "1Gi", **({"cpu": str(cpu)} if cpu else {})}
    cluster = Cluster(
        tmp_path,
        capsys,
        gpu_node("n1"),
        report("n1", "restricted", "pod", both(4, 16, gpu_free=free)),
        *used,
        pod("p", container(**amounts)),
    )
    assert cluster.refusal("p") == want
    if want is None:
        assert cluster.zones("p").keys() == {0, 1}


@pytest.mark.parametrize(("cpu", "want"), [(15, (UU, "cannot align pod")), (17, None), (14, None)])
def test_example_3_reserved_cpus_count_in_widths(
    cpu: int, want: tuple[str, str] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zones: Zones = [{"cpu": ("16", "14", "14")}] * 2
    cluster = Cluster(
        tmp_path,
        capsys,
        node("n1"),
        report("n1", "restricted", "pod", zones),
        pod("p", container(cpu=str(cpu), memory="1Gi")),
    )
    assert cluster.refusal("p") == want


@pytest.mark.parametrize(
    ("scope", "init", "want"),
    [
        ("container", {"cpu": "1"}, (U, "cannot align container")),
        ("container", {"cpu": "500m"}, None),
        ("container", {"cpu": "1", "restartPolicy": "Always"}, None),
        ("pod", {"cpu": "1"}, None),
    ],
)
def test_example_4_an_init_container_ties_its_pod(
    scope: str,
    init: dict[str, str],
    want: tuple[str, str] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = container("init", cpu=init["cpu"], memory="1Gi")
    if "restartPolicy" in init:
        first["restartPolicy"] = init["restartPolicy"]
    cluster = Cluster(
        tmp_path,
        capsys,
        gpu_node("n1"),
        report("n1", "single-numa-node", scope, both(4, 16, gpu_free=(0, 4))),
        gpu_pod("x", 4, on="n1"),
        pod("p", container(nvidiacom_gpu="1", cpu="4", memory="1Gi"), inits=[first]),
    )
    assert cluster.refusal("p") == want
    if want is None:
        assert cluster.zones("p")[1]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize(("free", "want"), [((4, 4), (U, "cannot align pod")), ((2, 4), None)])
def test_example_5_a_pod_without_a_record_counts_in_both_zones(
    free: tuple[int, int], want: tuple[str, str] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(
        tmp_path,
        capsys,
        gpu_node("n1"),
        report("n1", "single-numa-node", "pod", gpus(*free)),
        gpu_pod("x", 2, on="n1"),
        gpu_pod("p", 3),
    )
    assert cluster.refusal("p") == want
    if want is None:
        assert cluster.zones("p") == {1: {"nvidia.com/gpu": "3"}}


def test_explain_says_what_a_zone_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(
        tmp_path,
        capsys,
        gpu_node("n1"),
        report("n1", "single-numa-node", "pod", gpus(2, 3)),
        gpu_pod("x", 2, on="n1", annotations=in_zone(0, 2), priority=1000),
        gpu_pod("y", 1, on="n1", annotations=in_zone(1, 1), priority=1000),
        gpu_pod("p", 4),
    )
    found = cluster.explain("p")
    assert found["numa"] == "1 of 1 nodes have NUMA data"
    assert found["nodes"][0]["numa"] == {
        "policy": "single-numa-node",
        "scope": "pod",
        "exact": True,
        "free": {"0": {"nvidia.com/gpu": "2"}, "1": {"nvidia.com/gpu": "3"}},
        "zones": None,
    }
    assert "node n1 had 2 more nvidia.com/gpu free in NUMA zone 0" in found["wouldFitIf"]


def test_a_cluster_without_reports_has_no_numa_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(tmp_path, capsys, gpu_node("n1"), gpu_pod("p", 4))
    found = cluster.explain("p")
    assert (found["numa"], found["nodes"][0]["numa"]) == ("no node has NUMA data", None)
    assert "NodeResourceTopologyMatch" not in found["nodes"][0]["scores"]
    assert cluster.zones("p") is None


@pytest.mark.parametrize("text", ["{}", '{"numaTopologyPolicy": ""}', '{"numaTopologyPolicy": null}'])
def test_an_empty_demand_demands_nothing(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(tmp_path, capsys, gpu_node("n1"), gpu_pod("p", 1, annotations={keys.NUMA_SPEC: text}))
    assert cluster.nodes() == {"p": "n1"}


@pytest.mark.parametrize(
    ("annotation", "text", "said"),
    [
        (
            keys.NUMA_SPEC,
            '{"numaTopologyPolicy": "Strict"}',
            "'Strict' is none of SingleNUMANode, Restricted, BestEffort",
        ),
        (keys.NUMA_SPEC, "[]", "no JSON object"),
        (keys.NUMA_SPEC_ALIAS, "x", "'x' is none of single-numa-node, restricted, best-effort, none"),
    ],
)
def test_a_demand_that_cannot_be_read_keeps_the_pod_pending(
    annotation: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path, capsys, gpu_node("n1"), gpu_pod("p", 1, annotations={annotation: text}))
    assert cluster.refusal("p") == (UU, f"annotation {annotation} cannot be read: {said}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"zones": [{"name": "left", "type": "Node"}]}, 'zones[0]: name "left" ends in no number: ignored'),
        (
            {"zones": [{"name": "node-0", "type": "Node"}, {"name": "numa-0", "type": "Node"}]},
            "node-0 and numa-0 have one number: the report is ignored",
        ),
        (
            {"zones": [{"name": f"node-{i}", "type": "Node"} for i in range(17)]},
            "17 zones, at most 16: the report is ignored",
        ),
        (
            {"attributes": [{"name": "topologyManagerPolicy", "value": "strict"}]},
            'attribute topologyManagerPolicy "strict" is unknown: none holds',
        ),
    ],
)
def test_parts_of_a_report_that_are_ignored_are_told(
    change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(
        tmp_path,
        capsys,
        gpu_node("n1"),
        {**report("n1", "single-numa-node", "pod", gpus(4, 4)), **change},
        gpu_pod("p", 1),
    )
    assert cluster.nodes() == {"p": "n1"}
    assert f"NodeResourceTopology/n1: {said}" in cluster.out.err


def test_evicting_pods_without_records_frees_no_zone_unless_all_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cluster(*pods: dict[str, Any]) -> Cluster:
        fixed = gpu_node("n1"), report("n1", "single-numa-node", "pod", gpus(3, 3))
        return Cluster(tmp_path, capsys, *fixed, *pods, gpu_pod("p", 4, priority=10))

    one_stays = cluster(gpu_pod("a", 1, on="n1"), gpu_pod("b", 1, on="n1", priority=100))
    assert "p" not in one_stays.nodes()
    all_go = cluster(gpu_pod("a", 1, on="n1"), gpu_pod("b", 1, on="n1"))
    assert all_go.nodes()["p"] == "n1"


def test_gpus_of_a_container_are_of_other_zones_if_its_own_have_too_few_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under best-effort the init container takes three GPUs of zone 1, the only zone with GPUs in the report, and its
    successor reuses them; but by the Device two GPUs of the zone are healthy."""
    devices = [{"type": "gpu", "minor": i, "id": f"GPU-{i}", "topology": {"nodeID": i // 4}} for i in range(8)]
    for i in (4, 5):
        devices[i]["health"] = False
    machine = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "spec": {"devices": devices}}
    cluster = Cluster(
        tmp_path,
        capsys,
        gpu_node("n1"),
        {**machine, "metadata": {"name": "n1"}},
        report("n1", "best-effort", "container", [{}, {"nvidia.com/gpu": ("4", "4", "4")}]),
        pod("p", container(nvidiacom_gpu="3"), inits=[container("init", nvidiacom_gpu="3")]),
    )
    assert cluster.nodes() == {"p": "n1"}
