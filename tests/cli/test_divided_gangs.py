# SPDX-License-Identifier: Apache-2.0
"""What is said of a gang whose bound members stand in two domains of a layer that it must not leave: labels of nodes
changed below it."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml

from koordpy.cli.main import main
from tests.workloads.cluster import NETWORK, Json, job, nodes, pod, simulate, template, workload

LAYERS = ["spineLayer", "rackLayer", "nodeLayer"]
TREE = workload(
    "scheduling.koordinator.sh/v1alpha1",
    "ClusterNetworkTopology",
    "default",
    {
        "hierarchy": [
            {"layerName": "spineLayer", "labelKey": "spine", "parentTopologyLayer": "ClusterTopologyLayer"},
            {"layerName": "rackLayer", "labelKey": "rack", "parentTopologyLayer": "spineLayer"},
            {"layerName": "nodeLayer", "parentTopologyLayer": "rackLayer"},
        ]
    },
)


def cluster(*racks: str) -> list[Json]:
    """Nodes n0, n1, ... of two slots in racks `SPINE/RACK`; an empty text is a node without these labels."""
    made = nodes(len(racks), cpu=2)
    for node, rack in zip(made, racks, strict=True):
        spine, _, name = rack.partition("/")
        node["metadata"]["labels"] = {"spine": spine, "rack": name} if rack else {}
    return [TREE, *made]


def gathered(*wishes: tuple[str, str, str]) -> Json:
    rules = [{"layer": layer, "strategy": strategy, "scope": scope} for layer, strategy, scope in wishes]
    return {NETWORK: json.dumps({"gatherStrategy": rules})}


def train(notes: Json, *on: str, number: int) -> list[Json]:
    """A Job of so many, the first of which are on these nodes and the others wait."""
    made = job(number=number, meta={"uid": "j1"}, pod=template(notes))
    there = [pod(f"train-{i}", i, node=on[i] if i < len(on) else "", template={"notes": notes}) for i in range(number)]
    return [made, *there]


RACK, SPINE, NODE = (
    ("rackLayer", "MustGather", "group"),
    ("spineLayer", "MustGather", "group"),
    ("nodeLayer", "MustGather", "group"),
)
REPLICA = ("rackLayer", "MustGather", "replica")


@pytest.mark.parametrize(
    ("racks", "wishes", "on", "text"),
    [
        (("s/a", "s/b"), (RACK,), ("n0", "n1"), "bound members are in two domains of rackLayer: s/a, s/b"),
        (("s/a", "t/a"), (RACK,), ("n0", "n1"), "bound members are in two domains of rackLayer: s/a, t/a"),
        (("s/a", "t/a"), (SPINE,), ("n0", "n1"), "bound members are in two domains of spineLayer: s, t"),
        (("s/a", "s/b"), (SPINE, RACK), ("n0", "n1"), "bound members are in two domains of rackLayer: s/a, s/b"),
        (("s/a", "s/a"), (NODE,), ("n0", "n1"), "bound members are in two domains of nodeLayer: s/a/n0, s/a/n1"),
        (
            ("s/a", "s/b", "s/c"),
            (RACK,),
            ("n0", "n1", "n2"),
            "bound members are in 3 domains of rackLayer: s/a, s/b, s/c",
        ),
        (
            ("s/a", "s/b"),
            (REPLICA,),
            ("n0", "n1"),
            "bound members of one replica are in two domains of rackLayer: s/a, s/b",
        ),
    ],
)
def test_the_domains_of_bound_members_are_told(
    racks: tuple[str, ...], wishes: tuple[tuple[str, str, str], ...], on: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    objects = [*cluster(*racks), *train(gathered(*wishes), *on, number=len(on) + 1)]
    late = f"train-{len(on)}"
    answer = simulate(tmp_path, *objects)
    assert answer.bound == [] and text in answer.message(late), answer.message(late)
    assert text in answer.gangs["train"]["message"]
    assert ("needed" in answer.message(late)) is (wishes == (REPLICA,))
    path = tmp_path / "explained.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        assert main(["explain", "-f", str(path), "--pod", late, "-o", "json"]) == 0
    told = json.loads(out.getvalue())
    asked = [one for one in told["domains"] if one["layer"] == min(wishes, key=lambda w: -LAYERS.index(w[0]))[0]]
    if wishes != (REPLICA,):
        assert {one["reason"] for one in asked} <= {text}
    assert not [line for line in told["wouldFitIf"] if "more slot" in line], told["wouldFitIf"]


@pytest.mark.parametrize(
    ("racks", "wishes", "on", "bound"),
    [
        (("s/a", "s/b"), (("rackLayer", "PreferGather", "group"),), ("n0", "n1"), 1),
        (("s/a", "s/a"), (RACK,), ("n0", "n1"), 1),
        (("s/a", "s/b"), (SPINE,), ("n0", "n1"), 1),
        (("s/a", "s/b"), (), ("n0", "n1"), 1),
    ],
)
def test_members_that_may_stand_there_are_joined(
    racks: tuple[str, ...], wishes: tuple[tuple[str, str, str], ...], on: tuple[str, ...], bound: int, tmp_path: Path
) -> None:
    answer = simulate(tmp_path, *cluster(*racks), *train(gathered(*wishes) if wishes else {}, *on, number=3))
    assert len(answer.bound) == bound and answer.pending == []


def test_a_label_of_an_upstream_group_is_told_likewise(tmp_path: Path) -> None:
    constraint = {"topologyConstraints": [{"key": "rack"}]}
    spec = {"schedulingPolicy": {"gang": {"minCount": 3}}, "schedulingConstraints": {"topology": [{"key": "rack"}]}}
    group = workload("scheduling.k8s.io/v1alpha3", "PodGroup", "g", {**spec, **constraint})
    pods = []
    for i, node in enumerate(("n0", "n1", "")):
        made = template(schedulingGroup={"podGroupName": "g"}, **({"nodeName": node} if node else {}))
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p-{i}"}, "spec": made["spec"]})
    answer = simulate(tmp_path, *cluster("s/a", "s/b")[1:], group, *pods)
    assert "bound members are in two domains of rack: a, b" in answer.message("p-2")
