"""The pods that workloads' controllers would make, as far as they are not there yet.

Sources: workloads.md 10.1 to 10.4.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from itertools import chain, islice, takewhile
from typing import Any

from koordpy.api.faults import Fault
from koordpy.api.objects import ObjectMeta, OwnerReference, Pod
from koordpy.api.strict import decode
from koordpy.workloads.kinds.jobs import index_in
from koordpy.workloads.known import Known, PodPlace
from koordpy.workloads.model import Filling, JobPart, Role, Slot, Template, Workload
from koordpy.workloads.podspecs import node_of_daemon, placed
from koordpy.workloads.source import Head

SCHEDULED = "scheduled"
RoleKey = tuple[str, str, str]
"""(uid of the workload, group, role)."""


@dataclass(frozen=True, slots=True)
class Top:
    """A topmost object of the input, and what its pods are counted by."""

    head: Head
    workload: Workload | None
    note: str = ""
    jobs: Mapping[str, Head] | None = None
    """Job -> itself, where a JobSet is known by its Jobs alone: these are the topmost objects, and no other makes
    pods."""


@dataclass(frozen=True, slots=True)
class MadeClaim:
    """A volume claim that is made with a pod."""

    namespace: str
    name: str
    spec: Mapping[str, Any]
    created: str


@dataclass(slots=True)
class Account:
    """What has become of one topmost object."""

    head: Head
    made: int = 0
    present: int = 0
    notes: list[str] = field(default_factory=list)
    """Of each object that its pods are counted by: several are there of the Jobs of a CronJob."""

    @property
    def note(self) -> str:
        """What holds for all that it makes."""
        return self.notes[0] if len(set(self.notes)) == 1 else ""


@dataclass(slots=True)
class Batch:
    """What is made at one time."""

    pods: list[Pod] = field(default_factory=list)
    claims: list[MadeClaim] = field(default_factory=list)
    by_top: dict[str, list[Pod]] = field(default_factory=dict)
    """uid of the topmost object -> its pods."""


class Templates:
    """Pod templates as typed objects, each read once; what is wrong with them."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[Template, Pod | None]] = {}

    def pod(self, template: Template) -> Pod | None:
        """None where it is faulty."""
        found = self._read.get(id(template))
        return found[1] if found is not None else None

    def read(self, template: Template) -> list[Fault]:
        """Reads a template; its faults."""
        if id(template) in self._read:
            return []
        meta = template.raw.get("metadata")
        raw = {"metadata": meta, "spec": template.raw.get("spec")}
        pod, faults = decode({name: part for name, part in raw.items() if part is not None}, Pod)
        self._read[id(template)] = template, pod
        return [Fault(f"{template.path}.{fault.path}", fault.text) for fault in faults]


def templates_of(workload: Workload) -> Iterator[Template]:
    """Its pod templates."""
    for role in workload.roles:
        yield role.template
        yield from role.templates


def with_ended(workload: Workload, started: Collection[RoleKey]) -> Workload:
    """The workload where roles have begun: those that they follow by Complete are over."""
    over: set[RoleKey] = set()
    for role in workload.roles:
        if (workload.head.uid, role.group, role.name) in started:
            over |= _before(workload, role)
    if not over:
        return workload
    roles = tuple(
        changed(role, parts=tuple(changed(part, over=True) for part in role.parts))
        if (workload.head.uid, role.group, role.name) in over
        else role
        for role in workload.roles
    )
    return changed(workload, roles=roles)


class Expansion:
    """Workloads, the pods of them that are there, and those that are made, step by step."""

    def __init__(
        self,
        known: Known,
        tops: Sequence[Top],
        templates: Templates,
        present: Iterable[Pod],
        claims: Iterable[str] = (),
        daemons: Callable[[Workload, Pod], Sequence[str]] = lambda *_: (),
        started: frozenset[RoleKey] = frozenset(),
    ) -> None:
        """claims: `namespace/name` of those that are there; daemons: nodes that a DaemonSet's pod is for; started:
        roles that have begun."""
        self._known, self._tops, self._templates, self._daemons = known, tops, templates, daemons
        self._claims, self._started = set(claims), started
        self.accounts: dict[str, Account] = {}
        for top in tops:
            for head in (top.jobs or {"": top.head}).values():
                account = self.accounts.setdefault(head.uid, Account(head))
                account.notes.append(top.note or (top.workload.note if top.workload is not None else ""))
        self._pods: dict[RoleKey, list[tuple[Pod, PodPlace]]] = {}
        """Pods that are there and those that are made, by role."""
        self._taken: set[str] = set()
        self._present: set[str] = set()
        """Pods of the input."""
        self._runs: dict[tuple[str, str], dict[str, str]] = {}
        self._made: set[RoleKey] = set()
        for pod in present:
            self._taken.add(pod.key)
            self._present.add(pod.key)
            place = known.place(pod)
            if place is None:
                continue
            seat, workload = place.seat, place.workload
            self._pods.setdefault((workload.head.uid, seat.group, seat.role), []).append((pod, place))
            if not workload.run or seat.run == workload.run:
                self._count(place, pod)
            labels = pod.metadata.labels
            kept = {key: labels[key] for key in _OF_GROUP if key in labels}
            if kept and not pod.metadata.deletion_timestamp:
                self._runs.setdefault((workload.head.uid, seat.group), kept)

    def _count(self, place: PodPlace, pod: Pod) -> None:
        if not _counts(place, pod):
            return
        for one in place.chain:
            if (account := self.accounts.get(one.head.uid)) is not None:
                account.present += 1

    def roles(self) -> Iterator[tuple[Top, Workload, Role]]:
        """Every role of the input."""
        for top in self._tops:
            if top.workload is not None:
                for role in top.workload.roles:
                    yield top, top.workload, role

    # -- steps --------------------------------------------------------------------------------------------------------

    def _begun(self) -> set[RoleKey]:
        """Roles that must be there because one that waited for them has begun."""
        found = set(self._started)
        for _, workload, role in self.roles():
            if (workload.head.uid, role.group, role.name) in self._started:
                found |= _ready_before(workload, role)
        return found

    def waits_for(self, workload: Workload, role: Role, node_of: Callable[[str], str]) -> str:
        """The first thing that a role waits for; empty where its pods are made."""
        key = workload.head.uid, role.group, role.name
        begun = any(self._of_run(workload, place) for _, place in self._pods.get(key, ()))
        if all(part.over for part in role.parts) or not role.after or begun:
            return ""
        started = key in self._begun()
        for condition in role.after:
            if condition.met or (started and condition.state != SCHEDULED):  # who follows a pod must know its node
                continue
            if condition.state == "Complete" or not self._is_ready(workload, role, condition.role, node_of):
                return condition.text
        return ""

    def _is_ready(self, workload: Workload, role: Role, name: str, node_of: Callable[[str], str]) -> bool:
        """Whether all pods that a role wants are bound."""
        names = {name, f"{name}-leaders", f"{name}-followers"}
        for one in workload.roles:
            if one.name in names and one.group == role.group:
                pods = self._pods.get((workload.head.uid, one.group, one.name), ())
                alive = [pod for pod, place in pods if _alive(pod) and self._of_run(workload, place)]
                bound = sum(bool(node_of(pod.key)) for pod in alive)
                if bound < sum(self._wanted(workload, one, part) for part in one.parts):
                    return False
        return True

    def _wanted(self, workload: Workload, role: Role, part: JobPart) -> int:
        last = self._pods.get((workload.head.uid, role.group, workload.ends_with), ())
        if workload.ends_with and any(pod.status.phase == "Succeeded" for pod, _ in last):
            return 0
        own = self._of_part(workload, role, part)
        return part.wanted(sum(pod.status.phase == "Succeeded" for pod in own), sum(map(_alive, own)))

    def _of_part(self, workload: Workload, role: Role, part: JobPart) -> list[Pod]:
        found = self._pods.get((workload.head.uid, role.group, role.name), ())
        several = len(role.parts) > 1
        return [
            pod
            for pod, place in found
            if (not several or place.seat.part == part.key) and self._of_run(workload, place)
        ]

    @staticmethod
    def _of_run(workload: Workload, place: PodPlace) -> bool:
        """Whether a pod is of the run that there is now."""
        return not workload.run or place.seat.run == workload.run

    def _leader(self, workload: Workload, role: Role, part: JobPart) -> str:
        """The pod that those of a part follow; empty where there is none."""
        names = {one.role for one in role.after if one.state == SCHEDULED}
        for one in workload.roles:
            if one.name in names and one.group == role.group:
                for pod, place in self._pods.get((workload.head.uid, one.group, one.name), ()):
                    if (place.seat.part == part.key or len(one.parts) == 1) and _alive(pod):
                        return pod.key
        return ""

    # -- pods ---------------------------------------------------------------------------------------------------------

    def make(self, node_of: Callable[[str], str], label_of: Callable[[str, str], str]) -> Batch:
        """The pods of all roles that have begun and were not made before.

        node_of: pod -> its node, empty for none; label_of: (pod, key) -> that label of its node.
        """
        batch = Batch()
        begun = [
            (top, workload, role)
            for top, workload, role in self.roles()
            if (workload.head.uid, role.group, role.name) not in self._made
            and not self.waits_for(workload, role, node_of)
        ]
        for top, workload, role in begun:
            self._made.add((workload.head.uid, role.group, role.name))
            if top.note or workload.note:
                continue
            for i, part in enumerate(role.parts):
                template = role.templates[i] if role.templates else role.template
                self._make_part(top, workload, role, part, template, batch, label_of)
        return batch

    def missing(self, workload: Workload, role: Role) -> int:
        """How many pods of a role would be made now."""
        return sum(len(self._open(workload, role, part)) for part in role.parts)

    def _open(self, workload: Workload, role: Role, part: JobPart) -> list[Slot]:
        """The slots that are to be filled."""
        own = self._of_part(workload, role, part)
        alive = [pod for pod in own if _alive(pod)]
        if workload.head.kind == "DaemonSet":
            template = self._templates.pod(role.template)
            nodes = self._daemons(workload, template) if template is not None else ()
            filled = {node_of_daemon(pod) for pod in own}
            prefix = f"{workload.head.namespace}/"
            slots = (Slot(f"{workload.head.name}-{node}", {}, node=node) for node in nodes if node not in filled)
            return [slot for slot in slots if f"{prefix}{slot.name}" not in self._present]
        wanted = self._wanted(workload, role, part)
        number = wanted - len(alive)
        names = {pod.metadata.name for pod in own}
        if part.filling is Filling.INDEX:
            # of two pods of one index one counts, and none of an index that there is not
            there = {index for pod in alive if (index := _index(pod)) is not None}
            last = max(there, default=-1)
            known = takewhile(lambda slot: slot.index is not None and slot.index <= last, part.slots())
            number = wanted - len(there & {slot.index for slot in known})
        elif part.filling is Filling.NAME:
            number = wanted  # each name is made that is not there
        if number <= 0:
            return []
        if part.filling is Filling.INDEX:
            # of pods that Failed the index is open again
            over = {_index(pod) for pod in own if pod.status.phase != "Failed" and not pod.metadata.deletion_timestamp}
            over |= part.closed
            open_slots: Iterator[Slot] = (slot for slot in part.slots() if slot.index not in over)
        elif part.filling is Filling.NAME:
            prefix = f"{workload.head.namespace}/"
            names |= {key.removeprefix(prefix) for key in self._present if key.startswith(prefix)}
            open_slots = (slot for slot in part.slots() if slot.name not in names)
        else:
            free = (slot for slot in part.slots() if slot.name not in names)
            open_slots = chain(free, (slot for slot in part.slots() if slot.name in names))
        return list(islice(open_slots, number))

    def _make_part(
        self,
        top: Top,
        workload: Workload,
        role: Role,
        part: JobPart,
        template: Template,
        batch: Batch,
        label_of: Callable[[str, str], str],
    ) -> None:
        base = self._templates.pod(template)
        if base is None:
            return
        head = workload.head
        if top.jobs is not None:
            if part.key not in top.jobs:
                return  # nobody is there to make them
            top = changed(top, head=top.jobs[part.key])
        kept = self._runs.get((head.uid, role.group), {})
        owner = _owner(workload, part)
        for slot in self._open(workload, role, part):
            name = slot.name
            while f"{head.namespace}/{name}" in self._taken:
                name = f"{name}-{top.head.kind.lower()}"
            self._taken.add(f"{head.namespace}/{name}")
            meta = ObjectMeta(
                name=name,
                namespace=head.namespace,
                uid=f"{top.head.uid}/{name}",
                creation_timestamp=top.head.created or None,
                labels={**base.metadata.labels, **slot.labels, **kept},
                annotations={**base.metadata.annotations, **slot.annotations},
                owner_references=[owner],
            )
            spec = placed(base.spec, slot, lambda key: label_of(self._leader(workload, role, part), key))
            pod = Pod(metadata=meta, spec=spec)
            batch.pods.append(pod)
            batch.by_top.setdefault(top.head.uid, []).append(pod)
            self.accounts[top.head.uid].made += 1
            for volume, claim in slot.claims:
                key = f"{head.namespace}/{volume}-{slot.name}"
                if key not in self._claims:
                    self._claims.add(key)
                    batch.claims.append(MadeClaim(head.namespace, f"{volume}-{slot.name}", claim, top.head.created))
            place = self._known.place(pod)
            if place is not None:
                self._pods.setdefault((head.uid, role.group, role.name), []).append((pod, place))

    # -- what is told -------------------------------------------------------------------------------------------------

    def document(self, node_of: Callable[[str], str]) -> list[dict[str, Any]]:
        """`workloads` of the output."""
        waiting: dict[str, dict[tuple[str, str], int]] = {}
        for top, workload, role in self.roles():
            key = workload.head.uid, role.group, role.name
            if key in self._made or top.note or workload.note:
                continue
            if why := self.waits_for(workload, role, node_of):
                roles = waiting.setdefault(top.head.uid, {})
                roles[role.name, why] = roles.get((role.name, why), 0) + self.missing(workload, role)
        return [
            {
                "kind": one.head.kind,
                "namespace": one.head.namespace,
                "name": one.head.name,
                "made": one.made,
                "present": one.present,
                "waiting": [
                    {"role": role, "pods": pods, "for": why}
                    for (role, why), pods in waiting.get(one.head.uid, {}).items()
                ],
                "note": one.note,
            }
            for one in self.accounts.values()
        ]


_OF_GROUP = ("leaderworkerset.sigs.k8s.io/template-revision-hash",)
"""Labels that pods of a group share, whatever the spec says by now."""


def _alive(pod: Pod) -> bool:
    return pod.status.phase not in ("Succeeded", "Failed") and not pod.metadata.deletion_timestamp


def _counts(place: PodPlace, pod: Pod) -> bool:
    """Whether a present pod fills a slot (workloads.md 10.3)."""
    seat = place.seat
    roles = (role for role in place.workload.roles if (role.group, role.name) == (seat.group, seat.role))
    parts = [part for role in roles for part in role.parts]
    filling = next((part.filling for part in parts if part.key == seat.part), Filling.COUNT)
    if filling is Filling.COUNT:
        return _alive(pod)
    gone = pod.status.phase == "Failed" or bool(pod.metadata.deletion_timestamp)
    return filling is Filling.NAME or not gone


def _index(pod: Pod) -> int | None:
    return index_in(pod.metadata.labels, pod.metadata.annotations)


def _owner(workload: Workload, part: JobPart) -> OwnerReference:
    head = workload.head
    if head.kind == "JobSet":
        uid = f"{head.uid}/{part.key}"
        return OwnerReference(api_version="batch/v1", kind="Job", name=part.key, uid=uid, controller=True)
    return OwnerReference(api_version=head.api_version, kind=head.kind, name=head.name, uid=head.uid, controller=True)


def _before(workload: Workload, role: Role) -> set[RoleKey]:
    """What a role depends on by Complete, also through others, and all that these depend on."""
    by_name = {one.name: one for one in workload.roles if one.group == role.group}
    found: set[RoleKey] = set()
    todo = [(role, False)]
    while todo:
        one, over = todo.pop()
        for condition in one.after:
            before = by_name.get(condition.role)
            gone = over or condition.state == "Complete"
            if before is None:
                continue
            if gone:
                found.add((workload.head.uid, role.group, before.name))
            todo.append((before, gone))
    return found


def _ready_before(workload: Workload, role: Role) -> set[RoleKey]:
    """What a role depends on by Ready or by being scheduled, also through others."""
    by_name = {one.name: one for one in workload.roles if one.group == role.group}
    found: set[RoleKey] = set()
    todo = [role]
    while todo:
        for condition in todo.pop().after:
            before = by_name.get(condition.role)
            if before is not None and condition.state != "Complete":
                found.add((workload.head.uid, role.group, before.name))
                todo.append(before)
    return found
