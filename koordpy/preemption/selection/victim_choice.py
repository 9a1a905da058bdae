# SPDX-License-Identifier: Apache-2.0
"""The choice of running pods to evict for a pending unit (the preemptor), as plain numbers: problem and result.

`Choices` is the problem, `Choice` the result. A victim unit is a set of pods that are evicted together. An option is a
unit under one rule that allows its eviction; a set of chosen options is called `taken`. Protections of gangs, quotas
and tenants are limits on sums over the chosen options (docs/rules/preemption.md 2, 3, 5). This module knows no labels
and no quotas. So the same problem can be solved by CP-SAT, by counting and, in tests, by enumeration, and the results
can be compared level by level.
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
"""((option, amount), ...): a sum over the chosen options. An option is a position in `Choices.options`."""


class UnitFigures(msgspec.Struct, frozen=True):
    """The numbers of one victim unit: what its eviction frees and costs."""

    frees: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    """((node, ((column of `problem.free`, amount), ...)), ...) for each node on which the unit uses capacity."""
    priority: int
    """Highest priority of the unit's pods."""
    pods: int
    devices: int
    """Accelerators that the unit's pods request, in hundredths of a device."""
    priorities: int
    """Sum of the priorities of the unit's pods."""
    rank: int
    """Unique position in the order of importance of all units; a larger rank is more important."""
    breaks: int = 0
    """Number of gangs that the eviction breaks: 1 for the core of a GangGroup, else 0."""
    budgets: tuple[tuple[int, int], ...] = ()
    """((position of a PodDisruptionBudget in `Choices.budgets`, number of the unit's pods that it covers), ...)."""
    attracts: tuple[tuple[int, int], ...] = ()
    """((node, number of the unit's pods there that attract the preemptor), ...). A pod attracts the preemptor if both
    have the same network-topology-selector."""


class Option(NamedTuple):
    """A unit (position in `Choices.units`) under a rule (position in the order of rules). A unit that several rules
    allow has one option for each of them. At most one of these is chosen, if possible that of the earliest rule."""

    unit: int
    rule: int


@dataclass(frozen=True, slots=True)
class Limit:
    """The condition least <= sum(terms) <= most; a bound that is None does not apply. It applies if any option of
    `when` is chosen; if `when` is empty, it always applies."""

    terms: Terms
    most: int | None = None
    least: int | None = None
    when: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RuntimeSteps:
    """The condition that a quota of the preemptor admits it, if victims in no quota raise the quota's runtime. Such
    victims return capacity to the total that quotas share. A larger total can raise the runtime, the amount that the
    quota may use (docs/rules/quota-fairness.md 4). gives: amounts that options return to the total. terms: amounts that
    options free in the quota itself. steps: ((from, least), ...) by ascending `from`, starting at 0. The last step with
    `from` <= sum(gives) applies, and requires sum(terms) >= `least`."""

    gives: Terms
    terms: Terms
    steps: tuple[tuple[int, int], ...]

    def holds(self, gives: int, terms: int) -> bool:
        """Returns True if the quota admits the preemptor. gives, terms: sums over the chosen options."""
        least = self.steps[0][1]
        for start, needed in self.steps:
            if gives < start:
                break
            least = needed
        return terms >= least


@dataclass(frozen=True, slots=True)
class Crossing:
    """The condition that a tenant is above its entitlement before each of its units is evicted. Only the last evicted
    unit may bring the tenant below its entitlement, because a job cannot be divided. The largest unit counts as the
    last, so that the order of evictions does not matter. resources: ((amounts that options free, usage above the
    entitlement), ...). If any of these options is chosen, at least one resource must satisfy sum of terms - largest
    chosen term < usage above the entitlement."""

    resources: tuple[tuple[Terms, int], ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Limits and crossings that must all be satisfied."""

    limits: tuple[Limit, ...] = ()
    crossings: tuple[Crossing, ...] = ()


@dataclass(frozen=True, slots=True)
class Either:
    """If any option of `when` is chosen, at least one branch must be satisfied. No branches: none may be chosen."""

    branches: tuple[Branch, ...]
    when: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Multiple:
    """podCountMultiple in one domain: if any of `when` is chosen, the remaining members must be a multiple of `k`.
    have: members in the domain without evictions."""

    terms: Terms
    """((option, number of members in the domain that it evicts), ...)."""
    when: tuple[int, ...]
    """Options of surplus pods. A broken unit is evicted whole, so the condition does not apply to it."""
    have: int
    k: int


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Cost level 6 of one leaf quota: by how much it falls below min(used before, min), in hundredths of accelerators.
    It is max(0, sum(terms) - slack). terms: accelerators that options free in the quota. slack: what may be freed
    without a shortfall."""

    terms: Terms
    slack: int


@dataclass(frozen=True, slots=True)
class MovedKind:
    """Equal pods that consolidation evicts and places again. `Rejoin` restricts nodes of gang members."""

    request: tuple[tuple[int, int], ...]
    """((column of `problem.free`, amount), ...) that each pod of the kind requests."""
    nodes: tuple[int, ...]
    """Positions of the nodes that accept pods of the kind."""
    group: str = ""
    """Id of the pods' GangGroup; empty without one."""


@dataclass(frozen=True, slots=True)
class Return:
    """Pods of one kind of a moved unit, which must be placed again."""

    pods: int
    kind: MovedKind


@dataclass(frozen=True, eq=False)
class Rejoin:
    """Constraints on the nodes of a GangGroup's members (group: its id), if some of them move (preemption.md 3.4)."""

    group: str
    members: tuple[tuple[int, tuple[int, ...]], ...]
    """((node, units), ...) for each bound member. The member moves if any of these units is chosen."""
    common: tuple[Ints, ...] = ()
    """Arrays [nodes] with the domain of each node. After the moves, all members must be in one domain of each array.
    -1: no member may be on the node."""
    multiples: tuple[tuple[Ints, int], ...] = ()
    """Pairs ([nodes] domain of each node, k): each domain must have a multiple of k members."""


@dataclass(frozen=True, eq=False)
class Tie:
    """An affinity or spread constraint, counted with all running pods, and how evictions change the counts."""

    interaction: Interaction
    leaving: tuple[tuple[tuple[int, int, int], ...], ...] = ()
    """For each label of the constraint: ((domain, unit, pods that evicting the unit subtracts there), ...)."""


@dataclass(frozen=True, eq=False)
class Choices:
    """The problem: choose victims such that all pending members of `problem` can be placed. An option is a position in
    `options`, a unit a position in `units`. limits, runtimes, crossings, eithers, multiples: conditions on the options,
    which must all be satisfied. shortfalls: the cost of level 6, by quota."""

    problem: Problem
    """The preemptor's placement problem. `problem.free` is the free capacity without evictions. `Shape.allowed` is 1
    also on nodes from which only victims exclude the shape."""
    units: tuple[UnitFigures, ...]
    options: tuple[Option, ...]
    budgets: tuple[int, ...] = ()
    """Evictions that each PodDisruptionBudget still allows. Further evictions are violations (level 1)."""
    limits: tuple[Limit, ...] = ()
    runtimes: tuple[RuntimeSteps, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    eithers: tuple[Either, ...] = ()
    multiples: tuple[Multiple, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    blockers: Mapping[tuple[int, int], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """(shape, node) -> groups of units. One unit of each group must be evicted before a pod of the shape is allowed on
    the node."""
    ties: tuple[Tie, ...] = ()
    """Affinity, anti-affinity and spread constraints that count evictable running pods."""
    returns: tuple[tuple[Return, ...], ...] = ()
    """Consolidation only: per unit the pods that must be placed again. Empty if victims are evicted."""
    rejoins: tuple[Rejoin, ...] = ()
    """Consolidation only: constraints on the new nodes of gang members."""
    lots: tuple[tuple[tuple[int, ...], int], ...] = ()
    """((nodes, k), ...): the number of the preemptor's pods on these nodes must be a multiple of k (NPU blocks)."""
    one_of: tuple[tuple[int, ...], ...] = ()
    """Sets of nodes: all of the preemptor's pods must be on the nodes of one set. Empty: any nodes."""
    told_apart: frozenset[int] = frozenset()
    """Units that are not interchangeable with units of equal numbers. The reason is that filters depend on them, that
    their devices have names, or that their pods are placed again."""
    deterministic_time: float = 2.0
    """Limit of all solves together, in the deterministic time of CP-SAT (`preemption.timeLimit`)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The placement that the solver found together with a choice; the dry run tries it. places: (shape, node) -> number
    of pods of the preemptor. returns: kind of moved pods -> new node -> number of pods; empty for evictions."""

    places: Mapping[tuple[int, int], int] = field(default_factory=dict)
    returns: Mapping[MovedKind, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of a method: the chosen options; empty if no choice was found. proof: OPTIMAL if no choice has lower
    cost levels 1 to 6, FEASIBLE if such a choice may exist, INFEASIBLE if no choice exists, UNKNOWN if no choice was
    found in time."""

    options: tuple[int, ...]
    proof: Proof
    runs: tuple[SolverRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """A no-good cut, made after the dry run rejected the choice `taken`. It excludes all choices that evict the same
    units of `relevant_units`, the units on which the rejection depends. Of interchangeable units, only the number
    matters."""

    taken: frozenset[int]
    relevant_units: tuple[int, ...]
    places: tuple[tuple[int, int], ...] = ()
    """((shape, node), ...): the cut applies only if such a pod is on the node. Empty: it always applies."""


@dataclass(frozen=True, slots=True)
class Load:
    """New pods that one node would have to take together. pods: ((shape, number of pods), ...)."""

    node: int
    pods: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Need:
    """A constraint that the dry run found: at least one of `units` must be evicted before a node takes a load.

    load: None if the constraint applies to every placement.
    """

    units: tuple[int, ...]
    load: Load | None = None


Cost = tuple[int, ...]
"""Cost levels 1 to 6 (`cost_levels`), compared in order."""


def keeps(choices: Choices, taken: Collection[int]) -> bool:
    """Returns True if a set of options satisfies every limit and has no unit twice. Whether pods fit is not checked."""
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
    """Returns True if the chosen options satisfy all given limits and crossings."""
    for limit in limits:
        if limit.when and not chosen.intersection(limit.when):
            continue
        total = sum(amount for option, amount in limit.terms if option in chosen)
        if (limit.most is not None and total > limit.most) or (limit.least is not None and total < limit.least):
            return False
    return all(_crosses_once(crossing, chosen) for crossing in crossings)


def _admits(one: RuntimeSteps, chosen: Collection[int]) -> bool:
    """Returns True if the chosen options satisfy one `RuntimeSteps`."""
    gives, terms = (sum(n for o, n in some if o in chosen) for some in (one.gives, one.terms))
    return one.holds(gives, terms)


def uneven(multiples: Iterable[Multiple], taken: Collection[int]) -> list[Multiple]:
    """Returns the conditions of podCountMultiple that a set of options violates."""
    out = []
    for one in multiples:
        gone = sum(amount for option, amount in one.terms if option in taken)
        if any(option in taken for option in one.when) and (one.have - gone) % one.k:
            out.append(one)
    return out


def reachable(choices: Choices) -> bool:
    """Returns True if all options together free enough for every lower limit. False proves that no choice exists."""
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
    """Returns True if the chosen options satisfy a crossing."""
    taken = [(dict(terms), room) for terms, room in crossing.resources]
    if not any(option in amounts for amounts, _ in taken for option in chosen):
        return True
    for amounts, room in taken:
        parts = [amounts[option] for option in chosen if option in amounts]
        if sum(parts) - max(parts, default=0) < room:
            return True
    return False


def fewest_pods(choices: Choices) -> int:
    """Returns a lower bound of the number of pods that any choice evicts, at least 1. For each resource, the continuous
    knapsack gives a bound: units that free the most per pod first. The result is the largest of these bounds."""
    problem = choices.problem
    open_to = np.logical_or.reduce([problem.shapes[s].allowed > 0 for s in problem.pending_counts])
    units, fewest = {option.unit for option in choices.options}, 1
    for column, amount in problem.total_demand.items():
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
    """Returns levels 1 to 6 of docs/rules/preemption.md 5; smaller is better. They are violations of
    PodDisruptionBudgets, highest priority, gangs broken, accelerators (in hundredths), pods, and accelerators by which
    quotas fall below their entitlements (in hundredths)."""
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
    """Returns (level 8, level 9); smaller is better. Level 8 is the sum of priorities. Level 9 is an integer with one
    bit for each chosen unit, the most important unit in the highest bit."""
    units = [choices.units[choices.options[o].unit] for o in taken]
    return sum(unit.priorities for unit in units), sum(1 << unit.rank for unit in units)
