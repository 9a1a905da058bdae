"""The past of gangs: members that have Succeeded and whose pods are gone, and how many members each had when whole.

Completed pods are deleted all the time, by drains, garbage collection and clean-up policies: their members have
Succeeded all the same (gang-network.md 2.4, preemption.md 7). Three sources tell of them: the records of their
controllers (`records`), the status of the PodGroup as it was when this process first looked, and what this process has
seen since. Offline the first two. Nothing is counted before all is read. What an earlier run has done counts for no
later one.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from koordpy.api.pod_endings import ended_at
from koordpy.api.pod_groups import PodGroupStatus
from koordpy.api.times import seconds
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.workloads.workload_model import NO_RECORD, Record

STALE = "Stale"
MEMBERS_MISSING = "MembersMissing"
"""Type of the condition of a gang that has lost members, and the reason that koordpy gives it."""
MOST_KEPT = 10_000
"""Succeeded members of one gang that are remembered beyond their pods; a larger number decides nothing."""
SCHEDULED = "Scheduled"
"""Type of the condition that tells since when a gang has its minimum, or has not."""
LONG_AGO = 1.0
MOST_BESIDE = 16
"""Owners of one run that are remembered when their pods are gone, and that a status names."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A member that has Succeeded."""

    owner: str
    """uid of its controlling owner; empty for none."""
    at: float
    """When it finished, seconds since the epoch; 0 where nothing says so."""
    gone: bool = False
    """Whether its pod is deleted."""
    told: bool = False
    """True if only a PodGroup's status told of it: which member it was is not known."""


@dataclass(frozen=True, slots=True)
class Run:
    """Whose pods a gang consists of at present: one Job, or a few that run together."""

    owners: frozenset[str]
    """uids of controlling owners, of those too that ran beside them; empty text for pods without one."""
    began: float
    """When the first known pod of theirs was made, seconds since the epoch."""

    def has(self, one: Ended) -> bool:
        """Whether a member has Succeeded in this run: one of another owner that ended before it began has not. Pods
        that are gone and had no owner are told apart by that, too."""
        if one.owner in self.owners and (one.owner or not one.gone):
            return True
        return not one.at or one.at > self.began


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered of one gang."""

    gone: tuple[Ended, ...] = ()
    whole: int = 0
    """Members bound or Succeeded when it last had its minimum, or since if more; 0 where that was never seen."""
    beside: frozenset[str] = frozenset()
    """Owners that ran beside one another in the last run that had members bound, where they were several."""
    records: tuple[tuple[str, Record], ...] = ()
    """(uid, what it counts) of the controllers of members."""

    def record(self, owner: str) -> Record:
        """What a controller counts, by its uid."""
        return next((record for uid, record in self.records if uid == owner), NO_RECORD)

    def with_records(self, seen: Sequence[Ended]) -> tuple[Ended, ...]:
        """All that have Succeeded: those that are known, and those that records count beyond them. seen: the former,
        those of `gone` included.

        A member that a status told of is one of those that the record of its owner counts, or of an owner beside that.
        """
        if not self.records:
            return tuple(seen)
        found = [one for one in seen if not one.told]
        told: dict[str, list[Ended]] = {}
        for one in seen:
            if one.told:
                told.setdefault(one.owner, []).append(one)
        known = Counter(one.owner for one in found)
        for owner, record in self.records:
            missing = max(0, min(record.number, MOST_KEPT) - known[owner])
            found += repeat(Ended(owner, record.at or LONG_AGO), missing)
            for other in dict.fromkeys((owner, "", *(sorted(self.beside) if owner in self.beside else ()))):
                same = told.get(other, [])
                taken = min(missing, len(same))
                del same[len(same) - taken :]
                missing -= taken
        return (*found, *chain.from_iterable(told.values()))


NO_PAST = Past()


def ended(info: PodInfo, *, gone: bool = False) -> Ended:
    """A Succeeded pod as the history keeps it."""
    return Ended(info.controller, ended_at(info.pod), gone)


@dataclass(frozen=True, slots=True)
class _Whole:
    """How many members a gang once had, and whose they were."""

    owners: frozenset[str]
    count: int


class GangHistory:
    """By gang; kept up by the GangBook."""

    def __init__(self) -> None:
        self._gone: dict[GangRef, dict[str, Ended]] = {}
        """Gang -> pod name -> a member whose pod is gone."""
        self._owners: dict[GangRef, set[str]] = {}
        """Gang -> owners of those members."""
        self._whole: dict[GangRef, _Whole] = {}
        self._beside: dict[GangRef, frozenset[str]] = {}
        """Gang -> owners of the last run that had members bound."""
        self.unread: dict[GangRef, PodGroupStatus | None] = {}
        """Gangs that nobody has looked at -> what their object tells of the time before."""
        self.views: dict[GangRef, Past] = {}
        """What is remembered of gangs, of the `changed` ones as `past` last found it."""
        self.changed: set[GangRef] = set()

    def tell(self, ref: GangRef, status: PodGroupStatus | None, *, known: bool) -> None:
        """The status of a gang's object counts until the gang is first looked at, and never again."""
        if not known or ref in self.unread:
            self.unread[ref] = status

    def succeeded(self, ref: GangRef, info: PodInfo) -> None:
        """The pod of a Succeeded member is deleted."""
        members = self._gone.setdefault(ref, {})
        members[info.name] = ended(info, gone=True)
        self._owners.setdefault(ref, set()).add(info.controller)
        if len(members) > MOST_KEPT:
            del members[next(iter(members))]
        self.changed.add(ref)

    def gone(self, ref: GangRef) -> Collection[Ended]:
        """Succeeded members whose pods are gone."""
        return self._gone.get(ref, {}).values()

    def left_by(self, owner: str) -> Iterator[GangRef]:
        """Gangs with such members of a controlling owner."""
        return (ref for ref, owners in self._owners.items() if owner in owners)

    def beside(self, ref: GangRef) -> Collection[str]:
        """Owners of the last run that had members bound."""
        return self._beside.get(ref, ())

    def owners(self, ref: GangRef) -> Collection[str]:
        """Their controlling owners."""
        return self._owners.get(ref, ())

    def has_gone(self, ref: GangRef, name: str) -> bool:
        return name in self._gone.get(ref, ())

    def came(self, ref: GangRef, name: str, run: Run, there: Collection[str]) -> None:
        """A pod of this name, if any, joins the gang: if it is an old name, it is made again. Members of earlier runs
        are forgotten. there: owners of its pods."""
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

    def counted(self, ref: GangRef, owners: frozenset[str], *, bound: bool, have: int, need: int) -> None:
        """How many members of the present run are bound or have Succeeded now; bound: whether any is."""
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

    def ran(self, ref: GangRef, owners: frozenset[str]) -> None:
        """Members of these owners run beside one another: some are bound."""
        known = self._beside.get(ref, frozenset())
        now = owners if known.isdisjoint(owners) or len(known | owners) > MOST_BESIDE else known | owners
        if now != known:
            self._beside[ref] = now
            if max(len(now), len(known)) > 1:
                self.changed.add(ref)

    def owned_by(self, ref: GangRef, owner: str) -> None:
        """A pod of the gang has another controlling owner now: an orphan, or adopted. The run goes on."""
        if (whole := self._whole.get(ref)) is not None:
            self._whole[ref] = _Whole(whole.owners | {owner}, whole.count)

    def forget(self, ref: GangRef) -> None:
        """Nothing names the gang any more."""
        for known in (self._gone, self._owners, self._whole, self._beside, self.unread):
            known.pop(ref, None)
        self.changed.add(ref)

    def settle(self, ref: GangRef, run: Run, there: Collection[Ended]) -> None:
        """The first look at a gang takes in what its object told. there: Succeeded members whose pods exist."""
        told = self.unread.pop(ref)
        if told is None:
            return
        owners = frozenset(told.occupied_by_uid.split(",") if told.occupied_by_uid else ())
        if 1 < len(owners) <= MOST_BESIDE:
            self._beside.setdefault(ref, owners)
        if not owners.isdisjoint(run.owners):
            run = Run(run.owners | owners, run.began)
        # whose of them it was makes no difference
        owner = min(owners, default="")
        one = Ended(owner, LONG_AGO if owner else _told_at(told), gone=True, told=True)
        lost = any((c.type, c.status, c.reason) == (STALE, "True", MEMBERS_MISSING) for c in told.conditions)
        if told.scheduled and not lost and run.has(one):
            self._whole.setdefault(ref, _Whole(run.owners, told.scheduled))
        known = sum(not owner or one.owner in owners or (owner in run.owners and run.has(one)) for one in there)
        missing = min(max(told.departed, told.succeeded - known), MOST_KEPT) - len(self._gone.get(ref, ()))
        if missing > 0:
            self._gone.setdefault(ref, {}).update((f"/{number}", one) for number in range(missing))
            self._owners.setdefault(ref, set()).add(owner)
        self.changed.add(ref)

    def past(self, ref: GangRef, records: Callable[[GangRef], tuple[tuple[str, Record], ...]]) -> Past:
        """What is remembered of a gang. records: finds those of its controllers."""
        if ref in self.changed:
            self.changed.discard(ref)
            whole = self._whole.get(ref)
            beside = self._beside.get(ref, frozenset())
            several = beside if len(beside) > 1 else frozenset[str]()
            past = Past(tuple(self.gone(ref)), whole.count if whole is not None else 0, several, records(ref))
            if past == NO_PAST:
                self.views.pop(ref, None)
            else:
                self.views[ref] = past
        return self.views.get(ref, NO_PAST)


def _told_at(told: PodGroupStatus) -> float:
    """When the members of a status were there for certain: the run that it tells of was the gang's then. 0 where
    nothing says so. Conditions are told in whole seconds."""
    times = [seconds(c.last_transition_time) for c in told.conditions if c.type == SCHEDULED]
    return times[0] + 1 if times and times[0] else 0.0
