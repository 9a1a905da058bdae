# SPDX-License-Identifier: Apache-2.0
"""What an API server would have filled in is filled in (simulate.md 1.3)."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordpy.api.objects import Affinity, Namespace, Node, Pod, Requirement
from koordpy.offline.manifests import load_manifests
from koordpy.offline.preparing import FilledInput

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def filled(folder: Path, *documents: str) -> list[Any]:
    path = folder / "in.yaml"
    path.write_text("\n---\n".join(documents))
    given = FilledInput(load_manifests([str(path)]), NOW)
    assert [line for line in given.loaded.fault_lines if "no Node" not in line] == []
    return list(given.objects)


def filled_pod(folder: Path, spec: str, *, labels: str = "{}", others: tuple[str, ...] = ()) -> Pod:
    pod = filled(folder, *others, f"kind: Pod\nmetadata: {{name: p, labels: {labels}}}\nspec: {spec}\n")[-1]
    assert isinstance(pod, Pod)
    return pod


def test_an_earlier_document_is_an_older_object(tmp_path: Path) -> None:
    objects = filled(
        tmp_path,
        "kind: Pod\nmetadata: {name: a}\n",
        "kind: Pod\nmetadata: {name: b, creationTimestamp: 2020-01-01T00:00:00Z, uid: own}\n",
        "kind: List\nitems: [{kind: Pod, metadata: {name: c}}, {kind: Pod, metadata: {name: d}}]\n",
    )
    assert [pod.metadata.creation_timestamp for pod in objects] == [
        "2025-12-31T23:59:57Z",
        "2020-01-01T00:00:00Z",
        "2025-12-31T23:59:59Z",
        "2026-01-01T00:00:00Z",
    ]
    uids = [pod.metadata.uid for pod in objects]
    assert uids[1] == "own" and len(set(uids)) == 4 and all(uids)
    assert {pod.metadata.namespace for pod in objects} == {"default"}
    assert {pod.status.phase for pod in objects} == {"Pending"}


@pytest.mark.parametrize(
    ("resources", "requests"),
    [
        ("{limits: {cpu: 2, memory: 1Gi}}", {"cpu": 2, "memory": "1Gi"}),
        ("{limits: {cpu: 2}, requests: {cpu: 1}}", {"cpu": 1}),
        ("{limits: {cpu: 2, nvidia.com/gpu: 8}, requests: {cpu: 0}}", {"cpu": 0, "nvidia.com/gpu": 8}),
        ("{requests: {cpu: 1}}", {"cpu": 1}),
    ],
)
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_missing_request_is_the_limit(tmp_path: Path, field: str, resources: str, requests: dict[str, Any]) -> None:
    pod = filled_pod(tmp_path, f"{{{field}: [{{name: c, resources: {resources}}}]}}")
    (container,) = pod.spec.containers or pod.spec.init_containers
    assert container.resources.requests == requests


def test_pod_level_limits_count_where_no_container_asks(tmp_path: Path) -> None:
    pod = filled_pod(
        tmp_path,
        "{resources: {limits: {cpu: 4, memory: 8Gi}}, containers: [{name: c, resources: {requests: {cpu: 1}}}]}",
    )
    assert pod.spec.resources is not None
    assert pod.spec.resources.requests == {"memory": "8Gi"}


def priority_class(name: str, value: int, more: str = "") -> str:
    return f"kind: PriorityClass\nmetadata: {{name: {name}}}\nvalue: {value}\n{more}"


@pytest.mark.parametrize(
    ("spec", "priority", "policy"),
    [
        ("{}", 5, "Never"),
        ("{priority: 7}", 7, "PreemptLowerPriority"),
        ("{priorityClassName: high}", 1000, "PreemptLowerPriority"),
        ("{priorityClassName: high, preemptionPolicy: Never}", 1000, "Never"),
        ("{priorityClassName: system-cluster-critical}", 2_000_000_000, "PreemptLowerPriority"),
        ("{priorityClassName: system-node-critical}", 2_000_001_000, "PreemptLowerPriority"),
        ("{priorityClassName: gone, priority: 3}", 3, "PreemptLowerPriority"),
    ],
)
def test_the_priority_comes_from_the_class(tmp_path: Path, spec: str, priority: int, policy: str) -> None:
    classes = (
        priority_class("high", 1000),
        priority_class("usual", 9, "globalDefault: true\n"),
        priority_class("lowest", 5, "globalDefault: true\npreemptionPolicy: Never\n"),
    )
    pod = filled_pod(tmp_path, spec, others=classes)
    assert (pod.spec.priority, pod.spec.preemption_policy) == (priority, policy)


def test_without_a_class_the_priority_is_zero(tmp_path: Path) -> None:
    assert filled_pod(tmp_path, "{}").spec.priority == 0


def test_a_class_that_is_faulty_itself_makes_no_fault_of_its_pods(tmp_path: Path) -> None:
    path = tmp_path / "in.yaml"
    pod = "kind: Pod\nmetadata: {name: p}\nspec: {priorityClassName: high}\n"
    path.write_text("kind: Node\nmetadata: {name: n}\n---\n" + priority_class("high", 1, "value: 2\n") + "---\n" + pod)
    path.write_text(path.read_text().replace("value: 1\nvalue: 2", "value: high"))
    (line,) = FilledInput(load_manifests([str(path)]), NOW).loaded.fault_lines
    assert line.endswith("PriorityClass/high: value: must be a whole number, not the string 'high'")


@pytest.mark.parametrize(
    ("spec", "priority"),
    [("{priorityClassName: high}", 1000), ("{priorityClassName: high, priority: 7}", 7), ("{}", None)],
)
def test_a_group_has_the_priority_of_its_class_if_it_names_one(tmp_path: Path, spec: str, priority: int | None) -> None:
    group = f"apiVersion: scheduling.k8s.io/v1beta1\nkind: PodGroup\nmetadata: {{name: g}}\nspec: {spec}\n"
    found = filled(tmp_path, priority_class("high", 1000), priority_class("any", 5, "globalDefault: true"), group)[-1]
    assert found.spec.priority == priority


def terms(affinity: Affinity | None) -> tuple[Requirement, ...]:
    assert affinity is not None and affinity.pod_anti_affinity is not None
    (term,) = affinity.pod_anti_affinity.required
    assert term.label_selector is not None
    return term.label_selector.match_expressions


def test_match_label_keys_become_part_of_the_selector(tmp_path: Path) -> None:
    pod = filled_pod(
        tmp_path,
        "{affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, "
        "labelSelector: {matchLabels: {app: a}}, matchLabelKeys: [rev, gone], mismatchLabelKeys: [tenant]}]}}}",
        labels="{rev: r1, tenant: t1}",
    )
    assert terms(pod.spec.affinity) == (
        Requirement(key="rev", operator="In", values=("r1",)),
        Requirement(key="tenant", operator="NotIn", values=("t1",)),
    )


def test_match_label_keys_in_a_dump_are_not_merged_twice(tmp_path: Path) -> None:
    pod = filled_pod(
        tmp_path,
        "{affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, "
        "labelSelector: {matchExpressions: [{key: rev, operator: In, values: [r1]}]}, matchLabelKeys: [rev]}]}}}",
        labels="{rev: r1}",
    )
    assert len(terms(pod.spec.affinity)) == 1


@pytest.mark.parametrize(("network", "ports"), [("true", [80, 9000]), ("false", [0, 9000])])
def test_a_pod_of_the_host_network_has_host_ports(tmp_path: Path, network: str, ports: list[int]) -> None:
    pod = filled_pod(
        tmp_path,
        f"{{hostNetwork: {network}, containers: [{{name: c, ports: [{{containerPort: 80}}, "
        "{containerPort: 90, hostPort: 9000}]}]}",
    )
    assert [port.host_port for port in pod.spec.containers[0].ports] == ports


@pytest.mark.parametrize(
    ("status", "allocatable"),
    [
        ("{capacity: {cpu: 4}}", {"cpu": 4}),
        ("{capacity: {cpu: 4}, allocatable: null}", {"cpu": 4}),
        ("{capacity: {cpu: 4, memory: 1Gi}, allocatable: {cpu: 3}}", {"cpu": 3}),
        ("{capacity: {cpu: 4}, allocatable: {}}", {}),
    ],
)
def test_capacity_counts_where_allocatable_is_absent(tmp_path: Path, status: str, allocatable: dict[str, Any]) -> None:
    (node,) = filled(tmp_path, f"kind: Node\nmetadata: {{name: n}}\nstatus: {status}\n")
    assert isinstance(node, Node) and node.status.allocatable == allocatable


def test_a_namespace_has_the_label_of_its_name(tmp_path: Path) -> None:
    (namespace,) = filled(tmp_path, "kind: Namespace\nmetadata: {name: prod, labels: {team: a}}\n")
    assert isinstance(namespace, Namespace)
    assert namespace.metadata.labels == {"team": "a", "kubernetes.io/metadata.name": "prod"}
    assert namespace.metadata.namespace == ""
