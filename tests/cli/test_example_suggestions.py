# SPDX-License-Identifier: Apache-2.0
"""Every suggestion for a pod of the examples that waits is carried out, and places it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.counterfactuals import Job, decided, remedied, told
from tests.cli.random_manifests import Cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
WAITING = {"does-not-fit.yaml": 1, "elastic.yaml": 1}
"""File -> units that wait on the cluster of the examples."""


def documents(path: Path) -> list[dict[str, Any]]:
    files = sorted(path.rglob("*.yaml")) if path.is_dir() else [path]
    found = [one for file in files for one in yaml.safe_load_all(file.read_text(encoding="utf-8")) if one]
    for one in found:
        if one["kind"] in ("Node", "Pod"):
            one["metadata"].setdefault("labels", {})
            one.setdefault("spec", {})
    return found


def untrue(one: Cluster, folder: Path) -> tuple[int, int, list[str]]:
    """(units that wait, suggestions, those that do not help)."""
    waits = {wait["gang"] or wait["pod"]: wait["pod"] for wait in told(["simulate"], one, folder)["pending"]}
    number, wrong = 0, list[str]()
    for pod in waits.values():
        said = told(["explain", "--pod", pod], one, folder)
        job = Job(decided(one, said, folder), pod, folder)
        number += len(said["wouldFitIf"])
        wrong += [text for words in said["wouldFitIf"] if (text := remedied(job, words))]
    return len(waits), number, wrong


@pytest.mark.parametrize("name", WAITING)
def test_the_suggestions_for_an_example_help(name: str, tmp_path: Path) -> None:
    one = Cluster([*documents(EXAMPLES / "cluster"), *documents(EXAMPLES / name)], {})
    units, suggestions, wrong = untrue(one, tmp_path)
    assert (units, wrong) == (WAITING[name], [])
    assert suggestions


def test_all_examples_together_on_a_few_of_the_nodes(tmp_path: Path) -> None:
    """Eight nodes of one block: most of the gangs wait, each for another reason."""
    cluster = documents(EXAMPLES / "cluster")
    nodes = [one for one in cluster if one["kind"] == "Node"][:8]
    gangs = [one for path in sorted(EXAMPLES.glob("*.yaml")) for one in documents(path)]
    one = Cluster([*(d for d in cluster if d["kind"] != "Node"), *nodes, *gangs], {})
    units, suggestions, wrong = untrue(one, tmp_path)
    assert wrong == []
    assert units > 4 and suggestions > 4
