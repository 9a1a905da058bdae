# SPDX-License-Identifier: Apache-2.0
"""Whatever a cluster looks like, `simulate` answers, over-books nothing, comes to rest and leaves nothing that fits."""

import json
from pathlib import Path

import pytest

from tests.cli.random_manifests import Cluster, answer, cluster, judged
from tests.halves import own_half

SEEDS = 150
IN_ONE = 15


@pytest.mark.parametrize("first", own_half(range(0, SEEDS, IN_ONE)))
def test_random_clusters_are_planned_soundly(first: int, tmp_path: Path) -> None:
    wrong = {}
    for seed in range(first, first + IN_ONE):
        one = cluster(seed)
        if faults := judged(one, answer(one, tmp_path)):
            wrong[seed] = faults
    assert wrong == {}


def small() -> Cluster:
    """Two nodes of two GPUs and a gang of two pods that fill one of them."""
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {}},
            "spec": {},
            "status": {"allocatable": {"cpu": "4", "pods": "9", "nvidia.com/gpu": "2"}},
        }
        for name in ("n0", "n1")
    ]
    group = {"kind": "PodGroup", "metadata": {"name": "g", "annotations": {}}, "spec": {"minMember": 2}}
    pods = [
        {
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"pod-group.scheduling.sigs.k8s.io": "g"}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}}}]},
        }
        for name in ("g-0", "g-1")
    ]
    return Cluster([*nodes, group, *pods], {})


def said(
    nodes: dict[str, str], minors: dict[str, str] | None = None, waits: str = "", **more: object
) -> dict[str, object]:
    key = "topology.scheduling.koordinator.sh/gpu"
    notes = {pod: {key: json.dumps({"allocatedGPUs": {"0": [minor]}})} for pod, minor in (minors or {}).items()}
    return {
        "stable": True,
        "rounds": 2,
        "bindings": [{"pod": pod, "node": node, "annotations": notes.get(pod, {})} for pod, node in nodes.items()],
        "final": [{"pod": pod, "node": node} for pod, node in nodes.items()],
        "evictions": [],
        "pending": [{"pod": waits, "gang": "default/g", "reason": "Unschedulable", "message": "no"}] if waits else [],
        **more,
    }


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        (said({"g-0": "n0", "g-1": "n0"}, {"g-0": "1", "g-1": "1"}), "GPU 1 of n0 is given to g-0 and g-1"),
        (said({"g-0": "n0"}), "gang g is half bound: 1 of 2"),
        (said({"g-0": "n0", "g-1": "n1"}, stable=False), "no rest after 2 rounds"),
        (said({"g-0": "n0", "g-1": "n1"}, evictions=[{"pod": "g-0"}] * 3), "g-0 was evicted 3 times"),
        (said({}, waits="g-0"), "gang g fits and waits: no"),
    ],
)
def test_the_judge_sees(told: dict[str, object], fault: str) -> None:
    assert judged(small(), told) == [fault]


def test_the_judge_sees_a_full_node() -> None:
    one = small()
    one.of("Pod")["g-1"]["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "2"
    assert judged(one, said({"g-0": "n0", "g-1": "n0"})) == ["n0 is over-booked: [2, -1, 7] left of cpu, GPUs, pods"]
