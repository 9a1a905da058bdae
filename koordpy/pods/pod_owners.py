# SPDX-License-Identifier: Apache-2.0
"""Finds the services that select a pod, and the controller that created it, for default topology spread constraints.

Default spread constraints have no selector. As in kube-scheduler (helper.DefaultSelector), it is built for each pod
from the services that select the pod, and from its ReplicationController, ReplicaSet or StatefulSet.
"""

from typing import Any

from koordpy.api.objects import LabelSelector, ObjectMeta, OwnerReference, Pod, Requirement, Wire
from koordpy.api.owner_objects import OWNER_KINDS, ReplicaSet, ReplicationController, Service, StatefulSet
from koordpy.pods.object_book import ObjectBook, Objects

_CONTROLLERS: dict[tuple[str, str], type[Wire]] = {
    ("v1", "ReplicationController"): ReplicationController,
    ("apps/v1", "ReplicaSet"): ReplicaSet,
    ("apps/v1", "StatefulSet"): StatefulSet,
}
"""(apiVersion, kind) of a controlling owner -> type of its object."""


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """Returns the controlling owner if it is of a kind with a selector; None otherwise."""
    owner = meta.controller
    return owner if owner is not None and (owner.api_version, owner.kind) in _CONTROLLERS else None


_REPLACING = frozenset({*_CONTROLLERS, ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"), ("ray.io/v1", "RayCluster")})
"""(apiVersion, kind) of controllers that replace each of their pods that ends."""


def replacing_controller(meta: ObjectMeta) -> OwnerReference | None:
    """Returns the controlling owner if it replaces its pods that end; None otherwise, for example for a Job."""
    owner = meta.controller
    return owner if owner is not None and (owner.api_version, owner.kind) in _REPLACING else None


class Owners:
    """Services and controllers at one moment. Immutable."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._services: dict[str, list[dict[str, str]]] = {}
        for service in objects[Service].values():
            if service.spec.selector:
                self._services.setdefault(service.metadata.namespace, []).append(service.spec.selector)

    def selector_of(self, pod: Pod) -> LabelSelector | None:
        """Returns the selector that matches a pod and its siblings.

        None if no service selects the pod and no controller with a selector owns it.
        """
        meta = pod.metadata
        labels: dict[str, str] = {}
        for wanted in self._services.get(meta.namespace, ()):
            if all(meta.labels.get(key) == value for key, value in wanted.items()):
                labels |= wanted
        expressions: tuple[Requirement, ...] = ()
        owner = controller_of(meta)
        if owner is not None:
            kind = _CONTROLLERS[owner.api_version, owner.kind]
            found = self._objects[kind].get(f"{meta.namespace}/{owner.name}")
            if isinstance(found, ReplicationController):
                labels |= found.spec.selector
            elif found is not None and (selector := found.spec.selector) is not None:
                # the selector of the controller is added as requirements: services may require other values of a label
                requirements = (
                    Requirement(key=k, operator="In", values=(v,)) for k, v in selector.match_labels.items()
                )
                expressions = (*requirements, *selector.match_expressions)
        return LabelSelector(match_labels=labels, match_expressions=expressions) if labels or expressions else None


class OwnerBook(ObjectBook[Owners]):
    """Services and controllers, updated per event."""

    def __init__(self) -> None:
        super().__init__(OWNER_KINDS, Owners)

    def label_keys(self) -> frozenset[str]:
        """Returns the label keys in the selectors of all services and controllers."""
        return frozenset().union(*(label_keys(obj) for objects in self._objects.values() for obj in objects.values()))

    def _changes(self, known: Any, obj: Any) -> bool:
        """Implements `ObjectBook._changes`: only a changed spec matters."""
        # the status is ignored, because that of a controller changes with every pod that it creates
        return known is None or known.spec != obj.spec


def label_keys(obj: Any) -> frozenset[str]:
    """Returns the label keys in the selector of a service or controller."""
    selector = obj.spec.selector
    if isinstance(selector, LabelSelector):
        return frozenset({*selector.match_labels, *(one.key for one in selector.match_expressions)})
    return frozenset(selector or ())
