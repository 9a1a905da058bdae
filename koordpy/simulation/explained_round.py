"""`koordpy explain`: the round of a simulation that decided for one pod, explained.

Runs the rounds of `simulate` on the same input and keeps the snapshot of the round that counts:
- of a pod that is bound at the end the round that bound it, or the round before that evicted pods for it and nominated
  it for the same node,
- of a pod that waits at the end the first round since which it is told what it is told in the last one, whose text is
  the one in the output of `simulate`.
So both commands give one verdict. Nothing of the run is in the answer. Source: docs/rules/simulate.md 5.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.explain.explanation import Explanation, explain, undecided
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.simulation.gap_warnings import gap_warnings
from koordpy.simulation.simulated_rounds import UNTRIED, Evicted, PodEviction, simulate


class _WatchedRounds:
    """Plans the rounds of a simulation and remembers the one that decided for a pod."""

    def __init__(self, pod: str) -> None:
        self._pod, self._number = pod, 0
        self.first: Snapshot | None = None
        self.decided: _PlannedRound | None = None
        """The round that decided for the pod as things stand; None where no round did."""
        self.latest = 0
        """The last round that found the pod pending."""
        self._told: tuple[str, str] | None = None
        """Reason and message of the pod, if it waited in the last round."""
        self._room: str | None = None
        """The node that the last round nominated the pod for."""

    def plan(self, snapshot: Snapshot, config: KoordpyConfiguration) -> RoundPlan:
        """Plans one round."""
        plan = plan_round(snapshot, config)
        self._number += 1
        self.first = self.first or snapshot
        info = snapshot.pods.get(self._pod)
        if info is not None and info.pending:
            self.latest = self._number
            self._look(plan, _PlannedRound(self._number, snapshot))
        return plan

    def _look(self, plan: RoundPlan, now: "_PlannedRound") -> None:
        waits = next((one for one in plan.pending if one.pod_key == self._pod), None)
        told = (str(waits.reason), waits.message) if waits is not None else None
        node = next((one.node for one in plan.placements if one.pod_key == self._pod), None)
        room = next((one.node for one in plan.nominations if one.pod_key == self._pod), None)
        if not (told is not None and told == self._told) and not (node is not None and node == self._room):
            self.decided = now
        self._told, self._room = told, room


@dataclass(frozen=True, slots=True)
class _PlannedRound:
    """A round, counted from 1, and the snapshot that it planned on."""

    number: int
    snapshot: Snapshot


def explain_simulated(
    state: ClusterState,
    config: KoordpyConfiguration,
    pod: str,
    *,
    now: datetime,
    rounds: int = 20,
    evicted: Evicted = "recreate",
    grow: Callable[[], Sequence[str]] = tuple,
) -> Explanation:
    """Explains a pod (`namespace/name`) of the state as `simulate` with these arguments decides for it. The state is
    changed. Raises KeyError for an unknown pod."""
    if state.pod(pod) is None:
        raise KeyError(pod)
    gaps = gap_warnings(state, config, now.timestamp(), only=pod)
    run = _WatchedRounds(pod)
    result = simulate(state, config, planner=run.plan, now=now, rounds=rounds, evicted=evicted, grow=grow)
    assert run.first is not None, "a simulation has a round"
    gone = [one for one in result.evictions if one.eviction.pod_key == pod]
    info = state.pod(pod)
    if info is None:  # evicted for good
        found = undecided(run.first, config, pod, _eviction_text(gone[-1]))
    elif info.pending and run.latest < result.rounds:  # the last round evicted it
        found = undecided(run.first, config, pod, UNTRIED)
    elif run.decided is not None and (info.pending or info.bound):
        decided = explain(run.decided.snapshot, config, pod)
        found = replace(decided, round=run.decided.number)
    else:
        found = explain(run.first, config, pod)
    found = replace(found, warnings=(*found.warnings, *gaps))
    if not gone or info is None:
        return found
    text = f"{_eviction_text(gone[-1])}; this is about the pod that replaces it"
    return replace(found, warnings=(*found.warnings, (pod, text)))


def _eviction_text(one: PodEviction) -> str:
    eviction = one.eviction
    whom = f" for {eviction.beneficiary}" if eviction.beneficiary else ""
    return f"evicted from {eviction.node} in round {one.round}{whom} (rule {eviction.rule})"
