"""The gangs that follow from workloads and from what pods say, kept up as both change.

Pods are in buckets: those of a PodGroup of Volcano, of a run of a workload, of one gang by labels. What changed is
derived anew bucket by bucket; names are given to all gangs together, for they must differ.

Invariant: what follows depends on the pods and workloads that are there, never on the order in which they came. Only
that an owner has gone is remembered: pods that still wait then are about to be deleted, or taken over by another.
Sources: workloads.md 2 and 4 (names).
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from koordpy.api.objects import ObjectMeta
from koordpy.workloads.bylabels import by_labels, label_group
from koordpy.workloads.gangs import Derivation, Derived, Settings, renamed
from koordpy.workloads.known import Known, controller
from koordpy.workloads.model import Workload
from koordpy.workloads.runs import WorkloadPod, WorkloadRun
from koordpy.workloads.source import ControllingOwner
from koordpy.workloads.volcano import Matches, VolcanoGroup, group_of_pod, volcano_gangs

Bucket = tuple[str, ...]
VOLCANO, RUN, LABELS, AWAITED = "volcano", "run", "labels", "awaited"
_PHASES = (VOLCANO, RUN, LABELS, AWAITED)
"""The first that takes a pod has it."""
OWNER_SECONDS = 10.0
"""From its creation on a pod waits so long for its owner to be seen ..."""
ORPHAN_SECONDS = 60.0
"""... one that has lost its owner for another one, as who makes a workload anew around its pods would have it ..."""
LEADER_SECONDS = 5.0
"""... and a leader for its workers, where only labels tell of them."""
RoleOfRun = tuple[str, str, str]
"""(uid of the workload, group, role)."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What follows for a bucket, named without regard to others."""

    gangs: tuple[Derived, ...]
    order: tuple[str, float] = ("", 0.0)
    """When the workload was made, and its oldest pod: of equal names the first keeps it."""
    whose: tuple[str, str] = ("", "")
    """(uid, group) of a run."""
    run: str = ""
    is_present: bool = True
    own: str = ""
    """`namespace/name` of the workload."""
    kind: str = ""
    """Of the workload; empty where its pods are no gang."""

    @property
    def age(self) -> tuple[bool, float]:
        """Largest for the run that its workload runs now."""
        return self.is_present, self.order[1]

    @property
    def naming(self) -> tuple[object, ...]:
        """All by which gangs get their names, and workloads mean them."""
        keys = tuple((one.key, one.joined) for one in self.gangs)
        return self.order, self.whose, self.run, self.is_present, self.own, self.kind, keys


class DerivedBook:
    """Pods and workloads in, gangs out."""

    def __init__(self, settings: Settings, matches: Matches, *, volcano: bool = False) -> None:
        """matches: whether a selector takes labels; volcano: whether PodGroups of Volcano are read."""
        self._settings, self._matches, self._volcano = settings, matches, volcano
        self.known = Known(by_names=False)
        self.watched: frozenset[str] = frozenset()
        """Kinds whose objects come by themselves: an owner of such a kind that is not known yet is waited for."""
        self.altered: set[str] = set()
        """`namespace/name` of gangs of which anything but their pods changed; the reader empties it."""
        self._now = 0.0
        self._gone: set[str] = set()
        """uids of workloads, and of leaders of a group, that were deleted while pods of theirs are still there."""
        self._orphans: dict[str, tuple[ControllingOwner, float]] = {}
        """Pod that waits -> who controlled it, until when it waits for another."""
        self._until: dict[str, float] = {}
        """Pod -> when it waits no longer for its owner, or a leader for its workers."""
        self.gangs: dict[str, Derived] = {}
        """By `namespace/name`, as of the last `update`."""
        self.of_pod: dict[str, str] = {}
        """Pod -> `namespace/name` of its gang."""
        self.meant: Mapping[str, tuple[str, ...]] = {}
        """`namespace/name` of a workload -> its gangs, where these have other names, or there are none."""
        self._pods: dict[str, WorkloadPod] = {}
        self._free: dict[str, bool] = {}
        """Pod -> whether it names no gang itself."""
        self._buckets: dict[Bucket, dict[str, WorkloadPod]] = {}
        self._in: dict[str, tuple[Bucket, ...]] = {}
        """Pod -> the buckets that may take it."""
        self._runs: dict[str, set[Bucket]] = {}
        """uid of a workload -> the buckets of its runs."""
        self._controlled: dict[str, dict[str, None]] = {}
        """uid of a controlling owner -> its pods."""
        self._anew: set[str] = set()
        """Pods whose place may be another than at the last `update`."""
        self._spoken: dict[RoleOfRun, int] = {}
        """Roles of pods that name a gang themselves -> how many."""
        self._taken: dict[str, Bucket] = {}
        """Pod -> the bucket that has it."""
        self._dirty: set[Bucket] = set()
        self._found: dict[Bucket, _Found] = {}
        self._shown: dict[Bucket, tuple[Derived, ...]] = {}
        self._suffixes: dict[Bucket, str] = {}
        """What stands behind the names of the gangs that are shown."""
        self._names: frozenset[str] = frozenset()
        self._renames = True
        """Whether names may be others than at the last `update`."""

    # -- in -----------------------------------------------------------------------------------------------------------

    def know(self, known: Known) -> None:
        """Takes all workloads at once."""
        self.known, self._renames = known, True
        self._dirty.update((VOLCANO, key) for key in (known.groups if self._volcano else ()))
        self._place_anew(list(self._pods))

    def put_workload(self, workload: Workload) -> None:
        """Takes a workload as it is now."""
        old = self.known.drop(workload.head.uid)
        self.known.put(workload)
        self._renames = True
        self._gone.discard(workload.head.uid)
        self._place_anew(self._below(workload.head.uid, workload, *([old] if old is not None else [])))

    def drop_workload(self, uid: str) -> None:
        """Forgets a workload. Its pods are about to be collected: who still waits is placed no more, as whatever."""
        old = self.known.drop(uid)
        self._renames = True
        if old is not None:
            self._gone.add(uid)
            self._place_anew(self._below(uid, old))

    def _below(self, owner: str, *workloads: Workload) -> list[str]:
        """The pods that an object (its uid) controls, or objects and pods below it, and those that workloads name."""
        found: dict[str, None] = {}
        left = [owner]
        for one in workloads:
            found.update((key, None) for key in one.members if key in self._pods)
        seen: set[str] = set()
        while left:
            uid = left.pop()
            if uid in seen:
                continue
            seen.add(uid)
            left += self.known.below(uid)
            for key in self._controlled.get(uid, ()):
                found[key] = None
                left.append(self._pods[key].pod.metadata.uid)
        return list(found)

    def read_volcano(self, on: bool) -> None:
        """Takes whether PodGroups of Volcano are read."""
        self._volcano = on
        self._dirty.update((VOLCANO, key) for key in self.known.groups)
        self._place_anew(list(self._pods))

    def put_group(self, group: VolcanoGroup) -> VolcanoGroup | None:
        """Takes a PodGroup of Volcano; what it was."""
        key = group.head.key
        old: VolcanoGroup | None = self.known.groups.get(key)
        self.known.groups[key] = group
        self._dirty.add((VOLCANO, key))
        return old

    def drop_group(self, key: str) -> None:
        """Forgets a PodGroup of Volcano."""
        self.known.groups.pop(key, None)
        self._dirty.add((VOLCANO, key))

    def of_group(self, key: str) -> Mapping[str, WorkloadPod]:
        """The pods that name a PodGroup of Volcano, finished ones as well."""
        return self._buckets.get((VOLCANO, key), {})

    def put(self, pod: WorkloadPod, *, free: bool) -> None:
        """Takes a pod as it is now; its place is found here. free: it names no gang itself."""
        key, uid, old = pod.pod.key, pod.pod.metadata.uid, self._pods.get(pod.pod.key)
        if old is not None and old.pod.metadata.uid == uid:
            was, owner = controller(old.pod), controller(pod.pod)
            if was == owner:
                self._put(key, replace(pod, place=old.place), free)
                return
            if (
                owner is None
                and was is not None
                and any(bucket[0] in (RUN, AWAITED) for bucket in self._in.get(key, ()))
            ):
                self._orphans[key] = was, math.inf
            else:
                self._orphans.pop(key, None)
            self.known.disowned(key)
            self.known.owned_by(pod.pod)
            self._put(key, replace(pod, place=self.known.place(pod.pod)), free)
            self._place_anew(self._below(uid))
            self._anew.add(key)
            return
        self.drop(key)
        self.known.owned_by(pod.pod)
        self._put(key, replace(pod, place=self.known.place(pod.pod)), free)
        self._place_anew(self._below(uid))

    def _put(self, key: str, pod: WorkloadPod, free: bool) -> None:
        self._take_out(key)
        self._pods[key], self._free[key] = pod, free
        if (owner := controller(pod.pod)) is not None:
            self._controlled.setdefault(owner.uid, {})[key] = None
        buckets = self._buckets_of(pod) if free else ()
        if buckets:
            self._in[key] = buckets
        for bucket in buckets:
            self._buckets.setdefault(bucket, {})[key] = pod
            if bucket[0] == RUN:
                self._runs.setdefault(bucket[1], set()).add(bucket)
        self._dirty.update(buckets)
        self._speak(pod, 1, free)

    def drop(self, key: str, uid: str = "") -> None:
        """Forgets a pod; with a uid no other of its name."""
        old = self._pods.get(key)
        if old is not None and uid in ("", old.pod.metadata.uid):
            self._take_out(key)
            del self._pods[key], self._free[key]
            self._orphans.pop(key, None)
            self.known.disowned(key)
            below = self._below(old.pod.metadata.uid)
            if below:
                self._gone.add(old.pod.metadata.uid)
            self._place_anew(below)

    def _take_out(self, key: str) -> None:
        old = self._pods.get(key)
        if old is None:
            return
        self._until.pop(key, None)
        for bucket in self._in.pop(key, ()):
            members = self._buckets[bucket]
            del members[key]
            if not members:
                del self._buckets[bucket]
            self._dirty.add(bucket)
        self._speak(old, -1, self._free[key])
        if (owner := controller(old.pod)) is not None:
            controlled = self._controlled[owner.uid]
            del controlled[key]
            if not controlled:
                del self._controlled[owner.uid]

    def _speak(self, pod: WorkloadPod, sign: int, free: bool) -> None:
        if pod.place is None or not (pod.alive if not free else self._is_volcano(pod)):
            return
        uid, seat = pod.place.workload.head.uid, pod.place.seat
        role = uid, seat.group, seat.role
        number = self._spoken[role] = self._spoken.get(role, 0) + sign
        if not number:
            del self._spoken[role]
        if number in (0, 1):
            self._dirty |= self._runs.get(uid, set())

    def _is_volcano(self, pod: WorkloadPod) -> bool:
        return self._volcano and bool(group_of_pod(pod.pod))

    def _buckets_of(self, pod: WorkloadPod) -> tuple[Bucket, ...]:
        meta, place = pod.pod.metadata, pod.place
        if self._is_volcano(pod):
            return ((VOLCANO, f"{meta.namespace}/{group_of_pod(pod.pod)}"),)
        found: list[Bucket] = []
        if place is not None and place.workload.is_kind:
            found.append((RUN, place.workload.head.uid, place.seat.group, place.seat.run))
        how, kinds = self._settings.auto(meta.namespace), self._settings.kinds
        if how == "workloads" and pod.waits and (owner := self._awaited(pod)) is not None:
            if pod.pod.key in self._orphans:
                self._until[pod.pod.key] = self._orphans[pod.pod.key][1]
            elif owner.uid not in self._gone:
                self._until[pod.pod.key] = pod.created + OWNER_SECONDS
            return ((AWAITED, meta.namespace, owner.kind, owner.name, owner.uid),)
        group = label_group(pod, how, kinds) if not pod.failed else None
        if group is not None:
            found.append((LABELS, *group))
            if self.watched and group[1] == "lws" and pod.created + LEADER_SECONDS > self._now:
                self._until[pod.pod.key] = pod.created + LEADER_SECONDS
        return tuple(found)

    def _awaited(self, pod: WorkloadPod) -> ControllingOwner | None:
        """The owner of a pod, or of what is known above it, that is to be seen soon, or was deleted."""
        if not self.watched:
            return None
        was, until = self._orphans.get(pod.pod.key, (None, 0.0))
        if was is not None and pod.place is None:
            return was if until > self._now else None
        owner = pod.place.chain[-1].head.owner if pod.place is not None else controller(pod.pod)
        namespace = pod.pod.metadata.namespace
        if owner is None or self.known.find(owner, namespace) is not None:
            return None
        young = owner.kind in self.watched and pod.created + OWNER_SECONDS > self._now
        return owner if young or owner.uid in self._gone else None

    def _place_anew(self, pods: Iterable[str]) -> None:
        for key in pods:
            pod = self._pods[key]
            self._put(key, replace(pod, place=self.known.place(pod.pod)), self._free[key])
            self._anew.add(key)

    # -- out ----------------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether an `update` has something to do."""
        return bool(self._dirty or self._anew)

    def due(self) -> float | None:
        """Seconds since the epoch at which something follows by time alone."""
        return min(self._until.values(), default=None)

    def watch(self, kinds: frozenset[str]) -> None:
        """Takes which kinds come by themselves now."""
        if kinds != self.watched:
            self.watched = kinds
            self._place_anew(list(self._pods))

    def index(self, key: str) -> int | None:
        """Rank index of a pod by its workload."""
        place = self._pods[key].place
        return place.seat.index if place is not None else None

    def update(self, named: Collection[str], now: float) -> set[str]:
        """Derives what changed anew; the pods whose gang may be another. named: `namespace/name` of gangs that pods or
        objects name themselves; now: seconds since the epoch."""
        self._now = now
        self._gone = {uid for uid in self._gone if uid in self._controlled or self.known.below(uid)}
        for key, (was, until) in list(self._orphans.items()):
            if until == math.inf:
                self._orphans[key] = was, now + ORPHAN_SECONDS
                self._until[key] = now + ORPHAN_SECONDS
        self._place_anew([key for key, until in self._until.items() if until <= now])
        names, anew = frozenset(named), self._anew
        if not self._dirty and not anew and names == self._names:
            return set()
        self._anew = set()
        derived: list[Bucket] = []
        for phase in _PHASES:
            for bucket in [one for one in self._dirty if one[0] == phase]:
                before = self._found.get(bucket)
                self._derive(bucket)
                found = self._found.get(bucket)
                naming = (one.naming if one is not None else None for one in (before, found))
                self._renames = self._renames or next(naming) != next(naming)
                derived.append(bucket)
        self._dirty.clear()
        if self._renames or names != self._names:
            self._names, self._renames = names, False
            return self._give_names(names) | anew
        return self._keep_names(derived) | anew

    def _derive(self, bucket: Bucket) -> None:
        members, before = self._buckets.get(bucket, {}), self._found.pop(bucket, None)
        if bucket[0] == VOLCANO:
            group = self.known.groups.get(bucket[1])
            if self._volcano and (members or group is not None):
                gangs = volcano_gangs(bucket[1], group, members.values(), self._matches)
                self._found[bucket] = _Found(tuple(gangs))
        elif bucket[0] == RUN:
            if members:
                self._found[bucket] = self._run(members.values())
            elif (runs := self._runs.get(bucket[1])) is not None:
                runs.discard(bucket)
                if not runs:
                    del self._runs[bucket[1]]
        elif bucket[0] == AWAITED:
            if members:
                self._found[bucket] = _Found((self._awaited_gang(bucket, members.values()),), kind=bucket[2].lower())
        else:
            left = [pod for key, pod in members.items() if self._taken.get(key, bucket)[0] != RUN]
            if left:
                began = min(pod.created for pod in left)
                owner = controller(left[0].pod)
                kind = owner.kind.lower() if owner is not None and bucket[2] != "kueue" else "kueue"
                young = any(pod.pod.key in self._until for pod in left)
                by_themselves = tuple(by_labels(bucket[1:], left, young=young))
                self._found[bucket] = _Found(by_themselves, order=("", began), kind=kind)
        self._take(bucket, before)

    def _awaited_gang(self, bucket: Bucket, pods: Iterable[WorkloadPod]) -> Derived:
        """Of pods whose owner is not known: nobody of it is placed."""
        _, namespace, kind, name, uid = bucket
        keys = sorted(one.pod.key for one in pods)
        left = all(key in self._orphans for key in keys)
        gone = left or uid in self._gone
        why = "has left its pods: they wait a minute for another owner" if left else "is deleted"
        return Derived(
            namespace=namespace,
            name=name,
            pods=tuple(keys),
            min_member=0,
            origin=f"pods of {kind} {name}",
            meta=ObjectMeta(namespace=namespace, name=name),
            fault="" if gone else f"{kind} {name} is not known yet",
            halted=f"{kind} {name} {why}" if gone else "",
            run=(AWAITED, uid),
            maker=f"{kind} {name}",
            is_awaited=not gone,
        )

    def _run(self, members: Iterable[WorkloadPod]) -> _Found:
        run = WorkloadRun.of(self.known, members)
        head = run.workload.head
        derivation = Derivation(run, self.known, self._settings, self._spoken)
        gangs = tuple(derivation.gangs())
        return _Found(
            gangs,
            order=(head.created, run.began),
            whose=(head.uid, run.group),
            run=run.run,
            is_present=run.is_present,
            own=f"{head.namespace}/{head.name}",
            kind=derivation.title.kind.lower() if gangs or derivation.is_gang else "",
        )

    def _take(self, bucket: Bucket, before: _Found | None) -> None:
        """Takes down which pods a bucket has; those behind it that lose or gain one are derived anew."""
        found = self._found.get(bucket)
        had = {key for gang in (before.gangs if before is not None else ()) for key in gang.pods}
        has = {key for gang in (found.gangs if found is not None else ()) for key in gang.pods}
        for key in had - has:
            if self._taken.get(key) == bucket:
                del self._taken[key]
        self._taken |= dict.fromkeys(has, bucket)
        if bucket[0] == RUN:
            for key in had ^ has:
                self._dirty.update(one for one in self._in.get(key, ()) if one[0] == LABELS)

    def _keep_names(self, derived: Iterable[Bucket]) -> set[str]:
        """Shows what was derived anew under the names that it has; the pods whose gang may be another."""
        gangs, shown = dict(self.gangs), dict(self._shown)
        for bucket in derived:
            if (suffix := self._suffixes.get(bucket)) is not None:
                shown[bucket] = self._renamed(bucket, self._found[bucket].gangs, suffix)
                gangs.update((one.key, one) for one in shown[bucket])
        known, self.gangs = self.gangs, gangs
        return self._show(shown, known)

    def _give_names(self, taken: frozenset[str]) -> set[str]:
        """Names all gangs; the pods whose gang may be another."""
        gangs: dict[str, Derived] = {}
        meant: dict[str, list[str]] = {}
        shown: dict[Bucket, tuple[Derived, ...]] = {}
        self._suffixes = {}
        by_phase: dict[str, list[Bucket]] = {phase: [] for phase in _PHASES}
        for bucket in self._found:
            by_phase[bucket[0]].append(bucket)
        for bucket in sorted(by_phase[VOLCANO]):
            shown[bucket], self._suffixes[bucket] = self._found[bucket].gangs, ""
            gangs.update((one.key, one) for one in shown[bucket])
        runs = sorted(by_phase[RUN], key=lambda bucket: (self._found[bucket].order, bucket))
        current: dict[tuple[str, str], _Found] = {}
        for found in (self._found[bucket] for bucket in runs):
            current[found.whose] = max(found, current.get(found.whose, found), key=lambda one: one.age)
        for bucket in runs:
            found = self._found[bucket]
            if not found.kind:
                continue
            suffix = "" if current[found.whose] is found else f"@{found.run}"
            keys = [_key(one, suffix) for one in found.gangs]
            while any(key in gangs or key in taken for key in keys):
                suffix += f"-{found.kind}"
                keys = [_key(one, suffix) for one in found.gangs]
            shown[bucket] = self._renamed(bucket, found.gangs, suffix)
            self._suffixes[bucket] = suffix
            gangs.update((one.key, one) for one in shown[bucket])
            meant.setdefault(found.own, []).extend(one.key for one in shown[bucket] if one.joined)
        others = set(gangs)
        rest = sorted(by_phase[LABELS], key=lambda bucket: (-self._found[bucket].order[1], bucket))
        for bucket in (*rest, *sorted(by_phase[AWAITED])):
            said, suffix = self._found[bucket].gangs, ""
            if any(one.key in others or one.key in taken for one in said):
                suffix = f"-{self._found[bucket].kind}"
            if any(_key(one, suffix) in gangs for one in said):
                suffix += f"@{bucket[-1][:8]}"
            shown[bucket] = self._renamed(bucket, said, suffix)
            self._suffixes[bucket] = suffix
            gangs.update((one.key, one) for one in shown[bucket])
        known, self.gangs = self.gangs, gangs
        for own in self.known.finished():
            if own not in gangs and own not in taken:
                meant.setdefault(own, [])  # it holds nobody who names it
        self.meant = {key: tuple(found) for key, found in meant.items() if found != [key]}
        return self._show(shown, known)

    def _renamed(self, bucket: Bucket, found: tuple[Derived, ...], suffix: str) -> tuple[Derived, ...]:
        """What was shown before, where that is the same."""
        if not suffix:
            return found
        now = tuple(renamed(one, suffix) for one in found)
        before = self._shown.get(bucket)
        return before if before == now else now

    def _show(self, shown: dict[Bucket, tuple[Derived, ...]], known: Mapping[str, Derived]) -> set[str]:
        """known: the gangs before."""
        changed: set[str] = set()
        before, self._shown = self._shown, shown
        others = [bucket for bucket in {**before, **shown} if before.get(bucket) is not shown.get(bucket)]
        for bucket in others:
            for gang in before.get(bucket, ()):
                for key in gang.pods:
                    if self.of_pod.get(key) == gang.key:
                        del self.of_pod[key]
                    changed.add(key)
        for bucket in others:
            for gang in shown.get(bucket, ()):
                if (was := known.get(gang.key)) is not None and replace(was, pods=gang.pods) != gang:
                    self.altered.add(gang.key)
                self.of_pod |= dict.fromkeys(gang.pods, gang.key)
                changed.update(gang.pods)
        return changed


def _key(gang: Derived, suffix: str) -> str:
    name, colon, role = gang.key.partition(":")
    return f"{name}{suffix}{colon}{role}"
