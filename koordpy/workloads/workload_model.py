# SPDX-License-Identifier: Apache-2.0
"""Model of a workload, such as a Job, JobSet or RayCluster: its roles, and the pods that its controller creates.

A reader in `kinds` fills a `Workload` from a manifest. A `Role` has equal pods, such as workers. A `JobPart` is the
part of a role that one controller counts. A `Slot` is one pod to create. `JobPart.wanted` returns how many pods the
controller keeps alive now. The model must not plan, and must not know nodes.

Source: workloads.md sections 1, 4, 5 and 6.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from msgspec import Struct

from koordpy.api.field_faults import Fault
from koordpy.api.objects import OwnerReference, Pod
from koordpy.api.storage_objects import PersistentVolumeClaim
from koordpy.decoding.strict_decoding import decode
from koordpy.workloads.workload_manifest import Head, ReadFields, Source

REQUIRED = "required"
"""Text of the fault if a mandatory field is absent."""


class Filling(Enum):
    """How an existing pod is matched with a slot, so that the pod is not created again offline (workloads.md 10.3)."""

    INDEX = auto()
    """A pod fills the slot with its completion index."""
    NAME = auto()
    """A pod fills the slot with its name."""
    NODE = auto()
    """A pod fills the slot of its node."""
    COUNT = auto()
    """A pod fills any slot: only the number of pods matters."""


@dataclass(frozen=True, slots=True)
class Template:
    """A pod template and its path in the manifest."""

    raw: Mapping[str, Any]
    """The mapping in the manifest; empty if no readable manifest exists."""
    path: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    scheduler: str
    pod: Pod | None = None
    """The pod from which pods are created offline; None if no pods are created, or if the template cannot be read."""

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
"""Template of a role without a readable manifest; the labels and annotations of its pods are used instead."""


class SlotClaim(Struct, frozen=True):
    """A PersistentVolumeClaim that is created together with a pod, unless it exists."""

    volume: str
    """Name of the volume in the pod that refers to the claim."""
    name: str
    template: PersistentVolumeClaim
    """The claim without its name and namespace."""


def claim_templates(source: Source, name: str) -> tuple[PersistentVolumeClaim, ...]:
    """Returns the PersistentVolumeClaims in a list of templates, and records their faults. Empty if no pods are created
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
    """A pod that the controller of a workload creates, with its changes to the pod template."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = {}
    exclusive_domain: tuple[str, str, str, bool] | None = None
    """(node label, pod label, value of the pod label, True for all namespaces): pods with this value have a domain of
    the node label alone (exclusive-topology). None for none."""
    follows: str = ""
    """Key of a node label: the pod must be on a node with the same value as the leader's node. Empty for none."""
    node: str = ""
    """The node for which a DaemonSet creates the pod; empty for other kinds."""
    claims: tuple[SlotClaim, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPart:
    """The pods of a role that one controller counts, such as one Job of a JobSet. Most roles have one part."""

    number: int
    """Number of pods in the spec."""
    slot: Callable[[int], Slot] | None = None
    """Returns the pod to create for an index; None if the manifest of the workload does not create pods."""
    span: range | None = None
    """Indexes of all pods that may be created, in order; None for 0 to `number` - 1."""
    first_rank: int = 0
    """Rank index of the pod with index 0."""
    key: str = ""
    """Distinguishes the part from other parts of its role."""
    owner: OwnerReference | None = None
    """The object that controls the pods if this is not the workload, such as a Job of a JobSet; else None."""
    template: Template | None = None
    """Template of this part if the parts of a role differ; None if the role's template applies."""
    filling: Filling = Filling.NAME
    """How existing pods are matched with the slots."""
    total: int | None = None
    """Number of pods that must Succeed, and the maximum that runs at one time: completions less failed indexes, or once
    for each replica. None: `number` pods are wanted, however many have Succeeded."""
    queue: bool = False
    """True for a Job without completions: once a pod has Succeeded, only the pods that are alive are wanted."""
    succeeded: int = 0
    """Number of Succeeded pods according to the status."""
    closed: Set[int] = frozenset()
    """Indexes that are Failed or Succeeded according to the status."""
    completed: Set[int] = frozenset()
    """Indexes that have Succeeded according to the status."""
    ended_at: float = 0.0
    """Time at which all pods had Succeeded, in seconds since the epoch; 0 if not complete or unknown."""
    over: bool = False
    """True if the controller is suspended or has finished, so that no pods are wanted."""
    independent: bool = False
    """True if the pods do not need each other (workloads.md 5.2), so that the default minimum is 1."""
    note: str = ""
    """`suspended`, `finished`, or empty."""

    @property
    def indexes(self) -> range:
        """Indexes of all pods of the part."""
        return range(self.number) if self.span is None else self.span

    def slots(self, closed: Collection[int | None] = ()) -> Iterator[Slot]:
        """Yields every pod that may be created, in order, except pods with closed indexes."""
        return (self.slot(i) for i in self.indexes if i not in closed) if self.slot is not None else iter(())

    def counts(self, index: int | None) -> bool:
        """Returns True if a pod with this completion index counts: always, except for an index that a Job no longer
        has."""
        return self.filling is not Filling.INDEX or index is None or index < self.indexes.stop

    def wanted(self, succeeded: int, alive: int) -> int:
        """Returns how many pods the controller keeps alive now (workloads.md 5.1). succeeded, alive: numbers of
        existing pods. The larger of `succeeded` and the status's number counts, because either may be outdated."""
        if self.over:
            return 0
        done = max(self.succeeded, succeeded)
        if self.queue:
            return alive if done else self.number
        return self.number if self.total is None else max(0, min(self.number, self.total - done))

    def least(self, wanted: int) -> int:
        """Returns how many of the wanted pods must start together if no setting states a minimum."""
        return min(1, wanted) if self.independent else wanted


class Record(Struct, frozen=True):
    """Pods that the status of a controller counts as Succeeded, including pods that no longer exist."""

    number: int = 0
    indexes: Set[int] = frozenset()
    """Completion indexes that have Succeeded; only of an Indexed Job."""
    ended_at: float = 0.0
    """Time of completion, in seconds since the epoch; 0 if not complete, or not stated in the status."""


NO_RECORD = Record()
"""Record of a controller that counts nothing, or that is unknown."""


@dataclass(frozen=True, slots=True)
class StepCondition:
    """A state of another role that must be reached before the controller creates pods of a role (workloads.md 6)."""

    role: str
    state: str
    """`Ready`, `Complete` or `scheduled`."""
    text: str
    """The condition in messages, such as `role driver Ready`."""
    met: bool = False
    """True if the status says that the state is reached."""


@dataclass(frozen=True, slots=True)
class SharedDomain:
    """A domain that certain pods of a run share: one value of a node label, or one domain of a layer."""

    label: str = ""
    layer: str = ""
    """Name of the layer; empty if `tier` states the layer, or `label` the domain."""
    tier: int = 0
    """Number of the layer, counted from the nodes upwards; used if `layer` is empty."""
    must: bool = True
    """True if the domain is required, False if it is only preferred."""
    part: str = ""
    """Equal for gangs that share one domain; empty if all gangs of the run share the domain."""
    pods: frozenset[str] | None = None
    """Keys of the pods that share the domain; None for all pods of the gang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """Pods of a workload, or of one of its groups, that have equal templates and one name."""

    name: str
    parts: tuple[JobPart, ...]
    template: Template
    group: str = ""
    """Number of the group of a LeaderWorkerSet; empty for other kinds."""
    after: tuple[StepCondition, ...] = ()
    above: Mapping[str, str] = field(default_factory=dict)
    """Annotations of objects between the pod template and the workload, such as those of the Job template."""
    deadline: Mapping[str, str] = field(default_factory=dict)
    """The annotation for the maximum runtime that follows from the Job's activeDeadlineSeconds. An explicit annotation
    has precedence."""
    least: int | None = None
    """Minimum number of pods of an elastic role (minReplicas); None if the role is not elastic."""
    half_of: str | None = None
    """Name of the role in the spec if that role was split, as into leaders and followers; empty if the spec does not
    name its roles; None if the role was not split."""
    detail: str = ""
    """Detail for messages, such as `2 Jobs of 2`."""
    domains: tuple[SharedDomain, ...] = ()

    @property
    def number(self) -> int:
        """Returns the number of pods in the spec."""
        return sum(part.number for part in self.parts)

    @property
    def templates(self) -> tuple[Template, ...]:
        """Templates of all parts, each once. There is at least one."""
        return tuple({id(one): one for one in map(self.template_of, self.parts)}.values()) or (self.template,)

    def template_of(self, part: JobPart) -> Template:
        """Returns the template from which the pods of a part are created."""
        return part.template or self.template


class PodPosition(Struct, frozen=True):
    """Position of a pod in its workload: role, rank index, part and run."""

    role: str
    index: int | None = None  # rank index in the workload; None if the pod has none
    part: str = ""  # `JobPart.key`
    group: str = ""  # `Role.group`
    run: str = ""
    """Distinguishes runs of one workload: the restart attempt, or the revision."""


NOWHERE = PodPosition("")
"""Position of a pod that has no known workload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """An object that has pods. Its controller creates them directly, or through other objects."""

    head: Head
    roles: tuple[Role, ...] = ()
    """Roles in the order of the spec; empty if the object creates another object, which creates the pods."""
    position: Callable[[Pod], PodPosition | None] | None = None
    """Returns the position of a pod below this workload; None if the pod does not belong to it. None for objects
    without roles."""
    is_kind: bool = True
    """True if gangs may be derived from this kind (workloads.md 4)."""
    by_default: bool = False
    """True if the pods are a gang even without an annotation that requests it."""
    children: tuple[tuple[str, str], ...] = ()
    """(kind, name) of each object between the workload and its pods; the controller creates these objects."""
    marks: tuple[tuple[str, str], ...] = ()
    """Pairs (label, value): a pod without an owner that has one of them belongs to the workload."""
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels by which the workload adopts pods."""
    run: str = ""
    """The present run; pods without a run label belong to it."""
    members: Mapping[str, str] = field(default_factory=dict)
    """`namespace/name` of a pod that the manifest lists -> its role."""
    totals: tuple[tuple[str, Any], ...] = ()
    """(field, value) of settings that state a minimum over all roles, such as `spec.minAvailable`."""
    total_least: tuple[str, int] | None = None
    """(field, minimum number of pods over all roles) of an elastic workload; None if not elastic."""
    total_keys: tuple[str, ...] = ()
    """Annotations of other schedulers that set a minimum over all roles."""
    ordered: bool = False
    """True if the controller creates the pods one after another, so that the minimum is 1 whatever settings say."""
    ends_with: str = ""
    """Name of the role that finishes the workload with its first Succeeded pod; empty for none."""
    counted: bool = True
    """True if the spec states the number of pods; False if as many pods are wanted as exist."""
    sized_by: str = "replicas"
    """Name of the field that states the number of pods, for faults."""
    note: str = ""
    """`suspended`, `finished`, or empty."""
    origin: str = "workload"
    """Where the gangs come from: `workload`, or the pods themselves, as `labels` or `kueue`."""
    said: str = ""
    """Replaces kind and name in texts about the members, such as `of pod group pg (Kueue)`; empty if kind and name are
    used."""
    source: Source | None = None
    """The manifest, if the object is read again when other objects change: a JobSet, and the Jobs of a JobSet. None for
    other objects."""
    part: JobPart | None = None
    """The Job as a part of the JobSet that owns it; None for other objects."""
    of_group: Callable[[str], Sequence[Role]] | None = None
    """Returns the roles of a group, even if the spec does not count the group (maxSurge); None if the kind has no
    groups."""
    caps_minimum: bool = False
    """True if a minimum above the number of pods counts as that number: the kind is scaled without its template."""
    sets: tuple[Head, ...] = ()
    """ReplicaSets that this workload combines, the oldest first (`deployment_rollouts.py`); empty for any other
    workload."""
    policy: str = ""
    """`gang` or `basic`, from spec.scheduling of a Job; empty if the spec has no policy."""
    hard_keys: tuple[str, ...] = ()
    """Keys of node labels from spec.scheduling: all pods must share one value of each."""
    one_victim: bool = False
    """True if spec.scheduling requires that all pods are evicted together."""
    desired: int | None = None
    """Number of pods that the owner of the ReplicaSets wants apart from a rollout; None if no annotation states it."""

    @property
    def record(self) -> Record:
        """Succeeded pods that the status counts, among the pods that the workload itself controls; without pods of a
        JobSet's Jobs."""
        own = [part for role in self.roles for part in role.parts if part.owner is None and part.succeeded]
        if not own:
            return NO_RECORD
        number, at = sum(part.succeeded for part in own), max(part.ended_at for part in own)
        return Record(number, own[0].completed if len(own) == 1 else frozenset(), at)

    def templates(self) -> Collection[Template]:
        """Returns the pod templates, each once, because the groups of a LeaderWorkerSet share templates."""
        return {one.path: one for role in self.roles for one in role.templates if one.raw}.values()
