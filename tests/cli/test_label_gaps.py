# SPDX-License-Identifier: Apache-2.0
"""Nodes without a label of a layer that a gang names are told by `simulate` and `explain`."""

import json
from pathlib import Path

import pytest

from koordpy.cli.main import main
from tests.cli.test_gather_goals import gang
from tests.cli.test_manifests import TOPOLOGY, written
from tests.said import warnings_of

TREE = TOPOLOGY + (
    "spec: {hierarchy: [{layerName: spineLayer, labelKey: spine}, "
    "{layerName: rackLayer, labelKey: rack, parentTopologyLayer: spineLayer}]}\n---\n"
)
TOLD = "warning: ClusterNetworkTopology/default: "
ALONE = "it is a separate domain there: "


def nodes(*labels: str) -> str:
    return "".join(
        f"apiVersion: v1\nkind: Node\nmetadata: {{name: n{i}, labels: {{{text}}}}}\n"
        "status: {allocatable: {cpu: '1', memory: 8Gi, pods: '110'}}\n---\n"
        for i, text in enumerate(labels)
    )


def wishing(layer: str) -> str:
    wish = json.dumps({"gatherStrategy": [{"layer": layer, "strategy": "MustGather"}]})
    note = f"annotations: {{gang.scheduling.koordinator.sh/networkTopologyAware: '{wish}'}}"
    return gang("g").replace("metadata: {name: g}\n", f"metadata: {{name: g, {note}}}\n", 1)


FULL = "spine: s1, rack: r1"


@pytest.mark.parametrize(
    ("layer", "labels", "told"),
    [
        ("rackLayer", (FULL, FULL), []),
        ("rackLayer", (FULL, "spine: s1"), [f"1 node without label rack of rackLayer, {ALONE}n1"]),
        (
            "rackLayer",
            (FULL, *["spine: s1"] * 6),
            ["6 nodes without label rack of rackLayer, each is a separate domain there: n1, n2, n3, n4 and 2 more"],
        ),
        ("rackLayer", (FULL, "rack: r1"), [f"1 node without label spine of spineLayer, {ALONE}n1"]),
        ("spineLayer", (FULL, "spine: s1"), []),
        ("rackLayer", ("spine: s1", "spine: s1"), ["no node has the label rack of rackLayer"]),
    ],
)
def test_gaps_of_named_layers_are_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layer: str, labels: tuple[str, ...], told: list[str]
) -> None:
    path = written(tmp_path, nodes(*labels) + TREE + wishing(layer))
    for command in (["simulate", "-f", path], ["explain", "-f", path, "--pod", "g-0"]):
        assert main(command) == 0
        assert warnings_of(capsys.readouterr().err).splitlines() == [TOLD + one for one in told]


def test_gaps_are_not_told_without_a_gang_that_names_the_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, nodes(FULL, "spine: s1") + TREE + gang("g"))
    assert main(["simulate", "-f", path]) == 0
    assert "without label" not in capsys.readouterr().err
