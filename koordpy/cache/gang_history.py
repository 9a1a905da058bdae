# SPDX-License-Identifier: Apache-2.0
"""History of gangs: the facts about a gang that its existing pods do not show.

These are the Succeeded members with deleted pods, and the number of members that the gang had when it last had its
minimum. Completed pods are often deleted, by drains, garbage collection and clean-up policies, but their work is done
and must not be repeated (gang-network.md 2.4, preemption.md 7). There are three sources: the records of the gang's
controllers (`outcome_records.py`), the status of its PodGroup when this process first read it, and watch events since
then. Offline only the first two exist. Members of an earlier run do not count for a later run of the same gang.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from koordpy.api.pod_endings import ended_at
from koordpy.api.pod_groups import PodGroupStatus
from koordpy.api.times import seconds
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.workloads.workload_model import NO_RECORD, Record

DEGRADED = "Degraded"
"""Condition of a PodGroup that runs with fewer members than its minimum."""
STALE = "Stale"
MEMBERS_MISSING = "MembersMissing"
"""Condition type of a gang without enough members because some were lost, and koordpy's reason for it."""
MOST_KEPT = 10_000
"""Maximum number, per gang, of Succeeded members that are remembered after their pods are deleted.

Larger numbers would not change any decision.
"""
SCHEDULED = "Scheduled"
"""Condition type: True if a gang has its minimum. Its lastTransitionTime is the time of the last change."""
LONG_AGO = 1.0
"""Completion time, in seconds since the epoch, of a Succeeded member with an owner and without a known time. It is
before the start of any run. 0 is not used because it means "unknown"."""
MAX_JOINT_OWNERS = 16
"""Maximum number of owners of one run that are remembered after their pods are deleted, and that a status lists."""


@dataclass(frozen=True, slots=True)
class EndedMember:
    """A member that has Succeeded."""

    owner: str
    """uid of its controlling owner; empty for none."""
    ended_at: float
    """Time when it finished, in seconds since the epoch; 0 if unknown."""
    gone: bool = False
    """True if its pod is deleted."""
    is_from_status: bool = False
    """True if only a PodGroup's status reported the member, so that its name is not known."""


@dataclass(frozen=True, slots=True)
class Run:
    """The present run of a gang, as the owners of its pods: one Job, or a few Jobs that run together."""

    owners: frozenset[str]
    """uids of controlling owners; the empty string for pods without an owner."""
    began: float
    """Creation time of the first known pod of these owners, in seconds since the epoch."""

    def has(self, one: EndedMember) -> bool:
        """Returns True if a Succeeded member belongs to this run.

        It does if one of the run's owners owns it, or if it ended after the run began. An unknown end counts as later.
        For a deleted pod without an owner only the time decides.
        """
        if one.owner in self.owners and (one.owner or not one.gone):
            return True
        return not one.ended_at or one.ended_at > self.began


@dataclass(frozen=True, slots=True)
class GangPast:
    """History of one gang."""

    gone: tuple[EndedMember, ...] = ()
    """Succeeded members with deleted pods."""
    whole: int = 0
    """Number of bound or Succeeded members when the present run last had its minimum; 0 if it never had its minimum.
    The number grows with the gang, even if the minimum is raised later. A gang with fewer members now has lost some."""
    joint_owners: frozenset[str] = frozenset()
    """uids of the owners that ran together in the last run with bound members; empty if there was only one."""
    records: tuple[tuple[str, Record], ...] = ()
    """(uid of a member's controller, the Succeeded pods that its status counts)."""

    def record(self, owner: str) -> Record:
        """Returns the record of a controller by its uid."""
        return next((record for uid, record in self.records if uid == owner), NO_RECORD)

    def with_records(self, seen: Sequence[EndedMember]) -> tuple[EndedMember, ...]:
        """Returns all Succeeded members: the known members, and further members that only records count.

        seen: known members, including `gone`. If a record counts more members than are known of its owner, nameless
        entries are added for the rest. A member that is known only from a PodGroup's status may be the same as a
        nameless entry. So for each added entry, one such member of the same owner, or of an owner that ran together
        with it, is left out.
        """
        if not self.records:
            return tuple(seen)
        # `found` has the members with names; `told` has the members that only a status reported, by owner
        found = [one for one in seen if not one.is_from_status]
        told: dict[str, list[EndedMember]] = {}
        for one in seen:
            if one.is_from_status:
                told.setdefault(one.owner, []).append(one)
        known = Counter(one.owner for one in found)
        for owner, record in self.records:
            missing = max(0, min(record.number, MOST_KEPT) - known[owner])
            found += repeat(EndedMember(owner, record.ended_at or LONG_AGO), missing)
            for other in dict.fromkeys((owner, "", *(sorted(self.joint_owners) if owner in self.joint_owners else ()))):
                same = told.get(other, [])
                taken = min(missing, len(same))
                del same[len(same) - taken :]
                missing -= taken
        return (*found, *chain.from_iterable(told.values()))


NO_PAST = GangPast()
"""The history of a gang without any remembered facts."""


def to_ended_member(info: PodInfo, *, gone: bool = False) -> EndedMember:
    """Returns a Succeeded pod as a history entry."""
    return EndedMember(info.controller, ended_at(info.pod), gone)


@dataclass(frozen=True, slots=True)
class _Whole:
    """Value of `GangPast.whole`, and the owners of the run in which it was counted."""

    owners: frozenset[str]
    count: int


class GangHistory:
    """Histories of all gangs; `GangBook` updates them."""

    def __init__(self) -> None:
        self._gone: dict[GangRef, dict[str, EndedMember]] = {}
        """Gang -> pod name -> member with a deleted pod."""
        self._owners: dict[GangRef, set[str]] = {}
        """Gang -> owners of the members in `_gone`."""
        self._whole: dict[GangRef, _Whole] = {}
        """Gang that has or had its minimum in the present run -> its number of members then."""
        self._joint_owners: dict[GangRef, frozenset[str]] = {}
        """Gang -> owners of the last run with bound members."""
        self.unread: dict[GangRef, PodGroupStatus | None] = {}
        """Gang that was not read yet -> status of its PodGroup when first seen. None for an upstream PodGroup, because
        its status has no counts."""
        self.views: dict[GangRef, GangPast] = {}
        """Gang -> its history, if it has one. Entries of gangs in `changed` are outdated until `refresh` is called."""
        self.changed: set[GangRef] = set()
        """Gangs with an outdated entry in `views`."""

    def store_status(self, ref: GangRef, status: PodGroupStatus | None, *, known: bool) -> None:
        """Stores the status of a gang's PodGroup until the gang is first read (`settle`).

        known: True if the PodGroup was stored before. Its later statuses are ignored, because this process writes them.
        """
        if not known or ref in self.unread:
            self.unread[ref] = status

    def succeeded(self, ref: GangRef, info: PodInfo) -> None:
        """Records that the pod of a Succeeded member is deleted."""
        members = self._gone.setdefault(ref, {})
        members[info.name] = to_ended_member(info, gone=True)
        self._owners.setdefault(ref, set()).add(info.controller)
        if len(members) > MOST_KEPT:
            del members[next(iter(members))]
        self.changed.add(ref)

    def gone(self, ref: GangRef) -> Collection[EndedMember]:
        """Returns the Succeeded members with deleted pods."""
        return self._gone.get(ref, {}).values()

    def left_by(self, owner: str) -> Iterator[GangRef]:
        """Yields the gangs that have Succeeded members with deleted pods of a controlling owner."""
        return (ref for ref, owners in self._owners.items() if owner in owners)

    def joint_owners(self, ref: GangRef) -> Collection[str]:
        """Returns the owners of the last run with bound members."""
        return self._joint_owners.get(ref, ())

    def owners(self, ref: GangRef) -> Collection[str]:
        """Returns the owners of Succeeded members with deleted pods."""
        return self._owners.get(ref, ())

    def has_gone(self, ref: GangRef, name: str) -> bool:
        """Returns True if a member with this pod name has Succeeded and its pod is deleted."""
        return name in self._gone.get(ref, ())

    def drop_earlier_runs(self, ref: GangRef, name: str, run: Run, there: Collection[str]) -> None:
        """Removes Succeeded members of earlier runs, and the Succeeded member that a new pod of the same name replaces.

        name: name of the new pod; empty if no pod was added. run: the present run. there: owners of the gang's existing
        pods.
        """
        kept = {
            known: one
            for known, one in self._gone[ref].items()
            if known != name and (run.has(one) or (one.owner and one.owner in there))
        }
        if kept:
            self._gone[ref], self._owners[ref] = kept, {one.owner for one in kept.values()}
        else:
            del self._gone[ref], self._owners[ref]
        self.changed.add(ref)

    def record_size(self, ref: GangRef, owners: frozenset[str], *, bound: bool, have: int, need: int) -> None:
        """Records the number of members of the present run while it has its minimum (`GangPast.whole`).

        owners: owners of the run. bound: True if any member is bound. have: number of bound and Succeeded members.
        need: minimum of the gang.
        """
        # the size of an earlier run is dropped; a size once reached remains, so that a loss of members is detected
        before = kept = self._whole.get(ref)
        if kept is not None and kept.owners.isdisjoint(owners):
            kept = None
        whole = kept.count if kept is not None else 0
        if bound and (have >= need or 0 < whole < have):
            whole = have
        now = _Whole(owners, whole) if bound and whole else None
        if now == before:
            return
        if now is None:
            del self._whole[ref]
        else:
            self._whole[ref] = now
        self.changed.add(ref)

    def record_joint_owners(self, ref: GangRef, owners: frozenset[str]) -> None:
        """Records that members of these owners run together, and that some are bound."""
        known = self._joint_owners.get(ref, frozenset())
        now = owners if known.isdisjoint(owners) or len(known | owners) > MAX_JOINT_OWNERS else known | owners
        if now != known:
            self._joint_owners[ref] = now
            if max(len(now), len(known)) > 1:
                self.changed.add(ref)

    def add_owner(self, ref: GangRef, owner: str) -> None:
        """Adds an owner to the present run, because a pod of the gang was orphaned or adopted. The run continues."""
        if (whole := self._whole.get(ref)) is not None:
            self._whole[ref] = _Whole(whole.owners | {owner}, whole.count)

    def forget(self, ref: GangRef) -> None:
        """Removes the history of a gang that nothing names any more."""
        for known in (self._gone, self._owners, self._whole, self._joint_owners, self.unread):
            known.pop(ref, None)
        self.changed.add(ref)

    def settle(self, ref: GangRef, run: Run, there: Collection[EndedMember]) -> None:
        """Evaluates the stored status of a gang's PodGroup when the gang is first read, after all pods are known.

        The status may report Succeeded members with deleted pods (`departed`), and the size of the gang (`scheduled`).
        run: the present run, by the existing pods. there: Succeeded members with existing pods.
        """
        told = self.unread.pop(ref)
        if told is None:
            return
        owners = frozenset(told.occupied_by_uid.split(",") if told.occupied_by_uid else ())
        if 1 < len(owners) <= MAX_JOINT_OWNERS:
            self._joint_owners.setdefault(ref, owners)
        if not owners.isdisjoint(run.owners):
            run = Run(run.owners | owners, run.began)
        # 1. a nameless Succeeded member as the status reports it; any of these owners may be its owner
        owner = min(owners, default="")
        one = EndedMember(owner, LONG_AGO if owner else _reported_at(told), gone=True, is_from_status=True)
        # 2. the size of the gang, unless the status is about another run, or says that members are lost
        lost = any((c.type, c.status, c.reason) == (STALE, "True", MEMBERS_MISSING) for c in told.conditions)
        if told.scheduled and not lost and run.has(one):
            self._whole.setdefault(ref, _Whole(run.owners, told.scheduled))
        # 3. Succeeded members that the status counts and that no existing pod shows
        known = sum(not owner or one.owner in owners or (owner in run.owners and run.has(one)) for one in there)
        missing = min(max(told.departed, told.succeeded - known), MOST_KEPT) - len(self._gone.get(ref, ()))
        if missing > 0:
            self._gone.setdefault(ref, {}).update((f"/{number}", one) for number in range(missing))
            self._owners.setdefault(ref, set()).add(owner)
        self.changed.add(ref)

    def refresh(self, ref: GangRef, records: tuple[tuple[str, Record], ...]) -> None:
        """Updates the view of a changed gang. records: (uid, record) of its controllers."""
        self.changed.discard(ref)
        whole = self._whole.get(ref)
        together = self._joint_owners.get(ref, frozenset())
        several = together if len(together) > 1 else frozenset[str]()
        past = GangPast(tuple(self.gone(ref)), whole.count if whole is not None else 0, several, records)
        if past == NO_PAST:
            self.views.pop(ref, None)
        else:
            self.views[ref] = past


def _reported_at(told: PodGroupStatus) -> float:
    """Returns the time of the last change of condition Scheduled, in seconds since the epoch; 0 if unknown.

    At that time the status was about the gang's run, so its members belong to a run that began earlier. One second is
    added because conditions have whole seconds.
    """
    times = [seconds(c.last_transition_time) for c in told.conditions if c.type == SCHEDULED]
    return times[0] + 1 if times and times[0] else 0.0
