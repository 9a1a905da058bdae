# SPDX-License-Identifier: Apache-2.0
"""The request formula, by the examples of kube-parity.md 2.5 and its sentences one by one."""

from typing import Any

import msgspec
import pytest

from koordpy.api.objects import Node, Pod
from koordpy.pods.resource_amounts import node_allocatable, pod_requests, score_requests


def pod(spec: dict[str, Any], status: dict[str, Any] | None = None) -> Pod:
    return msgspec.convert({"metadata": {"name": "p", "namespace": "d"}, "spec": spec, "status": status or {}}, Pod)


def asks(cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": more.pop("name", f"c{cpu}"), "resources": {"requests": {"cpu": cpu}}, **more}


CASES = [
    ("containers are summed", {"containers": [asks("1"), asks("500m")]}, {"cpu": 1500}),
    (
        "example 4: a restartable init container runs beside those after it",
        {"containers": [asks("1")], "initContainers": [asks("2", restartPolicy="Always"), asks("3"),
                                                       asks("1", name="c", restartPolicy="Always")]},
        {"cpu": 5000},
    ),
    (
        "a sidecar after the large init container does not run beside it",
        {"containers": [asks("1")], "initContainers": [asks("3"), asks("2", restartPolicy="Always")]},
        {"cpu": 3000},
    ),
    (
        "example 5: the pod level replaces cpu, overhead comes on top",
        {
            "containers": [{"name": n, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}} for n in "ab"],
            "resources": {"requests": {"cpu": "3"}},
            "overhead": {"cpu": "250m"},
        },
        {"cpu": 3250, "memory": 2 * 2**30},
    ),
    (
        "requests come from limits, container by container",
        {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}}}, asks("1")]},
        {"nvidia.com/gpu": 2, "cpu": 2000},
    ),
    ("zero is no request", {"containers": [asks("0")]}, {}),
    ("fractions of a milli-core are rounded up", {"containers": [asks("0.0001")]}, {"cpu": 1}),
    (
        "bytes are rounded up",
        {"containers": [{"name": "a", "resources": {"requests": {"memory": "1.5"}}}]},
        {"memory": 2},
    ),
    (
        "amounts beyond 2^53 stay exact",
        {"containers": [{"name": "a", "resources": {"requests": {"memory": "9007199254740993"}}}]},
        {"memory": 9007199254740993},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "want"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_request_of_a_pending_pod(spec: dict[str, Any], want: dict[str, int]) -> None:
    assert pod_requests(pod(spec)) == want


def test_a_running_pod_counts_what_the_kubelet_gave_it_during_a_resize() -> None:
    spec = {"nodeName": "n", "containers": [asks("2", name="a")]}
    status = {"containerStatuses": [{"name": "a", "allocatedResources": {"cpu": "3"},
                                     "resources": {"requests": {"cpu": "1"}}}]}  # fmt: skip
    assert pod_requests(pod(spec, status)) == {"cpu": 3000}
    infeasible = {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}
    bigger = {"nodeName": "n", "containers": [asks("9", name="a")]}
    assert pod_requests(pod(bigger, {**status, **infeasible})) == {"cpu": 3000}
    assert pod_requests(pod(bigger, status)) == {"cpu": 9000}


def test_the_status_of_a_pending_pod_does_not_count() -> None:
    status = {"containerStatuses": [{"name": "a", "resources": {"requests": {"cpu": "7"}}}]}
    assert pod_requests(pod({"containers": [asks("1", name="a")]}, status)) == {"cpu": 1000}


def test_scores_weigh_a_container_that_asks_for_nothing() -> None:
    bare = {"name": "a", "resources": {}}
    assert score_requests(pod({"containers": [bare, asks("1")]})) == (1100, 2 * 200 * 2**20)
    assert score_requests(pod({"containers": [asks("0")]})) == (0, 200 * 2**20)


def test_an_init_container_that_is_over_is_not_resized() -> None:
    spec = {"nodeName": "n", "containers": [asks("1", name="a")],
            "initContainers": [asks("2", name="once"), asks("1", name="beside", restartPolicy="Always")]}  # fmt: skip
    status = {"initContainerStatuses": [{"name": name, "resources": {"requests": {"cpu": "8"}}}
                                        for name in ("once", "beside")]}  # fmt: skip
    assert pod_requests(pod(spec, status)) == {"cpu": 9000}


def test_scores_weigh_what_the_kubelet_gave() -> None:
    spec = {"nodeName": "n", "containers": [asks("1", name="a")]}
    status = {"containerStatuses": [{"name": "a", "resources": {"requests": {"cpu": "3"}}}]}
    assert score_requests(pod(spec, status)) == (3000, 200 * 2**20)


def test_scores_take_what_the_whole_pod_asks_for() -> None:
    bare = {"name": "a", "resources": {}}
    assert score_requests(pod({"containers": [bare, asks("1")], "resources": {"requests": {"cpu": "3"}}})) == (
        3000,
        2 * 200 * 2**20,
    )
    assert score_requests(pod({"containers": [bare, asks("1")], "resources": {"requests": {"memory": "1Gi"}}})) == (
        1000,
        2**30,
    )


def test_an_unreadable_quantity_is_named() -> None:
    with pytest.raises(ValueError, match=r"nvidia\.com/gpu.*whole"):
        pod_requests(pod({"containers": [{"name": "a", "resources": {"requests": {"nvidia.com/gpu": "500m"}}}]}))


def test_capacity_counts_only_where_allocatable_is_absent() -> None:
    both = {"capacity": {"cpu": "8", "pods": "110"}, "allocatable": {"cpu": "7"}}
    for status, want in ((both, {"cpu": 7000}), ({"capacity": {"cpu": "8"}}, {"cpu": 8000})):
        assert node_allocatable(msgspec.convert({"metadata": {"name": "n"}, "status": status}, Node)) == want
