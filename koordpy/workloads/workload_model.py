# SPDX-License-Identifier: Apache-2.0
"""Model of a workload, such as a Job, JobSet or RayCluster: its roles, and the pods that its controller creates.

A reader in `kinds` fills a `Workload` from a manifest. A `Role` has equal pods, such as workers; a `JobPart` is the
share of a role that one controller counts; a `Slot` is one pod to create. `JobPart.wanted` returns how many pods the
controller keeps alive now. The model does not plan and does not know nodes.

Source: workloads.md sections 1, 4, 5 and 6.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from koordpy.api.field_faults import Fault
from koordpy.api.objects import OwnerReference, Pod
from koordpy.api.storage_objects import PersistentVolumeClaim
from koordpy.decoding.strict_decoding import decode
from koordpy.workloads.workload_manifest import Head, ReadFields, Source, index_in

REQUIRED = "required"
"""Text of the fault of a mandatory field that is absent."""


class Filling(Enum):
    """How an existing pod is matched with a slot, so that it is not created again offline (workloads.md 10.3)."""

    INDEX = auto()
    """The slot of the pod's completion index."""
    NAME = auto()
    """The slot with the pod's name."""
    NODE = auto()
    """The slot of the pod's node."""
    COUNT = auto()
    """Any slot: only the number of pods matters."""


@dataclass(frozen=True, slots=True)
class Template:
    """A pod template and its path in the manifest."""

    raw: Mapping[str, Any]
    """The mapping in the manifest; empty if there is no readable manifest."""
    path: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    scheduler: str
    pod: Pod | None = None
    """Pod from which pods are created offline; None if no pods are created, or the template cannot be read."""

    @classmethod
    def read(cls, source: Source) -> "Template":
        """Reads a pod template; records its faults in the source."""
        meta, spec = source.at("metadata"), source.at("spec")
        if not spec.list("containers"):
            spec.fault("containers", REQUIRED)
        scheduler = spec.text("schedulerName", "default-scheduler")
        labels, notes = (meta.strings(name) for name in ("labels", "annotations"))
        pod = _pod_of(source, source.read_fields) if source.read_fields is not None else None
        return cls(source.raw, source.path, labels, notes, scheduler, pod)


def _pod_of(source: Source, asked: ReadFields) -> Pod | None:
    """Returns the pod of a template; None if it cannot be read. Records its faults and rejected values."""
    parts = {name: source.raw.get(name) for name in ("metadata", "spec")}
    read = decode({name: part for name, part in parts.items() if part is not None}, Pod)
    for fault in read.faults:
        source.fault(fault.path, fault.text)
    for doubt in read.doubts:
        asked.refused[Fault(source.where(doubt.path), doubt.text)] = None
    return read.value


NO_TEMPLATE = Template({}, "", {}, {}, "")
"""Template of roles without a readable manifest; labels and annotations of the pods are used instead."""


class SlotClaim(Struct, frozen=True):
    """A PersistentVolumeClaim that is created with a pod, unless it exists."""

    volume: str
    """Name of the pod's volume that refers to the claim."""
    name: str
    template: PersistentVolumeClaim
    """The claim without its name and namespace."""


def claim_templates(source: Source, name: str) -> tuple[PersistentVolumeClaim, ...]:
    """Returns the PersistentVolumeClaims in a list of templates and records their faults. Empty if no pods are created
    from the manifest."""
    found = []
    for one in source.list(name) if source.read_fields is not None else ():
        read = decode(one.raw, PersistentVolumeClaim)
        for fault in read.faults:
            one.fault(fault.path, fault.text)
        if read.value is not None and not read.value.metadata.name:
            one.fault("metadata.name", "is missing")
        elif read.value is not None:
            found.append(read.value)
    return tuple(found)


def own_claims(templates: Sequence[PersistentVolumeClaim], pod: str) -> tuple[SlotClaim, ...]:
    """Returns the claims of one pod of a StatefulSet, named `TEMPLATE-POD`."""
    names = (one.metadata.name for one in templates)
    return tuple(SlotClaim(name, f"{name}-{pod}", one) for name, one in zip(names, templates, strict=True))


class Slot(Struct, frozen=True):
    """A pod that the controller of a workload creates."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = {}
    exclusive_domain: tuple[str, str, str, bool] | None = None
    """(node label, pod label, value of the pod label, True for all namespaces): the pods with this value have a domain
    of the node label to themselves (exclusive-topology)."""
    follows: str = ""
    """Node label in which the pod has the value of the leader's node; empty for none."""
    node: str = ""
    """The node on which a DaemonSet creates the pod; empty for other kinds."""
    claims: tuple[SlotClaim, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPart:
    """Pods of a role that one controller counts, such as one Job of a JobSet. Most roles have one part."""

    number: int
    """Number of pods in the spec."""
    slot: Callable[[int], Slot] | None = None
    """Returns the pod to create for an index; None if the workload's manifest does not create the pods."""
    span: range | None = None
    """Indexes of all pods that may be created, in order; None: 0 to `number` - 1."""
    key: str = ""
    """Distinguishes the part from other parts of its role."""
    owner: OwnerReference | None = None
    """The object that controls the pods if it is not the workload: a Job of a JobSet."""
    template: Template | None = None
    """Template of the part if the parts of its role differ; None: that of the role."""
    filling: Filling = Filling.NAME
    """How existing pods are matched with the slots."""
    total: int | None = None
    """Number of pods that must Succeed: completions less failed indexes, or each replica once. At most this number of
    pods runs at one time. None: `number` pods are wanted, whatever pods have Succeeded."""
    queue: bool = False
    """True for a Job without completions: once a pod has Succeeded, only the pods that are alive are wanted."""
    succeeded: int = 0
    """Number of Succeeded pods in the status."""
    closed: Set[int] = frozenset()
    """Indexes in the status that are Failed or Succeeded."""
    completed: Set[int] = frozenset()
    """Indexes in the status that have Succeeded."""
    ended_at: float = 0.0
    """Time in the status at which all pods had Succeeded, in seconds since the epoch; 0 if not complete or unknown."""
    over: bool = False
    """True if the controller is suspended or finished: no pods are wanted."""
    independent: bool = False
    """True if the pods do not need each other (workloads.md 5.2): the minimum is 1."""
    note: str = ""
    """`suspended`, `finished`, or empty."""

    @property
    def indexes(self) -> range:
        """Indexes of all pods of the part."""
        return range(self.number) if self.span is None else self.span

    def slots(self, closed: Collection[int | None] = ()) -> Iterator[Slot]:
        """Yields every pod that may be created, in order, except those of closed indexes."""
        return (self.slot(i) for i in self.indexes if i not in closed) if self.slot is not None else iter(())

    def counts(self, index: int | None) -> bool:
        """Returns whether a pod with this completion index counts. False only for an index that a Job no longer has."""
        return self.filling is not Filling.INDEX or index is None or index < self.indexes.stop

    def wanted(self, succeeded: int, alive: int) -> int:
        """Returns how many pods the controller keeps alive now (workloads.md 5.1). succeeded, alive: numbers of
        existing pods. The larger of `succeeded` and the status counts, because either may be outdated."""
        if self.over:
            return 0
        done = max(self.succeeded, succeeded)
        if self.queue:
            return alive if done else self.number
        return self.number if self.total is None else max(0, min(self.number, self.total - done))

    def least(self, wanted: int) -> int:
        """Returns how many of the wanted pods must start together if no minimum is set."""
        return min(1, wanted) if self.independent else wanted


class Record(Struct, frozen=True):
    """Pods that the status of a controller counts as Succeeded, also pods that no longer exist."""

    number: int = 0
    indexes: Set[int] = frozenset()
    """Completion indexes that have Succeeded, of an Indexed Job."""
    ended_at: float = 0.0
    """Time of completion, in seconds since the epoch; 0 if not complete, or not in the status."""


NO_RECORD = Record()
"""Record of a controller that counts nothing or is unknown."""


@dataclass(frozen=True, slots=True)
class StepCondition:
    """A state of another role that must be reached before the controller creates pods of a role (workloads.md 6)."""

    role: str
    state: str
    """Ready, Complete or scheduled."""
    text: str
    """`role driver Ready`."""
    met: bool = False
    """True if the state is reached according to the status."""


@dataclass(frozen=True, slots=True)
class SharedDomain:
    """A domain that pods of a run share: one value of a node label, or one domain of a layer."""

    label: str = ""
    layer: str = ""
    """Name of the layer; empty if the layer is given by `tier`, or the domain by `label`."""
    tier: int = 0
    """Number of the layer above the nodes, used if `layer` is empty."""
    must: bool = True
    """False if the domain is only preferred."""
    part: str = ""
    """Equal for gangs that share one domain; empty if all gangs of the run share it."""
    pods: frozenset[str] | None = None
    """Keys of the pods that share the domain; None for all pods of the gang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """Pods of a workload, or of one of its groups, with equal templates and one name."""

    name: str
    parts: tuple[JobPart, ...]
    template: Template
    group: str = ""
    """Number of the group of a LeaderWorkerSet; empty for other kinds."""
    after: tuple[StepCondition, ...] = ()
    above: Mapping[str, str] = field(default_factory=dict)
    """Annotations of objects between the pod template and the workload, such as the Job template."""
    deadline: Mapping[str, str] = field(default_factory=dict)
    """The maximum runtime annotation that follows from the Job's activeDeadlineSeconds; an explicit annotation has
    precedence."""
    least: int | None = None
    """The smallest number of pods of an elastic role (minReplicas); None if the role is not elastic."""
    half_of: str | None = None
    """Name of the role in the spec if that role was split, such as into leaders and followers; empty if the spec does
    not name its roles; None if the role was not split."""
    detail: str = ""
    """Text for messages, such as `2 Jobs of 2`."""
    domains: tuple[SharedDomain, ...] = ()

    @property
    def number(self) -> int:
        """Returns the number of pods in the spec."""
        return sum(part.number for part in self.parts)

    @property
    def templates(self) -> tuple[Template, ...]:
        """Templates of all parts, each once; at least one."""
        return tuple({id(one): one for one in map(self.template_of, self.parts)}.values()) or (self.template,)

    def template_of(self, part: JobPart) -> Template:
        """Returns the template from which the pods of a part are created."""
        return part.template or self.template


class PodSeat(Struct, frozen=True):
    """The role, index, part and run of a pod in its workload."""

    role: str
    index: int | None = None  # rank index in the workload; None if the pod has none
    part: str = ""  # `JobPart.key`
    group: str = ""  # `Role.group`
    run: str = ""
    """Distinguishes the runs of one workload: restart-attempt or revision."""


NOWHERE = PodSeat("")
"""Seat of a pod without a known workload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """An object that has pods, created by its controller directly or through other objects."""

    head: Head
    roles: tuple[Role, ...] = ()
    """Roles in the order of the spec; empty if the object creates another object, which creates the pods."""
    seat: Callable[[Pod], PodSeat | None] | None = None
    """Returns the seat of a pod below this workload, or None if the pod has none; None for objects without roles."""
    is_kind: bool = True
    """True if pods of this kind may be a gang (workloads.md 4)."""
    by_default: bool = False
    """True if the pods are a gang even if no annotation requests one."""
    children: tuple[tuple[str, str], ...] = ()
    """(kind, name) of the objects between the workload and its pods, as the controller creates them."""
    marks: tuple[tuple[str, str], ...] = ()
    """(label, value): a pod without an owner belongs to the workload if it has one of these labels."""
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the pods that the workload adopts."""
    run: str = ""
    """The current run; pods without a run label belong to it."""
    members: Mapping[str, str] = field(default_factory=dict)
    """`namespace/name` of a pod that the manifest lists -> its role."""
    totals: tuple[tuple[str, Any], ...] = ()
    """(field, value) of minimums over all roles, such as `spec.minAvailable`."""
    total_least: tuple[str, int] | None = None
    """(field, smallest number of pods over all roles) of an elastic workload; None if not elastic."""
    total_keys: tuple[str, ...] = ()
    """Annotations of other schedulers that set a minimum over all roles."""
    ordered: bool = False
    """True if the controller creates pods one after another: the minimum is 1 and settings cannot raise it."""
    ends_with: str = ""
    """Role of which the first Succeeded pod finishes the workload; empty for none."""
    counted: bool = True
    """True if the spec states the number of pods; False: as many as exist are wanted."""
    sized_by: str = "replicas"
    """Name of the field that sets the number of pods, for faults."""
    note: str = ""
    """`suspended`, `finished`, or empty."""
    origin: str = "workload"
    """Source of the gangs: `workload`, or the pods themselves, as `labels` or `kueue`."""
    said: str = ""
    """Replaces kind and name in texts about the members, such as `of pod group pg (Kueue)`; empty: kind and name are
    used."""
    source: Source | None = None
    """The manifest, of an object that is read again when other objects change: a JobSet and its Jobs. None for
    others."""
    part: JobPart | None = None
    """The Job as a part of the JobSet that owns it; None for other objects."""
    of_group: Callable[[str], Sequence[Role]] | None = None
    """Returns the roles of a group, also of a group that the spec does not count (maxSurge); None if the kind has no
    groups."""
    caps_minimum: bool = False
    """True if a minimum above the number of pods is read as that number: the kind is scaled without its template."""
    sets: tuple[Head, ...] = ()
    """ReplicaSets that this workload combines, the oldest first (`deployment_rollouts.py`); empty for any other
    workload."""
    policy: str = ""
    """`gang` or `basic`, from spec.scheduling of a Job; empty if the spec has no policy."""
    hard_keys: tuple[str, ...] = ()
    """Node labels from spec.scheduling: all pods share one value of each."""
    one_victim: bool = False
    """True if spec.scheduling requires that all pods are evicted together."""
    desired: int | None = None
    """Number of pods that the owner of the ReplicaSets wants outside a rollout; None if no annotation states it."""

    @property
    def record(self) -> Record:
        """Succeeded pods that the status counts among the pods that the workload controls itself; not those of a
        JobSet's Jobs."""
        own = [part for role in self.roles for part in role.parts if part.owner is None and part.succeeded]
        if not own:
            return NO_RECORD
        number, at = sum(part.succeeded for part in own), max(part.ended_at for part in own)
        return Record(number, own[0].completed if len(own) == 1 else frozenset(), at)

    def templates(self) -> Collection[Template]:
        """Returns the pod templates, each once: the groups of a LeaderWorkerSet share theirs."""
        return {one.path: one for role in self.roles for one in role.templates if one.raw}.values()


def seats(
    starts: Mapping[str, int],
    role_of: Callable[[Pod], str],
    key: str,
    default: Mapping[str, int] = MappingProxyType({}),
) -> Callable[[Pod], PodSeat | None]:
    """Returns the function from a pod to its seat, for kinds that label pods with role and index. starts: role -> rank
    index of its first pod; default: role -> index of pods without the label `key`."""

    def seat(pod: Pod) -> PodSeat | None:
        role, index = role_of(pod), index_in(pod.metadata, key)
        if role not in starts:
            return None
        index = default.get(role) if index is None else index
        return PodSeat(role, None if index is None else starts[role] + index)

    return seat


def starts_of(roles: Sequence[Role]) -> dict[str, int]:
    """Returns role -> rank index of its first pod: the number of pods of the roles before it."""
    before = accumulate((role.number for role in roles), initial=0)
    return dict(zip((role.name for role in roles), before, strict=False))
