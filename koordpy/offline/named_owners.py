"""Whose a pod of the input is where uids do not tell: manifests by hand have none, and dumps lack what stands between.

Source: workloads.md 4 (members) and 10.3.
"""

from collections.abc import Callable

from msgspec.structs import replace

from koordpy.api.objects import KubernetesObject, OwnerReference, Pod
from koordpy.workloads.known_workloads import Known
from koordpy.workloads.workload_manifest import Head
from koordpy.workloads.workload_model import Workload


class KnownByName(Known):
    """Workloads that are known by their names where a manifest has no uid, and whose pods without an owner are known by
    their labels."""

    def __init__(self, pod_at: Callable[[str], Pod | None]) -> None:
        super().__init__(pod_at)
        self._names: dict[tuple[str, str, str], str] = {}
        """(namespace, kind, name) of an object, or (namespace, label, its value) of its pods -> its uid."""
        self._selecting: dict[str, list[Workload]] = {}
        """Namespace -> workloads that take pods by their labels."""

    def _enter(self, workload: Workload) -> None:
        super()._enter(workload)
        head = workload.head
        for kind, name in workload.children:
            self._names.setdefault((head.namespace, kind, name), head.uid)
        if not head.has_uid:
            own = ((head.kind, head.name), *workload.marks)
            self._names |= {(head.namespace, *sign): head.uid for sign in own}
        if workload.selector and (not head.has_uid or _is_deployed(workload)):
            self._selecting.setdefault(head.namespace, []).append(workload)

    def above(self, head: Head) -> tuple[Workload, ...]:
        """The objects that are known above one, from the one that controls it up."""
        return self._climb(head.owner, head.namespace)[0]

    def replace(self, workload: Workload) -> None:
        """Takes another reading of a workload, until something of it changes."""
        self._stale.discard(workload.head.uid)
        self._by_uid[workload.head.uid] = workload

    def find(self, owner: OwnerReference, namespace: str) -> Workload | None:
        """The object that an ownerReference names."""
        return self.get(owner.uid) or self.get(self._names.get((namespace, owner.kind, owner.name), ""))

    def identified(self, obj: KubernetesObject) -> KubernetesObject:
        """A pod whose controlling owner is a workload without uid names the uid that is made up for that: its pods that
        are made have the same. Other objects stay as they are."""
        owner = obj.metadata.controller if isinstance(obj, Pod) else None
        found = self.find(owner, obj.metadata.namespace) if owner is not None else None
        if owner is None or found is None or found.head.uid == owner.uid:
            return obj
        if (found.head.kind, found.head.name) != (owner.kind, owner.name):
            return obj
        named = [replace(one, uid=found.head.uid) if one is owner else one for one in obj.metadata.owner_references]
        return replace(obj, metadata=replace(obj.metadata, owner_references=named))

    def _holder(self, owner: OwnerReference, namespace: str) -> Pod | None:
        """The workers' StatefulSet has the name of the leader that owns it."""
        return self._pod_at(f"{namespace}/{owner.name}") if owner.kind in ("Pod", "StatefulSet") else None

    def _claims(self, pod: Pod) -> Workload | None:
        """Who counts a pod by its name, its labels, or the name of its ReplicaSet."""
        named = super()._claims(pod)
        if named is not None:
            return named
        namespace, owner = pod.metadata.namespace, pod.metadata.controller
        there = self._selecting.get(namespace, ())
        if owner is None:
            labels = pod.metadata.labels.items() if self._names else ()
            marked = filter(None, (self._names.get((namespace, *label)) for label in labels))
            known = next(filter(None, map(self.get, marked)), None)
            return known or next((one for one in there if not one.head.has_uid and _adopts(one, pod)), None)
        if owner.kind == "ReplicaSet" and there and self.find(owner, namespace) is None:
            # one that is not in the input, of a Deployment that is
            deployed = (one for one in there if _is_deployed(one) and owner.name.startswith(f"{one.head.name}-"))
            return next((one for one in deployed if _adopts(one, pod)), None)
        return None


def _adopts(workload: Workload, pod: Pod) -> bool:
    return workload.selector.items() <= pod.metadata.labels.items()


def _is_deployed(workload: Workload) -> bool:
    return workload.head.owner is not None and workload.head.owner.kind == "Deployment"
