"""The workloads that are known, and which of them a pod belongs to.

Sources: workloads.md 1 and 4 (members).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from koordpy.api.limits import OWNERS
from koordpy.api.objects import OwnerReference, Pod
from koordpy.workloads.kinds.registry import GANG_KINDS
from koordpy.workloads.model import PodSeat, Workload
from koordpy.workloads.source import Head


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where a pod belongs. `chain`: from the object that counts its pods up to the topmost that is known."""

    workload: Workload
    """The one whose roles count."""
    seat: PodSeat
    chain: tuple[Workload, ...]


@dataclass(frozen=True, slots=True)
class Title:
    """What a workload is called: the topmost of its kind of object."""

    kind: str
    namespace: str
    name: str
    api_version: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def controller(pod: Pod) -> OwnerReference | None:
    """The controlling owner of a pod."""
    for one in pod.metadata.owner_references:
        if one.controller:
            return one
    return None


def _adopts(workload: Workload, pod: Pod) -> bool:
    return workload.selector.items() <= pod.metadata.labels.items()


def _steps(workload: Workload) -> list[int]:
    """Pods by level: the most Complete edges on a way to a role."""
    levels: dict[str, int] = {}
    sizes: dict[int, int] = {}
    for role in workload.roles:
        before = (levels.get(one.role, 0) + (one.state == "Complete") for one in role.after)
        level = levels[role.name] = max(before, default=0)
        sizes[level] = sizes.get(level, 0) + role.number
    return [sizes[level] for level in sorted(sizes)]


class Known:
    """Workloads by uid, by name where that counts, and by what their pods are marked with."""

    def __init__(self, *, by_names: bool = True) -> None:
        """by_names: whether owners are known by their names where a manifest has no uid, and pods without an owner by
        their labels; else by uid alone."""
        self._by_names = by_names
        self._by_uid: dict[str, Workload] = {}
        self._under: dict[str, dict[str, None]] = {}
        """uid of an owner -> uids of workloads that it controls."""
        self._by_name: dict[tuple[str, str, str], Workload] = {}
        self._children: dict[tuple[str, str, str], Workload] = {}
        self._marks: dict[tuple[str, str, str], Workload] = {}
        self._named: dict[str, dict[str, Workload]] = {}
        """Pod -> by uid, the workloads that name it."""
        self._adopters: dict[str, list[Workload]] = {}
        self._deployed: dict[str, list[Workload]] = {}
        """Namespace -> the ReplicaSets that Deployments would make."""
        self.groups: dict[str, Any] = {}
        """`namespace/name` -> a PodGroup of Volcano."""
        self._owners: dict[str, tuple[str, OwnerReference]] = {}
        """Pod -> its uid and who controls it: on a chain may stand pods (a leader's StatefulSet)."""

    def put(self, workload: Workload) -> None:
        """Takes a workload as it is now."""
        head = workload.head
        self.drop(head.uid)
        self._by_uid[head.uid] = workload
        if head.owner is not None and head.owner.uid:
            self._under.setdefault(head.owner.uid, {})[head.uid] = None
        for key in workload.members:
            self._named.setdefault(key, {})[head.uid] = workload
        if self._by_names:
            self._put_names(workload)

    def _put_names(self, workload: Workload) -> None:
        head = workload.head
        for kind, name in workload.children:
            self._children[head.namespace, kind, name] = workload
        if head.owner is not None and head.owner.kind == "Deployment" and workload.selector:
            self._deployed.setdefault(head.namespace, []).append(workload)
        if head.has_uid:
            return
        self._by_name[head.namespace, head.kind, head.name] = workload
        for key, value in workload.marks:
            self._marks[head.namespace, key, value] = workload
        if workload.selector:
            self._adopters.setdefault(head.namespace, []).append(workload)

    def drop(self, uid: str) -> Workload | None:
        """Forgets a workload that is known by its uid; what it was."""
        old = self._by_uid.pop(uid, None)
        if old is None:
            return None
        if old.head.owner is not None and (under := self._under.get(old.head.owner.uid)) is not None:
            under.pop(uid, None)
            if not under:
                del self._under[old.head.owner.uid]
        for key in old.members:
            named = self._named.get(key, {})
            named.pop(uid, None)
            if not named:
                self._named.pop(key, None)
        return old

    def below(self, uid: str) -> tuple[str, ...]:
        """uids of the workloads that an object controls itself."""
        return tuple(self._under.get(uid, ()))

    def finished(self) -> Iterator[str]:
        """`namespace/name` of workloads that are over."""
        return (one.head.key for one in self._by_uid.values() if one.note == "finished")

    def owned_by(self, pod: Pod) -> None:
        """Takes down who controls a pod, where that may stand on another's chain."""
        owner = controller(pod)
        if owner is not None and owner.kind == "StatefulSet":
            self._owners[pod.key] = pod.metadata.uid, owner

    def disowned(self, key: str) -> None:
        """Forgets a pod."""
        self._owners.pop(key, None)

    def _above(self, namespace: str, leader: OwnerReference) -> OwnerReference | None:
        """Who controls a pod that controls something."""
        uid, owner = self._owners.get(f"{namespace}/{leader.name}", ("", None))
        return owner if self._by_names or uid == leader.uid else None

    def find(self, owner: OwnerReference, namespace: str) -> Workload | None:
        """The object that an ownerReference names."""
        if owner.uid and (found := self._by_uid.get(owner.uid)):
            return found
        key = namespace, owner.kind, owner.name
        return self._by_name.get(key) or self._children.get(key)

    def _first(self, pod: Pod) -> Workload | None:
        named = self._named.get(pod.key)
        if named is not None:
            return named[min(named)]
        namespace, owner = pod.metadata.namespace, controller(pod)
        if owner is None:
            labels = pod.metadata.labels.items()
            marked = (self._marks.get((namespace, key, value)) for key, value in labels)
            known = next((one for one in marked if one is not None), None) if self._marks else None
            return known or next((one for one in self._adopters.get(namespace, ()) if _adopts(one, pod)), None)
        for _ in range(OWNERS):
            found = self.find(owner, namespace)
            if found is not None:
                return found
            # a worker's StatefulSet is owned by the leader pod
            by_leader = owner.kind == "Pod" or (owner.kind == "StatefulSet" and self._by_names)
            above = self._above(namespace, owner) if by_leader else None
            if above is None or above == owner:
                break
            owner = above
        return self._deployed_by(owner, pod) if owner.kind == "ReplicaSet" else None

    def _deployed_by(self, owner: OwnerReference, pod: Pod) -> Workload | None:
        """The ReplicaSet that stands for one that is not in the input: a Deployment's by name and selector."""
        there = self._deployed.get(pod.metadata.namespace, ())
        return next((one for one in there if owner.name.startswith(f"{one.head.name}-") and _adopts(one, pod)), None)

    def chain(self, workload: Workload) -> tuple[Workload, ...]:
        """An object, and those above it that are known."""
        found = [workload]
        while len(found) < OWNERS and (owner := found[-1].head.owner) is not None:
            above = self.find(owner, workload.head.namespace)
            if above is None and owner.kind == "Pod":
                held = self._above(workload.head.namespace, owner)
                above = self.find(held, workload.head.namespace) if held is not None else None
            if above is None or above in found:
                break
            found.append(above)
        return tuple(found)

    def place(self, pod: Pod) -> PodPlace | None:
        """Where a pod belongs; None where nothing is known of who made it."""
        first = self._first(pod)
        if first is None:
            return None
        chain = self.chain(first)
        workload = next((one for one in reversed(chain) if one.roles), None)
        seat = workload.seat(pod) if workload is not None else None
        return PodPlace(workload, seat, chain) if workload is not None and seat is not None else None

    def steps(self, namespace: str, train_job: str) -> list[int]:
        """Pods of each step of a TrainJob: of the roles that live together. Empty where its JobSet is not known."""
        for one in self._by_uid.values():
            owner = one.head.owner
            if not one.roles or owner is None or one.head.namespace != namespace:
                continue
            if (owner.kind, owner.name) == ("TrainJob", train_job):
                return _steps(one)
        return []

    def title(self, workload: Workload) -> Title:
        """What it is called: kinds that are no gangs' are passed over, and an owner that is only named counts."""
        found: Head | OwnerReference = workload.head
        for one in self.chain(workload):
            head, owner = one.head, one.head.owner
            if head.kind in GANG_KINDS:
                found = head
            if owner is not None and owner.kind in GANG_KINDS and self.find(owner, head.namespace) is None:
                found = owner
        return Title(found.kind, workload.head.namespace, found.name, found.api_version, found.uid)
