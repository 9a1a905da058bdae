"""The past of gangs: members that have Succeeded and whose pods are gone, and how many members each had when whole.

Completed pods are deleted all the time, by drains, garbage collection and clean-up policies: their members have
Succeeded all the same (gang-network.md 2.4, preemption.md 7). The history is what this process has seen, on top of what
the status of the PodGroup told when the process first looked. Offline it is that status alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koordpy.api.groups import PodGroup, PodGroupStatus
from koordpy.cluster.pods import GangRef, PodInfo, seconds

STALE = "Stale"
MEMBERS_MISSING = "MembersMissing"
"""Type of the condition of a gang that has lost members, and the reason that koordpy gives it."""
MOST_KEPT = 10_000
"""Succeeded members of one gang that are remembered beyond their pods; a larger number decides nothing."""
LONG_AGO = 1.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A member that has Succeeded."""

    owner: str
    """uid of its controlling owner; empty for none."""
    at: float
    """When it finished, seconds since the epoch; 0 where nothing says so."""
    gone: bool = False
    """Whether its pod is deleted."""


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered of one gang."""

    gone: tuple[Ended, ...] = ()
    whole: int = 0
    """Members bound or Succeeded when it last had its minimum, or since if more; 0 where that was never seen."""


NO_PAST = Past()


def ended(info: PodInfo, *, gone: bool = False) -> Ended:
    """A Succeeded pod as the history keeps it."""
    states = [status.state for status in info.pod.status.container_statuses if status.state is not None]
    at = max((seconds(one.terminated.finished_at) for one in states if one.terminated is not None), default=0.0)
    return Ended(info.controller, at, gone)


class GangHistory:
    """By gang; kept up by the GangBook."""

    def __init__(self) -> None:
        self._gone: dict[GangRef, dict[str, Ended]] = {}
        """Gang -> pod name -> a member whose pod is gone."""
        self._whole: dict[GangRef, int] = {}
        self._told: dict[GangRef, PodGroupStatus] = {}
        """Statuses that were not compared yet with the pods that are there."""
        self._views: dict[GangRef, Past] = {}
        self._changed: set[GangRef] = set()

    def tell(self, ref: GangRef, group: PodGroup, *, known: bool) -> None:
        """The status of a PodGroup counts until its gang is first looked at, and never again."""
        if not known or ref in self._told:
            self._told[ref] = group.status

    def succeeded(self, ref: GangRef, info: PodInfo) -> None:
        """The pod of a Succeeded member is deleted."""
        members = self._gone.setdefault(ref, {})
        members[info.name] = ended(info, gone=True)
        if len(members) > MOST_KEPT:
            del members[next(iter(members))]
        self._changed.add(ref)

    def has_gone(self, ref: GangRef) -> bool:
        """Whether pods of Succeeded members are gone."""
        return ref in self._gone

    def came(self, ref: GangRef, info: PodInfo, *, began: float) -> None:
        """A pod names the gang, one of a run that began then. One of an old name is made again; members of another
        owner that had ended by then were of an earlier run."""
        kept = {
            name: one
            for name, one in self._gone[ref].items()
            if name != info.name and (one.owner == info.controller or not one.at or one.at > began)
        }
        if kept:
            self._gone[ref] = kept
        else:
            del self._gone[ref]
        self._changed.add(ref)

    def counted(self, ref: GangRef, *, bound: int, succeeded: int, need: int) -> None:
        """How many members there are now. `succeeded`: those whose pods exist."""
        have = bound + succeeded + len(self._gone.get(ref, ()))
        whole = self._whole.get(ref)
        if not bound:
            now = None
        else:
            now = have if have >= need or (whole is not None and have > whole) else whole
        if now == whole:
            return
        if now is None:
            del self._whole[ref]
        else:
            self._whole[ref] = now
        self._changed.add(ref)

    def forget(self, ref: GangRef) -> None:
        """Nothing names the gang any more."""
        for known in (self._gone, self._whole, self._told):
            known.pop(ref, None)
        self._changed.add(ref)

    def settle(self, ref: GangRef, succeeded: int) -> None:
        """Takes in what the PodGroup told of the time before. `succeeded`: members whose pods exist."""
        told = self._told.pop(ref, None)
        if told is None:
            return
        lost = any((c.type, c.status, c.reason) == (STALE, "True", MEMBERS_MISSING) for c in told.conditions)
        if told.scheduled and not lost:
            self._whole.setdefault(ref, told.scheduled)
        missing = min(max(told.departed, told.succeeded - succeeded), MOST_KEPT) - len(self._gone.get(ref, ()))
        if missing > 0:
            one = Ended(told.occupied_by_uid, LONG_AGO if told.occupied_by_uid else 0.0, gone=True)
            self._gone.setdefault(ref, {}).update((f"/{number}", one) for number in range(missing))
        self._changed.add(ref)

    def unsettled(self) -> list[GangRef]:
        """Gangs whose PodGroup's status was not taken in yet."""
        return list(self._told)

    def past(self, ref: GangRef) -> Past:
        """What is remembered of a gang."""
        if ref in self._changed:
            self._changed.discard(ref)
            past = Past(tuple(self._gone.get(ref, {}).values()), self._whole.get(ref, 0))
            if past == NO_PAST:
                self._views.pop(ref, None)
            else:
                self._views[ref] = past
        return self._views.get(ref, NO_PAST)

    def view(self) -> Mapping[GangRef, Past]:
        """The same of every gang of which something is."""
        for ref in list(self._changed):
            self.past(ref)
        return self._views.copy()
