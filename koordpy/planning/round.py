"""One round: order the queue, plan unit by unit on one snapshot, say why the rest waits.

The one function that the live scheduler, `simulate`, `explain` and the tests call. The same Snapshot and configuration
give the same RoundPlan; nothing is remembered between calls but figures that depend on the nodes alone (PlannerCache).
Sources: gang-network.md sections 2, 6 and 8; simulate.md.
"""

from dataclasses import replace

from koordpy.api.config import KoordpyConfiguration
from koordpy.cluster.snapshot import Draft, Snapshot
from koordpy.planning.attempt import Tried, try_plain, try_unit
from koordpy.planning.figures import Figures, PlannerCache
from koordpy.planning.order import Queue
from koordpy.planning.plan import RoundPlan
from koordpy.planning.report import report
from koordpy.planning.units import Groups

__all__ = ["PlannerCache", "plan_round"]


def plan_round(
    snapshot: Snapshot,
    config: KoordpyConfiguration | None = None,
    *,
    only: frozenset[str] | None = None,
    planner_cache: PlannerCache | None = None,
) -> RoundPlan:
    """Plans the pending units (or those of `only`, by unit id) in queue order.

    The gangs reported are all of the snapshot's, with `only` those of the units tried.
    """
    config = config or KoordpyConfiguration()
    groups = Groups(snapshot)
    draft = Draft(snapshot)
    figures = Figures(draft, config, planner_cache)
    units = [unit for unit in groups.units() if only is None or unit.id in only]
    queue = Queue(units, use=draft.quotas, config=config.fairness)
    tried: list[Tried] = []
    failed: dict[bytes, Tried] = {}
    later: list[int] = []
    for unit in queue:
        shape = figures.key(unit.plain) if unit.plain is not None else None
        if shape is not None and shape in failed:
            tried.append(replace(failed[shape], unit=unit))
            continue
        outcome = try_unit(unit, groups, figures)
        tried.append(outcome)
        if outcome.nodes:
            queue.placed()
        elif unit.plain is not None and shape is not None and not outcome.fault:
            if figures.of(unit.plain).follows:
                later.append(len(tried) - 1)
            else:
                failed[shape] = outcome
    _again(tried, later, figures, queue)
    return report(groups, figures, tried, every=only is None)


def _again(tried: list[Tried], later: list[int], figures: Figures, queue: Queue) -> None:
    """Plain pods that no node took, and that a pod placed after them may have made room for (affinity, spread)."""
    moved = True
    while moved:
        moved = False
        for i in list(later):
            unit = tried[i].unit
            if unit.plain is None or not figures.of(unit.plain).slots.any():
                continue
            later.remove(i)
            outcome = try_plain(unit, unit.plain, figures)
            tried[i] = outcome
            if outcome.nodes:
                queue.placed()
                moved = True
