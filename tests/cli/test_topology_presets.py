# SPDX-License-Identifier: Apache-2.0
"""Each preset of examples/topologies reads the labels of its sample nodes, and gathers a gang by them."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from koordpy.api import keys
from koordpy.cli.main import main
from tests.faults import FaultyServer

FOLDER = Path(__file__).parents[2] / "examples" / "topologies"
PRESETS = sorted(path.stem for path in FOLDER.glob("*.yaml"))

# preset -> (layer that must hold the gang, its size, (layer, path) of its domain), layers with unlabelled nodes
TABLE: dict[str, tuple[str, int, tuple[str, str], list[str]]] = {
    "topograph": ("spineLayer", 6, ("spineLayer", "core-1/spine-1"), ["acceleratorLayer"]),
    "gpu-clique": ("cliqueLayer", 3, ("cliqueLayer", "z-1/7f3c2a10-5b4e.1"), ["cliqueLayer"]),
    "aws": (
        "networkLayer2",
        4,
        ("networkLayer2", "usw2-az1/nn-01/nn-11"),
        ["ultraserverLayer"],
    ),
    "aws-four-layers": ("networkLayer4", 2, ("networkLayer4", "usw2-az1/nn-01/nn-11/nn-21/nn-31"), []),
    "gke": ("subblockLayer", 3, ("subblockLayer", "b-1/sb-1"), []),
    "oke": ("localBlockLayer", 3, ("localBlockLayer", "isl-1/nb-1/lb-1"), ["acceleratorLayer"]),
    "ack-lingjun": ("podLayer", 3, ("podLayer", "pod-1"), []),
    "coreweave": ("leafgroupLayer", 3, ("leafgroupLayer", "f-1/1/1"), ["nvlinkLayer"]),
    "rack-block-spine": ("blockLayer", 4, ("blockLayer", "s2/b3"), []),
}


def test_the_table_knows_every_preset_and_each_has_sample_nodes() -> None:
    assert sorted(TABLE) == PRESETS == sorted(path.stem for path in (FOLDER / "nodes").glob("*.yaml"))


def of_preset(name: str) -> list[str]:
    return ["-f", str(FOLDER / f"{name}.yaml"), "-f", str(FOLDER / "nodes" / f"{name}.yaml")]


def gang(size: int, layer: str) -> str:
    wish = json.dumps({"gatherStrategy": [{"layer": layer, "strategy": "MustGather"}]})
    group: dict[str, Any] = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "annotations": {keys.GANG_TOPOLOGY: wish}},
        "spec": {"minMember": size},
    }
    container = {"name": "main", "image": "img", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"g-{i}", "labels": {keys.LABEL_POD_GROUP: "g"}},
            "spec": {"schedulerName": keys.DEFAULT_SCHEDULER_NAME, "containers": [container]},
        }
        for i in range(size)
    ]
    return "---\n".join(yaml.safe_dump(one) for one in (group, *pods))


@pytest.mark.parametrize("name", PRESETS)
def test_a_gang_gathers_by_the_labels(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer, size, domain, _ = TABLE[name]
    work = tmp_path / "gang.yaml"
    work.write_text(gang(size, layer))
    assert main(["simulate", *of_preset(name), "-f", str(work), "-o", "json"]) == 0
    out, err = capsys.readouterr()
    told = "warning: ClusterNetworkTopology/default: 1 node without label nvidia.com/gpu.clique of cliqueLayer, "
    assert err.startswith(told) and err.count("\n") == 1 if layer in TABLE[name][3] else err == ""
    (report,) = json.loads(out)["gangs"]
    assert report["status"] == "Scheduled" and report["proof"] == "optimal"
    assert (report["domain"]["layer"], report["domain"]["name"]) == domain


@pytest.mark.parametrize("name", PRESETS)
def test_every_sample_node_has_its_place(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", *of_preset(name), "-o", "json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == "" and found["faults"] == [] and found["inSeveralPlaces"] == []
    assert [one["layer"] for one in found["unlabelled"]] == TABLE[name][3]


async def test_the_api_server_takes_them_as_they_are() -> None:
    async with FaultyServer() as server, aiohttp.ClientSession(server.url) as session:
        path = "/apis/scheduling.koordinator.sh/v1alpha1/clusternetworktopologies"
        for name in PRESETS:
            (preset,) = yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
            async with session.post(path, json=preset) as answer:
                assert answer.status == 201, await answer.text()
            async with session.delete(f"{path}/default") as answer:
                assert answer.status == 200
