"""The workloads that are known, and which of them a pod belongs to.

Sources: workloads.md 1 and 4 (members).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from koordpy.api.limits import OWNERS
from koordpy.api.objects import Pod
from koordpy.workloads.kinds.registry import GANG_KINDS
from koordpy.workloads.model import PodSeat, Workload
from koordpy.workloads.source import ControllingOwner


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

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def controller(pod: Pod) -> ControllingOwner | None:
    """The controlling owner of a pod."""
    found = next((one for one in pod.metadata.owner_references if one.controller), None)
    return ControllingOwner(found.api_version, found.kind, found.name, found.uid) if found is not None else None


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

    def __init__(self) -> None:
        self._by_uid: dict[str, Workload] = {}
        self._by_name: dict[tuple[str, str, str], Workload] = {}
        self._children: dict[tuple[str, str, str], Workload] = {}
        self._marks: dict[tuple[str, str, str], Workload] = {}
        self._named: dict[str, Workload] = {}
        self._adopters: dict[str, list[Workload]] = {}
        self.groups: dict[str, Any] = {}
        """`namespace/name` -> a PodGroup of Volcano."""
        self.owners: dict[str, ControllingOwner] = {}
        """Pod -> who controls it: on a chain may stand pods (a leader's StatefulSet)."""

    def put(self, workload: Workload) -> None:
        """Takes a workload."""
        head = workload.head
        self._by_uid[head.uid] = workload
        if not head.has_uid:
            self._by_name[head.namespace, head.kind, head.name] = workload
        for kind, name in workload.children:
            self._children[head.namespace, kind, name] = workload
        for key, value in workload.marks:
            self._marks[head.namespace, key, value] = workload
        if workload.selector:
            self._adopters.setdefault(head.namespace, []).append(workload)
        self._named.update(dict.fromkeys(workload.members, workload))

    def workloads(self) -> Iterator[Workload]:
        """All of them."""
        return iter(self._by_uid.values())

    def owned_by(self, pod: Pod) -> None:
        """Takes down who controls a pod, where that may stand on another's chain."""
        owner = controller(pod)
        if owner is not None and owner.kind == "StatefulSet":
            self.owners[pod.key] = owner

    def find(self, owner: ControllingOwner, namespace: str) -> Workload | None:
        """The object that an ownerReference names."""
        if owner.uid and (found := self._by_uid.get(owner.uid)):
            return found
        key = namespace, owner.kind, owner.name
        return self._by_name.get(key) or self._children.get(key)

    def _first(self, pod: Pod) -> Workload | None:
        found = self._named.get(pod.key)
        if found is not None:
            return found
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
            leader = owner.name if owner.kind == "Pod" else ""
            if owner.kind == "StatefulSet" and f"{namespace}/{owner.name}" in self.owners:
                leader = owner.name
            above = self.owners.get(f"{namespace}/{leader}") if leader else None
            if above is None or above == owner:
                return None
            owner = above
        return None

    def chain(self, workload: Workload) -> tuple[Workload, ...]:
        """An object, and those above it that are known."""
        found = [workload]
        while len(found) < OWNERS and (owner := found[-1].head.owner) is not None:
            above = self.find(owner, workload.head.namespace)
            if above is None and owner.kind == "Pod":
                held = self.owners.get(f"{workload.head.namespace}/{owner.name}")
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
        top = workload.head
        kind, name = top.kind, top.name
        for one in self.chain(workload):
            if one.head.kind in GANG_KINDS:
                kind, name, top = one.head.kind, one.head.name, one.head
            owner = one.head.owner
            if owner is not None and owner.kind in GANG_KINDS and self.find(owner, top.namespace) is None:
                kind, name = owner.kind, owner.name
        return Title(kind, top.namespace, name)
