# SPDX-License-Identifier: Apache-2.0
"""Index of gangs, updated by watch events: the pods of each gang, counts by state, and the PodGroup objects.

Each change of a pod updates the tally (counts) of its gang in O(1). A gang may run several times, for example if its
Job is recreated under the same name; runs differ in the controlling owners of their pods. If all pods have one owner,
the members of the present run are counted at each change. Otherwise they are counted when the gang is next read.
`GangHistory` has the Succeeded members with deleted pods. Settings of gangs are read in `koordpy.gangs`, not here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from koordpy.api import keys
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import ObjectMeta
from koordpy.api.pod_groups import PodGroup, UpstreamPodGroup
from koordpy.cache.gang_history import MOST_KEPT, NO_PAST, GangHistory, GangPast
from koordpy.cache.gang_members import Members
from koordpy.cache.outcome_records import RecordBook
from koordpy.decoding.annotation_settings import whole_number
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.object_book import object_key
from koordpy.pods.pod_info import PodInfo
from koordpy.workloads.workload_gangs import WorkloadGang
from koordpy.workloads.workload_model import Record


@dataclass(slots=True)
class GangTally:
    """Numbers of pending, bound and Succeeded pods of a gang."""

    pending: int = 0
    bound: int = 0
    succeeded: int = 0
    ours: int = 0
    """Number of pods that name this scheduler in schedulerName."""
    owners: dict[str, int] = field(default_factory=dict)
    """uid of a controlling owner -> number of its pods in the gang; the empty string for pods without an owner."""
    present: int = 0
    """Number of members of the present run that are bound or Succeeded, including Succeeded members with deleted
    pods."""

    def half_bound(self, need: int) -> bool:
        """Returns True if at least one member is bound, but bound and Succeeded members are fewer than the minimum.
        need: minimum of the gang. Members of earlier runs do not count."""
        return bool(self.bound) and self.present < need


MOST_WITHOUT_PODS = 256
"""Maximum number of gangs without a PodGroup that are remembered while they have no pods. A suspended Job may continue;
then its members that Succeeded before still count."""
NO_PODS = GangTally()
"""Tally of a gang without pods."""


class GangBook:
    """Gangs with their pods and counts, and PodGroups of coscheduling and scheduling.k8s.io by `namespace/name`."""

    def __init__(self, scheduler_names: frozenset[str], records: RecordBook) -> None:
        """scheduler_names: names of this scheduler. records: numbers of Succeeded pods in the statuses of
        controllers."""
        self._names, self._records = scheduler_names, records
        self.derived: Mapping[GangRef, WorkloadGang] = {}
        """Gangs that are derived from workloads."""
        # PodGroups of coscheduling, and of scheduling.k8s.io ("upstream"), by `namespace/name`; members by pod key
        self.groups: dict[str, PodGroup] = {}
        self.upstream: dict[str, UpstreamPodGroup] = {}
        self._members: dict[GangRef, dict[str, PodInfo]] = {}
        self._views: dict[GangRef, tuple[PodInfo, ...]] = {}
        """Gang -> its pods as a snapshot shows them; only gangs in `_changed` are rebuilt."""
        self._changed: dict[GangRef, None] = {}
        """Gangs with members that changed since the last call of `views`."""
        self._linkers: dict[tuple[str, str], GangRef] = {}
        """(kind of object, key) of an object or pod with a `groups` annotation -> its gang."""
        self._history = GangHistory()
        self._tallies: dict[GangRef, GangTally] = {}
        """Gang -> its counts; only gangs with pods."""
        self._uncounted: dict[GangRef, None] = {}
        """Gangs with pods of several owners. The present run of these gangs must be counted again."""
        self._default_members: dict[str, dict[str, PodInfo]] = {}
        """Upstream PodGroup that a controller created by default -> its pods, which are in other gangs."""
        self._default_counts: dict[GangRef, dict[str, int]] = {}
        """Gang -> default PodGroup of its pods -> number of these pods."""
        self._default_groups: dict[GangRef, tuple[UpstreamPodGroup, ...]] = {}
        """Last result of `made_groups`."""
        self._podless: dict[GangRef, None] = {}
        """Gangs without a PodGroup and without pods, but with Succeeded members; the last entry lost its last pod
        latest."""
        self.recorded: dict[GangRef, None] = {}
        """Gangs for which a controller changed the number of Succeeded members in its status. The reader clears the
        dict."""

    def new_member(self, gang: GangRef, info: PodInfo) -> None:
        """Records that a pod joins the gang; called before the pod is added. Called only for a new pod, or for a pod
        that named no gang or another gang before. If the pod begins a new run, Succeeded members of earlier runs are
        removed."""
        gone = self._history.gone(gang)
        if not gone or not (self._history.has_gone(gang, info.name) or self._is_mixed(gang, info.controller)):
            return
        members = Members(pods=(*self.members(gang), info), past=self._remembered(gang))
        self._history.drop_earlier_runs(gang, info.name, members.run, {pod.controller for pod in members.pods})

    def _is_mixed(self, gang: GangRef, *owner: str) -> bool:
        """Returns True if the counts do not show which members belong to the present run, so that each must be read.

        True if pods, deleted members and controllers have several owners, or if a deleted Succeeded pod has no owner.
        owner: uid of the owner of a pod that is about to be added.
        """
        gone, naming = self._history.owners(gang), self._records.naming(gang)
        return len({*self._tallies.get(gang, NO_PODS).owners, *gone, *naming, *owner}) > 1 or "" in gone

    def change_owner(self, gang: GangRef, info: PodInfo) -> None:
        """Records that an existing pod of the gang has another controlling owner than before. info: its new state."""
        self._history.add_owner(gang, info.controller)

    def put_member(self, gang: GangRef, info: PodInfo) -> None:
        """Stores the current state of a pod; a known pod keeps its position."""
        self._podless.pop(gang, None)
        members = self._members.setdefault(gang, {})
        if (old := members.get(info.key)) is not None:
            self._tally(gang, old, -1)
        members[info.key] = info
        self._tally(gang, info, 1)
        self._changed[gang] = None
        self._count(gang)
        if gang.source is GangSource.NAMED and keys.GANG_GROUPS in info.pod.metadata.annotations:
            self._linkers["pod", info.key] = gang

    def drop_member(self, gang: GangRef, info: PodInfo) -> None:
        """Removes a pod from its gang. The caller then adds its new state, or calls `end_member` or `left`."""
        self._linkers.pop(("pod", info.key), None)
        self._changed[gang] = None
        members = self._members.get(gang)
        if members is not None and (old := members.pop(info.key, None)) is not None:
            self._tally(gang, old, -1)
            if not members:
                del self._members[gang], self._tallies[gang]

    def end_member(self, gang: GangRef, info: PodInfo) -> None:
        """Records that the pod of a member is deleted. The pod has already been removed by `drop_member`."""
        if info.succeeded:
            self._history.succeeded(gang, info)
        self.left(gang)

    def left(self, gang: GangRef) -> None:
        """Records that a removed pod no longer names the gang. If nothing names the gang any more, it is forgotten."""
        self._count(gang)
        if gang in self._members:
            return
        if gang.source is GangSource.NAMED and self._history.gone(gang):
            self._podless[gang] = None
            if len(self._podless) > MOST_WITHOUT_PODS:
                oldest = next(iter(self._podless))
                del self._podless[oldest]
                self._history.forget(oldest)
        elif gang.source is GangSource.NAMED or self.minimum(gang) is None:
            self._history.forget(gang)

    def _tally(self, gang: GangRef, info: PodInfo, sign: int) -> None:
        """Adds a pod to the counts of its gang (sign 1), or removes it (-1)."""
        if (tally := self._tallies.get(gang)) is None:
            tally = self._tallies[gang] = GangTally()
        if info.bound and not info.lost:
            tally.bound += sign
        elif info.pending:
            tally.pending += sign
        elif info.succeeded:
            tally.succeeded += sign
        if info.pod.spec.scheduler_name in self._names:
            tally.ours += sign
        if info.made_group:
            self._count_default(gang, info, sign)
        # the history includes records of the owners, so it changes if the set of owners changes
        owner = info.controller
        if owner not in tally.owners and self._records.of(owner).number:
            self._history.changed.add(gang)
        tally.owners[owner] = tally.owners.get(owner, 0) + sign
        if not tally.owners[owner]:
            del tally.owners[owner]
            if self._records.of(owner).number:
                self._history.changed.add(gang)

    def _count_default(self, gang: GangRef, info: PodInfo, sign: int) -> None:
        """Adds a pod to the index of upstream PodGroups that controllers created by default (1), or removes it (-1)."""
        key, counts = info.made_group, self._default_counts.setdefault(gang, {})
        counts[key] = counts.get(key, 0) + sign
        if sign > 0:
            self._default_members.setdefault(key, {})[info.key] = info
        else:
            self._default_members.get(key, {}).pop(info.key, None)
            if not self._default_members.get(key):
                self._default_members.pop(key, None)
        if not counts[key]:
            del counts[key]
        if not counts:
            del self._default_counts[gang]

    def _count(self, gang: GangRef) -> None:
        """Counts the members of the present run: immediately if that is cheap, otherwise when the gang is next read."""
        tally, need = self._tallies.get(gang, NO_PODS), self.minimum(gang)
        if need is None or gang in self._history.unread:
            return
        if self._is_mixed(gang):
            self._uncounted[gang] = None
        else:
            counted = sum(min(record.number, MOST_KEPT) for _, record in self._recorded(gang))
            ended = max(tally.succeeded + len(self._history.gone(gang)), counted)
            self._counted(gang, frozenset(tally.owners), tally.bound + ended, need)

    def _counted(self, gang: GangRef, owners: frozenset[str], present: int, need: int) -> None:
        """Stores the number of members of the present run in the tally and in the history. present: number of bound and
        Succeeded members. need: minimum of the gang."""
        tally = self._tallies.get(gang)
        if tally is not None:
            tally.present = present
        bound = tally is not None and tally.bound > 0
        if bound:
            self._history.record_joint_owners(gang, owners)
        if gang.source is not GangSource.NAMED:
            self._history.record_size(gang, owners, bound=bound, have=present, need=need)

    def minimum(self, gang: GangRef) -> int | None:
        """Returns the minMember of a gang from its PodGroup; for a gang without a PodGroup from its first pod.

        0 if the first pod states none, or if there is no pod. None if the PodGroup does not exist, and for derived
        gangs, because `WorkloadGang.min_member` states their minimum.
        """
        if gang.source is GangSource.GROUP:
            group = self.groups.get(gang.key)
            return group.spec.min_member if group is not None else None
        if gang.source is GangSource.UPSTREAM:
            upstream = self.upstream.get(gang.key)
            policy = upstream.spec.scheduling_policy.gang if upstream is not None else None
            return policy.min_count if policy is not None else 0 if upstream is not None else None
        if gang.source is GangSource.WORKLOAD:
            return None
        meta = next(iter(self._members[gang].values())).pod.metadata if gang in self._members else ObjectMeta()
        return whole_number(meta.labels.get(keys.LABEL_GANG_MIN) or meta.annotations.get(keys.GANG_MIN, "")) or 0

    def whole(self, gang: GangRef) -> int:
        """Returns the number of bound or Succeeded members if they reach the gang's minimum, else 0. For a derived gang
        only the bound members are counted, if these alone reach the minimum."""
        members, derived = self.gang(gang), self.derived.get(gang)
        need = derived.min_member if derived is not None else self.minimum(gang)
        if derived is not None and len(members.bound) >= derived.min_member:
            return len(members.bound)
        return members.present if need is not None and members.runs(need) else 0

    def tallies(self) -> Iterator[tuple[GangRef, GangTally, int]]:
        """Yields (gang, its tally, its minimum) of every gang with pods of this scheduler. The tallies are current.
        Gangs of PodGroups that do not exist are left out."""
        for ref, tally in self._tallies.items():
            if tally.ours and (need := self.minimum(ref)) is not None:
                self.past(ref)
                yield ref, tally, need
            elif tally.ours and (derived := self.derived.get(ref)) is not None:
                tally.present = tally.bound
                yield ref, tally, derived.min_member

    def put_group(self, group: PodGroup | UpstreamPodGroup) -> None:
        """Stores a PodGroup, of coscheduling or of scheduling.k8s.io."""
        key = object_key(group)
        if isinstance(group, PodGroup):
            ref, told, known = GangRef.from_key(key), group.status, key in self.groups
            self.groups[key] = group
        else:
            ref, told, known = GangRef.from_key(key, GangSource.UPSTREAM), None, key in self.upstream
            self.upstream[key] = group
        self._history.store_status(ref, told, known=known)
        if keys.GANG_GROUPS in group.metadata.annotations:
            self._linkers[ref.source.value, key] = ref
        else:
            self._linkers.pop((ref.source.value, key), None)
        self._count(ref)

    def drop_group(self, source: GangSource, key: str) -> None:
        """Removes a PodGroup. source: which of the two kinds."""
        ref = GangRef.from_key(key, source)
        groups: dict[str, Any] = self.groups if source is GangSource.GROUP else self.upstream
        self._linkers.pop((source.value, key), None)
        # existing pods may join a new group with the same name
        if groups.pop(key, None) is not None and ref not in self._members:
            self._history.forget(ref)

    def rank_of(self, info: PodInfo) -> tuple[int | None, str]:
        """Returns (priority, preemptionPolicy) of the upstream PodGroup that a pod names; None and empty if not set."""
        key = info.made_group
        if not key and info.gang is not None and info.gang.source is GangSource.UPSTREAM:
            key = info.gang.key
        group = self.upstream.get(key) if key else None
        return (group.spec.priority, group.spec.preemption_policy) if group is not None else (None, "")

    def of_upstream(self, key: str) -> list[PodInfo]:
        """Returns the pods that name an upstream PodGroup (`namespace/name`), including pods in another gang."""
        return [*self.members(GangRef.from_key(key, GangSource.UPSTREAM)), *self._default_members.get(key, {}).values()]

    def made_of(self, ref: GangRef) -> Iterable[str]:
        """Returns `namespace/name` of the upstream PodGroups that controllers created by default for pods of a gang."""
        return self._default_counts.get(ref, {})

    def gangs_of_made(self, key: str) -> Iterable[GangRef]:
        """Returns the gangs with pods of an upstream PodGroup that was created by default."""
        return dict.fromkeys(info.gang for info in self._default_members.get(key, {}).values() if info.gang is not None)

    def passed(self) -> frozenset[str]:
        """Returns the upstream PodGroups with all pods in other gangs (`namespace/name`)."""
        return frozenset(
            key for key in self._default_members if GangRef.from_key(key, GangSource.UPSTREAM) not in self._members
        )

    def made_groups(self) -> Mapping[GangRef, tuple[UpstreamPodGroup, ...]]:
        """Returns gang -> upstream PodGroups that were created by default for its pods. An unchanged tuple is the same
        object as in the last result, so that readers detect changes by identity."""
        found: dict[GangRef, tuple[UpstreamPodGroup, ...]] = {}
        for ref, counts in self._default_counts.items():
            groups = tuple(self.upstream[key] for key in sorted(counts, key=natural_key) if key in self.upstream)
            before = self._default_groups.get(ref, ())
            same = len(before) == len(groups) and all(map(is_, before, groups))
            found[ref] = before if same else groups
        self._default_groups = found
        return found

    def named(self) -> list[GangRef]:
        """Returns the gangs that pods name themselves, without gangs that are derived from workloads."""
        return [ref for ref in self._members if ref.source is not GangSource.WORKLOAD]

    def members(self, ref: GangRef) -> tuple[PodInfo, ...]:
        """Returns the known pods of a gang, in the order of their arrival."""
        return tuple(self._members.get(ref, {}).values())

    def gang(self, ref: GangRef) -> Members:
        """Returns the members of a gang with its history."""
        return Members(pods=self.members(ref), past=self.past(ref))

    def views(self) -> dict[GangRef, tuple[PodInfo, ...]]:
        """Returns gang -> its pods, for a snapshot; rebuilds only changed gangs."""
        for ref in self._changed:
            members = self._members.get(ref)
            if members:
                self._views[ref] = tuple(members.values())
            else:
                self._views.pop(ref, None)
        self._changed.clear()
        return self._views.copy()

    def past(self, ref: GangRef) -> GangPast:
        """Returns the history of a gang, after the work that was postponed until now. Postponed are: reading the status
        of its PodGroup, and counting the members of its present run."""
        if ref in self._history.unread:
            members = Members(pods=self.members(ref))
            self._history.settle(ref, members.run, members.ended)
            self._count(ref)
        if ref in self._uncounted:
            del self._uncounted[ref]
            gone = self._history.gone(ref)
            members = Members(pods=self.members(ref), past=self._remembered(ref))
            if gone and members.members:
                # pods of an earlier run are often deleted while pods of the next exist
                self._history.drop_earlier_runs(ref, "", members.run, {pod.controller for pod in members.pods})
            if (need := self.minimum(ref)) is not None:
                self._counted(ref, members.run.owners, members.present_in_run, need)
        return self._remembered(ref)

    def _remembered(self, ref: GangRef) -> GangPast:
        if ref in self._history.changed:
            self._history.refresh(ref, self._recorded(ref))
        return self._history.views.get(ref, NO_PAST)

    def _recorded(self, ref: GangRef) -> tuple[tuple[str, Record], ...]:
        """Returns (uid, record) of the controllers of a gang's members, and of controllers with pod templates that name
        the gang."""
        tally, history = self._tallies.get(ref, NO_PODS), self._history
        owners = {*tally.owners, *history.owners(ref), *history.joint_owners(ref), *self._records.naming(ref)}
        found = ((uid, self._records.of(uid)) for uid in sorted(owners))
        return tuple((uid, record) for uid, record in found if record.number)

    def recount(self, refs: Iterable[GangRef]) -> None:
        """Counts the members of gangs again, because the statuses of their controllers changed."""
        for ref in refs:
            if ref in self._tallies or self.minimum(ref) is not None:
                self._history.changed.add(ref)
                self._count(ref)
                self.recorded[ref] = None

    def left_by(self, owner: str) -> Iterator[GangRef]:
        """Yields the gangs that have Succeeded members with deleted pods of a controlling owner."""
        return self._history.left_by(owner)

    def pasts(self) -> Mapping[GangRef, GangPast]:
        """Returns the history of every gang that has one."""
        history = self._history
        for ref in (*history.unread, *self._uncounted, *history.changed):
            self.past(ref)
        return history.views.copy()

    def linkers(self) -> tuple[GangRef, ...]:
        """Returns the gangs with a `groups` annotation on their object or on one of their pods."""
        return tuple(dict.fromkeys(self._linkers.values()))
