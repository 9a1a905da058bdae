"""Whose a pod is: the services that select it and the controller that made it, as far as spreading asks for them.

Default constraints of topology spread have no selector of their own; kube-scheduler makes one for each pod out of its
services and its replication controller, replica set or stateful set (helper.DefaultSelector). The same is done here.
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


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """The controlling owner of a kind whose selector counts."""
    owner = meta.controller
    return owner if owner is not None and (owner.api_version, owner.kind) in _CONTROLLERS else None


class Owners:
    """Services and controllers of one moment; nothing in it changes."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._services: dict[str, list[dict[str, str]]] = {}
        for service in objects[Service].values():
            if service.spec.selector:
                self._services.setdefault(service.metadata.namespace, []).append(service.spec.selector)

    def selector_of(self, pod: Pod) -> LabelSelector | None:
        """What speaks of a pod and its siblings; None where no service and no controller says anything."""
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
                # ANDed, not merged: it may contradict the services
                said = (Requirement(key=k, operator="In", values=(v,)) for k, v in selector.match_labels.items())
                expressions = (*said, *selector.match_expressions)
        return LabelSelector(match_labels=labels, match_expressions=expressions) if labels or expressions else None


class OwnerBook(ObjectBook[Owners]):
    """The objects as they come and go."""

    def __init__(self) -> None:
        super().__init__(OWNER_KINDS, Owners)

    def label_keys(self) -> frozenset[str]:
        """Label keys that the selectors of all of them look at pods by."""
        return frozenset().union(*(label_keys(obj) for objects in self._objects.values() for obj in objects.values()))

    def _changes(self, known: Any, obj: Any) -> bool:
        # controllers change with every pod they make, in their status
        return known is None or known.spec != obj.spec


def label_keys(obj: Any) -> frozenset[str]:
    """Label keys that the selector of a service or controller looks at pods by."""
    selector = obj.spec.selector
    if isinstance(selector, LabelSelector):
        return frozenset({*selector.match_labels, *(one.key for one in selector.match_expressions)})
    return frozenset(selector or ())
