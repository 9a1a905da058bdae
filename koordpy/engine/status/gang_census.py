# SPDX-License-Identifier: Apache-2.0
"""Counts gangs by status, origin and gate for the gauges of /metrics. Counted are gangs with a pending or bound member.

Whether a gang has its minimum bound is counted from its pods. For other gangs, `hear` remembers the status that the
last round has reported.
"""

from collections import Counter
from dataclasses import dataclass

from koordpy.cache.cluster_state import ClusterState
from koordpy.plan.round_plan import GangReport, GangStatus
from koordpy.pods.gang_refs import GangRef, GangSource

REFUSED = (GangStatus.UNSCHEDULABLE, GangStatus.DEGRADED, GangStatus.INVALID)
"""Statuses of a gang that a round has refused. Not Incomplete: a gang with that status lacks pods, and no round has
refused it."""


ORIGINS = {GangSource.GROUP: "podgroup", GangSource.UPSTREAM: "upstream", GangSource.NAMED: "named"}
"""Source of a gang that is not derived -> value of the label `origin`."""


@dataclass(frozen=True, slots=True)
class GangCounts:
    """Numbers of gangs."""

    by_status: Counter[GangStatus]
    """Status -> number of gangs. A gang without its minimum bound that no round has refused counts as Incomplete."""
    by_origin: Counter[str]
    """Source -> number of gangs: podgroup, upstream, volcano, named, kueue, workload, labels."""
    gated: Counter[str]
    """Gate that blocks a gang, by the words of `Census._gate` (members, owner, unreadable) -> number of gangs."""
    degraded: dict[GangRef, int]
    """Half-bound gang -> number of members that it lacks to its minimum."""


class Census:
    """Counts gangs on request. Owned by the event loop."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._refused: dict[GangRef, GangStatus] = {}
        """Gang that was refused by the last round that tried it -> its status, one of `REFUSED`."""

    def hear(self, report: GangReport) -> None:
        """Records the report of a round on a gang."""
        if report.status in REFUSED:
            self._refused[report.ref] = report.status
        else:
            self._refused.pop(report.ref, None)

    def count(self) -> GangCounts:
        """Counts all gangs with a pending or running member."""
        statuses: Counter[GangStatus] = Counter()
        origins: Counter[str] = Counter()
        gated: Counter[str] = Counter()
        degraded: dict[GangRef, int] = {}
        # refusals of gangs that do not exist any more are dropped
        refused = {}
        for ref, tally, need in self._state.gangs.tallies():
            if ref in self._refused:
                refused[ref] = self._refused[ref]
            if not tally.bound and not tally.pending:
                continue
            if half := tally.half_bound(need):
                degraded[ref] = need - tally.present
            origins[self._origin(ref)] += 1
            if not tally.bound and (why := self._gate(ref, tally.pending, need)):
                gated[why] += 1
            if tally.bound and not half:
                statuses[GangStatus.SCHEDULED] += 1
            elif half and refused.get(ref) is not GangStatus.INVALID and self._has_lost(ref):
                statuses[GangStatus.DEGRADED] += 1
            else:
                statuses[refused.get(ref, GangStatus.INCOMPLETE)] += 1
        self._refused = refused
        return GangCounts(statuses, origins, gated, degraded)

    def _has_lost(self, ref: GangRef) -> bool:
        """Returns True if a half-bound gang counts as degraded. False for a gang of a workload that has lost no member
        yet, because its pods may start one by one."""
        derived = self._state.gangs.derived.get(ref)
        return derived is None or not derived.by_workload or derived.has_lost_members

    def _origin(self, ref: GangRef) -> str:
        """Returns the value of the label `origin` for a gang."""
        derived = self._state.gangs.derived.get(ref)
        return derived.source if derived is not None else ORIGINS.get(ref.source, "workload")

    def _gate(self, ref: GangRef, waiting: int, need: int) -> str:
        """Returns the gate that blocks a gang without bound members; empty if none does.

        `owner`: the gang's workload is not known yet, or is suspended and will delete the pending pods. `unreadable`: a
        setting is invalid. `members`: pods are missing.
        """
        derived = self._state.gangs.derived.get(ref)
        if derived is not None and (derived.is_awaited or derived.halted):
            return "owner"
        if self._refused.get(ref) is GangStatus.INVALID:
            return "unreadable"
        return "members" if waiting < need else ""
