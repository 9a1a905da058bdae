"""Gangs, GangGroups and the units of the queue: who is planned together, and whether planning may start.

Source: gang-network.md section 2. Everything follows from the objects of the snapshot; nothing is remembered.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from koordpy.api import keys
from koordpy.api.durations import parse_duration
from koordpy.api.gangspec import TopologyWish, UnreadableError, parse_topology_wish
from koordpy.api.natural import natural_key
from koordpy.api.objects import ObjectMeta
from koordpy.cluster.gpus import GroupKey
from koordpy.cluster.pods import GangRef, GangSource, PodInfo
from koordpy.cluster.resources import Amounts, amounts
from koordpy.cluster.snapshot import Snapshot
from koordpy.planning.ascend.multilevel import with_levels
from koordpy.planning.plan import GangStatus, Reason

DEFAULT_WAITING_SECONDS = 600.0


@dataclass(frozen=True)
class Gang:
    """One gang with the settings of its PodGroup, or of its oldest pod."""

    ref: GangRef
    exists: bool
    """False where pods name a PodGroup that is not there."""
    min_member: int
    match_policy: str
    strict: bool
    waiting_seconds: float
    links: tuple[str, ...]
    """`namespace/name` of the gangs in its `groups` annotation."""
    wish: TopologyWish
    hard_keys: tuple[str, ...]
    """Node labels of upstream's topology constraints: a hard domain each."""
    min_resources: Amounts
    fault: str
    """An unreadable setting: text as gang-network.md 2.3 words it, without the gang's name."""
    pods: tuple[PodInfo, ...]
    """Every known pod that names the gang."""
    one_victim: bool = False
    """Upstream's disruptionMode: whoever evicts one member evicts all."""

    @property
    def key(self) -> str:
        return self.ref.key

    @cached_property
    def members(self) -> tuple[PodInfo, ...]:
        """Bound pods and pending ones that are ours and ungated (section 1)."""
        return tuple(pod for pod in self.pods if pod.bound or pod.pending)

    @cached_property
    def pending(self) -> tuple[PodInfo, ...]:
        return tuple(pod for pod in self.members if pod.pending)

    @cached_property
    def bound(self) -> tuple[PodInfo, ...]:
        return tuple(pod for pod in self.members if pod.bound)

    @cached_property
    def standing(self) -> tuple[PodInfo, ...]:
        """The bound members that are not being deleted."""
        return tuple(pod for pod in self.bound if not pod.pod.metadata.deletion_timestamp)

    @cached_property
    def succeeded(self) -> int:
        return sum(pod.pod.status.phase == "Succeeded" for pod in self.pods)


@dataclass(frozen=True)
class Gate:
    """Why a unit is not planned at all; every pending member is told."""

    text: str
    status: GangStatus
    reason: Reason = Reason.UNSCHEDULABLE


@dataclass(frozen=True)
class Unit:
    """One unit of the queue: a plain pod, or the gangs of a GangGroup."""

    id: str
    gangs: tuple[Gang, ...]
    plain: PodInfo | None = None

    @property
    def group_id(self) -> str:
        """Names of its gangs in natural order joined by `,`; empty for a plain pod."""
        return ",".join(gang.key for gang in self.gangs)

    @property
    def is_gang(self) -> bool:
        """Whether it is of gangs: no plain pod, and no GPU group outside any gang."""
        return self.plain is None and not any(gang.ref.source is GangSource.GPUS for gang in self.gangs)

    @cached_property
    def members(self) -> tuple[PodInfo, ...]:
        """All members in rank order (2.5)."""
        if self.plain is not None:
            return (self.plain,)
        ranked = [(member, gang.ref) for gang in self.gangs for member in gang.members]
        ranked.sort(key=lambda pair: rank_key(*pair))
        return tuple(member for member, _ in ranked)

    @cached_property
    def pending(self) -> tuple[PodInfo, ...]:
        return tuple(member for member in self.members if member.pending)

    @cached_property
    def bound_any(self) -> bool:
        return any(gang.bound for gang in self.gangs)

    def need(self, gang: Gang) -> int:
        """Pending members of a gang that one plan must place (2.4).

        Members that are being deleted prove nothing: a gang that is made again as a whole needs its minimum.
        """
        if gang.min_member < 1:
            return 0
        if gang.match_policy == "only-waiting":
            return gang.min_member
        if gang.match_policy == "waiting-and-running":
            return max(0, gang.min_member - len(gang.standing))
        return 0 if any(one.standing for one in self.gangs) else gang.min_member

    @cached_property
    def has_goal(self) -> bool:
        """Whether any gang gives the unit a gather goal (section 4)."""
        return any(gang.wish.has_goal or gang.hard_keys for gang in self.gangs)

    @cached_property
    def pipeline(self) -> int:
        """PP of the first gang in natural order that has a parallelModel."""
        return next((gang.wish.pipeline for gang in self.gangs if gang.wish.has_parallel), 1)


def rank_key(pod: PodInfo, ref: GangRef) -> tuple[object, ...]:
    """Rank order: index, gang name natural, pod name natural."""
    index = (0, pod.index) if pod.index is not None else (1, 0)
    return index, natural_key(ref.name), natural_key(ref.namespace), natural_key(pod.name)


def _min_available(text: str) -> int | None:
    try:
        return int(text) if text.strip().lstrip("+-").isascii() and text.strip().lstrip("+-").isdigit() else None
    except ValueError:
        return None


def _settings(meta: ObjectMeta) -> tuple[TopologyWish, tuple[str, ...], str]:
    """(topology wish, linked gangs, fault text) of an object's annotations."""
    notes = meta.annotations
    wish, fault = TopologyWish(), ""
    links: tuple[str, ...] = ()
    key = keys.GANG_TOPOLOGY if keys.GANG_TOPOLOGY in notes else keys.GANG_TOPOLOGY_ALIAS
    if key in notes:
        try:
            wish = parse_topology_wish(notes[key])
        except UnreadableError as unreadable:
            fault = f"annotation {key} cannot be read: {unreadable}"
    if keys.GANG_GROUPS in notes:
        try:
            raw = json.loads(notes[keys.GANG_GROUPS])
        except (ValueError, RecursionError):  # also a number of thousands of digits
            raw = None
        if isinstance(raw, list) and all(isinstance(name, str) for name in raw):
            links = tuple(name if "/" in name else f"{meta.namespace}/{name}" for name in raw)
        else:
            what = "no JSON" if raw is None else "no list of gang names"
            fault = fault or f"annotation {keys.GANG_GROUPS} cannot be read: {what}"
    return wish, links, fault


def _waiting(notes: Mapping[str, str], timeout_seconds: int | None) -> float:
    """waiting-time, else scheduleTimeoutSeconds; invalid or negative ones count as absent (2.9)."""
    text = notes.get(keys.GANG_WAITING_TIME)
    if text is not None:
        try:
            value = parse_duration(text)
        except ValueError:
            value = -1.0
        return value if value > 0 else DEFAULT_WAITING_SECONDS
    return float(timeout_seconds) if timeout_seconds is not None and timeout_seconds > 0 else DEFAULT_WAITING_SECONDS


def _said(key: str, meta: ObjectMeta, pods: tuple[PodInfo, ...]) -> str | None:
    """An annotation of the gang's object, else of one of its pods."""
    if key in meta.annotations:
        return meta.annotations[key]
    return next((pod.pod.metadata.annotations[key] for pod in pods if key in pod.pod.metadata.annotations), None)


def read_gang(snapshot: Snapshot, ref: GangRef) -> Gang:
    """A gang of the snapshot with its settings."""
    pods = snapshot.members.get(ref, ())
    min_member, exists, fault = 0, True, ""
    timeout: int | None = None
    hard: tuple[str, ...] = ()
    resources: Amounts = {}
    one_victim = False
    meta = ObjectMeta(namespace=ref.namespace, name=ref.name)
    if ref.source is GangSource.GROUP:
        group = snapshot.pod_groups.get(ref.key)
        exists = group is not None
        if group is not None:
            meta, min_member = group.metadata, group.spec.min_member
            timeout = group.spec.schedule_timeout_seconds
            try:
                resources = amounts(group.spec.min_resources)
            except ValueError as what:
                fault = f"spec.minResources cannot be read: {what}"
    elif ref.source is GangSource.UPSTREAM:
        upstream = snapshot.upstream_groups.get(ref.key)
        exists = upstream is not None
        if upstream is not None:
            meta = upstream.metadata
            policy = upstream.spec.scheduling_policy
            min_member = policy.gang.min_count if policy.gang is not None else 0
            one_victim = upstream.spec.disrupted_as_one
            if upstream.spec.scheduling_constraints is not None:
                hard = tuple(c.key for c in upstream.spec.scheduling_constraints.topology if c.key)
    elif pods:
        oldest = min(pods, key=lambda pod: (pod.created, natural_key(pod.name)))
        meta = oldest.pod.metadata
        labelled = meta.labels.get(keys.LABEL_GANG_NAME) and keys.LABEL_GANG_MIN in meta.labels
        where = f"label {keys.LABEL_GANG_MIN}" if labelled else f"annotation {keys.GANG_MIN}"
        text = meta.labels[keys.LABEL_GANG_MIN] if labelled else meta.annotations.get(keys.GANG_MIN, "")
        number = _min_available(text)
        if number is None:
            fault = f"{where} cannot be read: {text!r} is no whole number"
        min_member = number or 0
    wish, links, unreadable = _settings(meta)
    notes = meta.annotations
    said = {key: _said(key, meta, pods) for key in (keys.SCHEDULE_POLICY, keys.AFFINITY_CONFIG)}
    wish = with_levels(wish, said[keys.SCHEDULE_POLICY], said[keys.AFFINITY_CONFIG], snapshot.tree.layers)
    return Gang(
        ref=ref,
        exists=exists,
        min_member=min_member,
        match_policy=notes.get(keys.GANG_MATCH_POLICY, ""),
        strict=notes.get(keys.GANG_MODE) != "NonStrict",
        waiting_seconds=_waiting(notes, timeout),
        links=links,
        wish=wish,
        hard_keys=hard,
        min_resources=resources,
        fault=fault or unreadable,
        pods=pods,
        one_victim=one_victim,
    )


class Groups:
    """The gangs of a snapshot, joined to GangGroups: linked by any `groups` list, from either side, transitively.

    Gangs are read when they are asked for: a cluster holds thousands that run and are of no concern to a round.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._gangs: dict[GangRef, Gang] = {}
        self._group: dict[GangRef, tuple[GangRef, ...]] = {}
        self._join()

    def gang(self, ref: GangRef) -> Gang:
        """A gang with its settings."""
        found = self._gangs.get(ref)
        if found is None:
            found = self._gangs[ref] = read_gang(self.snapshot, ref)
        return found

    def find(self, key: str) -> GangRef | None:
        """The gang that a `namespace/name` means: one of a PodGroup first, then upstream's, then one by name."""
        namespace, _, name = key.partition("/")
        for source, objects in (
            (GangSource.GROUP, self.snapshot.pod_groups),
            (GangSource.UPSTREAM, self.snapshot.upstream_groups),
            (GangSource.NAMED, {}),
        ):
            ref = GangRef(namespace, name, source)
            if key in objects or ref in self.snapshot.members:
                return ref
        return None

    def every(self) -> list[GangRef]:
        """Every gang that an object or a pod names."""
        refs = dict.fromkeys(self.snapshot.members)
        for source, objects in (
            (GangSource.GROUP, self.snapshot.pod_groups),
            (GangSource.UPSTREAM, self.snapshot.upstream_groups),
        ):
            for key in objects:
                namespace, _, name = key.partition("/")
                refs.setdefault(GangRef(namespace, name, source))
        return list(refs)

    def _join(self) -> None:
        root: dict[GangRef, GangRef] = {}

        def top(ref: GangRef) -> GangRef:
            while (up := root.get(ref, ref)) != ref:
                ref = up
            return ref

        for ref in self.snapshot.linkers:
            root.setdefault(ref, ref)
            for key in self.gang(ref).links:
                other = self.find(key)
                if other is not None:
                    root.setdefault(other, other)
                    root[top(other)] = top(ref)
        grouped: dict[GangRef, list[GangRef]] = {}
        for ref in root:
            grouped.setdefault(top(ref), []).append(ref)
        for refs in grouped.values():
            refs.sort(key=lambda ref: (natural_key(ref.namespace), natural_key(ref.name), ref.source.value))
            for ref in refs:
                self._group[ref] = tuple(refs)

    def unit(self, ref: GangRef) -> Unit:
        """The unit a gang belongs to."""
        gangs = tuple(self.gang(r) for r in self._group.get(ref, (ref,)))
        return Unit(id="gang:" + ",".join(gang.ref.id for gang in gangs), gangs=gangs)

    def unit_of(self, pod: PodInfo) -> Unit:
        """The unit that a pending pod is planned in."""
        if pod.gang is not None:
            return self.unit(pod.gang)
        group = pod.group
        return Unit(id=pod.key, gangs=(), plain=pod) if group is None else self.group_unit(group)

    def group_unit(self, group: GroupKey) -> Unit:
        """The pending members of a GPU group that are in no gang: planned together, as far as they fit."""
        ref = GangRef(group[0], f"{group[1]}/{group[2]}", GangSource.GPUS)
        pods = self._grouped.get(group, ())
        gang = Gang(
            ref=ref,
            exists=True,
            min_member=0,
            match_policy="",
            strict=False,
            waiting_seconds=DEFAULT_WAITING_SECONDS,
            links=(),
            wish=TopologyWish(),
            hard_keys=(),
            min_resources={},
            fault="",
            pods=pods,
        )
        return Unit(id=group_unit_id(group), gangs=(gang,))

    @cached_property
    def _grouped(self) -> dict[GroupKey, tuple[PodInfo, ...]]:
        out: dict[GroupKey, list[PodInfo]] = {}
        for pod in self.snapshot.pending:
            if pod.gang is None and (group := pod.group) is not None:
                out.setdefault(group, []).append(pod)
        return {group: tuple(pods) for group, pods in out.items()}

    def units(self) -> list[Unit]:
        """Every unit with a pending member, in no particular order."""
        out: list[Unit] = []
        seen: set[GangRef] = set()
        groups: set[GroupKey] = set()
        for pod in self.snapshot.pending:
            if pod.gang is None and (group := pod.group) is not None:
                if group not in groups:
                    groups.add(group)
                    out.append(self.group_unit(group))
            elif pod.gang is None:
                out.append(Unit(id=pod.key, gangs=(), plain=pod))
            elif pod.gang not in seen:
                seen.update(self._group.get(pod.gang, (pod.gang,)))
                out.append(self.unit(pod.gang))
        return out


def group_unit_id(group: GroupKey) -> str:
    """Id of the unit of a GPU group's members that are in no gang."""
    return "gpus:" + "/".join(group)


def unit_ids(snapshot: Snapshot) -> dict[str, str]:
    """Pod key -> unit id, of every pending pod of ours."""
    return {pod.key: unit.id for unit in Groups(snapshot).units() for pod in unit.pending}


def gate(unit: Unit, groups: Groups) -> Gate | None:
    """What holds a unit before planning (2.3), in the order of the specification; None where it may be planned."""
    for gang in unit.gangs:
        if not gang.exists:
            return Gate(f"gang {gang.key}: PodGroup not found", GangStatus.INCOMPLETE)
        for key in gang.links:
            linked = groups.find(key)
            if linked is None or not groups.gang(linked).exists:
                return Gate(f"gang {key}: PodGroup not found", GangStatus.INCOMPLETE)
    mixed = _mixed(unit)
    if mixed is not None:
        return mixed
    for gang in unit.gangs:
        have = len(gang.members) + gang.succeeded
        if have < gang.min_member:
            text = f"gang {gang.key}: waiting for members, {have} of minMember {gang.min_member} exist"
            return Gate(text, GangStatus.INCOMPLETE)
    for gang in unit.gangs:
        if gang.fault:
            return Gate(f"gang {gang.key}: {gang.fault}", GangStatus.INVALID)
    return _unknown_layer(unit, groups.snapshot)


def _mixed(unit: Unit) -> Gate | None:
    """Different schedulers or priorities inside an upstream group: none is bound (kube-parity.md 6)."""
    for gang in unit.gangs:
        if gang.ref.source is not GangSource.UPSTREAM:
            continue
        alive = [pod for pod in gang.pods if not pod.finished]
        for what, values in (
            ("schedulerName", {pod.pod.spec.scheduler_name for pod in alive}),
            ("priority", {str(pod.pod.spec.priority or 0) for pod in alive}),
        ):
            if len(values) > 1:
                listed = ", ".join(sorted(values, key=natural_key))
                text = f"gang {gang.key}: members differ in {what}: {listed}"
                return Gate(text, GangStatus.INVALID, Reason.SCHEDULER_ERROR)
    return None


def _unknown_layer(unit: Unit, snapshot: Snapshot) -> Gate | None:
    layers = snapshot.tree.layers
    for gang in unit.gangs:
        for rule in gang.wish.gather:
            if (rule.must or rule.multiple > 1) and layers.level(rule.layer) is None:
                text = f'gang {gang.key}: unknown layer "{rule.layer}"'
                if not snapshot.tree.has_object:
                    text += ", no ClusterNetworkTopology"
                return Gate(text, GangStatus.INVALID)
    return None


def wish_warnings(units: Iterable[Unit], snapshot: Snapshot) -> list[tuple[str, str]]:
    """(object, text) of settings that are read but do nothing: an unknown layer under PreferGather, DP x PP."""
    out: list[tuple[str, str]] = []
    for unit in units:
        for gang in unit.gangs:
            name = f"PodGroup/{gang.key}"
            out += [
                (name, f'networkTopologyAware: unknown layer "{rule.layer}" under PreferGather is not used')
                for rule in gang.wish.gather
                if not rule.must and rule.multiple <= 1 and snapshot.tree.layers.level(rule.layer) is None
            ]
            if gang.wish.data is not None and gang.wish.data * gang.wish.pipeline != len(unit.members):
                text = (
                    f"networkTopologyAware: data-parallel {gang.wish.data} x pipeline-parallel {gang.wish.pipeline}"
                    f" differs from {len(unit.members)} members"
                )
                out.append((name, text))
    return out
