# SPDX-License-Identifier: Apache-2.0
"""What holds a gang as a whole is said before what nodes would take."""

from pathlib import Path

import pytest

from koordpy.cli.main import main

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "8", memory: 8Gi, pods: "20"}}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata: {name: g, namespace: default}
spec: {minMember: 2}
"""
PARENT = """
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata: {name: org, namespace: default, labels: {quota.scheduling.koordinator.sh/is-parent: "true"}}
spec: {min: {cpu: 8}, max: {cpu: 8}}
"""


def member(number: int, *, labels: str = "", volumes: str = "") -> str:
    return f"""
---
apiVersion: v1
kind: Pod
metadata: {{name: g-{number}, namespace: default, labels: {{pod-group.scheduling.sigs.k8s.io: g, {labels}}}}}
spec:
  schedulerName: koord-scheduler
  containers: [{{name: c, resources: {{requests: {{cpu: "1"}}}}}}]
  {volumes}
"""


def printed(command: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    path = tmp_path / "in.yaml"
    path.write_text(text)
    assert main([command[0], "-f", str(path), *command[1:]]) in (0, 1)
    return capsys.readouterr().out.splitlines()


def test_a_claim_that_is_missing_is_the_gangs_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = "volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]"
    text = CLUSTER + "".join(member(i, volumes=claim) for i in range(2))
    first = 'gang default/g: needed 2: persistentvolumeclaim "data" not found. 0/1 nodes are available: '
    assert any(line.strip().startswith(first) for line in printed(["simulate"], text, tmp_path, capsys))


def test_a_parent_quota_is_the_gangs_reason_and_comes_before_the_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CLUSTER + PARENT + "".join(member(i, labels="quota.scheduling.koordinator.sh/name: org") for i in range(2))
    lines = printed(["explain", "--pod", "default/g-0"], text, tmp_path, capsys)
    at = lines.index("default/g-0 of gang default/g: alone, it fits on 1 of 1 node")
    assert lines[at - 1].startswith("gang default/g: needed 2, quota org is a parent: use one of its leaves. ")


def test_a_pod_of_another_scheduler_counts_no_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CLUSTER + member(0).replace("koord-scheduler", "default-scheduler")
    lines = printed(["explain", "--pod", "default/g-0"], text, tmp_path, capsys)
    assert "default/g-0 of gang default/g" in lines and "fits on" not in "".join(lines)
    assert "default-scheduler" in lines[lines.index("default/g-0 of gang default/g") - 1]
