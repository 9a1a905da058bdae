"""Which victims, as plain numbers: what every method of choosing gets, and what it answers.

Source: preemption.md 2, 3 and 5. A rule that allows a unit makes an option; protections, surplus of gangs and
quotas are sums over options. From here on nobody knows what a label or a quota is, so that the exact model, the
counting shortcut and plain enumeration in tests can be held against each other level by level.
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
    """One victim unit. frees: (node, ((column of free, amount), ...)) of each node it holds room on.

    devices: accelerators in hundredths; priorities: the sum over its pods; budgets: (budget, pods it covers);
    rank: position in the order of importance, larger is more important, no two alike.
    """

    frees: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    priority: int
    pods: int
    devices: int
    priorities: int
    rank: int
    breaks: int = 0
    budgets: tuple[tuple[int, int], ...] = ()
    attracts: tuple[tuple[int, int], ...] = ()
    """(node, pods of it that attract the beneficiary)."""


class Option(NamedTuple):
    """A unit under a rule. rule: position in the order of rules, the earlier is carried where both allow it."""

    unit: int
    rule: int


@dataclass(frozen=True, slots=True)
class Limit:
    """least <= sum(terms) <= most, where any of the options `when` is chosen (always, with none)."""

    terms: Terms
    most: int | None = None
    least: int | None = None
    when: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RuntimeSteps:
    """A quota's runtime that grows with what victims free of the total that quotas share (quota-fairness.md 4).

    gives: what options free of that total; terms: what they free in the quota. steps: (from, least), by rising `from`,
    the first one 0: where sum(gives) is at least `from`, and below the next step's, sum(terms) is at least `least`.
    """

    gives: Terms
    terms: Terms
    steps: tuple[tuple[int, int], ...]

    def holds(self, gives: int, terms: int) -> bool:
        """Whether the quota admits the beneficiary with so much freed."""
        least = self.steps[0][1]
        for start, needed in self.steps:
            if gives < start:
                break
            least = needed
        return terms >= least


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where anything of it is taken, in one resource at least: (taken - the largest unit taken) < room."""

    resources: tuple[tuple[Terms, int], ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Limits and crossings that hold together."""

    limits: tuple[Limit, ...] = ()
    crossings: tuple[Crossing, ...] = ()


@dataclass(frozen=True, slots=True)
class Either:
    """At least one branch holds where any of the options `when` is chosen. No branch: none of them may be chosen."""

    branches: tuple[Branch, ...]
    when: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Multiple:
    """What stays of `have` pods in a domain, where any of `when` is gone, is a multiple of k."""

    terms: Terms
    when: tuple[int, ...]
    """Options of surplus pods; a gang that goes because it is broken asks for nothing."""
    have: int
    k: int


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Cost level 6 of one leaf quota: what is taken above `slack`."""

    terms: Terms
    slack: int


@dataclass(frozen=True, slots=True)
class MovedKind:
    """Moved pods that are alike: what they ask, (column, amount), and the nodes that they may come back to.

    group: id of their GangGroup, empty without one; where its members stand is looked at together (Rejoin).
    """

    request: tuple[tuple[int, int], ...]
    nodes: tuple[int, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Return:
    """Pods of a moved unit that come back."""

    pods: int
    kind: MovedKind


@dataclass(frozen=True, eq=False)
class Rejoin:
    """Where the members of a GangGroup may stand once some of them have moved (preemption.md 3.4).

    members: (node, units of which any takes it) of each that stands. common: [nodes] domains of which all share one, -1
    where none of them may stand. multiples: ([nodes] domain, k): every domain holds a multiple of k.
    """

    group: str
    members: tuple[tuple[int, tuple[int, ...]], ...]
    common: tuple[Ints, ...] = ()
    multiples: tuple[tuple[Ints, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Tie:
    """What members ask of each other's places and of running pods, counted with everybody there who runs.

    leaving: per label that the interaction goes by (domain, unit, pods that leave its count with the unit).
    """

    interaction: Interaction
    leaving: tuple[tuple[tuple[int, int, int], ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Choices:
    """All pending members of `problem` are to be placed; problem.free is without evictions.

    problem.shapes[].allowed: 1 also where only victims stand in the way; blockers: (shape, node) -> what must go
    before a pod of the shape may stand there, one unit of each tuple. budgets: what each allows, for cost level 1.
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
    """Affinity, anti-affinity and spread, where running pods that may go count in them."""
    returns: tuple[tuple[Return, ...], ...] = ()
    """Per unit what must find room again (consolidation, level 2 is no cost); empty where they are gone."""
    rejoins: tuple[Rejoin, ...] = ()
    """What else they are held to there."""
    lots: tuple[tuple[tuple[int, ...], int], ...] = ()
    """(nodes, k): the beneficiary's pods there are a multiple of k."""
    one_of: tuple[tuple[int, ...], ...] = ()
    """All of the beneficiary's pods stand on nodes of one of these sets; empty where any node will do."""
    told_apart: frozenset[int] = frozenset()
    """Units of which it makes a difference which goes, however equal their figures: filters look at them, devices have
    names, or they come back."""
    deterministic_time: float = 2.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a choice puts everybody. places: (shape, node) -> pods; returns: kind of moved pods -> node -> pods."""

    places: Mapping[tuple[int, int], int] = field(default_factory=dict)
    returns: Mapping[MovedKind, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """The options taken; none where there is no plan. proof: OPTIMAL where levels 1-6 are proven."""

    options: tuple[int, ...]
    proof: Proof
    runs: tuple[SolverRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """A set of options that does not help: the assignment of the units `among` that `taken` makes, where a pod stands
    on one of `places` (shape, node); anywhere without places."""

    taken: frozenset[int]
    among: tuple[int, ...]
    places: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Pods of each shape together on a node."""

    node: int
    pods: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Need:
    """One of these units has to go before a node takes a load; before anybody finds a place without one."""

    units: tuple[int, ...]
    load: Load | None = None


Cost = tuple[int, ...]


def keeps(choices: Choices, taken: Collection[int]) -> bool:
    """Whether a set of options keeps every limit."""
    chosen = set(taken)
    units = [choices.options[o].unit for o in chosen]
    if len(set(units)) < len(units):
        return False
    for one in choices.eithers:
        if not chosen.isdisjoint(one.when) and not any(
            _holds(branch.limits, branch.crossings, chosen) for branch in one.branches
        ):
            return False
    return (
        _holds(choices.limits, choices.crossings, chosen)
        and not uneven(choices.multiples, chosen)
        and all(_admits(one, chosen) for one in choices.runtimes)
    )


def _holds(limits: Iterable[Limit], crossings: Iterable[Crossing], chosen: set[int]) -> bool:
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
    """The multiples that some options break."""
    out = []
    for one in multiples:
        gone = sum(amount for option, amount in one.terms if option in taken)
        if any(option in taken for option in one.when) and (one.have - gone) % one.k:
            out.append(one)
    return out


def reachable(choices: Choices) -> bool:
    """Whether everything together would be enough for the limits that ask for some."""
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
    """Pods evicted at least by any choice that makes room, by sums of each resource alone: the continuous knapsack."""
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
    """Levels 1 to 6 of preemption.md 5; smaller is better."""
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
    """Levels 8 and 9: the sum of priorities; the units from the most important one down, as the bits of a number."""
    units = [choices.units[choices.options[o].unit] for o in taken]
    return sum(unit.priorities for unit in units), sum(1 << unit.rank for unit in units)
