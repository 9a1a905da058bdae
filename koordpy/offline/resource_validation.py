"""What kube-apiserver 1.36 refuses of the resources that a pod asks for (ValidateContainerResources and
validatePodResources of k8s.io/kubernetes): extended resources and huge pages cannot be overcommitted.

Amounts that cannot be read, such as half a GPU, are faults of the input already. Source: simulate.md 1.3.
"""

from collections.abc import Iterator

from koordpy.api.field_faults import Fault, key_path
from koordpy.api.objects import PodSpec, ResourceRequirements
from koordpy.api.quantity import is_extended, parse_exact

REFUSES = "an API server refuses it"
_OF_PODS = ("cpu", "memory")
_OF_CONTAINERS = (*_OF_PODS, "ephemeral-storage")


def refused_resources(spec: PodSpec) -> Iterator[Fault]:
    """The fields of a pod's resources that an API server refuses, each with its reason."""
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for i, one in enumerate(containers):
            if one.resources.limits or one.resources.requests:
                path, who = f"spec.{field}[{i}].resources", f"container {one.name}"
                yield from _refused(one.resources, path, who, alone=spec.resources is None)
    if spec.resources is not None:
        yield from _refused(spec.resources, "spec.resources", "the pod")


def _refused(given: ResourceRequirements, path: str, who: str, *, alone: bool = False) -> Iterator[Fault]:
    """alone: whether it is a container of a pod without resources at pod level."""
    of_pod = path == "spec.resources"
    known = _OF_PODS if of_pod else _OF_CONTAINERS
    for side, amounts in (("limits", given.limits), ("requests", given.requests)):
        for name in amounts:
            at = key_path(f"{path}.{side}", name)
            if _is_huge(name) or name in known:
                continue
            if of_pod:
                yield Fault(
                    at, f"resources of a pod are cpu, memory and hugepages-*, {name} is of its containers: {REFUSES}"
                )
            elif "/" not in name:
                yield Fault(at, f"{who} asks for {name}, which is no resource of containers: {REFUSES}")
    for name, asked in given.requests.items():
        limit, at = given.limits.get(name), key_path(f"{path}.requests", name)
        strict = is_extended(name) or _is_huge(name)
        if of_pod and is_extended(name):
            continue
        if limit is None:
            if strict:
                there = key_path(f"{path}.limits", name)
                yield Fault(at, f"{who} asks for {name} without a limit, {there} must be equal: {REFUSES}")
        elif strict and parse_exact(asked) != parse_exact(limit):
            yield Fault(at, f"{who} asks for {asked} of {name} with a limit of {limit}, they must be equal: {REFUSES}")
        elif parse_exact(asked) > parse_exact(limit):
            yield Fault(at, f"{who} asks for {asked} of {name}, more than its limit of {limit}: {REFUSES}")
    every = {*given.requests, *given.limits}
    if alone and any(map(_is_huge, every)) and not every & {"cpu", "memory"}:
        yield Fault(path, f"{who} asks for huge pages without cpu or memory: {REFUSES}")


def _is_huge(name: str) -> bool:
    return name.startswith("hugepages-")
