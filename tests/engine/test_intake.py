# SPDX-License-Identifier: Apache-2.0
"""What is kept of arriving pods: enough for every decision, and no more."""

import json
from typing import Any
from weakref import ref

import msgspec
import pytest

from bench import reflector as reflector_bench
from bench.reflector import pod_json
from koordpy.api.objects import Pod
from koordpy.engine.watching import pod_intake as intake_module
from koordpy.engine.watching.pod_intake import TEXTS_KEPT, PodIntake
from koordpy.pods.gang_refs import gang_ref
from koordpy.pods.resource_amounts import pod_requests

GANG = {"pod-group.scheduling.sigs.k8s.io": "g"}


def decoded(body: dict[str, Any] | bytes) -> Pod:
    return msgspec.json.decode(body if isinstance(body, bytes) else json.dumps(body), type=Pod)


def a_pod(**status: Any) -> dict[str, Any]:
    asked = {"requests": {"cpu": "1"}}
    return {
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": asked}]},
        "status": status,
    }


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_is_dropped(phase: str) -> None:
    assert PodIntake()(decoded(a_pod(phase=phase))) is None


@pytest.mark.parametrize(
    ("labels", "annotations", "group"),
    [
        (GANG, {}, ""),
        ({"scheduling.x-k8s.io/pod-group": "g"}, {}, ""),
        ({}, {}, "g"),
        (
            {
                "pod-group.scheduling.sigs.k8s.io/name": "g",
                "pod-group.scheduling.sigs.k8s.io/min-available": "2",
            },
            {},
            "",
        ),
        ({}, {"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "2"}, ""),
    ],
)
def test_of_a_finished_member_phase_end_and_gang_are_kept(
    labels: dict[str, str], annotations: dict[str, str], group: str
) -> None:
    body = a_pod(
        phase="Failed",
        containerStatuses=[
            {"name": "main", "state": {"terminated": {"finishedAt": "2026-01-01T00:00:01Z"}}},
            {"name": "side", "state": {"terminated": {"finishedAt": "2026-01-01T00:00:09Z"}}},
            {"name": "other", "state": {}},
        ],
    )
    body["metadata"] |= {"labels": labels, "annotations": {**annotations, "big": "x" * 1000}}
    if group:
        body["spec"]["schedulingGroup"] = {"podGroupName": group}
    whole = decoded(body)
    kept = PodIntake()(decoded(body))
    assert kept is not None and gang_ref(kept) == gang_ref(whole) and gang_ref(kept) is not None
    assert (kept.key, kept.metadata.uid, kept.metadata.resource_version) == ("ns/a", "u", "1")
    assert kept.status.phase == "Failed" and kept.spec.node_name == "", "it holds nothing any more"
    ends = [end.state.terminated.finished_at for end in kept.status.container_statuses]  # type: ignore[union-attr]
    assert ends == ["2026-01-01T00:00:09Z"]
    assert "big" not in kept.metadata.annotations


STATUSES: dict[str, list[dict[str, Any]]] = {
    "as asked": [{"name": "main", "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}}}],
    "silent": [{"name": "main"}],
    "more": [{"name": "main", "allocatedResources": {"cpu": "3"}}],
    "running with more": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}],
    "less": [{"name": "main", "allocatedResources": {"cpu": "500m"}}],
    "unknown container": [{"name": "debug", "resources": {"requests": {"cpu": "2"}}}],
}


@pytest.mark.parametrize("infeasible", [False, True])
@pytest.mark.parametrize("statuses", STATUSES.values(), ids=STATUSES.keys())
def test_the_request_of_a_pod_is_the_same_before_and_after(statuses: list[dict[str, Any]], infeasible: bool) -> None:
    resize = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    body = a_pod(
        phase="Running",
        containerStatuses=statuses,
        conditions=[{"type": "Ready", "status": "True"}, *([resize] if infeasible else [])],
    )
    kept = PodIntake()(decoded(body))
    assert kept is not None and pod_requests(kept) == pod_requests(decoded(body))
    assert [condition.type for condition in kept.status.conditions] == ["PodResizePending"] * infeasible


def test_what_is_large_in_a_pod_goes_with_it() -> None:
    intake = PodIntake()
    intake(decoded(pod_json(0)))
    kept = intake(decoded(pod_json(1)))
    assert kept is not None
    gone = ref(kept.metadata)
    intake.gone(kept)
    del kept
    assert gone() is None
    other = intake(decoded(pod_json(2)))
    assert other is not None
    intake.gone(decoded(pod_json(3)))  # of the same owner, and not the last
    again = intake(decoded(pod_json(4)))
    assert again is not None
    assert again.spec is other.spec


@pytest.mark.parametrize("node", ["", "n1"])
def test_of_a_pod_that_waits_and_is_refused_stays_who_it_is(node: str) -> None:
    body = a_pod(phase="Pending")
    body["spec"] |= {"nodeName": node, "schedulerName": "ours", "affinity": {"nodeAffinity": {}}}
    intake = PodIntake()
    kept = intake(decoded(body))
    assert kept is not None
    intake.refused(kept)
    assert (kept.metadata.name, kept.spec.scheduler_name, kept.spec.node_name) == ("a", "ours", node)
    assert (kept.spec.affinity is not None) == (kept.spec.containers != []) == bool(node)


def test_siblings_share_what_is_equal_and_keep_what_is_their_own() -> None:
    intake = PodIntake()
    wholes = [decoded(pod_json(index)) for index in range(64)]
    kept = [intake(decoded(pod_json(index))) for index in range(64)]
    first, second = kept[0], kept[1]
    assert first is not None and second is not None
    assert second.spec.containers is first.spec.containers and second.status is first.status
    for whole, pod in zip(wholes, kept, strict=True):
        assert pod is not None
        assert pod_requests(pod) == pod_requests(whole)
        assert pod.metadata.labels == whole.metadata.labels
        assert pod.metadata.annotations == whole.metadata.annotations
        for field in ("node_name", "tolerations", "node_selector", "priority", "scheduler_name"):
            assert getattr(pod.spec, field) == getattr(whole.spec, field)
        assert (pod.metadata.uid, pod.metadata.name) == (whole.metadata.uid, whole.metadata.name)
        assert pod.metadata.owner_references == whole.metadata.owner_references


def test_names_of_strangers_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "_TEXTS", {})
    intake = PodIntake()
    for index in range(TEXTS_KEPT + 100):
        body = a_pod(phase="Pending")
        body["metadata"] |= {"annotations": {f"strange-{index}": "x"}, "labels": {f"strange-label-{index}": "x"}}
        pod = intake(decoded(body))
        assert pod is not None and pod.metadata.annotations == {f"strange-{index}": "x"}
    assert len(intake_module._TEXTS) == TEXTS_KEPT


def test_a_sibling_that_differs_shares_nothing_false() -> None:
    intake = PodIntake()
    first, other = a_pod(phase="Running"), a_pod(phase="Pending")
    other["metadata"]["uid"] = "u2"
    other["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "7"
    other["spec"]["tolerations"] = [{"operator": "Exists"}]
    intake(decoded(first))
    kept = intake(decoded(other))
    assert kept is not None and pod_requests(kept) == {"cpu": 7000}
    assert kept.status.phase == "Pending" and len(kept.spec.tolerations) == 1


def test_what_filters_look_into_stays() -> None:
    body = a_pod(phase="Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}])
    body["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"}
    body["spec"]["volumes"] = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "temp", "ephemeral": {"volumeClaimTemplate": {}}},
    ]
    body["spec"]["containers"][0]["ports"] = [{"containerPort": 1}, {"containerPort": 2, "hostPort": 2}]
    kept = PodIntake()(decoded(body))
    assert kept is not None
    assert [volume.name for volume in kept.spec.volumes] == ["data", "temp"]
    assert [port.host_port for port in kept.spec.containers[0].ports] == [2]
    assert kept.metadata.annotations == {"mine": "1"}
    assert [condition.reason for condition in kept.status.conditions] == ["Unschedulable"]


def test_the_benchmark_runs_and_its_pods_have_the_size_of_real_ones() -> None:
    rows = reflector_bench.run(pods=300, events=600)
    assert [name for name, _, _ in rows] == [
        "reflector: wire size of a pod",
        "reflector: list",
        "reflector: watch",
        "reflector: longest pause for other tasks",
        "reflector: memory",
    ]
    assert 5_500 <= len(pod_json(0)) <= 6_100
