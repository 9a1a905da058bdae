# SPDX-License-Identifier: Apache-2.0
"""Hands the victims of a unit's plan to the evictor, and queues the unit again when the evictions have begun.

Victims are selected on a snapshot. The unit is planned once more, without evictions, if a victim has changed since, or
if capacity was freed that may make the victims unnecessary. With `--dry-run` there is no evictor, and victims are only
counted and logged.
"""

from collections.abc import Iterable, Sequence

from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.evictor import OUTDATED, EvictionPlan, Evictor
from koordpy.engine.queue_entry import Entry
from koordpy.engine.staleness import PlanGround
from koordpy.engine.wakeups import CAPACITY_GAINED
from koordpy.observe.decision_log import DecisionLog
from koordpy.plan.round_plan import Eviction, RoundPlan
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.quota.quota_book import ShareQueue
from koordpy.reservations.reservation_ledger import tenant_of


class EvictionStarter:
    """Starts the evictions of plans."""

    def __init__(self, context: Context, evictor: Evictor | None, decisions: DecisionLog) -> None:
        self._state, self._queue, self.evictor = context.state, context.queue, evictor
        self._references, self._decisions, self._metrics = context.references, decisions, context.metrics
        self._mode = context.settings.config.fairness.mode
        """`fairness.mode`: decides between which tenants capacity is reclaimed."""
        self._said: dict[str, str] = {}
        """Unit -> names of the victims that `--dry-run` has logged for it last."""

    def may_need_no_victims(self, entry: Entry) -> bool:
        """Returns True if capacity was freed while victims were selected for a unit. Returns True at most once per
        entry."""
        if entry.replanned_for_capacity or not self._queue.has_missed(entry, CAPACITY_GAINED):
            return False
        entry.replanned_for_capacity = True
        return True

    def start(self, plan: RoundPlan, unit: str, victims: Sequence[Eviction], entry: Entry | None) -> None:
        """Starts the evictions for a unit. When its victims are terminating, the unit is queued again, and the next
        round finds that it waits for the victims. If an error drops the plan, the unit waits for its back-off.

        entry: None for evictions without a preemptor, of a stale gang or of a quota above its runtime.
        """
        if self.evictor is None:
            self._would_evict(plan, unit, victims)
            if entry is not None:
                self._queue.settle_error(entry)
            return
        self._decisions.evicts(plan, unit, dry_run=False)
        benefit = next((one for one in plan.benefits if one.unit == unit), None)
        # for the eviction of a stale gang, the events on victims name the gang itself as beneficiary
        gains = benefit.beneficiary if benefit is not None else next((v.beneficiary for v in victims), None)
        placed = [one for one in plan.placements if one.unit == unit]
        going = frozenset(one.pod_key for one in plan.evictions)
        chosen = EvictionPlan(
            unit,
            tuple(victims),
            tuple(one for one in plan.nominations if one.unit == unit),
            benefit,
            self._references.beneficiary(gains) if gains else None,
            capacity_changes=(lambda: 0)
            if entry is None or entry.replanned_for_capacity
            else (lambda: self._queue.capacity_changes),
            stale_reason=PlanGround(self._state, placed, going, victims).lost,
            losers=self._losers(victims),
            nominated_now=frozenset(one.pod_key for one in plan.nominations if one.unit != unit),
        )

        def done(ended: EvictionPlan, why: str) -> None:
            if entry is not None and why not in ("", OUTDATED):
                self._queue.settle_error(entry)
            elif entry is not None:
                entry.replanned_for_capacity = why == OUTDATED
                self._queue.settle_again(entry)

        self.evictor.submit(chosen, done)

    def _losers(self, victims: Iterable[Eviction]) -> frozenset[ShareQueue]:
        """Returns the quotas and users that victims are reclaimed from."""
        quotas = self._state.quota_view()
        out: set[ShareQueue] = set()
        for victim in victims:
            info = self._state.pod(victim.pod_key)
            if info is not None and victim.rule == RuleName.QUOTA:
                out.add(ShareQueue(quotas.quota_of(info), ""))
            elif info is not None and victim.rule == RuleName.FAIR_SHARE:
                out.add(tenant_of(info, quotas, self._mode))
        return frozenset(out)

    def _would_evict(self, plan: RoundPlan, unit: str, victims: Sequence[Eviction]) -> None:
        """Counts and logs the victims of a unit's plan under `--dry-run`, once as long as the victims stay the same."""
        names = ", ".join(f"{victim.pod_key} ({victim.rule})" for victim in victims)
        if self._said.get(unit) != names:
            self._said[unit] = names
            self._decisions.evicts(plan, unit, dry_run=True)
            for victim in victims:
                self._metrics.victims.labels(victim.rule).inc()
