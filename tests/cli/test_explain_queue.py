# SPDX-License-Identifier: Apache-2.0
"""`koordpy explain` tells where a waiting pod stands in the queue, and who would go for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from koordpy.cli.main import main

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "8", memory: 8Gi, pods: "20", nvidia.com/gpu: "4"}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
"""


def pod(name: str, user: str, *, node: str = "", high: bool = False) -> str:
    return f"""
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{quota.scheduling.koordinator.sh/user: {user}}}}}
spec:
  schedulerName: koord-scheduler
  {f"nodeName: {node}" if node else ""}
  {"priorityClassName: high" if high else ""}
  containers: [{{name: c, resources: {{limits: {{nvidia.com/gpu: "1"}}}}}}]
"""


def explained(text: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (tmp_path / "in.yaml").write_text(text)
    assert main(["explain", "-f", str(tmp_path / "in.yaml"), "--pod", f"default/{name}", "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


QUOTAS = """
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata: {name: team, labels: {quota.scheduling.koordinator.sh/namespace: default}}
spec: {min: {nvidia.com/gpu: "1"}, max: {nvidia.com/gpu: "MOST"}}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata: {name: others, labels: {quota.scheduling.koordinator.sh/namespace: default}}
spec: {min: {nvidia.com/gpu: "1"}, max: {nvidia.com/gpu: "4"}}
"""


def of_quota(text: str, name: str) -> str:
    return text.replace("labels: {", f"labels: {{quota.scheduling.koordinator.sh/name: {name}, ")


@pytest.mark.parametrize(
    ("most", "running", "others", "wanted"),
    [
        (4, 3, "", []),  # one is free, and runtimes keep it for nobody
        (3, 0, "", ["max of quota team were 4 nvidia.com/gpu (it is 3)"]),
        (
            4,
            3,
            "waits",
            ["the pending pods of quota others were deleted (they request 1 nvidia.com/gpu)"],
        ),
        (
            3,
            1,
            "runs",
            [],
        ),
    ],
)
def test_each_line_is_enough_by_itself_where_a_quota_refuses(
    most: int, running: int, others: str, wanted: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 4 GPUs; `team` waits with one more than its quota would let through, or than is free."""
    text = CLUSTER + QUOTAS.replace("MOST", str(most))
    text += "".join(of_quota(pod(f"r-{i}", "bob", node="n1"), "team") for i in range(running))
    if others:
        text += of_quota(pod("o", "bob", node="n1" if others == "runs" else ""), "others")
    asked = {(4, 3): "1", (3, 0): "4", (3, 1): "4"}[most, running]
    text += of_quota(pod("w", "bob"), "team").replace('gpu: "1"', f'gpu: "{asked}"')
    found = explained(text, "w", tmp_path, capsys)["wouldFitIf"]
    assert [line for line in found if "quota" in line and "completed" not in line] == wanted


@pytest.mark.parametrize(
    ("node", "high", "method"), [("", False, "scores"), ("n1", False, "scores"), ("n1", True, "victims-counting")]
)
def test_the_method_that_has_the_answer_is_named(
    node: str, high: bool, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = "".join(pod(f"b-{i}", "bob", node=node) for i in range(8)) if node else ""
    assert explained(CLUSTER + running + pod("a", "alice", high=high), "a", tmp_path, capsys)["method"] == method
    if node:
        assert explained(CLUSTER + running, "b-0", tmp_path, capsys)["method"] is None


def test_the_place_is_the_one_after_all_that_go_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = pod("b-old", "bob", node="n1")
    waiting = "".join(pod(f"{user[0]}-{i}", user) for i in range(2) for user in ("bob", "alice"))
    places = {
        name: explained(CLUSTER + running + waiting, name, tmp_path, capsys)["queue"]["place"]
        for name in ("a-0", "a-1", "b-0", "b-1")
    }
    # alice holds nothing; after her first pod both hold one, and bob's oldest is the older
    assert places == {"a-0": 1, "b-0": 2, "a-1": 3, "b-1": 4}


def test_a_gang_that_lacks_members_is_in_nobodys_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = """
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata: {name: g}
spec: {minMember: 2}
"""
    member = pod("g-0", "alice").replace("labels: {", "labels: {pod-group.scheduling.sigs.k8s.io: g, ")
    text = CLUSTER + group + member + pod("a-0", "alice") + pod("b-0", "bob")
    queue = explained(text, "a-0", tmp_path, capsys)["queue"]
    assert (queue["place"], queue["waiting"]) == (1, 2)
    queue = explained(text, "g-0", tmp_path, capsys)["queue"]
    assert (queue["place"], queue["waiting"]) == (None, 2)


def test_what_the_user_holds_and_deserves_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CLUSTER + "".join(pod(f"b-{i}", "bob", node="n1") for i in range(3))
    text += "".join(pod(f"a-{i}", "alice") for i in range(3))
    queue = explained(text, "a-0", tmp_path, capsys)["queue"]
    assert queue == {
        "place": 1,
        "waiting": 3,
        "mode": "gpu-count",
        "owner": "alice",
        "held": {"gpus": "0"},
        "share": {"gpus": "2"},
        "usage": None,
    }


def test_the_usage_is_that_of_the_time_of_the_decision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four GPUs alice's earlier pods get some in the same round; the pod that waits is told of them."""
    text = CLUSTER + "".join(pod(f"b-{i}", "bob", node="n1") for i in range(2))
    text += "".join(pod(f"a-{i}", "alice") for i in range(4))
    held = [explained(text, f"a-{i}", tmp_path, capsys)["queue"]["held"]["gpus"] for i in range(4)]
    assert held == ["0", "1", "2", "2"]


def test_who_would_be_evicted_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CLUSTER + "".join(pod(f"old-{i}", "bob", node="n1") for i in range(4)) + pod("vip", "alice", high=True)
    found = explained(text, "vip", tmp_path, capsys)
    assert "1 pod is evicted by rule priority: default/old-3" in found["evictions"]


def test_a_pod_that_runs_has_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(CLUSTER + pod("b", "bob", node="n1"), "b", tmp_path, capsys)["queue"] is None
