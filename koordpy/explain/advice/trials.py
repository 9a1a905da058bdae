# SPDX-License-Identifier: Apache-2.0
"""Tries changes of the cluster by planning rounds on a changed snapshot, to see whether the pending unit then starts.

A change is tried in two steps. First the unit is planned alone, which is cheap. If it starts, the whole round is
planned, in which earlier units may use the added capacity. The number of rounds is limited (`plan/limits.py`), but not
the time, so that equal input gives equal advice.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from koordpy.api.counted_nouns import count_noun, join_words
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import VariantError
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.explain.advice.cluster_change import ClusterChange, World
from koordpy.feasibility.round_state import PlannerCache
from koordpy.gangs.queue_units import Unit
from koordpy.plan.limits import ADVICE_NAMED, ADVICE_REDUCTIONS, ADVICE_TRIALS, ADVICE_TRIALS_LEAST, ADVICE_WORK
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.selection.disruption_budgets import BudgetCover, snapshot_budgets
from koordpy.preemption.selection.preemption_names import RuleName

_MOVED = RuleName.CONSOLIDATION
"""Rule by which pods are moved to other nodes, not only evicted."""


def is_spent(rounds: int, work: int) -> bool:
    """Returns True if the limits on trials are reached. work: sum over all rounds of (pending pods x nodes)."""
    return rounds >= ADVICE_TRIALS or (rounds >= ADVICE_TRIALS_LEAST and work > ADVICE_WORK)


@dataclass
class Trials:
    """Tries changes for one pod of a pending unit, and caches the results."""

    snapshot: Snapshot
    config: KoordpyConfiguration
    unit: Unit
    pod: str
    """Key of the pod to explain."""
    round: RoundPlan
    """The round without changes, in which the pod stays pending."""
    _done: int = 0
    """Number of rounds planned so far, without the rounds that only reduce a change."""
    _work: int = 0
    """Sum over all rounds of (pending pods x nodes)."""
    _reductions: int = 0
    """Number of smaller changes that were tried to reduce the current change."""
    _known: dict[Callable[[World], World], RoundPlan | None] = field(default_factory=dict)
    """`ClusterChange.make` -> cached result of `_tried`."""
    _cache: PlannerCache = field(default_factory=PlannerCache)

    def __post_init__(self) -> None:
        """Plans the unit alone without a change."""
        self._own = frozenset(pod.key for pod in self.unit.pending)
        self.alone = self._plan(World(self.snapshot, self.config, frozenset([self.unit.id])))
        """The round that plans this unit only."""
        self._started = bool(self._placed(self.round))
        """True if at least one pod of the unit starts in the unchanged round."""

    @property
    def spent(self) -> bool:
        """True if the limits on trials are reached, so that no further change is tried."""
        return is_spent(self._done, self._work)

    @property
    def work(self) -> int:
        """Sum over all rounds so far of (pending pods x nodes)."""
        return self._work

    @property
    def done(self) -> int:
        """Number of rounds so far, without the rounds that only reduce a change."""
        return self._done

    def helps_alone(self, change: ClusterChange) -> bool:
        """Returns True if a change helps. This trial ignores the limits on trials, and does not count."""
        done, work = self._done, self._work
        found = self._tried(change.make)
        self._done, self._work = done, work
        return found is not None

    def helpful(self, change: ClusterChange) -> ClusterChange | None:
        """Tries a change. Returns it if the unit is placed with it; its text then also names pods that would be
        evicted.

        None if the unit is not placed, or if the limits on trials are reached. A change with `reduce` is tried as a
        whole first, and then reduced to the smallest change that helps.
        """
        if change.reduce is not None:
            if self._result(change.make) is None:
                return None
            self._reductions = 0
            change = change.reduce(self._helps)
            if self._reductions > ADVICE_REDUCTIONS or not change.text:
                return None
        plan = self._result(change.make)
        if plan is None or any(self._result(other) is None for other in change.also):
            return None
        units = self._units_of(plan)
        rules = [one.rule for one in plan.evictions if one.unit in units]
        if change.of_all and (rules or not self._starts_all(plan)):
            return None
        if not rules:
            return change
        if any(rule in (RuleName.QUOTA, RuleName.FAIR_SHARE) for rule in rules):
            return replace(change, text=f"{change.text}: pods of other quotas or users would be evicted")
        done = "moved" if _MOVED in rules else "evicted"
        text = f"{change.text}: {count_noun(len(rules), 'pod')} would be {done} for it"
        return replace(change, text=text + self._violations(plan, units))

    def _violations(self, plan: RoundPlan, units: frozenset[str]) -> str:
        """Returns `, more than PodDisruptionBudget default/pdb allows` if evictions for the given units violate
        budgets.

        Empty if they violate none. Preemption by priority may violate budgets, the other rules may not.
        """
        victims = [self.snapshot.pods[one.pod_key] for one in plan.evictions if one.unit in units]
        standing = snapshot_budgets(self.snapshot)
        cover = BudgetCover([one.budget for one in standing])
        counts = Counter(b for pod in victims for b in cover.budgets_of(pod))
        names = [standing[b].budget.metadata for b in sorted(counts) if counts[b] > standing[b].allowed]
        if not names:
            return ""
        listed = join_words([f"{meta.namespace}/{meta.name}" for meta in names[:ADVICE_NAMED]])
        is_one = len(names) == 1
        return f", more than PodDisruptionBudget{'' if is_one else 's'} {listed} allow{'s' if is_one else ''}"

    def _starts_all(self, plan: RoundPlan) -> bool:
        """Returns True if a round binds every pod of the unit, and all pods that the unchanged round binds."""
        before = {one.pod_key for one in self.round.placements}
        return self._own | before <= {one.pod_key for one in plan.placements}

    def _units_of(self, plan: RoundPlan) -> frozenset[str]:
        """Returns the ids of the units of the unit's pods in a round: several if the change divides the gang."""
        return frozenset({self.unit.id, *(one.unit for one in plan.placements if one.pod_key in self._own)})

    def _result(self, make: Callable[[World], World]) -> RoundPlan | None:
        """Returns the round after a change, cached; None if the unit is not placed in it, or if no trial is left."""
        if make not in self._known:
            if self.spent:
                return None
            self._known[make] = self._tried(make)
        return self._known[make]

    def _helps(self, change: ClusterChange) -> bool:
        """Returns True if a smaller change of the same form helps. Passed to `ClusterChange.reduce`.

        Its rounds do not count as trials, but have a separate limit: False if `ADVICE_REDUCTIONS` is exceeded.
        """
        self._reductions += 1
        if self._work > ADVICE_WORK:
            self._reductions = ADVICE_REDUCTIONS + 1
        if self._reductions > ADVICE_REDUCTIONS:
            return False
        if change.make not in self._known:
            done = self._done
            self._known[change.make] = self._tried(change.make)
            self._done = done
        return self._known[change.make] is not None

    def _tried(self, make: Callable[[World], World]) -> RoundPlan | None:
        """Returns the round after a change; None if the unit is not placed in it, alone or with all other units."""
        found = self._alone(make)
        return None if found is None else self._among_all(*found)

    def _alone(self, make: Callable[[World], World]) -> tuple[World, RoundPlan] | None:
        """Returns (world after a change, round that plans the unit alone in it).

        None if the unit is not placed, or if the change cannot be applied exactly.
        """
        try:
            world = make(World(self.snapshot, self.config))
        except VariantError:
            return None
        first = self._plan(replace(world, only=frozenset([*self._ids(world), self.unit.id])))
        return (world, first) if self._helped(first) else None

    def _among_all(self, world: World, first: RoundPlan) -> RoundPlan | None:
        """Returns the round with all pending units in a world; None if the unit is not placed in it.

        first: the round of the unit alone, which is returned if no other unit is pending.
        """
        if world.only is not None or len(self.snapshot.pending) == len(self._own):
            return first
        plan = self._plan(world)
        return plan if self._helped(plan) else None

    def _ids(self, world: World) -> list[str]:
        """Returns the ids of the units of the unit's pods in a world, because a change may move them to other gangs, or
        make them plain pods."""
        pods = [world.snapshot.pods[key] for key in self._own if key in world.snapshot.pods]
        return [pod.key if pod.gang is None else f"gang:{pod.gang.id}" for pod in pods]

    def _helped(self, plan: RoundPlan) -> bool:
        """Returns True if a round places the pod to explain; any pod of the unit if none starts without the change.

        False if a gang that has lost members stays below its minimum although some of its members are pending.
        """
        placed = self._placed(plan)
        if not (self.pod in placed or (not self._started and placed)):
            return False
        refs = {gang.ref for gang in self.unit.gangs}
        broken = any(one.repair is not None and one.repair.missing for one in plan.gangs if one.ref in refs)
        return not (broken and self._own - placed)

    def _placed(self, plan: RoundPlan) -> frozenset[str]:
        """Returns the keys of the unit's pods that a round places or nominates."""
        found = {one.pod_key for one in plan.placements} | self._nominated(plan)
        return self._own & found

    def _nominated(self, plan: RoundPlan) -> frozenset[str]:
        """Returns the keys of the unit's pods for which a round evicts pods."""
        return self._own & {one.pod_key for one in plan.nominations}

    def _plan(self, world: World) -> RoundPlan:
        """Plans a round in a world, and counts it."""
        self._done += 1
        asked = len(world.snapshot.pending) if world.only is None else len(self._own)
        self._work += asked * len(world.snapshot.nodes)
        return plan_round(world.snapshot, world.config, only=world.only, planner_cache=self._cache)
