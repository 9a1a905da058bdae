"""Why a job waits that would find room by itself, or with more of its own: for `koordpy explain`.

Sources: simulate.md 5.2; quota-fairness.md 2; preemption.md 3.2 and 3.3. Each ground is tried: the job
is planned without it, and is told of it only if it finds room then.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

import msgspec

from koordpy.api.config import KoordpyConfiguration
from koordpy.api.counted import counted
from koordpy.api.quantity import quantity_text
from koordpy.cluster.quotas import QuotaUse
from koordpy.cluster.snapshot import Draft, Snapshot
from koordpy.planning.figures import Figures
from koordpy.planning.orders.keys import Job
from koordpy.planning.plan import RoundPlan
from koordpy.planning.queue.standing import share_name, share_text
from koordpy.planning.round import plan_round
from koordpy.planning.units import Unit
from koordpy.planning.victim_selection.lines import lines_of
from koordpy.planning.victims.terminating import await_ending
from koordpy.planning.words.suggestions import NEAREST

_MOVED = "consolidation"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One unit, planned as if nobody were before it."""

    snapshot: Snapshot
    config: KoordpyConfiguration
    unit: Unit

    def alone(self) -> RoundPlan:
        """A round in which nobody is before it."""
        return self._alone(self.snapshot, self.config)

    def misses(self, alone: RoundPlan) -> list[str]:
        """What would give it room, beside what nodes and domains lack."""
        if self._placed(alone):
            return self._evictions(alone) or self._before()
        return self._ending() or self._held() or self._guarantee() or self._share()

    def lent(self, alone: RoundPlan) -> bool:
        """Whether it is placed and nobody leaves for it, whatever its runtime says at first."""
        return self._placed(alone) and not self._evictions(alone)

    def admitted(self, snapshot: Snapshot) -> bool:
        """Whether it would be placed on a snapshot whose quotas let it through, with shares as they are: where they
        are not taken back, and where plans have to respect them."""
        quota = msgspec.structs.replace(self.config.quota, enable_runtime_quota=False)
        queue = msgspec.structs.replace(self.config.queue, backfill=False)
        config = msgspec.structs.replace(self.config, quota=quota, queue=queue)
        calm = msgspec.structs.replace(config, fairness=msgspec.structs.replace(config.fairness, reclaim="off"))
        return self._placed(self._alone(snapshot, calm)) and (
            config.fairness.reclaim == "off" or self._placed(self._alone(snapshot, config))
        )

    def _alone(self, snapshot: Snapshot, config: KoordpyConfiguration) -> RoundPlan:
        return plan_round(snapshot, config, only=frozenset([self.unit.id]))

    def _placed(self, plan: RoundPlan) -> bool:
        units = {one.unit for one in plan.placements} | {one.unit for one in plan.nominations}
        return self.unit.id in units

    def _evictions(self, plan: RoundPlan) -> list[str]:
        """Who would go for it, by the rules that are on."""
        by_rule: dict[str, list[str]] = {}
        for eviction in plan.evictions:
            if eviction.unit == self.unit.id:
                by_rule.setdefault(eviction.rule, []).append(eviction.pod_key)
        return [
            f"{counted(len(keys), 'pod')} were {'moved' if rule == _MOVED else 'evicted'} by rule {rule}, "
            "as its turn would do: " + ", ".join(sorted(keys)[:NEAREST]) + (", ..." if len(keys) > NEAREST else "")
            for rule, keys in by_rule.items()
        ]

    def _before(self) -> list[str]:
        """It finds room by itself: what takes that in a whole round."""
        plan = plan_round(self.snapshot, self.config)
        if self._placed(plan):
            return []
        return ["the jobs before it in the queue left it their room"]

    def _ending(self) -> list[str]:
        """Whose end it waits for: their room is kept for it, and nobody is evicted meanwhile."""
        awaited = await_ending(self.unit, Figures(Draft(self.snapshot), self.config))
        return [f"{awaited.what} were gone"] if awaited is not None else []

    def _held(self) -> list[str]:
        """Whether it is the starvation guard that keeps it from room."""
        fairness = msgspec.structs.replace(self.config.fairness, starvation_after=0.0)
        if self.config.fairness.starvation_after <= 0:
            return []
        if not self._placed(self._alone(self.snapshot, msgspec.structs.replace(self.config, fairness=fairness))):
            return []
        return ["no nodes were held for a job that has waited long (fairness.starvationAfter)"]

    def _guarantee(self) -> list[str]:
        """Whether a larger min of its quota would let it claim room, or take what a runtime keeps for others."""
        quotas = self.snapshot.quotas
        leaf = quotas.tree.quotas.get(quotas.quota_of(self.unit.pending[0]))
        if leaf is None:
            return []
        use, requests, asked = QuotaUse(quotas), Job(self.unit).requests(), {}
        for resource, most in leaf.max.items():
            request = requests.get(resource, 0)
            needed = use.used(leaf.name, resource) + request
            if request and leaf.least(resource) < needed <= most:
                asked[resource] = needed
        if not asked:
            return []
        raised = replace(leaf, min={**leaf.min, **asked})
        tree = replace(quotas.tree, quotas={**quotas.tree.quotas, leaf.name: raised})
        plan = self._alone(replace(self.snapshot, quotas=replace(quotas, tree=tree)), self.config)
        if not self._placed(plan):
            return []
        mins = ", ".join(
            f"{quantity_text(r, needed)} {r} (it is {quantity_text(r, leaf.least(r))})"
            for r, needed in sorted(asked.items())
        )
        claimed = ": others would give back" if self._evictions(plan) else ""
        return [f"min of quota {leaf.name} were {mins}{claimed}"]

    def _share(self) -> list[str]:
        """What share would let it claim room from users or queues above theirs, where shares are taken back."""
        lines = lines_of(self.snapshot, self.config.fairness) if self.config.fairness.reclaim == "all" else None
        path = lines.path(self.unit.members[0]) if lines is not None else ()
        if lines is None or not path:
            return []
        party, use, asked = path[-1], QuotaUse(self.snapshot.quotas), Job(self.unit).requests()
        out = []
        for resource, request in sorted(lines.amounts(asked).items()):
            held, share = lines.use(use, party, resource), lines.share(party, resource)
            if lines.counted(party, resource) and request and held + request > share:
                needed, had = share_text(resource, Fraction(held + request)), share_text(resource, share)
                out.append(f"{needed} {share_name(resource)} (it is {had})")
        whose = f"quota {party.quota}" if party.quota else f"user {party.user}"
        return [f"the share of {whose} were {', '.join(out)}"] if out else []
