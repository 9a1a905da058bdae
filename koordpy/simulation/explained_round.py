# SPDX-License-Identifier: Apache-2.0
"""`koordpy explain`: explains why a pod is bound to its node, or why it is pending.

It runs the rounds of `koordpy simulate` on the same input, stores the snapshot of the round that decided the pod, and
explains the pod on that snapshot. The round that decided is:
- for a pod that is bound at the end, the round that bound it, or an earlier round that evicted pods for it and
  nominated it for the same node;
- for a pod that is pending at the end, the first of the last consecutive rounds with an unchanged reason and message.
  The message is the one in the output of `simulate`.

So both commands give the same verdict. The explanation depends on no other round of the run. Source:
docs/rules/simulate.md 5.
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
from koordpy.simulation.simulated_rounds import UNTRIED, UNTRIED_STEP, Evicted, PodEviction, simulate


class NoSuchPodError(Exception):
    """The pod does not exist in any round of the simulation."""


class _WatchedRounds:
    """Plans the rounds of a simulation, and records the round that decided the pod (see the module docstring)."""

    def __init__(self, pod: str) -> None:
        """pod: `namespace/name`."""
        self._pod, self._number = pod, 0
        self.first: Snapshot | None = None
        """Snapshot of the first round."""
        self.decided: _PlannedRound | None = None
        """The round that decided for the pod so far; None if no round did."""
        self.latest = 0
        """Number of the last round in which the pod was pending."""
        self._reported: tuple[str, str] | None = None
        """Reason and message of the pod if it was pending in the last round; otherwise None."""
        self._nominated_node: str | None = None
        """The node for which the last round nominated the pod; None if it nominated it for none."""

    def plan(self, snapshot: Snapshot, config: KoordpyConfiguration) -> RoundPlan:
        """Plans one round; the planner that is passed to `simulate`."""
        plan = plan_round(snapshot, config)
        self._number += 1
        self.first = self.first or snapshot
        info = snapshot.pods.get(self._pod)
        if info is not None and info.pending:
            self.latest = self._number
            self._look(plan, _PlannedRound(self._number, snapshot))
        return plan

    def _look(self, plan: RoundPlan, now: "_PlannedRound") -> None:
        """Updates `decided` with a round in which the pod was pending.

        A later round does not replace an earlier one in two cases: if the message is unchanged, or if the later round
        binds the pod to the node for which the earlier round nominated it.
        """
        waits = next((one for one in plan.pending if one.pod_key == self._pod), None)
        reported = (str(waits.written_reason), waits.message) if waits is not None else None
        node = next((one.node for one in plan.placements if one.pod_key == self._pod), None)
        is_unchanged = reported is not None and reported == self._reported
        if not is_unchanged and not (node is not None and node == self._nominated_node):
            self.decided = now
        nominated = next((one.node for one in plan.nominations if one.pod_key == self._pod), None)
        self._reported, self._nominated_node = reported, nominated


@dataclass(frozen=True, slots=True)
class _PlannedRound:
    """A round with its number, from 1, and the snapshot on which it was planned."""

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
    """Explains the decision of `simulate` with these arguments for a pod (`namespace/name`). Changes the state.

    A workload may create the pod in a later round. Raises `NoSuchPodError` if the pod does not exist in any round.
    grow: as in `simulate`.
    """
    gaps = gap_warnings(state, config, now.timestamp(), only=pod)
    run = _WatchedRounds(pod)
    result = simulate(state, config, planner=run.plan, now=now, rounds=rounds, evicted=evicted, grow=grow)
    assert run.first is not None, "a simulation has a round"
    gone = [one for one in result.evictions if one.eviction.pod_key == pod]
    info = state.pod(pod)
    if info is None and not gone:
        raise NoSuchPodError(pod)
    first = run.first if pod in run.first.pods else state.snapshot(now.timestamp())
    # five cases, by the state of the pod after the last round
    if info is None:  # evicted and not recreated
        found = undecided(first, config, pod, _eviction_text(gone[-1]))
    elif info.pending and run.latest < result.rounds:  # the last round evicted it, or it was created after that round
        found = undecided(first, config, pod, UNTRIED if gone else UNTRIED_STEP)
    elif run.decided is not None and (info.pending or info.bound):
        decided = explain(run.decided.snapshot, config, pod)
        found = replace(decided, round=run.decided.number)
    else:
        found = explain(first, config, pod)
    found = replace(found, warnings=(*found.warnings, *gaps))
    if not gone or info is None:
        return found
    text = f"{_eviction_text(gone[-1])}; this explanation is about the pod that replaces it"
    return replace(found, warnings=(*found.warnings, (pod, text)))


def _eviction_text(one: PodEviction) -> str:
    eviction = one.eviction
    beneficiary = f" for {eviction.beneficiary}" if eviction.beneficiary else ""
    return f"evicted from {eviction.node} in round {one.round}{beneficiary} (rule {eviction.rule})"
