"""The gangs that follow from workloads and from what pods say, kept up as both change.

Pods are in buckets: those of a PodGroup of Volcano, of a run of a workload, of one gang by labels. What changed is
derived anew bucket by bucket; names are given to all gangs together, for they must differ.

Invariant: what follows depends on the pods and workloads that are there, never on the order in which they came. Only
that an owner was deleted is remembered: pods that still wait then are about to be deleted, too.
Sources: workloads.md 2 and 4 (names).
"""

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from koordpy.api.config import Gangs
from koordpy.api.objects import ObjectMeta, OwnerReference, Pod
from koordpy.workloads.bylabels import label_group, run_by_labels
from koordpy.workloads.gangs import Derivation, Derived, renamed
from koordpy.workloads.kinds.jobsets import JOBSET
from koordpy.workloads.known import Known, unfile
from koordpy.workloads.model import Workload
from koordpy.workloads.runs import WorkloadPod, WorkloadRun, by_age
from koordpy.workloads.volcano import Matches, VolcanoGroup, group_of_pod, volcano_gangs

BucketKey = tuple[str, ...]
VOLCANO, RUN, LABELS, AWAITED = "volcano", "run", "labels", "awaited"
_PHASES = (VOLCANO, RUN, LABELS, AWAITED)
"""The first that takes a pod has it."""
OWNER_SECONDS = 10.0
"""From its creation on a pod waits so long for its owner to be seen ..."""
LEADER_SECONDS = 5.0
"""... and a leader for its workers, where only labels tell of them."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What follows for a bucket, named without regard to others."""

    gangs: tuple[Derived, ...] = ()
    order: tuple[str, float] = ("", 0.0)
    """When the workload was made, and its oldest pod: of equal names the first keeps it."""
    is_present: bool = True
    """Whether it is the run that its workload runs now."""
    kind: str = ""
    """Of the workload; empty where its pods are no gang."""

    @property
    def naming(self) -> tuple[object, ...]:
        """All by which gangs get their names, and workloads mean them."""
        return self.order, self.is_present, self.kind, tuple((one.key, one.joined) for one in self.gangs)


_NOTHING = _Found()


@dataclass(eq=False, slots=True)
class _Bucket:
    """Pods that belong together, and what follows from them."""

    key: BucketKey
    members: "dict[str, _Filed]" = field(default_factory=dict)
    found: _Found = _NOTHING
    shown: tuple[Derived, ...] = ()
    """Its gangs under the names that they have."""
    suffix: str = ""
    """What stands behind these names."""
    derivation: Derivation | None = None
    """Of a run."""
    moved: bool = False
    """Whether a pod came or went since it was looked at."""

    def names(self, suffix: str) -> set[str]:
        """`namespace/name` of its gangs with something behind their names, and the same without their roles."""
        keys = {(renamed(one, suffix) if suffix else one).key for one in self.found.gangs}
        return keys | {key.partition(":")[0] for key in keys}


@dataclass(eq=False, slots=True)
class _Filed(WorkloadPod):
    """A pod, and where it is in the book."""

    free: bool = True
    """Whether it names no gang itself ..."""
    named: bool = False
    """... or is in one that it names, be it a PodGroup of Volcano."""
    buckets: tuple[_Bucket, ...] = ()
    """Those that may take it; where it names a gang its run is told of that."""
    gang: str = ""
    """`namespace/name` of its gang."""


class DerivedBook:
    """Pods and workloads in, gangs out."""

    def __init__(self, config: Gangs, schedulers: Container[str], matches: Matches) -> None:
        """schedulers: names of ours; matches: whether a selector takes labels."""
        self._config, self._schedulers, self._matches = config, schedulers, matches
        self.volcano = config.volcano != "off"
        """Whether PodGroups of Volcano are read."""
        self._pods: dict[str, _Filed] = {}
        self.known = Known(self._pod)
        self.groups: dict[str, VolcanoGroup] = {}
        """By `namespace/name`."""
        self.gangs: dict[str, Derived] = {}
        """By `namespace/name`, as of the last `update`; another one where a name changed."""
        self.fresh: set[str] = set()
        """Those of them that are others since the reader emptied it ..."""
        self.altered: set[str] = set()
        """... in more than their pods."""
        self.meant: Mapping[str, tuple[str, ...]] = {}
        """`namespace/name` of a workload -> its gangs, where these have other names, or there are none."""
        self._now = 0.0
        self._gone: set[str] = set()
        """uids of workloads, and of leaders of a group, that were deleted while pods of theirs are still there."""
        self._until: dict[str, float] = {}
        """Pod -> when it waits no longer for its owner, or a leader for its workers."""
        self._buckets: dict[BucketKey, _Bucket] = {}
        self._controlled: dict[str, dict[str, None]] = {}
        """uid of a controlling owner -> its pods."""
        self._changed: dict[str, None] = {}
        """uids of objects that changed; what is below them has its place with the next `update` ..."""
        self._named: set[str] = set()
        """... and so have pods that are, or were, named by one."""
        self._anew: set[str] = set()
        """Pods whose place may be another than at the last `update`."""
        self._dirty: dict[_Bucket, None] = {}
        self._names: frozenset[str] = frozenset()
        self._renames = True
        """Whether names may be others than at the last `update`."""

    # -- in -----------------------------------------------------------------------------------------------------------

    def _pod(self, key: str) -> Pod | None:
        filed = self._pods.get(key)
        return filed.pod if filed is not None else None

    def know(self, known: Known, groups: Mapping[str, VolcanoGroup]) -> None:
        """Takes all workloads at once, and all PodGroups of Volcano."""
        self.known, self._renames = known, True
        self.groups |= groups
        for key in self.groups:
            self._stir(key)
        self._place_anew(self._pods)

    def put_workload(self, workload: Workload) -> None:
        """Takes a workload as it is now."""
        self._gone.discard(workload.head.uid)
        self._change(workload, self.known.put(workload))

    def drop_workload(self, uid: str) -> None:
        """Forgets a workload. Its pods are about to be collected: who still waits is placed no more, as whatever."""
        if (old := self.known.drop(uid)) is not None:
            self._gone.add(uid)
            self._change(old)

    def _change(self, *workloads: Workload | None) -> None:
        """Takes down that workloads are others."""
        self._renames = True
        for one in workloads:
            if one is not None:
                owner = one.head.owner
                of_jobset = owner is not None and owner.kind == JOBSET  # which is read with its Jobs
                self._changed[owner.uid if owner is not None and of_jobset else one.head.uid] = None
                self._named.update(one.members)

    def _below(self, *owners: str) -> dict[str, None]:
        """The pods that objects (their uids) control, or objects and pods below them."""
        found: dict[str, None] = {}
        left, seen = [*owners], set[str]()
        while left:
            uid = left.pop()
            if uid in seen:
                continue
            seen.add(uid)
            left += self.known.below(uid)
            for key in self._controlled.get(uid, ()):
                found[key] = None
                left.append(self._pods[key].pod.metadata.uid)
        return found

    def read_volcano(self, on: bool) -> None:
        """Takes whether PodGroups of Volcano are read."""
        self.volcano = on
        self.know(self.known, {})

    def put_group(self, key: str, group: VolcanoGroup | None) -> list[str]:
        """Takes a PodGroup of Volcano (`namespace/name`), None for one that is gone; the pods that are in another quota
        by it."""
        queues = {one.queue if one is not None else "" for one in (self.groups.pop(key, None), group)}
        if group is not None:
            self.groups[key] = group
        self._stir(key)
        return list(self.of_group(key)) if len(queues) > 1 else []

    def of_group(self, key: str) -> Mapping[str, WorkloadPod]:
        """The pods that name a PodGroup of Volcano, finished ones as well."""
        bucket = self._buckets.get((VOLCANO, key))
        return bucket.members if bucket is not None else {}

    def put(self, key: str, pod: Pod, *, bound: bool, created: float, free: bool) -> None:
        """Takes a pod as it is now; its place is found here. key: `namespace/name`; bound: on a node, and not
        finished; free: it names no gang itself."""
        uid, filed = pod.metadata.uid, self._pods.get(key)
        if filed is not None and filed.pod.metadata.uid != uid:
            self.drop(key)
            filed = None
        anew = filed is None or filed.pod.metadata.controller != pod.metadata.controller
        if filed is None:
            filed = self._pods[key] = _Filed(key, pod, bound, created)
        elif anew:
            self._uncontrol(filed)
        filed.pod, filed.bound, filed.created, filed.free = pod, bound, created, free
        if not anew:
            self._file(filed)
            return
        if (owner := pod.metadata.controller) is not None:
            self._controlled.setdefault(owner.uid, {})[key] = None
        self._place_anew([key, *self._below(uid)])

    def _place_anew(self, pods: Iterable[str]) -> None:
        for filed in filter(None, map(self._pods.get, pods)):
            filed.lineage = self.known.lineage(filed.pod)
            self._file(filed)
            self._anew.add(filed.key)

    def _file(self, filed: _Filed) -> None:
        """Puts a pod into the buckets that may take it."""
        self._until.pop(filed.key, None)
        buckets = tuple(map(self._bucket, self._buckets_of(filed)))
        if buckets != filed.buckets:
            self._empty(filed)
            filed.buckets = buckets
            for bucket in buckets:
                bucket.members[filed.key], bucket.moved = filed, True
        for bucket in buckets:
            self._dirty[bucket] = None

    def drop(self, key: str, uid: str = "") -> None:
        """Forgets a pod; with a uid no other of its name."""
        filed = self._pods.get(key)
        if filed is None or uid not in ("", filed.pod.metadata.uid):
            return
        self._until.pop(key, None)
        self._empty(filed)
        self._uncontrol(filed)
        del self._pods[key]
        if below := self._below(filed.pod.metadata.uid):
            self._gone.add(filed.pod.metadata.uid)
            self._place_anew(below)

    def _empty(self, filed: _Filed) -> None:
        for bucket in filed.buckets:
            del bucket.members[filed.key]
            bucket.moved = True
        self._dirty |= dict.fromkeys(filed.buckets)

    def _uncontrol(self, filed: _Filed) -> None:
        if (owner := filed.pod.metadata.controller) is not None:
            unfile(self._controlled, owner.uid, filed.key)

    def _bucket(self, key: BucketKey) -> _Bucket:
        return self._buckets.get(key) or self._buckets.setdefault(key, _Bucket(key))

    def _stir(self, group: str) -> None:
        self._dirty[self._bucket((VOLCANO, group))] = None

    def _buckets_of(self, filed: _Filed) -> tuple[BucketKey, ...]:
        meta, workload = filed.pod.metadata, filed.lineage.workload
        found: list[BucketKey] = []
        if workload.is_kind:
            found.append((RUN, workload.head.uid, filed.seat.group, filed.seat.run))
        volcano = group_of_pod(filed.pod) if filed.free and self.volcano else ""
        filed.named = bool(volcano) or not filed.free
        if volcano:
            found.append((VOLCANO, f"{meta.namespace}/{volcano}"))
        if filed.named:
            return tuple(found)
        how, kinds = self._config.auto_of(meta.namespace), self._config.kinds
        if how == "workloads" and filed.waits and (owner := self._awaited(filed)) is not None:
            if owner.uid not in self._gone:
                self._until[filed.key] = filed.created + OWNER_SECONDS
            return ((AWAITED, meta.namespace, owner.kind, owner.name, owner.uid),)
        group = label_group(filed, how, kinds) if not filed.failed else None
        if group is not None:
            found.append((LABELS, *group))
            if self.known.watched and group[1] == "lws" and filed.created + LEADER_SECONDS > self._now:
                self._until[filed.key] = filed.created + LEADER_SECONDS
        return tuple(found)

    def _awaited(self, filed: _Filed) -> OwnerReference | None:
        """Who is named above a pod, and is to be seen soon, or was deleted."""
        owner, watched = filed.lineage.missing, self.known.watched
        if owner is None or not watched:
            return None
        young = owner.kind in watched and filed.created + OWNER_SECONDS > self._now
        return owner if young or owner.uid in self._gone else None

    # -- out ----------------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether an `update` has something to do."""
        return bool(self._dirty or self._anew or self._changed)

    def due(self) -> float | None:
        """Seconds since the epoch at which something follows by time alone."""
        return min(self._until.values(), default=None)

    def watch(self, kinds: frozenset[str]) -> None:
        """Takes which kinds come by themselves now."""
        if kinds != self.known.watched:
            self.known.watch(kinds)
            self._place_anew(self._pods)

    def update(self, named: Collection[str], now: float) -> set[str]:
        """Derives what changed anew; the pods whose gang may be another. named: `namespace/name` of gangs that pods or
        objects name themselves; now: seconds since the epoch."""
        self._now = now
        late = [key for key, until in self._until.items() if until <= now]
        self._place_anew([*late, *self._below(*self._changed), *self._named])
        self._changed.clear()
        self._named.clear()
        self._gone = {uid for uid in self._gone if uid in self._controlled or self.known.below(uid)}
        names, anew = frozenset(named), self._anew
        if not self._dirty and not anew and names == self._names:
            return set()
        self._anew = set()
        others: dict[_Bucket, None] = {}
        for phase in _PHASES:
            derived = [one for one in self._dirty if one.key[0] == phase]
            others |= dict.fromkeys(one for one in derived if self._derive(one))
        self._dirty.clear()
        if not self._renames and names == self._names:
            return self._show(others) | anew
        self._names, self._renames = names, False
        order = self._give_names(others)
        anew |= self._show(others)
        self.gangs = {gang.key: gang for bucket in order for gang in bucket.shown}
        self._mean(order)
        return anew

    def _derive(self, bucket: _Bucket) -> bool:
        """Whether another thing follows from a bucket than did."""
        before, found, moved = bucket.found, self._found(bucket), bucket.moved
        if not bucket.members and not found.gangs:
            self._buckets.pop(bucket.key, None)
        bucket.moved = False
        if found == before and not moved:
            return False
        bucket.found = found
        self._renames = self._renames or before.naming != found.naming
        if bucket.key[0] == RUN:  # what it has no more, or has now, is others' or no others'
            had, has = ({key for gang in one.gangs for key in gang.pods} for one in (before, found))
            filed = (self._pods.get(key) for key in had ^ has)
            self._dirty |= {one: None for pod in filed if pod for one in pod.buckets if one.key[0] == LABELS}
        return True

    def _found(self, bucket: _Bucket) -> _Found:
        key, members = bucket.key, bucket.members
        if key[0] == VOLCANO:
            group = self.groups.get(key[1])
            if self.volcano and (members or group is not None):
                return _Found(tuple(volcano_gangs(key[1], group, members.values(), self._matches)))
        elif not members:
            return _NOTHING
        elif key[0] == RUN:
            return self._run(bucket)
        elif key[0] == AWAITED:
            return _Found((self._awaited_gang(key, members.values()),), kind=key[2].lower())
        elif left := [pod for pod in members.values() if not self._is_of_run(pod.key)]:
            owner = left[0].pod.metadata.controller
            kind = owner.kind.lower() if owner is not None and key[2] != "kueue" else "kueue"
            young = any(pod.key in self._until for pod in left)
            run = run_by_labels(key[1:], left, young=young)
            gangs = tuple(Derivation(run, self._config, self._schedulers, ()).gangs(run))
            return _Found(gangs, order=("", min(pod.created for pod in left)), kind=kind)
        return _NOTHING

    def _is_of_run(self, key: str) -> bool:
        return any(key in gang.pods for one in self._pods[key].buckets if one.key[0] == RUN for gang in one.found.gangs)

    def _awaited_gang(self, bucket: BucketKey, pods: Iterable[WorkloadPod]) -> Derived:
        """Of pods whose owner is not known: nobody of it is placed."""
        _, namespace, kind, name, uid = bucket
        gone = uid in self._gone
        return Derived(
            namespace=namespace,
            name=name,
            pods=tuple(sorted(one.key for one in pods)),
            min_member=0,
            origin=f"pods of {kind} {name}",
            meta=ObjectMeta(namespace=namespace, name=name),
            fault="" if gone else f"{kind} {name} is not known yet",
            halted=f"{kind} {name} is deleted" if gone else "",
            run=(AWAITED, uid),
            maker=f"{kind} {name}",
            is_awaited=not gone,
        )

    def _run(self, bucket: _Bucket) -> _Found:
        if bucket.moved:
            bucket.members = {one.key: one for one in by_age(bucket.members.values())}
        free = [one for one in bucket.members.values() if not one.named]
        if not free:
            return _NOTHING
        run = WorkloadRun.of(free)
        spoken = {one.seat.role for one in bucket.members.values() if one.named}
        if bucket.derivation is None or not bucket.derivation.holds(run, spoken):
            bucket.derivation = Derivation(run, self._config, self._schedulers, spoken)
        derivation = bucket.derivation
        gangs = tuple(derivation.gangs(run))
        return _Found(
            gangs,
            order=(run.workload.head.created, run.began),
            is_present=run.is_present,
            kind=derivation.top.kind.lower() if gangs or derivation.is_gang else "",
        )

    def _give_names(self, others: dict[_Bucket, None]) -> list[_Bucket]:
        """Names all gangs; all buckets in the order in which they got their names. others: takes in those of other
        names."""
        by_phase: dict[str, list[_Bucket]] = {phase: [] for phase in _PHASES}
        for bucket in self._buckets.values():
            by_phase[bucket.key[0]].append(bucket)
        for buckets in by_phase.values():
            buckets.sort(key=lambda one: one.key)
        by_phase[RUN].sort(key=lambda one: one.found.order)
        by_phase[LABELS].sort(key=lambda one: -one.found.order[1])
        newest = sorted(by_phase[RUN], key=lambda one: (one.found.is_present, one.found.order[1]))
        current = {bucket.key[:-1]: bucket for bucket in newest}
        named = {name for bucket in by_phase[VOLCANO] for name in bucket.names("")}
        for bucket in by_phase[RUN]:
            suffix = "" if current[bucket.key[:-1]] is bucket else f"@{bucket.key[-1]}"
            while not (named.isdisjoint(names := bucket.names(suffix)) and self._names.isdisjoint(names)):
                suffix += f"-{bucket.found.kind}"
            self._name(bucket, suffix, named, others)
        by_runs = named | self._names
        for bucket in (*by_phase[LABELS], *by_phase[AWAITED]):
            suffix = "" if by_runs.isdisjoint(bucket.names("")) else f"-{bucket.found.kind}"
            if not named.isdisjoint(bucket.names(suffix)):
                suffix += f"@{bucket.key[-1][:8]}"
            self._name(bucket, suffix, named, others)
        return [one for buckets in by_phase.values() for one in buckets]

    @staticmethod
    def _name(bucket: _Bucket, suffix: str, named: set[str], others: dict[_Bucket, None]) -> None:
        named.update(bucket.names(suffix))
        if suffix != bucket.suffix:
            bucket.suffix, others[bucket] = suffix, None

    def _mean(self, order: Iterable[_Bucket]) -> None:
        """What the names of workloads mean."""
        meant: dict[str, list[str]] = {}
        for bucket in order:
            if bucket.derivation is not None and bucket.found.kind:
                own = bucket.derivation.run.workload.head.key
                meant.setdefault(own, []).extend(one.key for one in bucket.shown if one.joined)
        for own in self.known.finished():
            if own not in self.gangs and own not in self._names:
                meant.setdefault(own, [])  # it holds nobody who names it
        self.meant = {key: tuple(found) for key, found in meant.items() if found != [key]}

    def _show(self, others: Iterable[_Bucket]) -> set[str]:
        """Shows what follows now under its names; the pods whose gang is another."""
        before: dict[str, Derived] = {}
        for bucket in others:
            before |= {gang.key: gang for gang in bucket.shown}
            gangs, suffix = bucket.found.gangs, bucket.suffix
            bucket.shown = tuple(renamed(one, suffix) for one in gangs) if suffix else gangs
        gang_of = {pod: "" for gang in before.values() for pod in gang.pods}
        for bucket in others:
            for gang in bucket.shown:
                key = gang.key
                gang_of |= dict.fromkeys(gang.pods, key)
                if (was := before.get(key)) is not None and replace(was, pods=gang.pods) != gang:
                    self.altered.add(key)
                self.gangs[key] = gang
                self.fresh.add(key)
        changed: set[str] = set()
        for pod, key in gang_of.items():
            if (filed := self._pods.get(pod)) is not None and filed.gang != key:
                filed.gang = key
                changed.add(pod)
        return changed
