"""Who may take from whom: the rules of preemption.md 3 as options and limits of a choice.

A rule looks at numbers alone (`Law`); `victim_rules.py` has them all. Which of the units that it allows are taken is
chosen by cost (4), tried on the draft with all filters, and checked; so a rule need not know nodes, gangs or disruption
budgets. Lines (min, share) are constants of the round; use is the draft's before the plan. "Below the LCA" are the
quotas on a path under the lowest common ancestor of the beneficiary's leaf and the victim's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from koordpy.api import keys
from koordpy.api.config import KoordpyConfiguration
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.resources import Amounts, add_amounts
from koordpy.cluster.snapshot import Snapshot
from koordpy.cluster.yields import gainers
from koordpy.planning.figures import Figures
from koordpy.planning.units import Unit
from koordpy.planning.victim_selection.choice import Crossing, Limit, Shortfall
from koordpy.planning.victim_selection.lines import Lines, Party
from koordpy.planning.victim_selection.names import RuleName
from koordpy.planning.victims.pool import Mask, Pool
from koordpy.planning.victims.reclaim import Pairs, Reclaim, ShareReclaim, terms_of

Options = Mapping[RuleName, Mapping[int, int]]
"""Rule -> unit of the pool -> option."""


@dataclass(frozen=True, eq=False)
class Together:
    """What must hold of everything that is taken."""

    limits: list[Limit] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    shortfalls: list[Shortfall] = field(default_factory=list)


class Law:
    """The rules of one beneficiary."""

    def __init__(
        self, unit: Unit, pods: Sequence[PodInfo], pool: Pool, figures: Figures, *, mins: Lines, lines: Lines | None
    ) -> None:
        """pods: those of the unit that are placed together. mins: the lines of quotas; lines: those of shares, where
        fair share is reclaimed at all."""
        self.use = use = figures.promises.use(unit, figures.draft.quotas, netted=True)
        self.pods, self.pool, self.figures, self.config = pods, pool, figures, figures.config
        gained = gainers(figures.snapshot.yielded, unit.id)
        self.mins = Reclaim(pods, pool=pool, use=use, lines=mins, gainers=gained)
        self.fair = ShareReclaim(pods, pool=pool, use=use, lines=lines, gainers=gained) if lines is not None else None
        self.tree = use.quotas.tree
        self.priority = min(pod.priority for pod in pods)
        """The lowest of the members to be placed."""

    @property
    def admissible(self) -> bool:
        """Whether evictions could let the quotas admit it: victims are preemptible, so that part cannot fall."""
        asked: dict[str, Amounts] = {}
        for pod in self.pods:
            for party in self.mins.lines.path(pod) if pod.owner.rigid else ():
                add_amounts(asked.setdefault(party.quota, {}), pod.requests)
        for name, amounts in asked.items():
            quota = self.tree.quotas[name]
            for resource in quota.max:
                amount = amounts.get(resource, 0)
                if amount and self.use.rigid_used(name, resource) + amount > quota.least(resource):
                    return False
        return True

    # --- what must hold together ------------------------------------------------------------------------------------

    def add_admission(self, out: Together, every: Pairs) -> None:
        """Every quota of the members admits them all once the victims are gone."""
        limits = self.figures.admission.open_limits()
        for party, asked in self.mins.asked.items():
            limit = limits[party.quota]
            for resource in self.tree.quotas[party.quota].max:
                over = self.mins.after(party, resource) - limit.get(resource, 0)
                if over > 0 and asked.get(resource):
                    out.limits.append(Limit(terms_of(self.mins.held_in(party, every), resource), least=over))

    def add_shortfalls(self, out: Together, options: Options) -> None:
        """Cost level 6: accelerators by which leaf quotas fall below min(used_before, min)."""
        taken: dict[tuple[Party, str], list[tuple[int, int]]] = {}
        for rule in (RuleName.QUOTA, RuleName.FAIR_SHARE):
            for i, o in options.get(rule, {}).items():
                for path, amounts in self.mins.holdings.held(i).items():
                    for resource, amount in amounts.items() if path else ():
                        if amount and self.mins.lines.counted(path[-1], resource) and resource in keys.ACCELERATORS:
                            scale = 1 if resource in keys.HUNDREDTHS else 100
                            taken.setdefault((path[-1], resource), []).append((o, amount * scale))
        for (leaf, resource), terms in taken.items():
            slack = self.mins.spare(leaf, resource) * (1 if resource in keys.HUNDREDTHS else 100)
            if sum(n for _, n in terms) > slack:
                out.shortfalls.append(Shortfall(tuple(terms), slack))


class VictimRule(ABC):
    """One rule: whom it allows a waiting unit to take, and what must hold of everything that goes with it."""

    name: RuleName
    reason: str
    """Of the event on each victim."""
    keeps_budgets: bool = True
    """Whether no PodDisruptionBudget may be violated; else each violation costs (level 1)."""

    above_priority: bool = True
    """Whether it may take pods of the beneficiary's priority and more."""

    def is_open(self, snapshot: Snapshot, config: KoordpyConfiguration) -> bool:
        """Whether it may take anybody in a round: else its pods are not even read."""
        return True

    @abstractmethod
    def units(self, law: Law, free: Mask) -> Mask:
        """[units of law.pool] those of `free` that the rule allows, one by one. law: the quotas, shares and
        priorities as the beneficiary sees them."""

    def closed(self, law: Law) -> str:
        """Why it takes nobody by itself, but beside other rules; empty where it does."""
        return ""

    def bind(self, law: Law, out: Together, own: Mapping[int, int], every: Pairs) -> None:
        """Adds what must hold of all that is taken. own: unit -> option of those by this rule."""
        return

    def why(self, law: Law, unit: int) -> str:
        """The numbers that let a unit go, for the event on its pods."""
        return ""
