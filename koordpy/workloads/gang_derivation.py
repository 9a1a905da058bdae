# SPDX-License-Identifier: Apache-2.0
"""Derives the gangs of pods that name no gang: from the workload that owns a pod (a Job, a JobSet), or from its labels.

First, each pod is put into buckets: with the pods of one Volcano PodGroup, of one run of a workload, with the same
labels, or with an owner that the watch has not delivered yet. Then `update` derives the gangs of the buckets that
changed. Last, all gangs are named together, because names must be unique. Cost: O(pods of changed buckets).

Invariant: the gangs depend only on the pods and workloads that exist, not on the order of events. There is one
exception: a deleted owner is remembered, because the garbage collector is about to delete its pending pods. Sources:
workloads.md 2 and 4 (names).
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
from koordpy.workloads.workload_gangs import WorkloadGang
from koordpy.workloads.workload_model import Workload
from koordpy.workloads.workload_runs import WorkloadPod

OWNER_SECONDS = 10.0
"""Seconds after its creation for which a pod with an unknown owner is not planned: the watch may deliver the owner."""
LEADER_SECONDS = 5.0
"""Seconds after its creation for which a LeaderWorkerSet's leader, known only by labels, waits for its workers."""


class DerivedBook:
    """Stores pods and workloads and derives their gangs. Pods and gangs are identified by `namespace/name`."""

    def __init__(self, config: Gangs, schedulers: Container[str], matches: Matches) -> None:
        """schedulers: names of this scheduler. matches: returns True if a selector matches labels."""
        self._config, self._schedulers, self._matches = config, schedulers, matches
        self.volcano = config.volcano != "off"
        """True if PodGroups of Volcano are read."""
        self._pods: dict[str, FiledPod] = {}
        self.known = Known(self._pod)  # all workloads
        self.groups: dict[str, VolcanoGroup] = {}
        """PodGroups of Volcano by `namespace/name`."""
        self.unused: Mapping[str, str] = {}
        """PodGroup of Volcano that is ignored -> the reason; its pods are in the gangs of their workload."""
        self.gangs: dict[str, WorkloadGang] = {}
        """Gangs by `namespace/name`, as of the last `update`; a new dict replaces it if a name changed."""
        self.fresh: set[str] = set()
        """Gangs that changed since the caller last cleared this set."""
        self.altered: set[str] = set()
        """Gangs that changed in more than their list of pods, since the caller last cleared this set."""
        self.meant: Mapping[str, tuple[str, ...]] = {}
        """Workload -> its gangs; () if it is finished. Workloads with exactly one gang with their name are left out."""
        self.made: dict[str, tuple[OwnerReference, ...]] = {}
        """PodGroup of scheduling.k8s.io that a controller may have created by default -> its owners."""
        self._naming: dict[str, dict[str, None]] = {}  # PodGroup of scheduling.k8s.io -> pods that name it
        self._now = 0.0  # of the last `update`, in seconds since the epoch
        self._gone: set[str] = set()  # uids of deleted workloads and leaders that still have pods
        self._until: dict[str, float] = {}
        """Pod -> end of its wait for an owner, or of a leader's wait for workers, in seconds since the epoch."""
        self._buckets: dict[BucketKey, PodBucket] = {}
        self._controlled = ControlledPods()
        self._changed: dict[str, None] = {}  # uids of changed objects: the next `update` files the pods below them
        self._named: set[str] = set()  # pods that a changed object lists or listed: the next `update` files them
        self._refiled: set[str] = set()  # pods that were filed again since the last `update`
        self._dirty: dict[PodBucket, None] = {}  # buckets to derive again
        self._names: frozenset[str] = frozenset()  # gangs that pods or objects name, at the last `update`
        self._renames = True  # True if the next `update` must name all gangs again

    def _pod(self, key: str) -> Pod | None:
        filed = self._pods.get(key)
        return filed.pod if filed is not None else None

    def know(self, known: Known, groups: Mapping[str, VolcanoGroup]) -> None:
        """Replaces all workloads, and adds PodGroups of Volcano."""
        self.known, self._renames = known, True
        self.groups |= groups
        for key in self.groups:
            self._stir(key)
        self._refile(self._pods)

    def put_workload(self, workload: Workload) -> None:
        """Stores the current state of a workload."""
        self._gone.discard(workload.head.uid)
        before = self.known.rollout(workload)
        old = self.known.put(workload)
        now = self.known.rollout(workload)
        is_plain = before is not None and now is not None and not (may_be_gang(before) or may_be_gang(now))
        if is_plain and old is not None and old.head.annotations == workload.head.annotations:
            return  # because ReplicaSets of plain pods are scaled often, and then no gang changes
        self._change(workload, old)

    def drop_workload(self, uid: str) -> None:
        """Removes a workload. Its pending pods are about to be garbage-collected and are no longer placed."""
        if (old := self.known.drop(uid)) is not None:
            self._gone.add(uid)
            self._change(old)

    def _change(self, *workloads: Workload | None) -> None:
        """Marks workloads as changed."""
        self._renames = True
        for one in workloads:
            if one is not None:
                owner = one.head.owner
                # a JobSet and its Jobs are read together, and so are the ReplicaSets of one Deployment
                together = owner is not None and (owner.kind == JOBSET or one.head.kind in ROLLED)
                self._changed[one.head.uid] = None
                if owner is not None and together:
                    self._changed[owner.uid] = None
                self._named.update(one.members)

    def _below(self, *owners: str) -> dict[str, None]:
        """Returns the pods below objects (by uid), directly or through other objects, as keys of a dict."""
        return self._controlled.below(owners, self.known.below)

    def read_volcano(self, on: bool) -> None:
        """Sets whether PodGroups of Volcano are read."""
        self.volcano = on
        self.know(self.known, {})

    def put_group(self, key: str, group: VolcanoGroup | None) -> list[str]:
        """Stores a PodGroup of Volcano (None: deleted). Returns its pods if their quota (its queue) changed."""
        queues = {one.queue if one is not None else "" for one in (self.groups.pop(key, None), group)}
        if group is not None:
            self.groups[key] = group
        self._stir(key)
        return list(self.of_group(key)) if len(queues) > 1 else []

    def leave_unused(self, groups: Mapping[str, str]) -> None:
        """Sets the PodGroups of Volcano that are ignored, each with the reason."""
        changed = groups.keys() ^ self.unused.keys()
        self.unused = groups
        for key in changed:
            self._stir(key)
            self._refile(list(self.of_group(key)))

    def put_made(self, key: str, owners: tuple[OwnerReference, ...]) -> None:
        """Stores the owners of a PodGroup that a controller may have created by default; an empty tuple removes it."""
        if owners == self.made.get(key, ()):
            return
        if owners:
            self.made[key] = owners
        else:
            del self.made[key]
        self._refile(list(self._naming.get(key, ())))

    def of_group(self, key: str) -> Mapping[str, WorkloadPod]:
        """Returns the pods that name a PodGroup of Volcano, including finished pods."""
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
        names_gang_too: bool = False,
    ) -> None:
        """Stores the current state of a pod and puts it into buckets. bound: True if it has a node and is not finished.
        created: seconds since the epoch. free: True if it names no gang. upstream, names_gang_too: as in `FiledPod`."""
        uid, filed = pod.metadata.uid, self._pods.get(key)
        if filed is not None and filed.pod.metadata.uid != uid:
            self.drop(key)
            filed = None
        has_new_owner = filed is None or filed.pod.metadata.controller != pod.metadata.controller
        if filed is None:
            filed = self._pods[key] = FiledPod(key, pod, bound, created)
        elif has_new_owner:
            self._controlled.drop(key, filed.pod)
        filed.pod, filed.bound, filed.created, filed.free = pod, bound, created, free
        if (filed.upstream, filed.names_gang_too) != (upstream, names_gang_too):
            unfile(self._naming, filed.upstream, key)
            filed.upstream, filed.names_gang_too = upstream, names_gang_too
            if upstream:
                self._naming.setdefault(upstream, {})[key] = None
        if not has_new_owner:
            self._file(filed)
            return
        self._controlled.add(key, pod)
        self._refile([key, *self._below(uid)])

    def controlled_by(self, uid: str) -> Collection[str]:
        """Returns the pods that an object controls directly."""
        return self._controlled.of(uid)

    def _refile(self, pods: Iterable[str]) -> None:
        """Looks up the owners of pods again, and puts the pods into buckets again."""
        for filed in filter(None, map(self._pods.get, pods)):
            filed.lineage = self.known.lineage(filed.pod)
            self._file(filed)
            self._refiled.add(filed.key)

    def _file(self, filed: FiledPod) -> None:
        """Puts a pod into every bucket that it may belong to, and marks these buckets to be derived again."""
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
        """Removes a pod. uid: removes the pod only if it has this uid; empty for any uid."""
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
            self._refile(below)

    def _empty(self, filed: FiledPod) -> None:
        """Removes a pod from all its buckets."""
        for bucket in filed.buckets:
            del bucket.members[filed.key]
            bucket.moved = True
        self._dirty |= dict.fromkeys(filed.buckets)

    def _bucket(self, key: BucketKey) -> PodBucket:
        return self._buckets.get(key) or self._buckets.setdefault(key, PodBucket(key))

    def _stir(self, group: str) -> None:
        """Marks the bucket of a PodGroup of Volcano to be derived again."""
        self._dirty[self._bucket((VOLCANO, group))] = None

    def _buckets_of(self, filed: FiledPod) -> tuple[BucketKey, ...]:
        """Returns the buckets of a pod, the most specific first. Sets `named`, `passes` and the end of its wait."""
        meta, workload = filed.pod.metadata, filed.lineage.workload
        found: list[BucketKey] = []
        # 1. the run of its workload; even if the pod names a gang, because the run must leave out roles that name gangs
        if workload.is_kind and may_be_gang(workload):
            found.append((RUN, workload.head.uid, filed.position.group, filed.position.run))
        # 2. a gang that the pod names, except a PodGroup that a controller made by default
        filed.passes = filed.upstream in self.made and (
            self._is_unseen(filed) or is_made_by_default(filed, self.made[filed.upstream], self.known)
        )
        free = filed.free or (filed.passes and not filed.names_gang_too)
        volcano = group_of_pod(filed.pod) if (filed.free or filed.passes) and self.volcano else ""
        group = f"{meta.namespace}/{volcano}" if volcano else ""
        filed.named = bool(group and group not in self.unused) or not free
        if group:
            found.append((VOLCANO, group))
        if filed.named:
            return tuple(found)
        # 3. an owner that is not known yet blocks the pod; if there is none, its labels decide
        how, kinds = self._config.auto_of(meta.namespace), self._config.kinds
        if how == "workloads" and filed.is_placeable and (owner := self._awaited(filed)) is not None:
            if owner.uid not in self._gone:
                self._until[filed.key] = filed.created + OWNER_SECONDS
            return ((AWAITED, meta.namespace, owner.kind, owner.name, owner.uid),)
        # a pod without labels, annotations and owners asks for no gang
        says = not filed.failed and (meta.labels or meta.annotations or meta.owner_references)
        labelled = label_group(filed, how, kinds) if says else None
        if labelled is not None:
            found.append((LABELS, *labelled))
            if self.known.watched and labelled[1] == "lws" and filed.created + LEADER_SECONDS > self._now:
                self._until[filed.key] = filed.created + LEADER_SECONDS
        return tuple(found)

    def _is_unseen(self, filed: FiledPod) -> bool:
        """True if a pod still waits for its owner, which may have created the PodGroup that the pod names."""
        return not filed.lineage.chain and self._awaited(filed) is not None

    def _awaited(self, filed: FiledPod) -> OwnerReference | None:
        """Returns the unknown owner above a pod if it is expected soon, or if it was deleted; None otherwise."""
        owner, watched = filed.lineage.missing, self.known.watched
        if owner is None or not watched:
            return None
        if owner.kind in ROLLED and not asks(filed.pod.metadata.annotations):
            return None  # a plain pod, whatever its ReplicaSet requests
        young = owner.kind in watched and filed.created + OWNER_SECONDS > self._now
        return owner if young or owner.uid in self._gone else None

    @property
    def is_due(self) -> bool:
        """True if an `update` has changes to process."""
        return bool(self._dirty or self._refiled or self._changed)

    def due(self) -> float | None:
        """Returns when the gangs change next without an event, in seconds since the epoch; None if they do not."""
        return min(self._until.values(), default=None)

    def watch(self, kinds: frozenset[str]) -> None:
        """Sets the kinds that are watched."""
        if kinds != self.known.watched:
            self.known.watch(kinds)
            self._refile(self._pods)

    def update(self, named: Collection[str], now: float) -> set[str]:
        """Derives the gangs of changed buckets; returns the pods that may have another gang. named: `namespace/name` of
        the gangs that pods or objects name themselves. now: seconds since the epoch."""
        self._now = now
        # stage 1: put changed pods into buckets again, also pods that no longer wait
        late = [key for key, until in self._until.items() if until <= now]
        self._refile([*late, *self._below(*self._changed), *self._named])
        self._changed.clear()
        self._named.clear()
        self._gone = {uid for uid in self._gone if uid in self._controlled or self.known.below(uid)}
        names, refiled = frozenset(named), self._refiled
        if not self._dirty and not refiled and names == self._names:
            return set()
        self._refiled = set()
        others: dict[PodBucket, None] = {}  # stage 2: derive changed buckets; these are the ones with other gangs
        for phase in PHASES:
            derived = [one for one in self._dirty if one.key[0] == phase]
            others |= dict.fromkeys(one for one in derived if self._derive(one))
        self._dirty.clear()
        if not self._renames and names == self._names:
            return self._show(others) | refiled
        # stage 3: name all gangs again; `give_names` adds the buckets with another name to `others`
        self._names, self._renames = names, False
        order = give_names(self._buckets.values(), self._names, others)
        refiled |= self._show(others)
        self.gangs = {gang.key: gang for bucket in order for gang in bucket.shown}
        over = [own for own in self.known.finished() if own not in self.gangs and own not in self._names]
        self.meant = gangs_by_workload(order, over)
        return refiled

    def _derive(self, bucket: PodBucket) -> bool:
        """Derives the gangs of a bucket; returns True if they changed."""
        before, found, moved = bucket.found, self._found(bucket), bucket.moved
        if not bucket.members and not found.gangs:
            self._buckets.pop(bucket.key, None)
        bucket.moved = False
        if found == before and not moved:
            return False
        bucket.found = found
        self._renames = self._renames or before.naming != found.naming
        if bucket.key[0] == RUN:  # pods that joined or left gangs of a run affect their label buckets
            had, has = ({key for gang in one.gangs for key in gang.pods} for one in (before, found))
            filed = (self._pods.get(key) for key in had ^ has)
            self._dirty |= {one: None for pod in filed if pod for one in pod.buckets if one.key[0] == LABELS}
        return True

    def _found(self, bucket: PodBucket) -> BucketGangs:
        """Returns the gangs of a bucket, by the rule of its phase; `NO_GANGS` if it has none."""
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
        """Publishes the gangs of changed buckets under their names; returns the pods with another gang."""
        before: dict[str, WorkloadGang] = {}
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
