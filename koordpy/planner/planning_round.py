# SPDX-License-Identifier: Apache-2.0
"""The entry of the planner: `plan_round` plans the pending pods of one snapshot.

The live scheduler, `simulate`, `explain` and the tests call this one function. Equal snapshots and equal configuration
give equal plans. Between calls, only state that depends on nodes alone is cached (`PlannerCache`). Sources:
docs/rules/gang-network.md 2, 6 and 8; simulate.md 2.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace as changed

from koordpy.attempts.watched_pod import Watch
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import PlannerCache, RoundState
from koordpy.plan.limits import OFFLINE_WATCHDOG_SECONDS
from koordpy.plan.planning_budget import PlanningBudget
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.actions.action_registry import ACTIONS
from koordpy.planner.round_context import RoundContext
from koordpy.preemption.selection.preemption_names import EVERY_WAY, Way
from koordpy.report.round_report import report_round

__all__ = ["PlannerCache", "plan_round"]


def plan_round(
    snapshot: Snapshot,
    config: KoordpyConfiguration | None = None,
    *,
    only: frozenset[str] | None = None,
    planner_cache: PlannerCache | None = None,
    evict: bool = True,
    ways: Sequence[Way] = EVERY_WAY,
    budget: PlanningBudget | None = None,
    watch: Watch[Any] | None = None,
) -> RoundPlan:
    """Plans the pending units in queue order.

    only: ids of the units that are due; None for all. evict: True if pods may be evicted for units without capacity, as
    far as the configuration allows. ways: the ways of choosing victims that are tried. budget: the time limit of the
    round, None for no limit; units that it leaves undecided are in the plan's `deferred`. watch: an observer of one
    pending pod, which receives the decision on that pod with the round state; None for no observer.

    The plan reports all gangs of the snapshot; with `only`, the gangs of the units that were tried.
    """
    config = config or KoordpyConfiguration()
    if budget is None:  # without a budget, the plan must not depend on the speed of the machine
        config = changed(config, solver=changed(config.solver, wall_time_watchdog=OFFLINE_WATCHDOG_SECONDS))
    context = RoundContext(
        RoundState(Draft(snapshot), config, planner_cache),
        only=only,
        ways=ways if evict else (),
        gives_back=budget is None or budget.gives_back,
        # backfill must try the whole queue, to find out which units may use capacity that is reserved for the first one
        budget=None if config.queue.backfill else budget,
        watch=watch,
    )
    try:
        for action in ACTIONS:
            if action.applies is None or action.applies(context):
                action.run(context)
        return _report(context)
    finally:
        context.close()


def _report(context: RoundContext) -> RoundPlan:
    """Returns the plan of the round after all actions. Passes the decision on the watched pod to the observer."""
    withheld = context.withheld
    outcomes = [one for one in context.outcomes if context.is_due(one.unit)]
    plan = report_round(
        context.round_state,
        outcomes,
        every_gang=context.only is None,
        evictions=context.evictions,
        rejected=context.rejected,
        warnings=context.warnings,
        not_minimal=context.not_minimal,
        withheld=withheld,
    )
    for policy in context.policies:
        plan = policy.complete(plan)
    if context.watch is not None:
        context.watch.finish_round(outcomes, context.round_state, plan, withheld)
    return plan
