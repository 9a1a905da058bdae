# SPDX-License-Identifier: Apache-2.0
"""`koordpy topology`: the tree with what is free, the faults of a hierarchy, and the nodes that it does not know."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.cli.main import main
from tests.said import warnings_of

Json = dict[str, Any]


def node(name: str, *, gpus: int = 8, cordoned: bool = False, taint: str = "", **labels: str) -> Json:
    spec: Json = {"unschedulable": True} if cordoned else {}
    if taint:
        spec["taints"] = [{"key": taint, "effect": "NoSchedule"}]
    amounts = {"cpu": "32", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    meta = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": {"allocatable": amounts}}


def pod(name: str, gpus: int, *, at: str = "", **spec: Any) -> Json:
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    own = {"schedulerName": "koord-scheduler", "containers": [container], **({"nodeName": at} if at else {}), **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": own}


def topology(*layers: tuple[str, str, str]) -> Json:
    """(name, label, parent)."""
    entries = [{"layerName": name, "labelKey": key, "parentTopologyLayer": up} for name, key, up in layers]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "ClusterNetworkTopology",
        "metadata": {"name": "default"},
        "spec": {"hierarchy": entries},
    }


TWO = topology(("spine", "s", "ClusterTopologyLayer"), ("block", "b", "spine"))
NODES = [
    node("n1", s="s1", b="b1"),
    node("n2", s="s1", b="b1", cordoned=True),
    node("n10", s="s1", b="b2"),
    node("n3", s="s2", taint="nvidia.com/gpu"),
]
PODS = [pod("x", 6, at="n1"), pod("y", 8, at="n10"), pod("z", 2)]


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command on manifests: (status, standard output, lines of standard error)."""

    def run(manifests: list[Json], *arguments: str) -> tuple[int, str, list[str]]:
        path = tmp_path / "in.yaml"
        path.write_text("---\n".join(yaml.safe_dump(one) for one in manifests))
        try:
            status = main(["topology", "-f", str(path), *arguments])
        except SystemExit as end:
            status = int(str(end.code))
        out, err = capsys.readouterr()
        return status, out, warnings_of(err).replace(str(path), "in.yaml").splitlines()

    return run


def test_the_table_has_a_line_for_each_domain_above_the_nodes(ask: Any) -> None:
    status, out, err = ask([TWO, *NODES, *PODS], "--request", "nvidia.com/gpu=2")
    assert (status, err) == (0, [])
    assert out.splitlines() == [
        "LAYER                 NAME   NODES  FREE  TOTAL  SLOTS",
        "ClusterTopologyLayer  -      4      18    32     5      1 cordoned",
        "spine                 s1     3      10    24     1      1 cordoned",
        "block                 s1/b1  2      10    16     1      1 cordoned",
        "block                 s1/b2  1      0     8      0",
        "spine                 s2     1      8     8      4",
        "block                 s2/n3  1      8     8      4      private",
        "",
        "block: 1 node without label b, it is a separate domain there: n3",
    ]


def test_a_resource_that_no_node_has_is_told_with_what_was_meant(ask: Any) -> None:
    for words in (["--request", "nvidia.com/gpus=8"], ["--pod", "p"]):
        asking = pod("p", 1)
        asking["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpus": "1"}}
        status, out, err = ask([TWO, *NODES, asking], *words)
        assert (status, err) == (0, ["warning: no node has nvidia.com/gpus, did you mean nvidia.com/gpu?"])
        assert out.splitlines()[1].split()[:6] == ["ClusterTopologyLayer", "-", "4", "32", "32", "0"]


def test_the_tree_shows_nodes_where_they_are_asked_for(ask: Any) -> None:
    status, out, _ = ask([TWO, *NODES, *PODS], "-o", "tree", "--nodes")
    assert status == 0
    assert out.splitlines()[:9] == [
        "cluster  4 nodes, 18 of 32 accelerators free (1 cordoned)",
        "├─ s1  3 nodes, 10 of 24 accelerators free (1 cordoned)",
        "│  ├─ b1  2 nodes, 10 of 16 accelerators free (1 cordoned)",
        "│  │  ├─ n1  1 node, 2 of 8 accelerators free",
        "│  │  └─ n2  1 node, 8 of 8 accelerators free (1 cordoned)",
        "│  └─ b2  1 node, 0 of 8 accelerators free",
        "│     └─ n10  1 node, 0 of 8 accelerators free",
        "└─ s2  1 node, 8 of 8 accelerators free",
        "   └─ n3  1 node, 8 of 8 accelerators free (private)",
    ]


def test_json_has_everything(ask: Any) -> None:
    _, out, _ = ask([TWO, *NODES, *PODS], "-o", "json", "--request", "nvidia.com/gpu=2,cpu=1")
    found = json.loads(out)
    assert (found["source"], found["layers"]) == ("ClusterNetworkTopology/default", ["spine", "block", "nodeLayer"])
    assert found["domains"][0]["accelerators"] == {"free": 18, "total": 32}
    assert {"layer": "nodeLayer", "name": "s1/b1/n1", "private": False, "nodes": 1, "unschedulableNodes": 0} | {
        "accelerators": {"free": 2, "total": 8},
        "slots": 1,
    } in found["domains"]
    (lacking,) = found["unlabelled"]
    assert lacking == {
        "layer": "block",
        "labelKeys": ["b"],
        "count": 1,
        "nodes": ["n3"],
        "meant": None,
        "counts": 1,
    }


@pytest.mark.parametrize(("name", "slots"), [("z", 1), ("default/x", 0)])
def test_slots_are_counted_for_copies_of_a_pod_waiting_or_running(ask: Any, name: str, slots: int) -> None:
    _, out, _ = ask([TWO, *NODES, *PODS], "-o", "json", "--pod", name)
    found = {one["name"]: one["slots"] for one in json.loads(out)["domains"]}
    # the pods have no toleration for the taint of n3
    assert found["s1/b1"] == found[""] == slots and found["s2/n3"] == 0


def test_a_name_in_two_places_is_told(ask: Any) -> None:
    manifests = [TWO, node("n1", s="s1", b="b1"), node("n2", s="s2", b="b1"), node("n3", s="s2", b="b2")]
    status, out, _ = ask(manifests)
    assert status == 0
    assert "block: name b1 appears below 2 parents, as separate domains; is a label wrong? s1/b1, s2/b1" in out


def test_a_label_that_no_node_has_is_told_with_what_was_meant(ask: Any) -> None:
    manifests = [topology(("rack", "example.com/raks", "ClusterTopologyLayer"))]
    for name in ("n1", "n2"):
        made = node(name)
        made["metadata"]["labels"] = {"example.com/rack": "r1"}
        manifests.append(made)
    status, out, err = ask(manifests)
    said = "no node has the label example.com/raks, did you mean example.com/rack?"
    assert (status, err) == (0, [])
    last = out.splitlines()[-1]
    assert last == f"rack: {said.replace('the ', '')} Each node is a separate domain there"
    _, out, _ = ask(manifests, "-o", "json")
    (lacking,) = json.loads(out)["unlabelled"]
    assert (lacking["meant"], lacking["counts"]) == ("example.com/rack", 2)


def test_a_cluster_without_a_hierarchy_is_flat(ask: Any) -> None:
    status, out, _ = ask([node("n1"), node("n2")])
    assert status == 0 and "each node is a separate domain" in out and "nodeLayer" in out


def test_a_bad_hierarchy_is_named_by_object_and_field(ask: Any) -> None:
    bad = topology(("block", "b", "nowhere"))
    status, out, err = ask([bad, node("n1")])
    assert (status, out) == (2, "")
    assert err == [
        "in.yaml: document 1: ClusterNetworkTopology/default: "
        "spec.hierarchy[0].parentTopologyLayer: unknown layer 'nowhere' above block"
    ]


def test_faults_of_hypernodes_are_named_and_the_tree_is_shown_all_the_same(ask: Any) -> None:
    members = [{"type": "Node", "selector": {"exactMatch": {"name": name}}} for name in ("n1", "gone")]
    hyper = {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": "leaf-1"},
        "spec": {"tier": 1, "members": members},
    }
    status, out, err = ask([hyper, node("n1"), node("n2")])
    assert status == 2
    assert err == ["HyperNode/leaf-1: spec.members[1].selector.exactMatch.name: there is no Node 'gone'"]
    assert "tier1" in out and "1 node without HyperNode, it is a separate domain there: n2" in out


def test_simulate_and_explain_warn_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = [{"type": "Node", "selector": {"exactMatch": {"name": "gone"}}}]
    hyper = {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", "metadata": {"name": "h"}}
    path = tmp_path / "in.yaml"
    manifests = [{**hyper, "spec": {"tier": 1, "members": members}}, node("n1"), pod("p", 1)]
    path.write_text("---\n".join(yaml.safe_dump(one) for one in manifests))
    for command in (["simulate"], ["explain", "--pod", "p"]):
        assert main([*command, "-f", str(path)]) == 0
        said = warnings_of(capsys.readouterr().err).splitlines()
        assert said == ["warning: HyperNode/h: spec.members[0].selector.exactMatch.name: there is no Node 'gone'"], (
            command
        )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--request", "gpu"], "--request gpu: 'gpu' is not RESOURCE=AMOUNT, such as nvidia.com/gpu=8"),
        (["--request", "cpu=much"], "--request cpu=much: "),
        (["--pod", "nobody"], "--pod nobody: no such pod"),
    ],
)
def test_what_cannot_be_asked_is_refused(ask: Any, arguments: list[str], line: str) -> None:
    status, out, err = ask([node("n1")], *arguments)
    assert (status, out) == (2, "") and err[0].startswith(line)


def test_a_cluster_that_cannot_be_reached_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert "the cluster cannot be read" in capsys.readouterr().err
