# SPDX-License-Identifier: Apache-2.0
"""Answers admission reviews of pods: adds the variables from which the containers of a GPU pod read their GPUs.

The functions are pure: they compute the answer from the AdmissionReview. `devices/gpu/gpu_variables.py` decides which
variables a container gets. Only fields that matter for the answer are decoded, because a review may have megabytes of
other fields. Rules: gpu-topology.md 10, `env`.
"""

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from types import GenericAlias
from typing import Any

import msgspec
import orjson

from koordpy.api import keys
from koordpy.api.objects import Container, Pod, PodSpec, ResourceRequirements
from koordpy.api.quantity import RawQuantity
from koordpy.api.reading_limits import CONTAINERS, too_many
from koordpy.devices.gpu.gpu_machine import gpu_ask
from koordpy.devices.gpu.gpu_variables import NAMES, VOID, expected

API_VERSION = "admission.k8s.io/v1"
PLACES = {"initContainers": keys.INIT_PREFIX}
FIELDS = {
    "initContainers": "init_containers",
    "containers": "containers",
    "ephemeralContainers": "ephemeral_containers",
}


class ReviewError(ValueError):
    """The request is not an AdmissionReview of the expected kind of object."""


class _Container(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    env: msgspec.Raw = msgspec.Raw(b"[]")
    resources: Any = None
    restart_policy: str | None = None

    def typed(self) -> Container:
        """Returns the container with only the fields that matter for GPUs."""
        given = self.resources
        sides = ({}, {}) if given is None else (_named(given.requests), _named(given.limits))
        return Container(self.name, resources=ResourceRequirements(*sides), restart_policy=self.restart_policy or "")


class _Variable(msgspec.Struct, gc=False):
    name: str = ""
    value: Any = None


_variables = msgspec.json.Decoder(list[_Variable]).decode


def _named(amounts: Any) -> dict[str, RawQuantity]:
    fields = msgspec.structs.fields(amounts) if amounts is not None else ()
    found = {field.encode_name: getattr(amounts, field.name) for field in fields}
    return {name: amount for name, amount in found.items() if amount is not None}


@lru_cache(4)
def _reader(resources: tuple[str, ...]) -> Callable[[bytes], Any]:
    """Returns a decoder for reviews that skips all unused fields. resources: names of the GPU resources."""

    def struct(name: str, **fields: Any) -> Any:
        return msgspec.defstruct(name, [(field, kind | None, None) for field, kind in fields.items()], rename="camel")

    amounts = [
        (f"r{i}", RawQuantity | None, msgspec.field(name=name, default=None)) for i, name in enumerate(resources)
    ]
    of_each = msgspec.defstruct("Amounts", amounts, gc=False)
    given = struct("Resources", requests=of_each, limits=of_each)
    asking = [("resources", given | None, None)]
    each = GenericAlias(list, msgspec.defstruct("Asking", asking, bases=(_Container,), rename="camel", gc=False))
    spec = struct("Spec", **dict.fromkeys(FIELDS.values(), each))
    request = struct("Request", uid=str, object=struct("Object", spec=spec))
    return msgspec.json.Decoder(struct("Review", request=request)).decode


def answer(review: bytes, resources: Collection[str]) -> dict[str, Any]:
    """Returns the AdmissionReview that answers a review. Raises ReviewError."""
    try:
        request = _reader(tuple(resources))(review).request
    except (ValueError, RecursionError) as fault:
        raise ReviewError(f"{fault}") from None
    if request is None or not request.uid or request.object is None:
        raise ReviewError("no request with uid and object")
    spec = request.object.spec
    places = {field: getattr(spec, attribute, None) or [] for field, attribute in FIELDS.items()}
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if many := too_many(sum(map(len, places.values())), CONTAINERS, "containers"):
        return reviewed(response | forbidden(f"spec: {many}"))
    typed = {field: [one.typed() for one in places[field]] for field in FIELDS}
    pod = Pod(spec=PodSpec(containers=typed["containers"], init_containers=typed["initContainers"]))
    try:
        asks = gpu_ask(pod, resources) is not None
    except ValueError as fault:
        raise ReviewError(f"request.object: {fault}") from None
    if asks:
        if wrong := _literal(places):
            response |= forbidden(wrong)
        elif patch := injection(places, typed, resources):
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(patch)).decode()}
    return reviewed(response)


def reviewed(response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an AdmissionReview with a response."""
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def forbidden(why: str) -> dict[str, Any]:
    """Returns the fields of an AdmissionReview's response that reject the request."""
    return {"allowed": False, "status": {"code": 403, "reason": "Forbidden", "message": why}}


def injection(
    places: Mapping[str, Sequence[_Container]], typed: Mapping[str, Sequence[Container]], resources: Collection[str]
) -> list[dict[str, Any]]:
    """Returns the JSON patch that adds missing variables to each container of a GPU pod; empty if none is missing.

    places: field of the pod's spec -> its containers. typed: the same containers with the fields that matter for GPUs.
    """
    patch: list[dict[str, Any]] = []
    for field, containers in places.items():
        for number, container in enumerate(containers):
            wanted = expected(typed[field][number], f"{PLACES.get(field, '')}{number}", resources)
            variables = [msgspec.to_builtins(one) for one in wanted]
            path = f"/spec/{field}/{number}/env"
            if not any(one.name in NAMES for one in _set_in(container)):
                # only append, because the existing environment may have megabytes
                ours = [{"op": "add", "path": f"{path}/-", "value": one} for one in variables]
                patch += ours if _env(container) else [{"op": "add", "path": path, "value": variables}]
                continue
            env, names = orjson.loads(_env(container)), {one["name"] for one in variables}
            new = [*(one for one in env if one.get("name") not in names), *variables]
            if new != env:
                patch.append({"op": "add", "path": path, "value": new})
    return patch


def _env(container: _Container) -> bytes:
    """Returns the encoded environment; empty if it has no variables. Raises ReviewError if it is not a list."""
    raw = bytes(container.env).strip()
    if raw[:1] not in (b"[", b"n"):
        raise ReviewError("request.object: env is not a list")
    return b"" if raw[1:].strip() in (b"]", b"ull") else raw


def _set_in(container: _Container) -> Sequence[_Variable]:
    """Returns the variables of a container if its text contains one of `NAMES`, else none. Raises ReviewError."""
    raw = _env(container)
    if not raw or not (b"\\" in raw or any(name.encode() in raw for name in NAMES)):
        return ()
    try:
        return _variables(raw)
    except ValueError as fault:
        raise ReviewError(f"request.object: env: {fault}") from None


def _literal(places: Mapping[str, Sequence[_Container]]) -> str:
    """Returns the error for a GPU pod that selects its GPUs itself by these variables; empty if it does not.

    The value `void`, which makes no GPU visible, is allowed.
    """
    for field, containers in places.items():
        for number, container in enumerate(containers):
            for one in _set_in(container):
                if one.name in NAMES and one.value not in (None, "", VOID):
                    return f"spec.{field}[{number}].env: GPU pods do not set {one.name}: the scheduler chooses the GPUs"
    return ""
