"""What-ifs: plans rounds on a changed cluster. A change helps only if the unit is placed in such a round.

A change is tried in two steps. First the unit is planned alone, which is cheap. Then the whole round is planned, in
which earlier units may use the capacity that the change provides. The number of rounds is bounded (`limits`), never the
time: equal input gives equal advice.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from koordpy.api.counted_nouns import counted
from koordpy.cache.snapshot import Snapshot
from koordpy.cache.snapshot_variants import VariantError
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.explain.advice.cluster_change import ClusterChange, World
from koordpy.feasibility.round_state import PlannerCache
from koordpy.gangs.queue_units import Unit
from koordpy.plan.limits import ADVICE_REDUCTIONS, ADVICE_TRIALS, ADVICE_TRIALS_LEAST, ADVICE_WORK
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.selection.preemption_names import RuleName

_MOVED = RuleName.CONSOLIDATION


@dataclass
class Trials:
    """What-ifs for one pod of a pending unit."""

    snapshot: Snapshot
    config: KoordpyConfiguration
    unit: Unit
    pod: str
    """Key of the pod to explain."""
    round: RoundPlan
    """The round without changes, in which the pod stays pending."""
    _done: int = 0
    _work: int = 0
    _reductions: int = 0
    _known: dict[Callable[[World], World], RoundPlan | None] = field(default_factory=dict)
    _cache: PlannerCache = field(default_factory=PlannerCache)

    def __post_init__(self) -> None:
        self._own = frozenset(pod.key for pod in self.unit.pending)
        self.alone = self._plan(World(self.snapshot, self.config, frozenset([self.unit.id])))
        """The round that plans this unit only."""
        self._started = bool(self._placed(self.round))

    @property
    def spent(self) -> bool:
        """True if no further change is to be tried."""
        return self._done >= ADVICE_TRIALS or (self._done >= ADVICE_TRIALS_LEAST and self._work > ADVICE_WORK)

    def line(self, change: ClusterChange) -> str:
        """Returns the text of a change with which the unit is placed.

        Empty if it is not placed, or the trials are spent.
        """
        if change.reduce is not None:
            if self._result(change.make) is None:
                return ""
            self._reductions = 0
            change = change.reduce(self._helps)
            if self._reductions > ADVICE_REDUCTIONS or not change.text:
                return ""
        plan = self._result(change.make)
        if plan is None or any(self._result(other) is None for other in change.also):
            return ""
        units = self._units_of(plan)
        rules = [one.rule for one in plan.evictions if one.unit in units]
        if change.of_all and (rules or not self._starts_all(plan)):
            return ""
        if not rules:
            return change.text
        if any(rule in (RuleName.QUOTA, RuleName.FAIR_SHARE) for rule in rules):
            return f"{change.text}: pods of other quotas or users would be evicted"
        done = "moved" if _MOVED in rules else "evicted"
        return f"{change.text}: {counted(len(rules), 'pod')} would be {done} for it"

    def _starts_all(self, plan: RoundPlan) -> bool:
        """Returns True if a round binds every pod of the unit, and all other pods that the unchanged round binds."""
        before = {one.pod_key for one in self.round.placements}
        return self._own | before <= {one.pod_key for one in plan.placements}

    def _units_of(self, plan: RoundPlan) -> frozenset[str]:
        """Returns the ids of the units of the own pods in a round: several if the change divides the gang."""
        return frozenset({self.unit.id, *(one.unit for one in plan.placements if one.pod_key in self._own)})

    def _result(self, make: Callable[[World], World]) -> RoundPlan | None:
        """Returns the round after a change; None if the unit is not placed in it, or if the change was not tried."""
        if make not in self._known:
            if self.spent:
                return None
            self._known[make] = self._tried(make)
        return self._known[make]

    def _helps(self, change: ClusterChange) -> bool:
        """Returns True if a smaller change of the same form helps.

        It costs no trial, but the number of reductions is bounded too.
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
        found = self._alone(make)
        return None if found is None else self._among_all(*found)

    def _alone(self, make: Callable[[World], World]) -> tuple[World, RoundPlan] | None:
        """Returns the world after a change and the round of the unit alone in it; None if the unit is not placed."""
        try:
            world = make(World(self.snapshot, self.config))
        except VariantError:
            return None
        first = self._plan(replace(world, only=frozenset([*self._ids(world), self.unit.id])))
        return (world, first) if self._helped(first) else None

    def _among_all(self, world: World, first: RoundPlan) -> RoundPlan | None:
        """Returns the whole round in a world; None if the unit is not placed in it."""
        if world.only is not None or len(self.snapshot.pending) == len(self._own):
            return first
        plan = self._plan(world)
        return plan if self._helped(plan) else None

    def _ids(self, world: World) -> list[str]:
        """Returns the units of the own pods after the change: the pods may be in other gangs, or in none."""
        pods = [world.snapshot.pods[key] for key in self._own if key in world.snapshot.pods]
        return [pod.key if pod.gang is None else f"gang:{pod.gang.id}" for pod in pods]

    def _helped(self, plan: RoundPlan) -> bool:
        placed = self._placed(plan)
        return self.pod in placed or (not self._started and bool(placed))

    def _placed(self, plan: RoundPlan) -> frozenset[str]:
        """Returns the own pods that a round places or nominates."""
        found = {one.pod_key for one in plan.placements} | self._nominated(plan)
        return self._own & found

    def _nominated(self, plan: RoundPlan) -> frozenset[str]:
        """Returns the own pods for which a round evicts pods."""
        return self._own & {one.pod_key for one in plan.nominations}

    def _plan(self, world: World) -> RoundPlan:
        self._done += 1
        asked = len(world.snapshot.pending) if world.only is None else len(self._own)
        self._work += asked * len(world.snapshot.nodes)
        return plan_round(world.snapshot, world.config, only=world.only, planner_cache=self._cache)
