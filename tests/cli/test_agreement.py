# SPDX-License-Identifier: Apache-2.0
"""`simulate` and `explain` say the same of every pod: of all examples, and of random clusters.

By hand on more seeds: python -m tests.cli.test_agreement 12 200
"""

import json
import random
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.agreement import Document, answer, compared, contradictions
from tests.cli.random_manifests import Cluster, cluster
from tests.halves import own_half

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"koordpy simulate (.*)")
SEEDS = 12
PODS = 4
"""Pods of one seed that are compared at most."""


def examples() -> list[str]:
    """The arguments of `simulate` that each example names."""
    texts = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").rglob("*.yaml")))
    return [found[1] for text in texts for found in COMMAND.finditer(text)]


@pytest.mark.parametrize("arguments", examples())
def test_both_say_the_same_of_an_example(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    told = dict(compared(shlex.split(arguments)))
    assert told
    assert {pod: faults for pod, faults in told.items() if faults} == {}


def test_the_examples_are_there() -> None:
    assert len(examples()) >= 35


def unsettled(seed: int) -> Cluster:
    """A random cluster with what later rounds depend on: nominations, ending pods, known ends, a starvation guard,
    users, gates, and a bound on the rounds."""
    one, dice = cluster(seed), random.Random(seed)
    if dice.random() < 0.4:
        one.config["fairness"]["starvationAfter"] = "1s"
    nodes = sorted(one.of("Node"))
    for pod in one.of("Pod").values():
        waits = "nodeName" not in pod["spec"]
        if dice.random() < 0.1:
            if waits:
                pod["status"] = {"nominatedNodeName": dice.choice(nodes)}
            else:
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if dice.random() < 0.1:
            pod["metadata"].setdefault("annotations", {})["koordpy.io/max-runtime"] = "1h"
        if waits and dice.random() < 0.05:
            pod["spec"]["schedulingGates"] = [{"name": "example.com/gate"}]
        if dice.random() < 0.1:
            pod["metadata"]["labels"]["quota.scheduling.koordinator.sh/user"] = dice.choice("uv")
    if dice.random() < 0.2:
        one.arguments = [*one.arguments, "--rounds", str(dice.randint(1, 3))]
    return one


def told_otherwise(seed: int, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(pod, contradictions) of a seed's pods."""
    one = unsettled(seed)
    (folder / "input.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": one.documents}))
    (folder / "config.json").write_text(json.dumps(one.config))
    files = ["-f", str(folder / "input.json"), "--config", str(folder / "config.json")]
    yield from compared([*files, *one.arguments], PODS)


@pytest.mark.parametrize("seed", own_half(range(SEEDS)))
def test_both_say_the_same_of_a_random_cluster(seed: int, tmp_path: Path) -> None:
    assert {pod: faults for pod, faults in told_otherwise(seed, tmp_path) if faults} == {}


SAID: Document = {
    "pending": [
        {
            "namespace": "default",
            "pod": "p",
            "gang": None,
            "reason": "Unschedulable",
            "message": "0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible.",
        }
    ],
    "bindings": [{"namespace": "default", "pod": "q", "node": "n1", "round": 1, "annotations": {}}],
    "final": [{"namespace": "default", "pod": "q", "node": "n1"}],
    "gangs": [],
}
LACKS = [{"plugin": "NodeResourcesFit", "code": "Unschedulable", "message": "Insufficient cpu"}]
TOLD: Document = {
    "gang": None,
    "node": None,
    "reason": "Unschedulable",
    "feasibleNodes": 0,
    "nodes": [{"reasons": LACKS}, {"reasons": LACKS}],
    "domains": [],
    "message": "",
}


@pytest.mark.parametrize(
    ("pod", "changed", "contradicts"),
    [
        ("p", {}, False),
        ("p", {"feasibleNodes": 1, "nodes": [{"reasons": []}, {"reasons": LACKS}]}, True),
        ("p", {"reason": ""}, True),
        ("p", {"node": "n1"}, True),
        ("p", {"message": "gang x: missing"}, True),
        ("p", {"domains": [{"layer": "l", "name": "d", "chosen": True}]}, True),
        ("q", {"node": "n1", "reason": ""}, False),
        ("q", {"node": "n2", "reason": ""}, True),
        ("q", {}, True),
    ],
)
def test_the_judge_notices_a_contradiction(pod: str, changed: Document, contradicts: bool) -> None:
    assert bool(list(contradictions(SAID, {**TOLD, **changed}, f"default/{pod}"))) == contradicts


NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "20"}}
"""


def pod(name: str, cpu: int, *, at: str = "", priority: int = 0) -> str:
    return f"""
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  schedulerName: koord-scheduler
  {f"nodeName: {at}" if at else ""}
  priority: {priority}
  containers: [{{name: c, resources: {{requests: {{cpu: "{cpu}"}}}}}}]
"""


def explained(text: str, name: str, tmp_path: Path, *options: str) -> tuple[Document, str]:
    """JSON and stderr of `explain`."""
    (tmp_path / "in.yaml").write_text(text)
    status, found, err = answer(["explain", "-f", str(tmp_path / "in.yaml"), "--pod", f"default/{name}", *options])
    assert status == 0, err
    return found, err


def test_a_pod_that_others_are_evicted_for_is_explained_before_they_are(tmp_path: Path) -> None:
    found, _ = explained(NODE + pod("old", 3, at="n1") + pod("vip", 2, priority=9), "vip", tmp_path)
    assert (found["round"], found["node"], found["feasibleNodes"]) == (1, "n1", 0)
    assert found["evictions"] == ["1 pod is evicted by rule priority: default/old"]
    assert found["wouldFitIf"] == []


def test_a_pod_that_is_evicted_is_explained_as_the_one_that_replaces_it(tmp_path: Path) -> None:
    text = NODE + pod("old", 3, at="n1") + pod("vip", 2, priority=9)
    found, err = explained(text, "old", tmp_path)
    assert (found["round"], found["node"], found["reason"]) == (2, None, "Unschedulable")
    where = "evicted from n1 in round 1 for default/vip (rule priority)"
    assert f"warning: default/old: {where}; this explanation is about the pod that replaces it\n" in err
    found, err = explained(text, "old", tmp_path, "--evicted", "drop")
    assert (found["round"], found["message"], err) == (None, where, "")
    found, err = explained(text, "old", tmp_path, "--rounds", "1")
    assert found["message"] == "evicted in the last round of the simulation and not planned again"


def test_what_earlier_pods_of_the_round_take_counts(tmp_path: Path) -> None:
    text = NODE + pod("first", 3) + pod("second", 3)
    found, _ = explained(text, "second", tmp_path)
    assert [reason["message"] for reason in found["nodes"][0]["reasons"]] == ["Insufficient cpu"]
    assert (found["round"], found["feasibleNodes"]) == (1, 0)
    found, _ = explained(text, "first", tmp_path)
    assert (found["node"], found["feasibleNodes"], found["reason"]) == ("n1", 1, "")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for number in range(int(sys.argv[1]), int(sys.argv[2])):
            for name, faults in told_otherwise(number, Path(place)):
                for fault in faults:
                    print(f"seed {number}: {name}: {fault}", flush=True)
