"""The choice of victims as plain numbers: the input of every method, and its result.

Source: preemption.md 2, 3 and 5. A rule that allows a unit makes an option; protections, surplus of gangs and quotas
are sums over options. Nothing here knows labels or quotas, so that the exact model, the counting shortcut and plain
enumeration in tests can be compared level by level.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import msgspec
import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.placement.member_interactions import Interaction
from koordpy.placement.problem import Problem
from koordpy.plan.round_plan import Proof, SolverRun

Terms = tuple[tuple[int, int], ...]
"""(option, amount) pairs."""


class UnitFigures(msgspec.Struct, frozen=True):
    """The numbers of one victim unit."""

    frees: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    """(node, ((column of `problem.free`, amount), ...)) of each node on which it uses capacity."""
    priority: int
    """Highest priority of its pods."""
    pods: int
    devices: int
    """Accelerators in hundredths."""
    priorities: int
    """Sum of the priorities of its pods."""
    rank: int
    """Unique position in the order of importance; larger is more important."""
    breaks: int = 0
    """Number of gangs that its eviction breaks."""
    budgets: tuple[tuple[int, int], ...] = ()
    """(budget, number of its pods that the budget covers)."""
    attracts: tuple[tuple[int, int], ...] = ()
    """(node, number of its pods that attract the preemptor)."""


class Option(NamedTuple):
    """A unit under a rule.

    rule: position in the order of rules; if two rules allow a unit, it carries the earlier one.
    """

    unit: int
    rule: int


@dataclass(frozen=True, slots=True)
class Limit:
    """least <= sum(terms) <= most, if any of the options `when` is chosen; always, if `when` is empty."""

    terms: Terms
    most: int | None = None
    least: int | None = None
    when: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RuntimeSteps:
    """A quota's runtime that grows with what victims free of the total that quotas share (quota-fairness.md 4).

    gives: what options free of that total. terms: what they free in the quota. steps: (from, least), by rising `from`,
    the first one 0. If sum(gives) is at least `from` and below the next step's, sum(terms) must be at least `least`.
    """

    gives: Terms
    terms: Terms
    steps: tuple[tuple[int, int], ...]

    def holds(self, gives: int, terms: int) -> bool:
        """Returns True if the quota admits the preemptor with these amounts freed."""
        least = self.steps[0][1]
        for start, needed in self.steps:
            if gives < start:
                break
            least = needed
        return terms >= least


@dataclass(frozen=True, slots=True)
class Crossing:
    """Used capacity above an entitlement that may be crossed by one unit.

    If any of its options is chosen: for at least one resource, (sum of terms - the largest term) < the resource's
    bound.
    """

    resources: tuple[tuple[Terms, int], ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Limits and crossings that must all be satisfied."""

    limits: tuple[Limit, ...] = ()
    crossings: tuple[Crossing, ...] = ()


@dataclass(frozen=True, slots=True)
class Either:
    """At least one branch is satisfied if any of the options `when` is chosen. Without branches none may be chosen."""

    branches: tuple[Branch, ...]
    when: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Multiple:
    """The pods that remain of `have` in a domain are a multiple of k, if any of the options `when` is chosen."""

    terms: Terms
    when: tuple[int, ...]
    """Options of surplus pods; a gang that is evicted because it is broken has no such constraint."""
    have: int
    k: int


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Cost level 6 of one leaf quota: the chosen amount above `slack`."""

    terms: Terms
    slack: int


@dataclass(frozen=True, slots=True)
class MovedKind:
    """A kind of moved pods."""

    request: tuple[tuple[int, int], ...]
    """(column, amount) that a pod of the kind requests."""
    nodes: tuple[int, ...]
    """Node positions that accept pods of the kind."""
    group: str = ""
    """Id of their GangGroup; empty without one. `Rejoin` has the constraints on the nodes of its members."""


@dataclass(frozen=True, slots=True)
class Return:
    """Pods of a moved unit that must be placed again."""

    pods: int
    kind: MovedKind


@dataclass(frozen=True, eq=False)
class Rejoin:
    """Constraints on the nodes of a GangGroup's members once some of them have moved (preemption.md 3.4)."""

    group: str
    members: tuple[tuple[int, tuple[int, ...]], ...]
    """(node, units of which any moves it) of each bound member."""
    common: tuple[Ints, ...] = ()
    """Arrays [nodes] of domains. All members share one domain of each; -1 means that no member is allowed there."""
    multiples: tuple[tuple[Ints, int], ...] = ()
    """([nodes] domain, k): every domain has a multiple of k members."""


@dataclass(frozen=True, eq=False)
class Tie:
    """An affinity or spread constraint with members and running pods, counted with all running pods present.

    leaving: per label of the constraint (domain, unit, pods that the unit's eviction subtracts from the count).
    """

    interaction: Interaction
    leaving: tuple[tuple[tuple[int, int, int], ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Choices:
    """The input of every method: all pending members of `problem` must be placed. `problem.free` is without evictions.

    problem.shapes[].allowed: 1 also where only victims block the shape. blockers: (shape, node) -> groups of units; one
    unit of each group must be evicted before a pod of the shape is allowed there. budgets: what each allows, for cost
    level 1.
    """

    problem: Problem
    units: tuple[UnitFigures, ...]
    options: tuple[Option, ...]
    budgets: tuple[int, ...] = ()
    limits: tuple[Limit, ...] = ()
    runtimes: tuple[RuntimeSteps, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    eithers: tuple[Either, ...] = ()
    multiples: tuple[Multiple, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    blockers: Mapping[tuple[int, int], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    ties: tuple[Tie, ...] = ()
    """Affinity, anti-affinity and spread constraints that count evictable running pods."""
    returns: tuple[tuple[Return, ...], ...] = ()
    """Per unit the pods that must be placed again (consolidation, where level 2 costs nothing); empty for evictions."""
    rejoins: tuple[Rejoin, ...] = ()
    """Further constraints on the pods that are placed again."""
    lots: tuple[tuple[tuple[int, ...], int], ...] = ()
    """(nodes, k): the number of the preemptor's pods on these nodes is a multiple of k."""
    one_of: tuple[tuple[int, ...], ...] = ()
    """All of the preemptor's pods are on nodes of one of these sets; empty if any node is allowed."""
    told_apart: frozenset[int] = frozenset()
    """Units that are not interchangeable although their numbers are equal: filters depend on them, their devices have
    names, or they are placed again."""
    deterministic_time: float = 2.0


@dataclass(frozen=True, slots=True)
class Layout:
    """The placement of a choice. places: (shape, node) -> pods; returns: kind of moved pods -> node -> pods."""

    places: Mapping[tuple[int, int], int] = field(default_factory=dict)
    returns: Mapping[MovedKind, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen options; empty if there is no plan. proof: OPTIMAL if levels 1 to 6 are proven."""

    options: tuple[int, ...]
    proof: Proof
    runs: tuple[SolverRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """A no-good cut: the chosen options `taken`, restricted to the units `among`, do not help.

    places: (shape, node); the cut applies if a pod is on one of these. Empty: it always applies.
    """

    taken: frozenset[int]
    among: tuple[int, ...]
    places: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Pods of each shape together on one node: ((shape, pods), ...)."""

    node: int
    pods: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Need:
    """One of these units must be evicted before a node takes a load; without a load, before any placement exists."""

    units: tuple[int, ...]
    load: Load | None = None


Cost = tuple[int, ...]


def keeps(choices: Choices, taken: Collection[int]) -> bool:
    """Returns True if a set of options satisfies every limit."""
    chosen = set(taken)
    units = [choices.options[o].unit for o in chosen]
    if len(set(units)) < len(units):
        return False
    for one in choices.eithers:
        if not chosen.isdisjoint(one.when) and not any(
            _are_satisfied(branch.limits, branch.crossings, chosen) for branch in one.branches
        ):
            return False
    return (
        _are_satisfied(choices.limits, choices.crossings, chosen)
        and not uneven(choices.multiples, chosen)
        and all(_admits(one, chosen) for one in choices.runtimes)
    )


def _are_satisfied(limits: Iterable[Limit], crossings: Iterable[Crossing], chosen: set[int]) -> bool:
    for limit in limits:
        if limit.when and not chosen.intersection(limit.when):
            continue
        total = sum(amount for option, amount in limit.terms if option in chosen)
        if (limit.most is not None and total > limit.most) or (limit.least is not None and total < limit.least):
            return False
    return all(_crosses_once(crossing, chosen) for crossing in crossings)


def _admits(one: RuntimeSteps, chosen: Collection[int]) -> bool:
    gives, terms = (sum(n for o, n in some if o in chosen) for some in (one.gives, one.terms))
    return one.holds(gives, terms)


def uneven(multiples: Iterable[Multiple], taken: Collection[int]) -> list[Multiple]:
    """Returns the multiples that some options violate."""
    out = []
    for one in multiples:
        gone = sum(amount for option, amount in one.terms if option in taken)
        if any(option in taken for option in one.when) and (one.have - gone) % one.k:
            out.append(one)
    return out


def reachable(choices: Choices) -> bool:
    """Returns True if all options together satisfy the limits with a minimum."""
    for limit in choices.limits:
        if limit.least is not None and not limit.when and sum(amount for _, amount in limit.terms) < limit.least:
            return False
    every = range(len(choices.options))
    for one in choices.runtimes:
        most = sum(n for _, n in one.terms)
        if not _admits(one, every) and all(least > most for _, least in one.steps):
            return False
    return True


def _crosses_once(crossing: Crossing, chosen: set[int]) -> bool:
    taken = [(dict(terms), room) for terms, room in crossing.resources]
    if not any(option in amounts for amounts, _ in taken for option in chosen):
        return True
    for amounts, room in taken:
        parts = [amounts[option] for option in chosen if option in amounts]
        if sum(parts) - max(parts, default=0) < room:
            return True
    return False


def fewest_pods(choices: Choices) -> int:
    """Returns a lower bound on the pods that any choice evicts, from each resource alone: the continuous knapsack."""
    problem = choices.problem
    open_to = np.logical_or.reduce([problem.shapes[s].allowed > 0 for s in problem.wanted])
    units, fewest = {option.unit for option in choices.options}, 1
    for column, amount in problem.asked.items():
        lacking = amount - int(np.maximum(problem.free[open_to, column], 0).sum())
        gains = []
        for unit in (choices.units[u] for u in units):
            gain = sum(dict(amounts).get(column, 0) for node, amounts in unit.frees if open_to[node])
            if gain > 0:
                gains.append((Fraction(gain, unit.pods), gain))
        pods = Fraction(0)
        for each, gain in sorted(gains, reverse=True):
            if lacking <= 0:
                break
            pods += min(gain, lacking) / each
            lacking -= gain
        fewest = max(fewest, ceil(pods))
    return fewest


def cost_levels(choices: Choices, taken: Collection[int]) -> Cost:
    """Returns levels 1 to 6 of preemption.md 5; smaller is better."""
    units = [choices.units[choices.options[o].unit] for o in taken]
    covered = [0] * len(choices.budgets)
    for unit in units:
        for budget, pods in unit.budgets:
            covered[budget] += pods
    chosen = set(taken)
    return (
        sum(max(0, have - allowed) for have, allowed in zip(covered, choices.budgets, strict=True)),
        max((unit.priority for unit in units), default=-(1 << 40)),
        sum(unit.breaks for unit in units),
        sum(unit.devices for unit in units),
        sum(unit.pods for unit in units),
        sum(
            max(0, sum(amount for option, amount in one.terms if option in chosen) - one.slack)
            for one in choices.shortfalls
        ),
    )


def late_levels(choices: Choices, taken: Collection[int]) -> tuple[int, int]:
    """Returns (level 8, level 9).

    Level 8 is the sum of priorities. Level 9 is a number with one bit for each chosen unit, the most important highest.
    """
    units = [choices.units[choices.options[o].unit] for o in taken]
    return sum(unit.priorities for unit in units), sum(1 << unit.rank for unit in units)
