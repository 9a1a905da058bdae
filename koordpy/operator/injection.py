"""What the admission webhook answers: the variables that a GPU pod's containers read their GPUs from.

Source: gpu-topology.md 10, `env`. Pure: an AdmissionReview in, its answer out. The rule itself, which variable
a container gets, is koordpy.cluster.gpu_env's, which `simulate` and the scheduler's own check use, too.
"""

import base64
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import orjson

from koordpy.api import keys
from koordpy.api.limits import CONTAINERS, too_many
from koordpy.api.objects import Container, Pod
from koordpy.api.wirejson import Undecodable, read_plain
from koordpy.cluster.gpu_env import NAMES, VOID, expected
from koordpy.cluster.gpus import gpu_ask

API_VERSION = "admission.k8s.io/v1"
FORBIDDEN = 403
PLACES = {"initContainers": keys.INIT_PREFIX}
FIELDS = ("initContainers", "containers", "ephemeralContainers")


class ReviewError(ValueError):
    """The request is no AdmissionReview of a pod."""


def answer(review: Any, resources: Collection[str]) -> dict[str, Any]:
    """The AdmissionReview that answers another. Raises ReviewError."""
    request = review.get("request") if isinstance(review, Mapping) else None
    if not isinstance(request, Mapping) or not request.get("uid") or not isinstance(request.get("object"), Mapping):
        raise ReviewError("no request with uid and object")
    pod = request["object"]
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    if many := too_many(_containers(pod), CONTAINERS, "containers"):
        return _reviewed(response | _forbidden(f"spec: {many}"))
    try:
        named = read_plain(pod, Pod)
    except Undecodable as fault:
        raise ReviewError(f"request.object: {fault}") from None
    if gpu_ask(named, resources) is not None:
        if wrong := _literal(pod):
            response |= _forbidden(wrong)
        elif patch := injection(pod, resources):
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(patch)).decode()}
    return _reviewed(response)


def _reviewed(response: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _forbidden(why: str) -> dict[str, Any]:
    return {"allowed": False, "status": {"code": FORBIDDEN, "reason": "Forbidden", "message": why}}


def _containers(pod: Mapping[str, Any]) -> int:
    spec = pod.get("spec")
    lists = [spec.get(field) for field in FIELDS] if isinstance(spec, Mapping) else []
    return sum(len(one) for one in lists if isinstance(one, list))


def injection(pod: Mapping[str, Any], resources: Collection[str]) -> list[dict[str, Any]]:
    """JSON patch that gives every container of a GPU pod its variables; empty where all have them already."""
    spec = pod["spec"]
    patch = []
    for field in FIELDS:
        for number, container in enumerate(spec.get(field) or ()):
            typed = read_plain({"resources": container.get("resources")}, Container)
            wanted = expected(typed, f"{PLACES.get(field, '')}{number}", resources)
            variables = [msgspec.to_builtins(one) for one in wanted]
            env, path = container.get("env") or [], f"/spec/{field}/{number}/env"
            if env and not _set_in(env, [one["name"] for one in variables]):
                # what is there is not said again: it may be megabytes
                patch += [{"op": "add", "path": f"{path}/-", "value": one} for one in variables]
                continue
            names = {one["name"] for one in variables}
            new = [*(one for one in env if one.get("name") not in names), *variables]
            if new != env:
                patch.append({"op": "add", "path": path, "value": new})
    return patch


def _set_in(env: list[Mapping[str, Any]], names: Collection[str]) -> bool:
    """Whether an environment has a variable of these names."""
    there = [one.get("name") for one in env]
    return any(name in there for name in names)


def _literal(pod: Mapping[str, Any]) -> str:
    """What is wrong with a GPU pod that names its GPUs itself; `void`, which gives none, may stand."""
    for field in FIELDS:
        for number, container in enumerate(pod["spec"].get(field) or ()):
            env = container.get("env") or []
            for one in env if _set_in(env, NAMES) else ():
                if one.get("name") in NAMES and one.get("value") not in (None, "", VOID):
                    return (
                        f"spec.{field}[{number}].env: GPU pods do not set {one['name']}: the scheduler chooses the GPUs"
                    )
    return ""
