# SPDX-License-Identifier: Apache-2.0
"""Sets the fields that an API server sets when it stores an object: uid, creation time, priority and defaults.

Defaults are set for pods, nodes and namespaces. Simulations and the embedded API server of the demo
(`koordpy.apiserver.write_rules`) use this module. Source: simulate.md 1.3 and kube-parity.md section 2.5.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import (
    Affinity,
    Container,
    KubernetesObject,
    LabelSelector,
    Namespace,
    Node,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PriorityClass,
    Quantities,
    Requirement,
    ResourceRequirements,
)
from koordpy.api.pod_groups import UpstreamPodGroup
from koordpy.api.times import exact_time
from koordpy.api.uids import made_up_uid

T = TypeVar("T", bound=KubernetesObject)

PREEMPT = keys.PREEMPT_LOWER_PRIORITY
"""Default preemptionPolicy."""
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"


def with_identity(obj: T, *, kind: str, created: datetime | None) -> T:
    """Returns the object with uid and creationTimestamp, generated if missing. created: None to set no time."""
    meta = obj.metadata
    changes: dict[str, Any] = {}
    if not meta.uid:
        changes["uid"] = made_up_uid(kind, meta.namespace, meta.name)
    if not meta.creation_timestamp and created is not None:
        changes["creation_timestamp"] = exact_time(created)
    return replace(obj, metadata=replace(meta, **changes)) if changes else obj


def creation_times(count: int, now: datetime) -> list[datetime]:
    """Returns generated times of `count` objects in order: one second apart, the last one at `now`."""
    return [now - timedelta(seconds=count - 1 - i) for i in range(count)]


# -- priority ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Priorities:
    """The PriorityClasses of the input, and the built-in ones."""

    classes: Mapping[str, PriorityClass]
    """Name -> class."""
    default: PriorityClass | None
    """The global default, for pods without a class and without a priority; None if there is none."""

    @classmethod
    def from_classes(cls, given: Iterable[PriorityClass]) -> "Priorities":
        """Reads the PriorityClasses. If several are global defaults, the lowest applies, as in the API server."""
        classes = {name: PriorityClass(value=value) for name, value in keys.SYSTEM_PRIORITIES.items()}
        classes |= {item.metadata.name: item for item in given}
        defaults = sorted((c for c in classes.values() if c.global_default), key=lambda c: (c.value, c.metadata.name))
        return cls(classes, defaults[0] if defaults else None)

    def of_pod(self, spec: PodSpec) -> tuple[int, str] | None:
        """Returns (priority, preemptionPolicy) of a pod; None if its class is unknown and the spec has no priority.

        A priority in the spec was set by an API server, and has precedence over the class.
        """
        name = spec.priority_class_name
        found = self.classes.get(name) if name else self.default if spec.priority is None else None
        if name and found is None and spec.priority is None:
            return None
        value = spec.priority if spec.priority is not None else found.value if found is not None else 0
        policy = spec.preemption_policy or (found.preemption_policy if found is not None else "") or PREEMPT
        return value, policy


# -- pods -------------------------------------------------------------------------------------------------------------


def filled_pod(pod: Pod, priorities: Priorities) -> Pod | None:
    """Returns a pod with defaults; None if its PriorityClass is unknown."""
    spec = pod.spec
    ranked = priorities.of_pod(spec)
    if ranked is None:
        return None
    changes: dict[str, Any] = {"priority": ranked[0], "preemption_policy": ranked[1]}
    for name in ("containers", "init_containers"):
        containers: list[Container] = getattr(spec, name)
        filled = [_container(container, spec.host_network) for container in containers]
        if any(new is not old for new, old in zip(filled, containers, strict=True)):
            changes[name] = filled
    if spec.affinity is not None:
        changes["affinity"] = _affinity(spec.affinity, pod.metadata.labels)
    if spec.resources is not None and spec.resources.limits:
        containers = [
            *changes.get("containers", spec.containers),
            *changes.get("init_containers", spec.init_containers),
        ]
        changes["resources"] = _pod_level(spec.resources, containers)
    status = pod.status if pod.status.phase else replace(pod.status, phase="Pending")
    return replace(pod, spec=replace(spec, **changes), status=status)


def _container(container: Container, host_network: bool) -> Container:
    """Returns a container with defaults: requests from limits, and host ports with hostNetwork."""
    changes: dict[str, Any] = {}
    given = container.resources
    if given.limits and not given.limits.keys() <= given.requests.keys():
        changes["resources"] = replace(given, requests={**given.limits, **given.requests})
    if host_network and any(not port.host_port for port in container.ports):
        changes["ports"] = [
            port if port.host_port else replace(port, host_port=port.container_port) for port in container.ports
        ]
    return replace(container, **changes) if changes else container


def _pod_level(given: ResourceRequirements, containers: list[Container]) -> ResourceRequirements:
    """Returns pod-level resources with missing requests set from pod-level limits (KEP-2837).

    This is done only for resources that no container requests; for other resources the containers' sum applies.
    """
    asked = {name for container in containers for name in container.resources.requests}
    missing: Quantities = {
        name: raw
        for name, raw in given.limits.items()
        if name not in given.requests and (name.startswith("hugepages-") or name not in asked)
    }
    return replace(given, requests={**missing, **given.requests}) if missing else given


def _affinity(affinity: Affinity, labels: Mapping[str, str]) -> Affinity:
    """Returns the affinity with matchLabelKeys resolved by `_term`. labels: labels of the pod."""
    changes: dict[str, Any] = {}
    if affinity.pod_affinity is not None:
        changes["pod_affinity"] = _pod_affinity(affinity.pod_affinity, labels)
    if affinity.pod_anti_affinity is not None:
        changes["pod_anti_affinity"] = _pod_affinity(affinity.pod_anti_affinity, labels)
    return replace(affinity, **changes) if changes else affinity


def _pod_affinity(affinity: PodAffinity, labels: Mapping[str, str]) -> PodAffinity:
    return replace(
        affinity,
        required=[_term(term, labels) for term in affinity.required],
        preferred=[
            replace(item, pod_affinity_term=_term(item.pod_affinity_term, labels)) for item in affinity.preferred
        ],
    )


def _term(term: PodAffinityTerm, labels: Mapping[str, str]) -> PodAffinityTerm:
    """Returns a term with matchLabelKeys and mismatchLabelKeys added to its selector, as the API server does it.

    They become In and NotIn with the values of the pod's labels. A key that the pod does not have is omitted.
    """
    selector = term.label_selector
    if selector is None:
        return term
    said = (("In", term.match_label_keys), ("NotIn", term.mismatch_label_keys))
    extra = [Requirement(key=k, operator=one, values=(labels[k],)) for one, keys in said for k in keys if k in labels]
    new = [item for item in extra if item not in selector.match_expressions]
    if not new:
        return term
    merged: LabelSelector = replace(selector, match_expressions=(*selector.match_expressions, *new))
    return replace(term, label_selector=merged)


# -- groups -----------------------------------------------------------------------------------------------------------


def filled_group(group: UpstreamPodGroup, priorities: Priorities) -> UpstreamPodGroup | None:
    """Returns a group with the priority of its class; None if the class is unknown.

    A group without a class gets no default, because then the priorities of its pods apply.
    """
    spec = group.spec
    if spec.priority is not None or not spec.priority_class_name:
        return group
    found = priorities.classes.get(spec.priority_class_name)
    return None if found is None else replace(group, spec=replace(spec, priority=found.value))


# -- other kinds ------------------------------------------------------------------------------------------------------


def filled_node(node: Node, *, allocatable_given: bool) -> Node:
    """Returns a node with its capacity as allocatable, as a kubelet without reserved resources reports it.

    allocatable_given: True if the manifest has the field allocatable, even an empty one; then the node is unchanged.
    """
    if allocatable_given or not node.status.capacity:
        return node
    return replace(node, status=replace(node.status, allocatable=dict(node.status.capacity)))


def filled_namespace(namespace: Namespace) -> Namespace:
    """Returns a namespace with the label of its name."""
    meta = namespace.metadata
    return replace(namespace, metadata=replace(meta, labels={**meta.labels, NAMESPACE_NAME_LABEL: meta.name}))
