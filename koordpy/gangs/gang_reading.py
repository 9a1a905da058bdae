"""A gang with its settings: those of its PodGroup, or of its oldest pod.

Source: gang-network.md 2.1, 2.4, 2.9 and 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from koordpy.api import keys
from koordpy.api.config import Gangs
from koordpy.api.counted import counted
from koordpy.api.durations import parse_duration
from koordpy.api.faults import UnreadableError, kind_name, literal
from koordpy.api.gangspec import GatherRule, TopologyWish, parse_topology_wish
from koordpy.api.jsontext import read_json
from koordpy.api.limits import LINKED_GANGS, MIN_RESOURCES, too_many
from koordpy.api.natural import natural_key
from koordpy.api.objects import ObjectMeta
from koordpy.api.remembered import once
from koordpy.api.settings import OF_GANGS, odd_settings, odd_values, whole_number
from koordpy.api.unread import Holder
from koordpy.api.wirejson import unreadable
from koordpy.cluster.ganghistory import NO_PAST, Ended
from koordpy.cluster.members import Members
from koordpy.cluster.pods import GangRef, GangSource, PodInfo
from koordpy.cluster.resources import Amounts, amounts
from koordpy.cluster.snapshot import Snapshot
from koordpy.cluster.topology import Layers
from koordpy.planning.ascend.multilevel import with_levels
from koordpy.planning.links import Named
from koordpy.workloads.gangs import Derived
from koordpy.workloads.model import SharedDomain

DEFAULT_WAITING_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Gang(Members):
    """One gang with the settings of its PodGroup, or of its oldest pod."""

    ref: GangRef
    exists: bool = True
    """False where pods name a PodGroup that is not there."""
    min_member: int = 0
    match_policy: str = ""
    strict: bool = True
    waiting_seconds: float = DEFAULT_WAITING_SECONDS
    links: tuple[str, ...] = ()
    """`namespace/name` of the gangs in its `groups` annotation, whether or not the link holds (`planning.links`)."""
    wish: TopologyWish = field(default_factory=TopologyWish)
    has_wish: bool = False
    """Whether it says itself what it asks of the network, be it nothing; else a configured default may hold."""
    hard_keys: tuple[str, ...] = ()
    """Node labels of upstream's topology constraints: a hard domain each."""
    min_resources: Amounts = field(default_factory=dict)
    fault: str = ""
    """An unreadable setting: text as gang-network.md 2.3 words it, without the gang's name."""
    parted: tuple[SharedDomain, ...] = ()
    """Where pods of it lie together by themselves; layers by their names."""
    one_victim: bool = False
    """Upstream's disruptionMode: whoever evicts one member evicts all."""
    owed: int = 0
    """Pending members that must come together lest it is evicted as stale (`planning.grace`)."""
    expected: int | None = None
    """How many members its owner says there will be, for messages alone."""
    doubts: tuple[str, ...] = ()
    """Settings that cannot be read and decide nothing."""
    derived: Derived | None = None
    """What it follows from, where nobody names it."""
    later: str = ""
    """Why members that it lacks may come later, for messages alone."""

    @property
    def has_parts(self) -> bool:
        """Whether some of its pods are to lie in one domain by themselves (`planning.parts`)."""
        return bool(self.parted) or any(rule.scope != "group" for rule in self.wish.gather)

    @property
    def by_workload(self) -> bool:
        """Whether its size is what a controller keeps alive now."""
        return self.derived is not None and self.derived.by_workload

    @property
    def had_success(self) -> bool:
        """Whether a pod of its run has Succeeded, though its size follows a controller that counts it no more."""
        return self.derived is not None and self.derived.succeeded

    @property
    def origin(self) -> str:
        """Why it is a gang."""
        return origin_of(self.ref, self.derived, self.pods)

    @property
    def key(self) -> str:
        return self.ref.key

    @property
    def whole(self) -> bool:
        """Whether it runs with its minimum."""
        return self.runs(self.min_member)

    @property
    def has_object(self) -> bool:
        """Whether an object carries its settings; else its oldest pod does."""
        return self.ref.source in (GangSource.GROUP, GangSource.UPSTREAM)

    @property
    def subject(self) -> str:
        """The object that its settings stand on."""
        if self.derived is not None and self.derived.title is not None:
            return f"{self.derived.title.kind} {self.ref.namespace}/{self.derived.title.name}"
        if self.derived is not None and not self.derived.by_workload and self.exists:
            return f"PodGroup {self.ref.namespace}/{self.derived.meta.name}"
        return f"PodGroup/{self.key}" if self.has_object else f"Pod/{self.oldest.key}"

    @property
    def oldest(self) -> PodInfo:
        """The oldest of its pods, of which there is at least one."""
        return _oldest(self.pods)

    def waits_for_members(self, have: int) -> str:
        """What is said while fewer members exist, or have Succeeded, than its minimum (2.3)."""
        text = f"gang {self.key}: waiting for members, {have} of minMember"
        expected = f", {self.expected} are expected" if self.expected is not None else ""
        return f"{text} {self.min_member} exist{expected}{self.later}"

    def waits_for_pending(self) -> str:
        """The same where match-policy only-waiting asks for more members that wait."""
        text = f"gang {self.key}: waiting for members, {len(self.pending) + self.done} of minMember"
        return f"{text} {self.min_member} wait or have Succeeded (only-waiting)"


def origin_of(ref: GangRef, derived: Derived | None, pods: Sequence[PodInfo]) -> str:
    """Why pods are a gang (workloads.md 10.5). derived: what it follows from, where nobody names it."""
    if derived is not None:
        return derived.origin
    if ref.source is GangSource.NAMED and pods:
        oldest = _oldest(pods)
        by = "labels" if _labelled(oldest.pod.metadata) else "annotations"
        return f"{by} of pod {oldest.name}"
    return f"PodGroup {ref.name}{' of scheduling.k8s.io' if ref.source is GangSource.UPSTREAM else ''}"


def names_of(derived: Derived | None) -> dict[str, str] | None:
    """The workload and its role, as reports have them (workloads.md 10.5); None for what does not follow from one."""
    if derived is None or (title := derived.title) is None:
        return None
    return {"kind": title.kind, "namespace": title.namespace, "name": title.name, "role": derived.role}


@once
def _settings(namespace: str, meta: ObjectMeta) -> tuple[TopologyWish, Named, float | None, str]:
    """(topology wish, linked gangs, waiting-time, fault text) of the annotations of an object in a namespace."""
    notes = meta.annotations
    wish, fault = TopologyWish(), ""
    links = Named()
    key = keys.GANG_TOPOLOGY if keys.GANG_TOPOLOGY in notes else keys.GANG_TOPOLOGY_ALIAS
    if key in notes:
        try:
            wish = parse_topology_wish(notes[key])
        except UnreadableError as what:
            fault = f"annotation {key} cannot be read: {what}"
    if keys.GANG_GROUPS in notes:
        try:
            links = _linked(notes[keys.GANG_GROUPS], namespace)
        except UnreadableError as what:
            fault = fault or f"annotation {keys.GANG_GROUPS} cannot be read: {what}"
    return wish, links, _waiting(notes.get(keys.GANG_WAITING_TIME)), fault


def _linked(text: str, namespace: str) -> Named:
    """The gangs in a `groups` annotation. Raises UnreadableError."""
    raw = read_json(text)
    if not isinstance(raw, list):
        raise UnreadableError(f"{kind_name(raw)} instead of a list of gang names")
    if number := too_many(len(raw), LINKED_GANGS, "gangs"):
        raise UnreadableError(number)
    for i, name in enumerate(raw):
        if not isinstance(name, str):
            raise UnreadableError(f"[{i}]: {literal(name)} is no gang name")
    return Named.of(namespace, raw)


def _waiting(text: str | None) -> float | None:
    """waiting-time in seconds, None where it is absent; invalid or negative ones count as the default (2.9)."""
    if text is None:
        return None
    try:
        value = parse_duration(text)
    except ValueError:
        value = -1.0
    return value if value > 0 else DEFAULT_WAITING_SECONDS


def _doubts(ref: GangRef, meta: ObjectMeta, wish: TopologyWish) -> tuple[str, ...]:
    """What decides nothing, or not what its author may think."""
    if ref.source is GangSource.NAMED:  # its pods' keys and other values are looked at pod by pod
        odd = tuple(odd_values(OF_GANGS, meta.labels, meta.annotations))
    else:
        odd = odd_settings(Holder.GROUP, meta)
    return (*odd, *(f"networkTopologyAware: {doubt}" for doubt in wish.doubts))


def _said(key: str, meta: ObjectMeta, pods: tuple[PodInfo, ...]) -> str | None:
    """An annotation of the gang's object, else of one of its pods."""
    if key in meta.annotations:
        return meta.annotations[key]
    return next((pod.pod.metadata.annotations[key] for pod in pods if key in pod.pod.metadata.annotations), None)


def links_named(snapshot: Snapshot, ref: GangRef) -> Named:
    """The gangs that a gang's own object, or its oldest pod, names."""
    meta = settings_of(snapshot, ref)
    return _settings(ref.namespace, meta)[1] if meta is not None else Named()


def settings_of(snapshot: Snapshot, ref: GangRef) -> ObjectMeta | None:
    """Metadata of the object that decides a gang's settings; None where it is not there."""
    if ref.source is GangSource.GROUP:
        group = snapshot.pod_groups.get(ref.key)
        return group.metadata if group is not None else None
    if ref.source is GangSource.UPSTREAM:
        upstream = snapshot.upstream_groups.get(ref.key)
        return upstream.metadata if upstream is not None else None
    if (derived := snapshot.derived.get(ref)) is not None:
        return derived.meta
    pods = snapshot.members.get(ref, ())
    return _oldest(pods).pod.metadata if pods else None


def _oldest(pods: Sequence[PodInfo]) -> PodInfo:
    return min(pods, key=lambda pod: (pod.created, natural_key(pod.name)))


def _labelled(meta: ObjectMeta) -> bool:
    """Whether a pod names its gang by labels."""
    return bool(meta.labels.get(keys.LABEL_GANG_NAME)) and keys.LABEL_GANG_MIN in meta.labels


class DerivedGang(Gang):
    """A gang that follows from a workload.

    Pods that are being deleted are no members, and those that have Succeeded are wanted no more (workloads.md 5.4).
    """

    @cached_property
    def members(self) -> tuple[PodInfo, ...]:
        return tuple(pod for pod in self.pods if (pod.bound or pod.pending) and not pod.pod.metadata.deletion_timestamp)

    @cached_property
    def ended(self) -> tuple[Ended, ...]:
        return ()


def _layer_of(domain: SharedDomain, layers: Layers) -> str:
    """Of a tier of Volcano's the n-th layer above the nodes, or that of the HyperNodes of the tier; empty for none."""
    if domain.layer:
        return domain.layer
    if domain.label:
        return next((one.name for one in layers.chain if domain.label in one.label_keys), "")
    above = layers.chain[:-1]
    by_number = {layer.tier or len(above) - i: layer.name for i, layer in enumerate(above)}
    return by_number.get(domain.tier, "")


def _annotated(snapshot: Snapshot, ref: GangRef, meta: ObjectMeta, kind: type[Gang] = Gang) -> Gang:
    """A gang with what the annotations say of the object that its settings stand on."""
    notes = meta.annotations
    wish, links, waiting, fault = _settings(ref.namespace, meta)
    expected = whole_number(notes[keys.GANG_TOTAL]) if keys.GANG_TOTAL in notes else None
    return kind(
        ref=ref,
        match_policy=notes.get(keys.GANG_MATCH_POLICY, ""),
        strict=notes.get(keys.GANG_MODE) != "NonStrict",
        waiting_seconds=DEFAULT_WAITING_SECONDS if waiting is None else waiting,
        links=links.every,
        wish=wish,
        has_wish=keys.GANG_TOPOLOGY in notes or keys.GANG_TOPOLOGY_ALIAS in notes,
        fault=fault,
        pods=snapshot.members.get(ref, ()),
        past=snapshot.pasts.get(ref, NO_PAST),
        expected=expected if expected is not None and expected > 0 else None,
    )


def _derived_gang(snapshot: Snapshot, ref: GangRef, derived: Derived) -> Gang:
    notes = derived.meta.annotations
    said = _annotated(snapshot, ref, derived.meta, DerivedGang if derived.by_workload else Gang)
    wish = with_levels(
        said.wish, notes.get(keys.SCHEDULE_POLICY), notes.get(keys.AFFINITY_CONFIG), snapshot.tree.layers
    )
    doubts = [
        *odd_values(OF_GANGS, {}, notes),
        *(f"networkTopologyAware: {doubt}" for doubt in wish.doubts),
        *derived.doubts,
    ]
    rules: list[GatherRule] = []
    parted: list[SharedDomain] = []
    hard: list[str] = []
    wrong, layers = "", snapshot.tree.layers
    for one in () if said.has_wish else derived.domains:
        layer, of_part = _layer_of(one, layers), "subGroupPolicy: " if one.part else ""
        if one.part:
            parted.append(replace(one, layer=layer))
        if one.label and one.must:
            hard += [one.label] if not one.part else []
        elif one.label and not layer:
            doubts.append(f"packConstraint.preferred: no layer has the label {one.label}: it is not used")
        elif not layer and one.must:
            there = f"the tree has {counted(len(layers.chain) - 1, 'layer')} above the nodes"
            wrong = wrong or f"{of_part}networkTopology.highestTierAllowed {one.tier}, {there}"
        elif one.part and layers.level(layer) is None:
            wrong = wrong or f'subGroupPolicy: unknown layer "{layer}"'
        elif layer and not one.part:
            rules.append(GatherRule(layer, one.must))
    if rules:
        wish = replace(wish, gather=tuple(rules))
    resources: Amounts = {}
    try:
        resources = amounts(dict(derived.resources))
    except ValueError as what:
        wrong = wrong or f"spec.minResources cannot be read: {what}"
    return replace(
        said,
        exists=not derived.missing,
        min_member=derived.min_member,
        links=(),
        wish=wish,
        has_wish=bool(wish.gather or hard or parted) or said.has_wish,
        hard_keys=tuple(hard),
        parted=tuple(parted),
        min_resources=resources,
        fault=derived.fault or said.fault or wrong,
        past=NO_PAST if derived.by_workload else said.past,
        doubts=tuple(doubts),
        derived=derived,
    )


def read_from(snapshot: Snapshot, ref: GangRef) -> tuple[object, ...]:
    """Everything that `read_gang` looks at: while these objects are the same ones, it finds the same gang."""
    return (
        snapshot.derived.get(ref),
        snapshot.members.get(ref),
        snapshot.pod_groups.get(ref.key) if ref.source is GangSource.GROUP else None,
        snapshot.upstream_groups.get(ref.key) if ref.source is GangSource.UPSTREAM else None,
        snapshot.tree,
        snapshot.pasts.get(ref),
        ref in snapshot.unknown_steps,
    )


def read_gang(snapshot: Snapshot, ref: GangRef) -> Gang:
    """A gang of the snapshot with its settings."""
    if (derived := snapshot.derived.get(ref)) is not None:
        return _derived_gang(snapshot, ref, derived)
    pods = snapshot.members.get(ref, ())
    min_member, exists, fault = 0, True, ""
    timeout = 0
    hard: tuple[str, ...] = ()
    resources: Amounts = {}
    one_victim = False
    later = ""
    doubts: tuple[str, ...] = ()
    meta = ObjectMeta(namespace=ref.namespace, name=ref.name)
    if ref.source is GangSource.GROUP:
        group = snapshot.pod_groups.get(ref.key)
        exists = group is not None
        if group is not None:
            meta, min_member = group.metadata, group.spec.min_member
            if min_member < 1:
                doubts = (f"spec.minMember is {min_member}: its pods start one by one",)
            timeout = group.spec.schedule_timeout_seconds or 0
            owner = meta.controller
            if owner is not None and ref in snapshot.unknown_steps:
                later = f", TrainJob {owner.name} makes its steps one after the other"
            least = group.spec.min_resources
            try:
                if number := too_many(len(least), MIN_RESOURCES, "resources"):
                    raise UnreadableError(number)
                resources = amounts(least)
            except ValueError as what:
                fault = f"spec.minResources cannot be read: {what}"
    elif ref.source is GangSource.UPSTREAM:
        upstream = snapshot.upstream_groups.get(ref.key)
        exists = upstream is not None
        if upstream is not None:
            meta = upstream.metadata
            least_of = upstream.spec.scheduling_policy.gang
            min_member = least_of.min_count if least_of is not None else 0
            one_victim = upstream.spec.disrupted_as_one
            if upstream.spec.scheduling_constraints is not None:
                hard = tuple(c.key for c in upstream.spec.scheduling_constraints.topology if c.key)
    elif pods:
        meta = _oldest(pods).pod.metadata
        labelled = _labelled(meta)
        where = f"label {keys.LABEL_GANG_MIN}" if labelled else f"annotation {keys.GANG_MIN}"
        text = meta.labels[keys.LABEL_GANG_MIN] if labelled else meta.annotations.get(keys.GANG_MIN, "")
        count = whole_number(text)
        if count is None:
            fault = f"{where} cannot be read: {text!r} is no whole number"
        min_member = count or 0
    if wrong := unreadable(meta):
        fault, doubts = f"PodGroup cannot be read: {wrong}", ()
    said = _annotated(snapshot, ref, meta)
    by_timeout = timeout > 0 and keys.GANG_WAITING_TIME not in meta.annotations
    policy, levels = (_said(key, meta, pods) for key in (keys.SCHEDULE_POLICY, keys.AFFINITY_CONFIG))
    wish = with_levels(said.wish, policy, levels, snapshot.tree.layers)
    return replace(
        said,
        exists=exists,
        min_member=min_member,
        waiting_seconds=float(timeout) if by_timeout else said.waiting_seconds,
        wish=wish,
        has_wish=bool(wish.gather or hard) or said.has_wish,
        hard_keys=hard,
        min_resources=resources,
        fault=fault or said.fault,
        one_victim=one_victim,
        doubts=(*doubts, *_doubts(ref, meta, wish)),
        later=later,
    )


def with_default(gangs: tuple[Gang, ...], config: Gangs, layers: Layers) -> tuple[Gang, ...]:
    """The gangs of a GangGroup, with the configured gather where none of them says what it asks of the network.

    An entry whose layer the tree lacks is left out: a default holds nobody up.
    """
    if any(gang.has_wish for gang in gangs):
        return gangs
    rules = [[rule for _, rule in config.gather(gang.ref.namespace)] for gang in gangs]
    known = [tuple(rule for rule in own if layers.level(rule.layer) is not None) for own in rules]
    return tuple(
        replace(gang, wish=TopologyWish(gather=own)) if own else gang for gang, own in zip(gangs, known, strict=True)
    )
