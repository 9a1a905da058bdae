"""How many gangs there are by status, for the gauges: of all that have a member that waits or runs.

Whether a gang runs follows from its pods; why one does not is what the last round that tried it has said.
"""

from collections import Counter

from koordpy.cluster.pods import GangRef
from koordpy.cluster.state import ClusterState
from koordpy.planning.plan import GangReport, GangStatus

REFUSED = (GangStatus.UNSCHEDULABLE, GangStatus.INVALID)


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

    def count(self) -> tuple[Counter[GangStatus], int]:
        """(gangs by status, those that are half bound)."""
        statuses: Counter[GangStatus] = Counter()
        half, refused = 0, {}
        for ref, tally, need in self._state.gang_tallies():
            if ref in self._refused:
                refused[ref] = self._refused[ref]
            if not tally.bound and not tally.pending:
                continue
            half += tally.half_bound(need)
            if tally.bound and not tally.half_bound(need):
                statuses[GangStatus.SCHEDULED] += 1
            else:
                statuses[refused.get(ref, GangStatus.INCOMPLETE)] += 1
        self._refused = refused
        return statuses, half
