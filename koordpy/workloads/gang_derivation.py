"""The gangs that follow from workloads and from what pods say, kept up as both change.

Pods are in buckets: those of a PodGroup of Volcano, of a run of a workload, of one gang by labels. What changed is
derived anew bucket by bucket; names are given to all gangs together, for they must differ.

Invariant: what follows depends on the pods and workloads that are there, never on the order in which they came. Only
that an owner was deleted is remembered: pods that still wait then are about to be deleted, too.
Sources: workloads.md 2 and 4 (names).
"""

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import replace

from koordpy.api.objects import OwnerReference, Pod
from koordpy.config.configuration import Gangs
from koordpy.workloads.bucket_gangs import awaited_gang, gangs_by_labels, run_gangs
from koordpy.workloads.controlled_pods import ControlledPods
from koordpy.workloads.default_groups import is_made_by_default
from koordpy.workloads.deployment_rollouts import ROLLED, asks, may_be_gang
from koordpy.workloads.gang_names import gangs_by_workload, give_names
from koordpy.workloads.kinds.jobsets import JOBSET
from koordpy.workloads.known_workloads import Known, unfile
from koordpy.workloads.labelled_gangs import label_group
from koordpy.workloads.pod_buckets import (
    AWAITED,
    LABELS,
    NO_GANGS,
    PHASES,
    RUN,
    VOLCANO,
    BucketGangs,
    BucketKey,
    FiledPod,
    PodBucket,
)
from koordpy.workloads.volcano_gangs import Matches, VolcanoGroup, group_of_pod, volcano_gangs
from koordpy.workloads.workload_gangs import Derived
from koordpy.workloads.workload_model import Workload
from koordpy.workloads.workload_runs import WorkloadPod

OWNER_SECONDS = 10.0
"""From its creation on a pod waits so long for its owner to be seen ..."""
LEADER_SECONDS = 5.0
"""... and a leader for its workers, where only labels tell of them."""


class DerivedBook:
    """Pods and workloads in, gangs out."""

    def __init__(self, config: Gangs, schedulers: Container[str], matches: Matches) -> None:
        """schedulers: names of ours; matches: whether a selector takes labels."""
        self._config, self._schedulers, self._matches = config, schedulers, matches
        self.volcano = config.volcano != "off"
        """Whether PodGroups of Volcano are read."""
        self._pods: dict[str, FiledPod] = {}
        self.known = Known(self._pod)
        self.groups: dict[str, VolcanoGroup] = {}
        """By `namespace/name`."""
        self.unused: Mapping[str, str] = {}
        """PodGroup of Volcano -> why it is passed over: its pods are in the gangs of their workload."""
        self.gangs: dict[str, Derived] = {}
        """By `namespace/name`, as of the last `update`; another one where a name changed."""
        self.fresh: set[str] = set()
        """Those of them that are others since the reader emptied it ..."""
        self.altered: set[str] = set()
        """... in more than their pods."""
        self.meant: Mapping[str, tuple[str, ...]] = {}
        """`namespace/name` of a workload -> its gangs, where these have other names, or there are none."""
        self.made: dict[str, tuple[OwnerReference, ...]] = {}
        """PodGroup of scheduling.k8s.io that a controller may have made by default -> its owners (groups.md 2.4)."""
        self._naming: dict[str, dict[str, None]] = {}
        """PodGroup of scheduling.k8s.io -> pods that name it."""
        self._now = 0.0
        self._gone: set[str] = set()
        """uids of workloads, and of leaders of a group, that were deleted while pods of theirs are still there."""
        self._until: dict[str, float] = {}
        """Pod -> when it waits no longer for its owner, or a leader for its workers."""
        self._buckets: dict[BucketKey, PodBucket] = {}
        self._controlled = ControlledPods()
        self._changed: dict[str, None] = {}
        """uids of objects that changed; what is below them has its place with the next `update` ..."""
        self._named: set[str] = set()
        """... and so have pods that are, or were, named by one."""
        self._anew: set[str] = set()
        """Pods whose place may be another than at the last `update`."""
        self._dirty: dict[PodBucket, None] = {}
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
        before = self.known.rollout(workload)
        old = self.known.put(workload)
        now = self.known.rollout(workload)
        is_plain = before is not None and now is not None and not (may_be_gang(before) or may_be_gang(now))
        if is_plain and old is not None and old.head.annotations == workload.head.annotations:
            return  # ReplicaSets of plain pods are scaled all the time
        self._change(workload, old)

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
                # a JobSet is read with its Jobs, and the ReplicaSets of one Deployment are one workload
                together = owner is not None and (owner.kind == JOBSET or one.head.kind in ROLLED)
                self._changed[one.head.uid] = None
                if owner is not None and together:
                    self._changed[owner.uid] = None
                self._named.update(one.members)

    def _below(self, *owners: str) -> dict[str, None]:
        return self._controlled.below(owners, self.known.below)

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

    def leave_unused(self, groups: Mapping[str, str]) -> None:
        """Takes the PodGroups of Volcano (`namespace/name`) that are passed over now, and why."""
        changed = groups.keys() ^ self.unused.keys()
        self.unused = groups
        for key in changed:
            self._stir(key)
            self._place_anew(list(self.of_group(key)))

    def put_made(self, key: str, owners: tuple[OwnerReference, ...]) -> None:
        """Takes the owners of a PodGroup (`namespace/name`) that its controller may have made by default; none where
        it is no such group."""
        if owners == self.made.get(key, ()):
            return
        if owners:
            self.made[key] = owners
        else:
            del self.made[key]
        self._place_anew(list(self._naming.get(key, ())))

    def of_group(self, key: str) -> Mapping[str, WorkloadPod]:
        """The pods that name a PodGroup of Volcano, finished ones as well."""
        bucket = self._buckets.get((VOLCANO, key))
        return bucket.members if bucket is not None else {}

    def put(
        self,
        key: str,
        pod: Pod,
        *,
        bound: bool,
        created: float,
        free: bool,
        upstream: str = "",
        beside: bool = False,
    ) -> None:
        """Takes a pod as it is now; its place is found here. key: `namespace/name`; bound: on a node, and not
        finished; free: it names no gang itself; upstream, beside: as of FiledPod."""
        uid, filed = pod.metadata.uid, self._pods.get(key)
        if filed is not None and filed.pod.metadata.uid != uid:
            self.drop(key)
            filed = None
        anew = filed is None or filed.pod.metadata.controller != pod.metadata.controller
        if filed is None:
            filed = self._pods[key] = FiledPod(key, pod, bound, created)
        elif anew:
            self._controlled.drop(key, filed.pod)
        filed.pod, filed.bound, filed.created, filed.free = pod, bound, created, free
        if (filed.upstream, filed.beside) != (upstream, beside):
            unfile(self._naming, filed.upstream, key)
            filed.upstream, filed.beside = upstream, beside
            if upstream:
                self._naming.setdefault(upstream, {})[key] = None
        if not anew:
            self._file(filed)
            return
        self._controlled.add(key, pod)
        self._place_anew([key, *self._below(uid)])

    def controlled_by(self, uid: str) -> Collection[str]:
        """The pods that an object controls itself."""
        return self._controlled.of(uid)

    def _place_anew(self, pods: Iterable[str]) -> None:
        for filed in filter(None, map(self._pods.get, pods)):
            filed.lineage = self.known.lineage(filed.pod)
            self._file(filed)
            self._anew.add(filed.key)

    def _file(self, filed: FiledPod) -> None:
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
        self._controlled.drop(key, filed.pod)
        unfile(self._naming, filed.upstream, key)
        del self._pods[key]
        if below := self._below(filed.pod.metadata.uid):
            self._gone.add(filed.pod.metadata.uid)
            self._place_anew(below)

    def _empty(self, filed: FiledPod) -> None:
        for bucket in filed.buckets:
            del bucket.members[filed.key]
            bucket.moved = True
        self._dirty |= dict.fromkeys(filed.buckets)

    def _bucket(self, key: BucketKey) -> PodBucket:
        return self._buckets.get(key) or self._buckets.setdefault(key, PodBucket(key))

    def _stir(self, group: str) -> None:
        self._dirty[self._bucket((VOLCANO, group))] = None

    def _buckets_of(self, filed: FiledPod) -> tuple[BucketKey, ...]:
        meta, workload = filed.pod.metadata, filed.lineage.workload
        found: list[BucketKey] = []
        if workload.is_kind and may_be_gang(workload):
            found.append((RUN, workload.head.uid, filed.seat.group, filed.seat.run))
        filed.passes = filed.upstream in self.made and (
            self._is_unseen(filed) or is_made_by_default(filed, self.made[filed.upstream], self.known)
        )
        free = filed.free or (filed.passes and not filed.beside)
        volcano = group_of_pod(filed.pod) if (filed.free or filed.passes) and self.volcano else ""
        group = f"{meta.namespace}/{volcano}" if volcano else ""
        filed.named = bool(group and group not in self.unused) or not free
        if group:
            found.append((VOLCANO, group))
        if filed.named:
            return tuple(found)
        how, kinds = self._config.auto_of(meta.namespace), self._config.kinds
        if how == "workloads" and filed.waits and (owner := self._awaited(filed)) is not None:
            if owner.uid not in self._gone:
                self._until[filed.key] = filed.created + OWNER_SECONDS
            return ((AWAITED, meta.namespace, owner.kind, owner.name, owner.uid),)
        # a pod without any of them says nothing about a gang
        says = not filed.failed and (meta.labels or meta.annotations or meta.owner_references)
        labelled = label_group(filed, how, kinds) if says else None
        if labelled is not None:
            found.append((LABELS, *labelled))
            if self.known.watched and labelled[1] == "lws" and filed.created + LEADER_SECONDS > self._now:
                self._until[filed.key] = filed.created + LEADER_SECONDS
        return tuple(found)

    def _is_unseen(self, filed: FiledPod) -> bool:
        """True if no owner of a pod is known yet; a PodGroup that the pod names is held as that owner's meanwhile."""
        return not filed.lineage.chain and self._awaited(filed) is not None

    def _awaited(self, filed: FiledPod) -> OwnerReference | None:
        """Who is named above a pod, and is to be seen soon, or was deleted."""
        owner, watched = filed.lineage.missing, self.known.watched
        if owner is None or not watched:
            return None
        if owner.kind in ROLLED and not asks(filed.pod.metadata.annotations):
            return None  # a plain pod, whatever its ReplicaSet says
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
        others: dict[PodBucket, None] = {}
        for phase in PHASES:
            derived = [one for one in self._dirty if one.key[0] == phase]
            others |= dict.fromkeys(one for one in derived if self._derive(one))
        self._dirty.clear()
        if not self._renames and names == self._names:
            return self._show(others) | anew
        self._names, self._renames = names, False
        order = give_names(self._buckets.values(), self._names, others)
        anew |= self._show(others)
        self.gangs = {gang.key: gang for bucket in order for gang in bucket.shown}
        over = (own for own in self.known.finished() if own not in self.gangs and own not in self._names)
        self.meant = gangs_by_workload(order, over)
        return anew

    def _derive(self, bucket: PodBucket) -> bool:
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

    def _found(self, bucket: PodBucket) -> BucketGangs:
        key, members = bucket.key, bucket.members
        if key[0] == VOLCANO:
            group = self.groups.get(key[1])
            if self.volcano and (members or group is not None) and key[1] not in self.unused:
                return BucketGangs(tuple(volcano_gangs(key[1], group, members.values(), self._matches)))
        elif not members:
            return NO_GANGS
        elif key[0] == RUN:
            return run_gangs(bucket, self._config, self._schedulers)
        elif key[0] == AWAITED:
            return BucketGangs((awaited_gang(key, members.values(), gone=key[-1] in self._gone),), kind=key[2].lower())
        elif left := [pod for pod in members.values() if not pod.is_of_run]:
            young = any(pod.key in self._until for pod in left)
            return gangs_by_labels(key[1:], left, self._config, self._schedulers, young=young)
        return NO_GANGS

    def _show(self, others: Iterable[PodBucket]) -> set[str]:
        """Shows what follows now under its names; the pods whose gang is another."""
        before: dict[str, Derived] = {}
        for bucket in others:
            before |= {gang.key: gang for gang in bucket.shown}
            bucket.show()
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
