"""Delivery by environment: the variables that a GPU pod's containers read their GPUs from (gpu-topology.md section 10).

The admission webhook injects them and `simulate` does as it would; the scheduler binds no GPU pod to a node that
delivers by env without them, for an image may bring `NVIDIA_VISIBLE_DEVICES=all`.
"""

from collections.abc import Collection

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Container, EnvVar, EnvVarSource, FieldRef, Pod
from koordpy.cluster.gpus import gpu_ask

VOID = "void"
"""Value that gives a container no GPU."""
NAMES = (keys.NVIDIA_VISIBLE_DEVICES, keys.CUDA_VISIBLE_DEVICES)


def field_path(annotation: str) -> str:
    """The path of an annotation for the downward API."""
    return f"metadata.annotations['{annotation}']"


def _from(name: str, annotation: str) -> EnvVar:
    return EnvVar(name=name, value_from=EnvVarSource(field_ref=FieldRef(field_path=field_path(annotation))))


def expected(container: Container, index: int | None, resources: Collection[str]) -> tuple[EnvVar, ...]:
    """What a container of a GPU pod is to have. index: its place in spec.containers, None for an init container."""
    given = container.resources
    if not any(name in resources for name in (*given.requests, *given.limits)):
        return (EnvVar(name=keys.NVIDIA_VISIBLE_DEVICES, value=VOID),)
    visible = _from(keys.NVIDIA_VISIBLE_DEVICES, keys.GPU_NVIDIA_VISIBLE)
    if index is None:
        return (visible,)
    return visible, _from(keys.CUDA_VISIBLE_DEVICES, f"{keys.GPU_CUDA_VISIBLE_PREFIX}{index}")


def is_injected(pod: Pod, resources: Collection[str]) -> bool:
    """Whether every container has the variables as the webhook injects them; the last of a name counts."""
    spec = pod.spec
    places = [*((c, None) for c in spec.init_containers), *((c, i) for i, c in enumerate(spec.containers))]
    for container, index in places:
        have = {one.name: one for one in container.env if one.name in NAMES}
        for one in expected(container, index, resources):
            found = have.get(one.name)
            if found is None or (found.value, found.value_from) != (one.value, one.value_from):
                return False
    return True


def inject(pod: Pod, resources: Collection[str]) -> Pod:
    """The pod as the webhook leaves it; one without GPUs stays as it is."""
    if gpu_ask(pod, resources) is None:
        return pod
    spec = pod.spec

    def filled(container: Container, index: int | None) -> Container:
        new = expected(container, index, resources)
        names = {one.name for one in new}
        return replace(container, env=[*(one for one in container.env if one.name not in names), *new])

    containers = [filled(container, i) for i, container in enumerate(spec.containers)]
    inits = [filled(container, None) for container in spec.init_containers]
    return replace(pod, spec=replace(spec, containers=containers, init_containers=inits))
