# SPDX-License-Identifier: Apache-2.0
"""Index of the known workloads (Jobs, JobSets, ReplicaSets and so on); finds the workload that a pod belongs to.

`lineage` follows the ownerReferences from a pod to the topmost known owner, at most `OWNERS` steps. A JobSet is read
together with its Jobs, and the ReplicaSets of a Deployment are combined, at the first use after a change. Sources:
workloads.md 1 and 4 (members).
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from msgspec import Struct

from koordpy.api.objects import OwnerReference, Pod
from koordpy.api.reading_limits import OWNERS
from koordpy.workloads.deployment_rollouts import ROLLED, rollout_of
from koordpy.workloads.kinds.jobsets import JOBSET, jobset_by_jobs, read_jobset
from koordpy.workloads.kinds.kind_registry import GANG_KINDS
from koordpy.workloads.workload_manifest import Head
from koordpy.workloads.workload_model import NOWHERE, PodPosition, Workload

NO_WORKLOAD = Workload(head=Head("", "", "", "", ""), is_kind=False)
"""Means that a pod belongs to no workload; it has no roles."""


class Lineage(Struct, frozen=True):
    """The objects above a pod, and the pod's position in the workload among them."""

    chain: tuple[Workload, ...] = ()
    """From the object that controls or lists the pod up to the topmost known object."""
    missing: OwnerReference | None = None
    """The first owner that is not known: the topmost known object's ownerReference names it, or the pod's if no owner
    is known. None if every owner is known."""
    workload: Workload = NO_WORKLOAD
    """The workload with the roles from which the gang is derived; `NO_WORKLOAD` if there is none."""
    position: PodPosition = NOWHERE
    """Role and index of the pod in `workload`."""
    own: Workload | None = None
    """The pod's ReplicaSet if `workload` combines all ReplicaSets of one Deployment; else None."""

    @property
    def maker(self) -> Workload:
        """The workload for which a controller creates the pod."""
        return self.workload if self.own is None else self.own

    @property
    def top(self) -> Head:
        """The topmost object of a kind from which gangs may be derived, even if only an ownerReference names it.

        If no object has such a kind, the topmost object. The chain must not be empty.
        """
        heads = [one.head for one in reversed(self.chain)]
        named = self.missing
        if named is not None and named.kind in GANG_KINDS:
            return Head(named.api_version, named.kind, heads[0].namespace, named.name, named.uid)
        return next((one for one in heads if one.kind in GANG_KINDS), heads[-1])


UNKNOWN = Lineage()
"""Lineage of a pod without a known owner."""
K = TypeVar("K")


def unfile(index: dict[K, dict[str, Any]], key: K, member: str) -> None:
    """Removes a member from the entry of a key. If it was the last member, removes the entry."""
    members = index.get(key, {})
    members.pop(member, None)
    if not members:
        index.pop(key, None)


class Known:
    """All known workloads, by uid, and by the pods that they list."""

    def __init__(self, pod_at: Callable[[str], Pod | None]) -> None:
        """pod_at: returns a pod by `namespace/name`, because pods can be owners, such as leaders."""
        self._pod_at = pod_at
        self.watched: frozenset[str] = frozenset()
        """Kinds that are watched. An unknown object of such a kind does not exist, or the watch has not delivered it
        yet."""
        self._by_uid: dict[str, Workload] = {}  # as last read; a JobSet in `_stale` must be read again before use
        self._under: dict[str, dict[str, None]] = {}
        """uid of an owner -> uids of workloads that it controls."""
        self._rollouts: dict[str, Workload] = {}
        """uid of an owner -> its ReplicaSets as one workload."""
        self._stale: set[str] = set()
        """uids of JobSets that must be read again because their Jobs changed."""
        self._named: dict[str, dict[str, Workload]] = {}
        """Pod -> uid -> workload that lists it."""

    def put(self, workload: Workload) -> Workload | None:
        """Stores the current state of a workload. Returns the previous state; None if it is new."""
        head = workload.head
        old = self.drop(head.uid)
        self._enter(workload)
        if head.owner is not None and head.owner.uid:
            self._under.setdefault(head.owner.uid, {})[head.uid] = None
            self._stale.add(head.owner.uid)
            self._rollouts.pop(head.owner.uid, None)
        if head.uid in self._under:
            self._stale.add(head.uid)
        for key in workload.members:
            self._named.setdefault(key, {})[head.uid] = workload
        return old

    def _enter(self, workload: Workload) -> None:
        self._by_uid[workload.head.uid] = workload

    def drop(self, uid: str) -> Workload | None:
        """Removes a workload; returns it, or None if unknown."""
        old = self._by_uid.pop(uid, None)
        if old is None:
            return None
        if old.head.owner is not None and old.head.owner.uid in self._under:
            self._stale.add(old.head.owner.uid)
            self._rollouts.pop(old.head.owner.uid, None)
            unfile(self._under, old.head.owner.uid, uid)
        self._stale.add(uid)
        for key in old.members:
            unfile(self._named, key, uid)
        return old

    def watch(self, kinds: frozenset[str]) -> None:
        """Sets the kinds that are watched."""
        self.watched = kinds
        self._stale.update(self._under)

    def get(self, uid: str) -> Workload | None:
        """Returns a workload by its uid; None if unknown.

        A JobSet is read together with its existing Jobs. If JobSets are not watched, it is reconstructed from the Jobs.
        """
        if uid in self._stale:
            self._stale.discard(uid)
            self._read_jobset(uid)
        return self._by_uid.get(uid)

    def _read_jobset(self, uid: str) -> None:
        """Reads a JobSet again with its existing Jobs. If its object is not readable, reconstructs it from the Jobs, or
        removes it."""
        known = self._by_uid.get(uid)
        if known is not None and known.head.kind != JOBSET:
            return
        below = (one for one in map(self._by_uid.get, self._under.get(uid, ())) if one is not None)
        jobs = {(one.head.namespace, one.head.name): one for one in below if one.source is not None}
        if known is not None and known.source is not None:
            self._enter(read_jobset(known.source, known.head, jobs))
        elif jobs and JOBSET not in self.watched and (told := jobset_by_jobs(jobs)) is not None:
            self._enter(told)
        else:
            self._by_uid.pop(uid, None)

    def below(self, uid: str) -> tuple[str, ...]:
        """Returns the uids of the workloads that an object controls directly."""
        return tuple(self._under.get(uid, ()))

    def all(self) -> Iterator[Workload]:
        """Yields all known workloads."""
        return filter(None, map(self.get, list(self._by_uid)))

    def finished(self) -> Iterator[str]:
        """Yields `namespace/name` of finished workloads."""
        return (one.head.key for one in self._by_uid.values() if one.note == "finished")

    def find(self, owner: OwnerReference, namespace: str) -> Workload | None:
        """Returns the object that an ownerReference names; None if unknown. The uid decides.

        namespace: not used here, but by a subclass for manifests without uids.
        """
        return self.get(owner.uid)

    def _holder(self, owner: OwnerReference, namespace: str) -> Pod | None:
        """Returns the pod that an ownerReference names; None if the owner is not a known pod.

        A leader pod owns the StatefulSet of its workers.
        """
        pod = self._pod_at(f"{namespace}/{owner.name}") if owner.kind == "Pod" else None
        return pod if pod is not None and pod.metadata.uid == owner.uid else None

    def _owner_of_owner_pod(self, owner: OwnerReference, namespace: str) -> OwnerReference | None:
        """Returns the StatefulSet that controls the pod which an ownerReference names; None if there is none."""
        pod = self._holder(owner, namespace)
        above = pod.metadata.controller if pod is not None else None
        return above if above is not None and above.kind == "StatefulSet" and above != owner else None

    def _claims(self, pod: Pod) -> Workload | None:
        """Returns the workload that lists a pod, such as a PodGang, whatever controls the pod; None if there is none.

        If several list it, the smallest uid decides, so that the choice does not depend on the order of events.
        """
        named = self._named.get(pod.key)
        return named[min(named)] if named is not None else None

    def lineage(self, pod: Pod) -> Lineage:
        """Returns the objects above a pod, and the pod's position."""
        owner, first = pod.metadata.controller, self._claims(pod)
        chain, missing = self._climb(first.head.owner if first is not None else owner, pod.metadata.namespace, first)
        workload = next((one for one in reversed(chain) if one.roles), NO_WORKLOAD)
        position = workload.position(pod) if workload.position is not None else None
        if position is None:
            return Lineage(chain, missing)
        if (rollout := self.rollout(workload)) is None:
            return Lineage(chain, missing, workload, position)
        # the combined workload of all ReplicaSets is inserted above the pod's own ReplicaSet
        at = next(i for i, one in enumerate(chain) if one is workload) + 1
        return Lineage((*chain[:at], rollout, *chain[at:]), missing, rollout, position, workload)

    def rollout(self, workload: Workload) -> Workload | None:
        """Returns all ReplicaSets of the owner of this ReplicaSet as one workload; None for workloads of other
        kinds."""
        owner = workload.head.owner
        if workload.head.kind not in ROLLED or owner is None or not owner.uid:
            return None
        found = self._rollouts.get(owner.uid)
        if found is None:
            below = filter(None, map(self._by_uid.get, self.below(owner.uid)))
            sets = [one for one in below if one.head.kind == workload.head.kind]
            if not sets:
                return None
            found = self._rollouts[owner.uid] = rollout_of(sets, owner.uid)
        return found

    def _climb(
        self, owner: OwnerReference | None, namespace: str, *below: Workload | None
    ) -> tuple[tuple[Workload, ...], OwnerReference | None]:
        """Returns (known objects from `below` upwards, first unknown owner above them or None).

        Stops after `OWNERS` steps, and at a cycle.
        """
        chain = [*filter(None, below)]
        for _ in range(OWNERS):
            if owner is None:
                break
            found = self.find(owner, namespace)
            above = found.head.owner if found is not None else self._owner_of_owner_pod(owner, namespace)
            if any(one is found for one in chain) or (found is None and above is None):
                break
            chain += [found] if found is not None else []
            owner = above
        return tuple(chain), owner
