"""How many gangs there are by status, for the gauges: of all that have a member that waits or runs.

Whether a gang runs follows from its pods; why one does not is what the last round that tried it has said.
"""

from collections import Counter
from dataclasses import dataclass

from koordpy.cache.cluster_state import ClusterState
from koordpy.plan.round_plan import GangReport, GangStatus
from koordpy.pods.gang_refs import GangRef, GangSource

REFUSED = (GangStatus.UNSCHEDULABLE, GangStatus.INVALID)


ORIGINS = {GangSource.GROUP: "podgroup", GangSource.UPSTREAM: "upstream", GangSource.NAMED: "named"}


@dataclass(frozen=True, slots=True)
class GangCounts:
    """How many gangs there are."""

    by_status: Counter[GangStatus]
    by_origin: Counter[str]
    """podgroup, upstream, volcano, named, kueue, workload, labels."""
    gated: Counter[str]
    """Those that nothing is tried for, by what they wait for: members, owner, unreadable."""
    degraded: dict[GangRef, int]
    """Half-bound gang -> members that it lacks until its minimum."""


class Census:
    """Counts when it is asked. Owned by the event loop."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._refused: dict[GangRef, GangStatus] = {}

    def hear(self, report: GangReport) -> None:
        """What a round said about a gang."""
        if report.status in REFUSED:
            self._refused[report.ref] = report.status
        else:
            self._refused.pop(report.ref, None)

    def count(self) -> GangCounts:
        """All gangs that have a member that waits or runs."""
        statuses: Counter[GangStatus] = Counter()
        origins: Counter[str] = Counter()
        gated: Counter[str] = Counter()
        degraded: dict[GangRef, int] = {}
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
            else:
                statuses[refused.get(ref, GangStatus.INCOMPLETE)] += 1
        self._refused = refused
        return GangCounts(statuses, origins, gated, degraded)

    def _origin(self, ref: GangRef) -> str:
        derived = self._state.gangs.derived.get(ref)
        return derived.source if derived is not None else ORIGINS.get(ref.source, "workload")

    def _gate(self, ref: GangRef, waiting: int, need: int) -> str:
        """What holds a gang of which nothing runs: its owner, members that are missing, what cannot be read."""
        derived = self._state.gangs.derived.get(ref)
        if derived is not None and (derived.is_awaited or derived.halted):
            return "owner"
        if self._refused.get(ref) is GangStatus.INVALID:
            return "unreadable"
        return "members" if waiting < need else ""
