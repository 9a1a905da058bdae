"""From the victims of a plan to an order for the evictor, and the unit's way back into the queue.

Victims are chosen on a snapshot. Until they go they may have changed, or room may have come that makes them needless:
then their unit is planned once more. Without an evictor (dry run) they are counted and logged.
"""

from collections.abc import Iterable, Sequence

from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.evictor import OUTDATED, EvictionPlan, Evictor
from koordpy.engine.queue_entry import Entry
from koordpy.engine.staleness import PlanGround
from koordpy.engine.wakeups import ROOM_CAME
from koordpy.observe.decision_log import DecisionLog
from koordpy.plan.round_plan import Eviction, RoundPlan
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.quota.quota_book import ShareQueue
from koordpy.reservations.reservation_ledger import party_of


class RoomMaking:
    """Has the room made that plans need victims for."""

    def __init__(self, context: Context, evictor: Evictor | None, decisions: DecisionLog) -> None:
        self._state, self._queue, self.evictor = context.state, context.queue, evictor
        self._references, self._decisions, self._metrics = context.references, decisions, context.metrics
        self._mode = context.settings.config.fairness.mode
        """Of the fair shares, which says who takes back from whom."""
        self._said: dict[str, str] = {}
        """Unit -> the victims that a dry run has told of."""

    def all_there(self, victims: Iterable[Eviction]) -> bool:
        """Whether the victims are still what they were when they were chosen."""
        for victim in victims:
            info = self._state.pod(victim.pod_key)
            if info is None or info.uid != victim.uid or info.node != victim.node or info.finished:
                return False
            if info.pod.metadata.deletion_timestamp:
                return False
        return True

    def look_again(self, entry: Entry) -> bool:
        """Whether room came while victims were chosen for a unit, so that it may need none."""
        if entry.looked_again or not self._queue.has_missed(entry, ROOM_CAME):
            return False
        entry.looked_again = True
        return True

    def start(self, plan: RoundPlan, unit: str, victims: Sequence[Eviction], entry: Entry | None) -> None:
        """Starts what makes a unit's room. It is planned again when its victims are going: then it waits for them.
        Without an entry a gang gives up, or a quota gives back, for nobody in particular."""
        if self.evictor is None:
            self._would_evict(plan, unit, victims)
            if entry is not None:
                self._queue.settle_error(entry)
            return
        self._decisions.evicts(plan, unit, dry_run=False)
        benefit = next((one for one in plan.benefits if one.unit == unit), None)
        # a gang that gives up goes for its own sake
        gains = benefit.beneficiary if benefit is not None else next((v.beneficiary for v in victims), None)
        placed = [one for one in plan.placements if one.unit == unit]
        going = frozenset(one.pod_key for one in plan.evictions)
        chosen = EvictionPlan(
            unit,
            tuple(victims),
            tuple(one for one in plan.nominations if one.unit == unit),
            benefit,
            self._references.beneficiary(gains) if gains else None,
            rooms=(lambda: 0) if entry is None or entry.looked_again else (lambda: self._queue.rooms),
            overtaken=PlanGround(self._state, placed, going).lost,
            losers=self._losers(victims),
            beside=frozenset(one.pod_key for one in plan.nominations if one.unit != unit),
        )

        def done(ended: EvictionPlan, why: str) -> None:
            if entry is not None and why not in ("", OUTDATED):
                self._queue.settle_error(entry)
            elif entry is not None:
                entry.looked_again = why == OUTDATED
                self._queue.settle_again(entry)

        self.evictor.submit(chosen, done)

    def _losers(self, victims: Iterable[Eviction]) -> frozenset[ShareQueue]:
        """The quotas and users that victims are reclaimed from."""
        quotas = self._state.quota_view()
        out: set[ShareQueue] = set()
        for victim in victims:
            info = self._state.pod(victim.pod_key)
            if info is not None and victim.rule == RuleName.QUOTA:
                out.add(ShareQueue(quotas.quota_of(info), ""))
            elif info is not None and victim.rule == RuleName.FAIR_SHARE:
                out.add(party_of(info, quotas, self._mode))
        return frozenset(out)

    def _would_evict(self, plan: RoundPlan, unit: str, victims: Sequence[Eviction]) -> None:
        """A dry run counts and logs the victims of a unit's plan, once as long as they are the same."""
        names = ", ".join(f"{victim.pod_key} ({victim.rule})" for victim in victims)
        if self._said.get(unit) != names:
            self._said[unit] = names
            self._decisions.evicts(plan, unit, dry_run=True)
            for victim in victims:
                self._metrics.victims.labels(victim.rule).inc()
