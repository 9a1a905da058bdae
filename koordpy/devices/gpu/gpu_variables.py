# SPDX-License-Identifier: Apache-2.0
"""Delivery by environment: the variables from which containers of a GPU pod read their GPUs (gpu-topology.md 10).

The variables refer to annotations of the pod through the downward API, because the GPUs are known only when the
scheduler has bound the pod. The admission webhook injects them, and `simulate` does the same. The scheduler does not
bind a GPU pod without them to a node that delivers by env, because an image may set `NVIDIA_VISIBLE_DEVICES=all`.
"""

from collections.abc import Collection

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Container, EnvVar, EnvVarSource, FieldRef, Pod
from koordpy.devices.gpu.gpu_machine import gpu_ask

VOID = "void"
"""Value that gives a container no GPU."""
NAMES = (keys.NVIDIA_VISIBLE_DEVICES, keys.CUDA_VISIBLE_DEVICES)
"""Names of the variables."""


def field_path(annotation: str) -> str:
    """Returns the path of an annotation for the downward API."""
    return f"metadata.annotations['{annotation}']"


def _from_annotation(name: str, annotation: str) -> EnvVar:
    """Returns a variable with the value of an annotation of the pod."""
    return EnvVar(name=name, value_from=EnvVarSource(field_ref=FieldRef(field_path=field_path(annotation))))


def expected(container: Container, place: str, resources: Collection[str]) -> tuple[EnvVar, ...]:
    """Returns the variables that a container of a GPU pod must have.

    place: index of the container; for an init container, INIT_PREFIX and its index.
    """
    given = container.resources
    if not any(name in resources for name in (*given.requests, *given.limits)):
        return (EnvVar(name=keys.NVIDIA_VISIBLE_DEVICES, value=VOID),)
    own = f"{keys.GPU_CUDA_VISIBLE_PREFIX}{place}"
    return _from_annotation(keys.NVIDIA_VISIBLE_DEVICES, keys.GPU_NVIDIA_VISIBLE), _from_annotation(
        keys.CUDA_VISIBLE_DEVICES, own
    )


def _container_places(pod: Pod) -> list[tuple[Container, str]]:
    """Returns (container, place) of the init containers, then the containers. place: see `expected`."""
    inits = [(c, f"{keys.INIT_PREFIX}{i}") for i, c in enumerate(pod.spec.init_containers)]
    return [*inits, *((c, str(i)) for i, c in enumerate(pod.spec.containers))]


def is_injected(pod: Pod, resources: Collection[str]) -> bool:
    """Returns whether every container has the variables as the webhook injects them; of equal names the last one
    applies."""
    for container, place in _container_places(pod):
        have = {one.name: one for one in container.env if one.name in NAMES}
        for one in expected(container, place, resources):
            found = have.get(one.name)
            if found is None or (found.value, found.value_from) != (one.value, one.value_from):
                return False
    return True


def inject(pod: Pod, resources: Collection[str]) -> Pod:
    """Returns the pod as the webhook changes it; a pod without GPUs is unchanged."""
    if gpu_ask(pod, resources) is None:
        return pod
    filled: list[Container] = []
    for container, place in _container_places(pod):
        new = expected(container, place, resources)
        names = {one.name for one in new}
        filled.append(replace(container, env=[*(one for one in container.env if one.name not in names), *new]))
    inits = len(pod.spec.init_containers)
    return replace(pod, spec=replace(pod.spec, containers=filled[inits:], init_containers=filled[:inits]))
