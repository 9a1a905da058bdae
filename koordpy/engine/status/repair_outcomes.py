# SPDX-License-Identifier: Apache-2.0
"""Counts how repairs of broken gangs end: `koordpy_repairs_total` and `koordpy_gang_repair_seconds` (repair.md 4.3).

A gang is repaired when it has its minimum again, and at least one member was bound after the loss. If its lost nodes
return instead, koordpy has not repaired the gang, and no repair is counted. If koordpy evicts the gang's own members,
the outcome is counted at once: a move to other nodes, or the end of a stale gang.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koordpy.api.objects import condition_of
from koordpy.api.times import seconds
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.gang_history import DEGRADED, STALE
from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.timed_rounds import StaleWatch
from koordpy.observe.repair_metrics import RepairOutcome
from koordpy.plan.round_plan import Eviction
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.preemption.selection.preemption_names import RuleName

_OF_OWN_MEMBERS: Mapping[str, RepairOutcome] = {
    RuleName.REPAIR: RepairOutcome.MOVED,
    RuleName.STALE_GANG: RepairOutcome.GAVE_UP,
}
"""Rule of the evictions of a gang's own members -> outcome of its repair."""


@dataclass(slots=True)
class _Repair:
    """A broken gang."""

    since: float
    """Time of the loss, in seconds since 1970."""
    known: frozenset[str]
    """uids of the members that were bound when the loss was found."""
    evicted: bool = False
    """True if another pod was evicted for the gang."""


def degraded_since(state: ClusterState, ref: GangRef) -> float | None:
    """Returns when a gang lost its members, in seconds since 1970; None if it is not known.

    The time in the conditions of its PodGroup has precedence, because it survives a change of the leader.
    """
    group = state.gangs.groups.get(ref.key) if ref.source is GangSource.GROUP else None
    conditions = group.status.conditions if group is not None else []
    for type in (DEGRADED, STALE):
        said = condition_of(conditions, type)
        if said is not None and said.status == "True" and said.last_transition_time:
            return seconds(said.last_transition_time)
    return state.broken_since.get(ref)


class RepairOutcomes:
    """Follows the broken gangs of one scheduler. Owned by the event loop."""

    def __init__(self, context: Context, stale: StaleWatch) -> None:
        self._state, self._now, self._stale = context.state, context.now, stale
        self._metrics = context.metrics.repair
        self._repairs: dict[GangRef, _Repair] = {}
        stale.changed_listeners.append(self._changed)

    def _changed(self, ref: GangRef) -> None:
        """Called when a gang became broken, lacks other members than before, or is not broken any more."""
        if self._stale.repair(ref) is not None:
            if ref not in self._repairs:
                since = degraded_since(self._state, ref)
                self._repairs[ref] = _Repair(self._now() if since is None else since, self._with_nodes(ref))
            return
        ended = self._repairs.pop(ref, None)
        if ended is None or not self._state.gangs.whole(ref) or self._with_nodes(ref) <= ended.known:
            return
        self._count(RepairOutcome.EVICTED if ended.evicted else RepairOutcome.REPLACED)
        self._metrics.repair_seconds.observe(max(0.0, self._now() - ended.since))

    def _with_nodes(self, ref: GangRef) -> frozenset[str]:
        """Returns the uids of a gang's bound members, including members on lost nodes."""
        return frozenset(pod.uid for pod in self._state.gangs.members(ref) if pod.node)

    def victim_evicted(self, eviction: Eviction) -> None:
        """Called with each victim of a plan."""
        for ref, repair in self._repairs.items():
            if eviction.beneficiary == ref.key and eviction.rule not in _OF_OWN_MEMBERS:
                repair.evicted = True

    def members_evicted(self, victims: Sequence[Eviction]) -> None:
        """Called with the members of one gang that one plan has evicted."""
        for outcome in {_OF_OWN_MEMBERS[one.rule] for one in victims if one.rule in _OF_OWN_MEMBERS}:
            self._count(outcome)

    def _count(self, outcome: RepairOutcome) -> None:
        self._metrics.repairs.labels(outcome.value).inc()
