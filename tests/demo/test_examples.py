# SPDX-License-Identifier: Apache-2.0
"""Every example says in its comment what `koordpy simulate` answers; here it is asked, and the comment read."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpy.cli.main import main
from koordpy.demo.acts import EXAMPLES
from koordpy.demo.programme import TRAINING
from tests.clusters import ACCELERATOR, BLOCK, training_cluster
from tests.said import warnings_of

PATHS = sorted(EXAMPLES.glob("*.yaml"))
LABELS = {node["metadata"]["name"]: node["metadata"]["labels"] for node in training_cluster().nodes}

# example -> (domain of each gang, pods in each block, pods in each accelerator, pods that wait)
TABLE: dict[str, tuple[dict[str, str], list[int], list[int], int]] = {
    "plain-pod": ({}, [1], [1], 0),
    "prefer-gather": ({"prefer-gather": "blockLayer"}, [4], [2, 2], 0),
    "must-gather": ({"must-gather": "acceleratorLayer"}, [4], [4], 0),
    "pipeline-2x2": ({"pipeline-2x2": "blockLayer"}, [4], [2, 2], 0),
    "does-not-fit": ({"does-not-fit": ""}, [], [], 12),
    "gang-group": ({"prefill": "acceleratorLayer", "decode": "acceleratorLayer"}, [6], [2, 4], 0),
    "master-workers": ({"master-workers": "blockLayer"}, [4], [1, 3], 0),
    "multiples": ({"multiples": "spineLayer"}, [6, 6], [2] * 6, 0),
    "elastic": ({"elastic": "blockLayer"}, [8], [2] * 4, 2),
    "gpu-pair": ({}, [1], [1], 0),
    "urgent": ({"urgent": "blockLayer"}, [4], [2, 2], 0),
}


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]


def said(path: Path, heading: str) -> list[str]:
    """The indented lines of a comment below a heading."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"# {heading}"))
    block = []
    for line in lines[start + 1 :]:
        if not line.startswith("#     "):
            break
        block.append(line.removeprefix("#     "))
    return block


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    out, err = capsys.readouterr()
    assert warnings_of(err) == ""
    return out


def test_the_table_knows_every_example_and_the_demo_plays_every_one() -> None:
    assert sorted(TABLE) == [path.stem for path in PATHS]
    assert sorted(act for act in TRAINING.acts if "/" not in act) == sorted(TABLE)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_simulate_says_what_the_comment_says(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = answer(capsys, "simulate", "-f", str(EXAMPLES / "cluster"), "-f", str(path))
    lines = [line.strip() for line in out.splitlines()]
    expected = said(path, "It says:")
    assert expected
    assert [line for line in expected if line not in lines] == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_an_example_ends_where_the_table_says(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = answer(capsys, "simulate", "-f", str(EXAMPLES / "cluster"), "-f", str(path), "-o", "json")
    result = yaml.safe_load(out)
    gangs, blocks, accelerators, waiting = TABLE[path.stem]
    found = {gang["name"]: (gang["domain"] or {"layer": ""})["layer"] for gang in result["gangs"]}
    assert found == {f"default/{name}": layer for name, layer in gangs.items()}
    for label, counts in ((BLOCK, blocks), (ACCELERATOR, accelerators)):
        assert sorted(Counter(LABELS[b["node"]][label] for b in result["bindings"]).values()) == counts
    assert len(result["pending"]) == waiting


def test_explain_names_what_would_help_the_gang_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / "does-not-fit.yaml"
    words = ["-f", str(EXAMPLES / "cluster"), "-f", str(path), "--pod", "default/does-not-fit-0"]
    lines = [line.strip() for line in answer(capsys, "explain", *words).splitlines()]
    expected = said(path, "What would help:")
    assert expected and set(expected) <= set(lines)


def test_the_cluster_is_that_of_the_generator() -> None:
    cluster = training_cluster()
    assert documents(EXAMPLES / "cluster" / "nodes.yaml") == cluster.nodes
    assert documents(EXAMPLES / "cluster" / "topology.yaml") == [cluster.topology]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_manifests_are_ready_for_a_real_api_server(path: Path) -> None:
    """GPUs as limits equal to requests, an image and our scheduler's name, no namespace and no status of their own."""
    for obj in documents(path):
        if obj["kind"] != "Pod":
            assert obj["kind"] in ("PodGroup", "Device", "PriorityClass")
            continue
        assert set(obj) == {"apiVersion", "kind", "metadata", "spec"}
        assert obj["spec"]["schedulerName"] == "koord-scheduler"
        for container in obj["spec"]["containers"]:
            assert container["image"]
            resources = container["resources"]
            asked = {name: n for name, n in resources["requests"].items() if name.endswith("/gpu")}
            assert asked == resources.get("limits", {})
