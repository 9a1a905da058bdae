# SPDX-License-Identifier: Apache-2.0
"""What the admission webhook answers, and that its answer is what the scheduler asks for."""

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from koordpy.api.keys import GPU_RESOURCES
from koordpy.api.objects import Pod
from koordpy.devices.gpu.gpu_variables import is_injected
from koordpy.operator.gpu_injection import ReviewError, answer
from koordpy.operator.webhook import Webhook
from tests.cluster.test_hostile import CALLS_A_BYTE, calls_of


def container(gpus: int = 0, **fields: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"name": "c", "image": "x", "resources": {"limits": limits}, **fields}


def review(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "object": pod}}


def patched(asked: dict[str, Any]) -> dict[str, Any]:
    """The pod with the answer's patch applied."""
    response = answer(json.dumps(asked).encode(), GPU_RESOURCES)["response"]
    assert response["allowed"], response
    pod: dict[str, Any] = json.loads(json.dumps(asked["request"]["object"]))
    for change in json.loads(base64.b64decode(response.get("patch", "W10="))):
        assert change["op"] == "add"
        _, spec, field, number, env, *end = change["path"].split("/")
        if end:
            assert end == ["-"]
            pod[spec][field][int(number)][env].append(change["value"])
        else:
            pod[spec][field][int(number)][env] = change["value"]
    return pod


def variables(one: dict[str, Any]) -> dict[str, str]:
    return {
        e["name"]: e["value"] if "value" in e else e["valueFrom"]["fieldRef"]["fieldPath"] for e in one.get("env", [])
    }


VISIBLE = "metadata.annotations['topology.scheduling.koordinator.sh/nvidia-visible-devices']"
CUDA = "metadata.annotations['topology.scheduling.koordinator.sh/cuda-visible-devices.{}']"


def test_each_container_gets_the_variables_of_its_place() -> None:
    asked = review(
        container(2),
        container(),
        container(1, env=[{"name": "A", "value": "b"}]),
        initContainers=[container(1), container()],
        ephemeralContainers=[{"name": "e", "image": "x"}],
    )
    spec = patched(asked)["spec"]
    assert variables(spec["containers"][0]) == {
        "NVIDIA_VISIBLE_DEVICES": VISIBLE,
        "CUDA_VISIBLE_DEVICES": CUDA.format(0),
    }
    assert variables(spec["containers"][1]) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert variables(spec["containers"][2])["A"] == "b"
    assert variables(spec["containers"][2])["CUDA_VISIBLE_DEVICES"] == CUDA.format(2)
    assert variables(spec["initContainers"][0]) == {
        "NVIDIA_VISIBLE_DEVICES": VISIBLE,
        "CUDA_VISIBLE_DEVICES": CUDA.format("init-0"),
    }
    assert variables(spec["initContainers"][1]) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert variables(spec["ephemeralContainers"][0]) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_what_is_injected_is_what_the_scheduler_asks_for_and_a_second_answer_changes_nothing() -> None:
    pod = patched(review(container(1), container(), initContainers=[container(1)]))
    assert is_injected(msgspec.convert(pod, Pod), GPU_RESOURCES)
    again = {"request": {"uid": "u", "object": pod}}
    assert "patch" not in answer(json.dumps(again).encode(), GPU_RESOURCES)["response"]


def test_a_pod_without_gpus_stays_as_it_is() -> None:
    assert answer(json.dumps(review(container())).encode(), GPU_RESOURCES)["response"] == {"uid": "u", "allowed": True}


def test_a_gpu_pod_that_names_its_gpus_is_refused_by_container() -> None:
    asked = review(container(1), container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]))
    response = answer(json.dumps(asked).encode(), GPU_RESOURCES)["response"]
    assert not response["allowed"]
    assert response["status"]["message"].startswith(
        "spec.containers[1].env: GPU pods do not set NVIDIA_VISIBLE_DEVICES"
    )


def test_a_variable_that_stands_twice_ends_as_ours() -> None:
    other = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
    (one,) = patched(review(container(1, env=[other, other])))["spec"]["containers"]
    assert [e["name"] for e in one["env"]] == ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
    assert variables(one)["NVIDIA_VISIBLE_DEVICES"] == VISIBLE


@pytest.mark.parametrize(
    "body", [{}, {"request": {}}, {"request": {"uid": "u"}}, {"request": {"uid": "u", "object": []}}]
)
def test_what_is_no_review_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ReviewError):
        answer(json.dumps(body).encode(), GPU_RESOURCES)


async def test_without_a_certificate_it_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        await Webhook("127.0.0.1:0", tmp_path, resources=GPU_RESOURCES).start()
    (tmp_path / "tls.crt").write_text("x")
    (tmp_path / "tls.key").write_text("x")
    with pytest.raises(OSError, match="cannot be used"):
        await Webhook("127.0.0.1:0", tmp_path, resources=GPU_RESOURCES).start()


def odd(**container: Any) -> bytes:
    return json.dumps(review({"resources": {"limits": {"nvidia.com/gpu": 1}}, **container})).encode()


ODD = [
    b"", b"[]", b"null", b"5", b'"x"', b"{", b"\xff", b'{"request": []}', b'{"request": {"uid": "u", "object": []}}',
    b'{"request": {"uid": "u", "object": {}}}', b'{"request": {"uid": "u", "object": {"spec": null}}}',
    b'{"request": {"uid": "u", "object": {"spec": {"containers": [5]}}}}', json.dumps(review(*[7] * 600_000)).encode(),  # type: ignore[arg-type]
    odd(resources={"limits": {"nvidia.com/gpu": "zz"}}), odd(env=5), odd(env=["x"]), odd(env=[[]]), odd(env={"a": 1}),
    b"[" * 100_000, b'{"a":' * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
async def test_odd_bodies_are_answered_and_never_an_error_of_ours(body: bytes, tmp_path: Path) -> None:
    hook = Webhook("127.0.0.1:0", tmp_path, resources=GPU_RESOURCES)
    refused: list[tuple[str, str]] = []
    hook.on_refused = lambda kind, reason: refused.append((kind, reason))

    async def read() -> bytes:
        return body

    request: Any = SimpleNamespace(read=read, content_length=len(body), remote="10.0.0.1")
    said = ""
    try:
        assert (await hook._mutate(request)).status == 200
    except web.HTTPBadRequest as fault:
        said = fault.text or ""
    assert len(said) <= 1001
    assert refused == ([("Pod", "BadRequest")] if said else [])


async def test_a_refusal_is_counted(tmp_path: Path) -> None:
    hook = Webhook("127.0.0.1:0", tmp_path, resources=GPU_RESOURCES)
    refused: list[tuple[str, str]] = []
    hook.on_refused = lambda kind, reason: refused.append((kind, reason))
    for own in (container(1), container(1, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])):
        body = json.dumps(review(own)).encode()

        async def read(body: bytes = body) -> bytes:
            return body

        request: Any = SimpleNamespace(read=read, content_length=len(body), remote="10.0.0.1")
        assert (await hook._mutate(request)).status == 200
    assert refused == [("Pod", "Forbidden")]


LARGE: dict[str, dict[str, Any]] = {
    "containers": review(*[container(1)] * 40_000),
    "sidecars": review(container(1), initContainers=[container(1, restartPolicy="Always")] * 40_000),
    "containers without devices": review(*[container()] * 40_000),
    "a thousand of them": review(*[container(1, env=[{"name": "A", "value": "b" * 3_000}])] * 1_000),
    "variables": review(container(1, env=[{"name": f"V{i}", "value": "x"} for i in range(90_000)])),
    "resources": review(container(1, resources={"limits": {f"example.com/r{i}": "1" for i in range(100_000)}})),
    "fields that nobody knows": review(container(1), **{f"u{i}": [[]] * 3 for i in range(100_000)}),
    "null": review(container(1), tolerations=[{"key": f"k{i}", "operator": None} for i in range(60_000)]),
}


@pytest.mark.parametrize("which", LARGE)
def test_a_review_of_megabytes_is_answered_in_work_bounded_by_its_bytes(which: str) -> None:
    raw = json.dumps(LARGE[which]).encode()
    said: list[dict[str, Any]] = []
    calls = calls_of(lambda: said.append(answer(raw, GPU_RESOURCES)))
    assert calls < 1_000 + CALLS_A_BYTE * len(raw)
    [response] = [one["response"] for one in said]
    assert len(json.dumps(response)) < max(2_000, len(raw) / 2)
    assert response["allowed"] is (not which.startswith(("containers", "sidecars")))
    if not response["allowed"]:
        assert response["status"]["message"].endswith("containers, at most 1000 are read")
