# SPDX-License-Identifier: Apache-2.0
"""Finds the workload of a pod by names and labels, because manifests written by hand have no uids.

Dumps may also lack intermediate owners, such as the ReplicaSets of a Deployment. Rules: workloads.md 4 (members) and
10.3.
"""

from collections.abc import Callable

from msgspec.structs import replace

from koordpy.api.objects import KubernetesObject, OwnerReference, Pod
from koordpy.workloads.known_workloads import Known
from koordpy.workloads.workload_manifest import Head
from koordpy.workloads.workload_model import Workload


class KnownByName(Known):
    """Known workloads. They are also found by name, and by the labels of pods without an owner."""

    def __init__(self, pod_at: Callable[[str], Pod | None]) -> None:
        super().__init__(pod_at)
        self._names: dict[tuple[str, str, str], str] = {}
        """(namespace, kind, name) of a workload, or (namespace, label key, label value) of its pods -> its uid."""
        self._selecting: dict[str, list[Workload]] = {}
        """Namespace -> workloads that select pods by labels."""

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
        """Returns the known owners of an object, from its controller up to the top."""
        return self._climb(head.owner, head.namespace)[0]

    def replace(self, workload: Workload) -> None:
        """Replaces a workload, until one of the objects that it is read from changes."""
        self._stale.discard(workload.head.uid)
        self._by_uid[workload.head.uid] = workload

    def find(self, owner: OwnerReference, namespace: str) -> Workload | None:
        """Returns the workload that an ownerReference names, by uid or else by name; None if it is not known."""
        return self.get(owner.uid) or self.get(self._names.get((namespace, owner.kind, owner.name), ""))

    def identified(self, obj: KubernetesObject) -> KubernetesObject:
        """Returns a pod with the generated uid of its workload in the ownerReference, if the workload has no uid.

        Pods that koordpy creates for the workload have the same uid. Other objects are returned unchanged.
        """
        owner = obj.metadata.controller if isinstance(obj, Pod) else None
        found = self.find(owner, obj.metadata.namespace) if owner is not None else None
        if owner is None or found is None or found.head.uid == owner.uid:
            return obj
        if (found.head.kind, found.head.name) != (owner.kind, owner.name):
            return obj
        named = [replace(one, uid=found.head.uid) if one is owner else one for one in obj.metadata.owner_references]
        return replace(obj, metadata=replace(obj.metadata, owner_references=named))

    def _holder(self, owner: OwnerReference, namespace: str) -> Pod | None:
        """Returns the leader pod that owns a StatefulSet of workers, by the name that both have; None if there is
        none."""
        return self._pod_at(f"{namespace}/{owner.name}") if owner.kind in ("Pod", "StatefulSet") else None

    def _claims(self, pod: Pod) -> Workload | None:
        """Returns the workload of a pod by the pod's name, labels, or the name of its ReplicaSet; None if unknown."""
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
            # the ReplicaSet is not in the input, but its Deployment may be
            deployed = (one for one in there if _is_deployed(one) and owner.name.startswith(f"{one.head.name}-"))
            return next((one for one in deployed if _adopts(one, pod)), None)
        return None


def _adopts(workload: Workload, pod: Pod) -> bool:
    return workload.selector.items() <= pod.metadata.labels.items()


def _is_deployed(workload: Workload) -> bool:
    return workload.head.owner is not None and workload.head.owner.kind == "Deployment"
