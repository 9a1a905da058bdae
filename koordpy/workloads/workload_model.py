"""What is known of a workload: its roles, how many pods each has, when they are made, and where a pod belongs.

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
from koordpy.workloads.workload_manifest import AskedFields, Head, Source, index_in

REQUIRED = "required"
"""What is said of a field that has to be there."""


class Filling(Enum):
    """What a present pod stands for (workloads.md 10.3)."""

    INDEX = auto()
    """Its completion index."""
    NAME = auto()
    """The pod of its name."""
    NODE = auto()
    """The pod of its node."""
    COUNT = auto()
    """One of so many."""


@dataclass(frozen=True, slots=True)
class Template:
    """A pod template, and where it stands."""

    raw: Mapping[str, Any]
    path: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    scheduler: str
    pod: Pod | None = None
    """What pods are made of; None where none are made, or it cannot be read."""

    @classmethod
    def of(cls, source: Source) -> "Template":
        """Takes down what is wrong with it."""
        meta, spec = source.at("metadata"), source.at("spec")
        if not spec.list("containers"):
            spec.fault("containers", REQUIRED)
        scheduler = spec.text("schedulerName", "default-scheduler")
        labels, notes = (meta.strings(name) for name in ("labels", "annotations"))
        pod = _pod_of(source, source.asked) if source.asked is not None else None
        return cls(source.raw, source.path, labels, notes, scheduler, pod)


def _pod_of(source: Source, asked: AskedFields) -> Pod | None:
    parts = {name: source.raw.get(name) for name in ("metadata", "spec")}
    read = decode({name: part for name, part in parts.items() if part is not None}, Pod)
    for fault in read.faults:
        source.fault(fault.path, fault.text)
    for doubt in read.doubts:
        asked.refused[Fault(source.where(doubt.path), doubt.text)] = None
    return read.value


NO_TEMPLATE = Template({}, "", {}, {}, "")
"""Of pods that are made otherwise: what they say holds in its place."""


class SlotClaim(Struct, frozen=True):
    """A PersistentVolumeClaim that is created with a pod, unless it exists."""

    volume: str
    """Name of the pod's volume that refers to it."""
    name: str
    template: PersistentVolumeClaim
    """All but its name and namespace."""


def claim_templates(source: Source, name: str) -> tuple[PersistentVolumeClaim, ...]:
    """The PersistentVolumeClaims in a list of templates, faults taken down; none of a manifest of which no pods are
    made."""
    found = []
    for one in source.list(name) if source.asked is not None else ():
        read = decode(one.raw, PersistentVolumeClaim)
        for fault in read.faults:
            one.fault(fault.path, fault.text)
        if read.value is not None and not read.value.metadata.name:
            one.fault("metadata.name", "is missing")
        elif read.value is not None:
            found.append(read.value)
    return tuple(found)


def own_claims(templates: Sequence[PersistentVolumeClaim], pod: str) -> tuple[SlotClaim, ...]:
    """The claims of one pod of a StatefulSet: `TEMPLATE-POD`."""
    names = (one.metadata.name for one in templates)
    return tuple(SlotClaim(name, f"{name}-{pod}", one) for name, one in zip(names, templates, strict=True))


class Slot(Struct, frozen=True):
    """A pod that a workload's controller makes."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = {}
    apart: tuple[str, str, str, bool] | None = None
    """(node label, pod label, its value, in all namespaces): a domain of its own (exclusive-topology)."""
    follows: str = ""
    """Node label: it goes where the pod that leads its part is."""
    node: str = ""
    """The one node that it is for (DaemonSet)."""
    claims: tuple[SlotClaim, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPart:
    """Pods of a role that one controller counts: those of a Job of a JobSet; mostly all."""

    number: int
    """In the spec."""
    slot: Callable[[int], Slot] | None = None
    """Index -> the pod that is made; None where it is not made by that."""
    span: range | None = None
    """Indexes of all pods that may be made of it, in order; None: as many as its number."""
    key: str = ""
    """Tells it from other parts of its role."""
    owner: OwnerReference | None = None
    """What controls its pods, where that is another object than the workload: a Job of a JobSet."""
    template: Template | None = None
    """Its own, where not all parts of its role are alike."""
    filling: Filling = Filling.NAME
    total: int | None = None
    """How many are to Succeed, at most the number at one time: completions less failed indexes, or each replica once.
    None: the number is wanted, whatever becomes of pods."""
    queue: bool = False
    """A Job without completions: from the first that has Succeeded on only those that live are wanted."""
    succeeded: int = 0
    """As the status says."""
    closed: Set[int] = frozenset()
    """Indexes that are over, as the status says."""
    completed: Set[int] = frozenset()
    """Indexes that have Succeeded, as the status says."""
    ended_at: float = 0.0
    """When all of it had Succeeded, as the status says, in seconds since the epoch; 0 for not yet, or not known."""
    over: bool = False
    """Suspended, or finished: nothing is wanted."""
    independent: bool = False
    """Its pods can do without each other (workloads.md 5.2): one is enough."""
    note: str = ""

    @property
    def indexes(self) -> range:
        """Those of all its pods."""
        return range(self.number) if self.span is None else self.span

    def slots(self, closed: Collection[int | None] = ()) -> Iterator[Slot]:
        """Every pod that may be made of it, in order, but for indexes that are closed."""
        return (self.slot(i) for i in self.indexes if i not in closed) if self.slot is not None else iter(())

    def counts(self, index: int | None) -> bool:
        """Whether a pod of a completion index is one that its Job still has."""
        return self.filling is not Filling.INDEX or index is None or index < self.indexes.stop

    def wanted(self, succeeded: int, alive: int) -> int:
        """Pods that are kept alive now; succeeded, alive: pods that are seen."""
        if self.over:
            return 0
        done = max(self.succeeded, succeeded)
        if self.queue:
            return alive if done else self.number
        return self.number if self.total is None else max(0, min(self.number, self.total - done))

    def least(self, wanted: int) -> int:
        """How many of those that are wanted must start together, where nobody says so."""
        return min(1, wanted) if self.independent else wanted


class Record(Struct, frozen=True):
    """What the status of a controller counts as Succeeded of its own pods, whether or not these exist."""

    number: int = 0
    indexes: Set[int] = frozenset()
    """Completion indexes, of an Indexed Job."""
    at: float = 0.0
    """When it was complete, in seconds since the epoch; 0 where it is not, or the status does not say."""


NO_RECORD = Record()
"""Of a controller that counts nothing, or is not known."""


@dataclass(frozen=True, slots=True)
class StepCondition:
    """What has to come before pods of a role are made (workloads.md 6)."""

    role: str
    state: str
    """Ready, Complete or scheduled."""
    text: str
    """`role driver Ready`."""
    met: bool = False
    """Whether the status says that it has come."""


@dataclass(frozen=True, slots=True)
class SharedDomain:
    """Where pods of a run lie together: one value of a node label, or one domain of a layer."""

    label: str = ""
    layer: str = ""
    """Its name, where it is by layer; empty for the one of a tier ..."""
    tier: int = 0
    """... which is its number above the nodes."""
    must: bool = True
    part: str = ""
    """Equal for gangs whose pods lie together by themselves; empty for all of the run."""
    pods: frozenset[str] | None = None
    """Keys of those that are meant; None for all of the gang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """Pods of a workload, or of a group of it, that are alike."""

    name: str
    parts: tuple[JobPart, ...]
    template: Template
    group: str = ""
    """Of a LeaderWorkerSet: the group's number."""
    after: tuple[StepCondition, ...] = ()
    above: Mapping[str, str] = field(default_factory=dict)
    """Annotations between the template and the workload: those of its Job."""
    deadline: Mapping[str, str] = field(default_factory=dict)
    """The annotation that its Job's deadline stands for, where nobody writes it."""
    least: int | None = None
    """The smallest number of an elastic range, minReplicas."""
    half_of: str | None = None
    """The role of the spec that it is a part of; the empty one of a spec that has no others."""
    detail: str = ""
    """`2 Jobs of 2`."""
    domains: tuple[SharedDomain, ...] = ()

    @property
    def number(self) -> int:
        """Pods in the spec."""
        return sum(part.number for part in self.parts)

    @property
    def templates(self) -> tuple[Template, ...]:
        """Of each part, one at least."""
        return tuple({id(one): one for one in map(self.template_of, self.parts)}.values()) or (self.template,)

    def template_of(self, part: JobPart) -> Template:
        """What pods of a part are made of."""
        return part.template or self.template


class PodSeat(Struct, frozen=True):
    """Where a pod belongs in a workload."""

    role: str
    index: int | None = None
    part: str = ""
    group: str = ""
    run: str = ""
    """What tells runs of one workload apart: restart-attempt, revision."""


NOWHERE = PodSeat("")
"""Where a pod is of which nobody knows who made it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """An object that makes pods."""

    head: Head
    roles: tuple[Role, ...] = ()
    """None where it makes another object, which makes the pods."""
    seat: Callable[[Pod], PodSeat | None] | None = None
    """Where a pod belongs that this one, or an object between, controls; None where nobody says so."""
    is_kind: bool = True
    """Whether it is of a kind whose pods may be a gang (workloads.md 4)."""
    by_default: bool = False
    """Whether it is a gang without being asked."""
    children: tuple[tuple[str, str], ...] = ()
    """(kind, name) of objects between it and its pods, as its controller makes them."""
    marks: tuple[tuple[str, str], ...] = ()
    """Labels of its pods: by these they are known where nothing owns them."""
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of pods that it adopts."""
    run: str = ""
    """Its run, where pods do not say theirs."""
    members: Mapping[str, str] = field(default_factory=dict)
    """`namespace/name` -> role of pods that it names itself."""
    totals: tuple[tuple[str, Any], ...] = ()
    """(`spec.minAvailable`, value) of minima that it says of all roles together."""
    total_least: tuple[str, int] | None = None
    """(field, smallest number of an elastic range of all roles together)."""
    total_keys: tuple[str, ...] = ()
    """Annotations of others that say such a minimum."""
    ordered: bool = False
    """Its pods come one by one: one is enough, whatever is asked."""
    ends_with: str = ""
    """Role with whose first Succeeded pod it is finished."""
    counted: bool = True
    """Whether the number in the spec is read."""
    sized_by: str = "replicas"
    """The field that is named where it makes too many pods."""
    note: str = ""
    """`suspended`, `finished`."""
    origin: str = "workload"
    """Where its gangs come from: it, or what pods say, `labels` or `kueue`."""
    said: str = ""
    """`of pod group pg (Kueue)`, where its kind and name do not say what its members are of."""
    source: Source | None = None
    """What it was read of, where it is read again as other objects come: of a JobSet and its Jobs."""
    part: JobPart | None = None
    """It as a part of the JobSet that has it."""
    of_group: Callable[[str], Sequence[Role]] | None = None
    """The roles of a group, where it has groups, be it one that the spec does not count (maxSurge)."""
    caps_minimum: bool = False
    """Whether a minimum above its number of pods counts as that number: it is scaled without its template."""
    sets: tuple[Head, ...] = ()
    """The ReplicaSets that it stands for, the oldest first (`workloads.rollouts`); empty for any other workload."""
    policy: str = ""
    """`gang` or `basic`, as spec.scheduling of a Job says; empty where it says none."""
    hard_keys: tuple[str, ...] = ()
    """Node labels of spec.scheduling: its pods lie in one domain of each."""
    one_victim: bool = False
    """Whether spec.scheduling has all of its pods evicted with one."""
    desired: int | None = None
    """Pods that the owner of these wants when no rollout goes on; None where nothing says so."""

    @property
    def record(self) -> Record:
        """What its status counts of the pods that it controls itself: not those of a JobSet's Jobs."""
        own = [part for role in self.roles for part in role.parts if part.owner is None and part.succeeded]
        if not own:
            return NO_RECORD
        number, at = sum(part.succeeded for part in own), max(part.ended_at for part in own)
        return Record(number, own[0].completed if len(own) == 1 else frozenset(), at)

    def templates(self) -> Collection[Template]:
        """Its pod templates, each once: groups of a LeaderWorkerSet share theirs."""
        return {one.path: one for role in self.roles for one in role.templates if one.raw}.values()


def seats(
    starts: Mapping[str, int],
    role_of: Callable[[Pod], str],
    key: str,
    default: Mapping[str, int] = MappingProxyType({}),
) -> Callable[[Pod], PodSeat | None]:
    """Where pods belong that tell their role, and by a label their index in it. starts: role -> rank index of its first
    pod; default: role -> index of those without one."""

    def seat(pod: Pod) -> PodSeat | None:
        role, index = role_of(pod), index_in(pod.metadata, key)
        if role not in starts:
            return None
        index = default.get(role) if index is None else index
        return PodSeat(role, None if index is None else starts[role] + index)

    return seat


def starts_of(roles: Sequence[Role]) -> dict[str, int]:
    """Role -> pods of those before it."""
    before = accumulate((role.number for role in roles), initial=0)
    return dict(zip((role.name for role in roles), before, strict=False))
