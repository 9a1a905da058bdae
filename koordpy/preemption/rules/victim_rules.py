"""Every rule by which a waiting unit takes from running pods: a `VictimRule`, and one line in `VICTIM_RULES`
(docs/extending.md). They are tried in order, each alone, then all together.

Moves (consolidation) and gangs that give up are no such rules: they are planned by themselves.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.api.config import KoordpyConfiguration
from koordpy.cluster.snapshot import Snapshot
from koordpy.planning.victim_selection.choice import Limit
from koordpy.planning.victim_selection.names import RuleName
from koordpy.planning.victims.pool import Mask
from koordpy.planning.victims.reclaim import Pairs
from koordpy.planning.victims.rules import Law, Options, Together, VictimRule


class ReclaimMin(VictimRule):
    """Quotas take back what others use above their min (preemption.md 3.2); not where priority already ignores min."""

    name = RuleName.QUOTA
    reason = "Reclaimed"

    def is_open(self, snapshot: Snapshot, config: KoordpyConfiguration) -> bool:
        reclaims = config.fairness.reclaim != "off" and config.preemption.across_quotas != "any"
        return reclaims and bool(snapshot.quotas.tree.quotas)

    def units(self, law: Law, free: Mask) -> Mask:
        return law.mins.eligible(free)

    def closed(self, law: Law) -> str:
        return law.mins.closed

    def bind(self, law: Law, out: Together, own: Mapping[int, int], every: Pairs) -> None:
        out.limits.extend(law.mins.gates(own, every))
        out.crossings.extend(law.mins.crossings(own))
        # who gained by the beneficiary's eviction is no last unit that crosses the line
        if gained := {i: o for i, o in own.items() if law.mins.has_gained(i)}:
            out.limits.extend(law.mins.floors(gained, every))

    def why(self, law: Law, unit: int) -> str:
        return law.mins.why(unit)


class Preempt(VictimRule):
    """Units of strictly lower priority go that no line of another quota protects by themselves (preemption.md 3.1)."""

    name = RuleName.PRIORITY
    reason = "Preempted"
    keeps_budgets = False
    above_priority = False

    def is_open(self, snapshot: Snapshot, config: KoordpyConfiguration) -> bool:
        return config.preemption.enabled

    def units(self, law: Law, free: Mask) -> Mask:
        if any(pod.pod.spec.preemption_policy == "Never" for pod in law.pods):
            return np.zeros(len(free), dtype=bool)
        out, mins, across = free & (law.pool.priority < law.priority), law.mins, law.config.preemption.across_quotas
        if across == "any" or not law.tree.quotas:
            return out

        def passes(i: int) -> bool:
            if across == "never":
                return all(not path or path == mins.path for path in mins.holdings.held(i))
            return mins.spares_lines(i)

        return mins.holdings.of_kinds(out, passes)

    def bind(self, law: Law, out: Together, own: Mapping[int, int], every: Pairs) -> None:
        if law.config.preemption.across_quotas == "overMin":
            out.limits.extend(law.mins.floors(own, every))
        if law.fair is not None:
            out.limits.extend(law.fair.floors(own, every))


class ReclaimShare(VictimRule):
    """Users and queues take back what others hold above their share, whose quotas' guarantee a unit does not touch by
    itself (preemption.md 3.3)."""

    name = RuleName.FAIR_SHARE
    reason = "Reclaimed"

    def is_open(self, snapshot: Snapshot, config: KoordpyConfiguration) -> bool:
        return config.fairness.reclaim == "all" and config.fairness.mode != "off"

    def units(self, law: Law, free: Mask) -> Mask:
        if law.fair is None:
            return np.zeros(len(free), dtype=bool)
        return law.mins.holdings.of_kinds(law.fair.eligible(free), law.mins.spares_lines)

    def closed(self, law: Law) -> str:
        return law.fair.closed if law.fair is not None else ""

    def bind(self, law: Law, out: Together, own: Mapping[int, int], every: Pairs) -> None:
        if law.fair is not None:
            out.limits.extend(law.mins.floors(own, every))
            out.limits.extend(law.fair.gates(own, every))
            out.crossings.extend(law.fair.crossings(own))

    def why(self, law: Law, unit: int) -> str:
        return law.fair.why(unit) if law.fair is not None else ""


VICTIM_RULES: tuple[VictimRule, ...] = (
    ReclaimMin(),
    Preempt(),
    ReclaimShare(),
)
BY_NAME: Mapping[RuleName, VictimRule] = {rule.name: rule for rule in VICTIM_RULES}


def steps(law: Law, free: Mask) -> list[dict[RuleName, Mask]]:
    """[units] that may go, step by step: by each rule that allows any alone, then by all that do together."""
    known = [rule for rule in VICTIM_RULES if rule.is_open(law.pool.draft.snapshot, law.config)]
    may = [rule.units(law, free & law.pool.evictable if rule.keeps_budgets else free) for rule in known]
    wide = {rule.name: mask for rule, mask in zip(known, may, strict=True) if mask.any()}
    alone = [{name: mask} for name, mask in wide.items() if not BY_NAME[name].closed(law)]
    return alone + ([wide] if len(wide) > 1 else [])


def together(law: Law, options: Options, budgets: Sequence[tuple[int, Mapping[int, int]]]) -> Together:
    """What binds the options. budgets: (allowed, unit -> pods covered) of each PodDisruptionBudget."""
    out = Together()
    every = [(o, i) for own in options.values() for i, o in own.items()]
    law.add_admission(out, every)
    for name, own in options.items():
        rule = BY_NAME.get(name)
        if rule is not None:
            rule.bind(law, out, own, every)
        if rule is None or rule.keeps_budgets:
            for allowed, covered in budgets:
                when = tuple(o for i, o in own.items() if i in covered)
                terms = tuple((o, covered[i]) for o, i in every if i in covered)
                if when and sum(n for _, n in terms) > allowed:
                    out.limits.append(Limit(terms, most=allowed, when=when if len(options) > 1 else ()))
    law.add_shortfalls(out, options)
    return out
