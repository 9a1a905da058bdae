# SPDX-License-Identifier: Apache-2.0
"""Finds resource requests that kube-apiserver 1.36 rejects, such as an extended resource without a limit.

The rules are those of ValidateContainerResources and validatePodResources in k8s.io/kubernetes. Unreadable amounts,
such as half a GPU, are reported elsewhere, as faults of the input. Rules: simulate.md 1.3.
"""

from collections.abc import Iterator

from koordpy.api.field_faults import Fault, key_path
from koordpy.api.objects import PodSpec, ResourceRequirements
from koordpy.api.quantity import is_extended, parse_exact

REFUSES = "the API server would reject it"
_OF_PODS = ("cpu", "memory")
_OF_CONTAINERS = (*_OF_PODS, "ephemeral-storage")


def refused_resources(spec: PodSpec) -> Iterator[Fault]:
    """Yields a fault for each field of a pod's resources that an API server rejects."""
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for i, one in enumerate(containers):
            if one.resources.limits or one.resources.requests:
                path, subject = f"spec.{field}[{i}].resources", f"container {one.name}"
                yield from _refused(one.resources, path, subject, alone=spec.resources is None)
    if spec.resources is not None:
        yield from _refused(spec.resources, "spec.resources", "the pod")


def _refused(given: ResourceRequirements, path: str, subject: str, *, alone: bool = False) -> Iterator[Fault]:
    """Yields the faults of one container's or the pod's resources.

    alone: True for a container of a pod that has no pod-level resources.
    """
    of_pod = path == "spec.resources"
    known = _OF_PODS if of_pod else _OF_CONTAINERS
    for side, amounts in (("limits", given.limits), ("requests", given.requests)):
        for name in amounts:
            at = key_path(f"{path}.{side}", name)
            if _is_huge(name) or name in known:
                continue
            if of_pod:
                yield Fault(
                    at, f"resources of a pod are cpu, memory and hugepages-*; set {name} on a container: {REFUSES}"
                )
            elif "/" not in name:
                yield Fault(at, f"{subject} requests {name}, which is not a container resource: {REFUSES}")
    for name, asked in given.requests.items():
        limit, at = given.limits.get(name), key_path(f"{path}.requests", name)
        strict = is_extended(name) or _is_huge(name)
        if of_pod and is_extended(name):
            continue
        if limit is None:
            if strict:
                there = key_path(f"{path}.limits", name)
                yield Fault(at, f"{subject} requests {name} without a limit; {there} must be equal: {REFUSES}")
        elif strict and parse_exact(asked) != parse_exact(limit):
            text = f"{subject} requests {asked} of {name} with a limit of {limit}; they must be equal: {REFUSES}"
            yield Fault(at, text)
        elif parse_exact(asked) > parse_exact(limit):
            yield Fault(at, f"{subject} requests {asked} of {name}, more than its limit of {limit}: {REFUSES}")
    every = {*given.requests, *given.limits}
    if alone and any(map(_is_huge, every)) and not every & {"cpu", "memory"}:
        yield Fault(path, f"{subject} requests huge pages without cpu or memory: {REFUSES}")


def _is_huge(name: str) -> bool:
    return name.startswith("hugepages-")
