# SPDX-License-Identifier: Apache-2.0
"""Translates a scenario into numbers: builds the `Choices` that the methods of `preemption/selection` solve.

Each unit that a rule allows becomes an option with the capacity that it frees and its cost. Limits of rules, gangs,
PodDisruptionBudgets and filters become sums over options.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from msgspec.structs import replace

from koordpy.devices.family_registry import is_distinguished
from koordpy.devices.move_registry import moved_amounts
from koordpy.devices.rule_registry import place_conditions
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.placement.problem import Problem, with_column
from koordpy.preemption.rules.rule_protocol import RuleInputs
from koordpy.preemption.rules.victim_rules import combined_limits
from koordpy.preemption.search.device_columns import DeviceColumns, device_relief
from koordpy.preemption.search.preemptor_sets import PreemptorSet
from koordpy.preemption.search.reachable_nodes import ReachableNodes
from koordpy.preemption.search.relocation import companions, rejoins_of, returns_of
from koordpy.preemption.search.victim_pool import Mask, Pool
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.preemption.selection.victim_choice import Choices, Limit, Multiple, Option, Tie, UnitFigures
from koordpy.preemption.selection.victim_units import UnitKind, VictimUnit, terminating
from koordpy.problems.problem_building import unit_multiples

Columns = tuple[tuple[int, int], ...]
"""((column of a problem, amount), ...)."""
Rules = Mapping[RuleName, Mask]
"""Rule -> [units] that it allows. The order is the precedence: a unit that several rules allow is evicted under the
first."""


@dataclass(frozen=True, eq=False)
class OfferedChoice:
    """A choice of victims as numbers (`choices`), and the units and rules to which the numbers refer."""

    choices: Choices
    units: tuple[int, ...]
    """Position of a unit in `choices.units` -> position of the unit in the pool."""
    rules: tuple[RuleName, ...]
    """Number of a rule in `choices.options` -> name of the rule."""

    @property
    def moves(self) -> bool:
        """True if units are moved, and placed again in the same plan."""
        return RuleName.CONSOLIDATION in self.rules

    def of(self, taken: Collection[int]) -> list[int]:
        """Returns the pool positions of the units of the given options. taken: positions in `choices.options`."""
        return [self.units[self.choices.options[o].unit] for o in taken]


def eligible_under(rules: Rules) -> Mask:
    """Returns [units]: True for units that at least one rule allows."""
    return np.asarray(np.logical_or.reduce(list(rules.values())))


def candidates(
    preemptors: PreemptorSet, part: Problem, *, rules: Rules, rule_inputs: RuleInputs, open_to: ReachableNodes
) -> OfferedChoice:
    """Returns the choice of victims for one preemptor set.

    part: the placement problem, restricted to a part of the nodes. rules: the units that each rule allows. rule_inputs:
    the inputs of the rules. open_to: the nodes that evictions could open, and the pods that block them.
    """
    # options: each unit under each rule that allows it
    pool, round_state, budgets = rule_inputs.pool, rule_inputs.round_state, rule_inputs.pool.budgets
    units = np.nonzero(eligible_under(rules))[0].tolist()
    number = {i: n for n, i in enumerate(units)}
    options: list[Option] = []
    of: dict[int, list[int]] = {}
    named: dict[RuleName, dict[int, int]] = {}
    for r, (name, mask) in enumerate(rules.items()):
        allowed = mask[units].tolist()
        for i, may in zip(units, allowed, strict=True):
            if may:
                of.setdefault(i, []).append(len(options))
                named.setdefault(name, {})[i] = len(options)
                options.append(Option(number[i], r))
    # the numbers of the units, and the limits between units of one gang
    selectors = {pod.selector for pod in preemptors.unit.pending if pod.selector} if part.gather else set[str]()
    read = _ChoiceReader(pool, round_state, devices=preemptors.devices, selectors=selectors)
    own = tuple(read.unit(i) for i in units)
    moves = RuleName.CONSOLIDATION in rules
    if moves:  # the priority of moved pods does not matter (level 2)
        own = tuple(replace(unit, priority=0) for unit in own)
    tied, multiples = _gangs(pool, round_state, number, of)
    counted: Mapping[str, Columns] = {}
    if moves:
        part, own, counted = _with_moved_devices(part, own, [pool.units[i] for i in units], preemptors, round_state)
        tied += companions({i: pool.units[i] for i in units}, of, round_state)
    # the limits of rules and budgets, and the conditions of filters and device families
    covering: list[dict[int, int]] = [{} for _ in budgets]
    for i, unit in zip(units, own, strict=True):
        for b, pods in unit.budgets:
            covering[b][i] = pods
    allowances = [(budget.allowed, covered) for budget, covered in zip(budgets, covering, strict=True)]
    bound = combined_limits(rule_inputs, named, allowances)
    by_name = bool(preemptors.devices) or is_distinguished(preemptors.pods)
    lots, one_of = place_conditions(preemptors.unit, round_state)
    covering_units = _covering(open_to, pool, units)
    choices = Choices(
        problem=part,
        lots=lots,
        one_of=one_of,
        returns=tuple(
            returns_of(pool.units[i], round_state, devices=preemptors.devices.families, counted=counted) for i in units
        )
        if moves
        else (),
        rejoins=rejoins_of(dict(enumerate(pool.units[i] for i in units)), round_state) if moves else (),
        units=own,
        options=tuple(options),
        budgets=tuple(budget.allowed for budget in budgets),
        limits=(*tied, *bound.limits),
        runtimes=tuple(bound.runtimes),
        crossings=tuple(bound.crossings),
        eithers=tuple(bound.eithers),
        shortfalls=tuple(bound.shortfalls),
        multiples=tuple(multiples),
        blockers=_blockers(open_to, covering_units),
        ties=_ties(open_to, covering_units) if not moves else (),
        told_apart=frozenset(number.values() if moves or by_name else chain(*covering_units.values())),
        deterministic_time=round_state.config.preemption.time_limit,
    )
    return OfferedChoice(choices, tuple(units), tuple(rules))


def _with_moved_devices(
    part: Problem,
    own: Sequence[UnitFigures],
    units: Sequence[VictimUnit],
    preemptors: PreemptorSet,
    round_state: RoundState,
) -> tuple[Problem, tuple[UnitFigures, ...], Mapping[str, Columns]]:
    """Returns (the problem with a column for each family that counts moved devices, the units with the devices that
    they free, pod key -> requests of these columns)."""
    moved, index = [pod for unit in units for pod in unit.pods], round_state.snapshot.index
    figures, counted = list(own), dict[str, Columns]()
    for amounts in moved_amounts(preemptors.pods, moved, round_state.inputs):
        column = part.free.shape[1]
        least: dict[int, int] = {}
        for rank in part.pending:
            shape, asked = part.members[rank].shape, amounts.requested.get(preemptors.unit.members[rank].key, 0)
            least[shape] = min(least.get(shape, asked), asked)
        part = with_column(part, amounts.free, least)
        for pod in moved:
            if asked := amounts.requested.get(pod.key, 0):
                counted[pod.key] = (*counted.get(pod.key, ()), (column, asked))
        for n, unit in enumerate(units):
            frees = dict(figures[n].frees)
            for pod in unit.pods:
                if (number := amounts.freed.get(pod.key, 0)) and pod.node in index:
                    held = dict(frees.get(index[pod.node], ()))
                    held[column] = held.get(column, 0) + number
                    frees[index[pod.node]] = tuple(held.items())
            figures[n] = replace(figures[n], frees=tuple(frees.items()))
    return part, tuple(figures), counted


def _covering(open_to: ReachableNodes, pool: Pool, units: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Returns key of a pod that filters depend on -> the units of the choice that contain it."""
    covering: dict[str, list[int]] = {}
    for n, i in enumerate(units if open_to.looked_at else ()):
        for pod in pool.units[i].pods:
            if pod.key in open_to.looked_at:
                covering.setdefault(pod.key, []).append(n)
    return {key: tuple(units) for key, units in covering.items()}


def _blockers(
    open_to: ReachableNodes, covering: Mapping[str, tuple[int, ...]]
) -> dict[tuple[int, int], tuple[tuple[int, ...], ...]]:
    """Returns (shape, node) -> groups of units (`Choices.blockers`).

    One unit of each group must be evicted before a pod of the shape is allowed on the node. A group is all units that
    contain the same blocking pod, for example its surplus unit and the core of its gang.
    """
    return {place: tuple(covering[key] for key in pods) for place, pods in open_to.blockers.items()}


def _ties(open_to: ReachableNodes, covering: Mapping[str, tuple[int, ...]]) -> tuple[Tie, ...]:
    """Returns the affinity and spread constraints, with the units that change their counts if evicted.

    No choice evicts both the core and surplus of a gang, so a pod that is in several units is subtracted at most once.
    """
    out = []
    for one in open_to.ties:
        leaving = []
        for label in one.leaving:
            pods: dict[tuple[int, int], int] = {}
            for domain, key in label:
                for unit in covering.get(key, ()):
                    pods[domain, unit] = pods.get((domain, unit), 0) + 1
            leaving.append(tuple((domain, unit, number) for (domain, unit), number in pods.items()))
        out.append(Tie(one.interaction, tuple(leaving)))
    return tuple(out)


@dataclass(frozen=True, eq=False)
class _ChoiceReader:
    """Reads from the pool the capacity and the cost of units, for one preemptor set.

    devices: columns of the problem with free devices. selectors: values of network-topology-selector of the preemptor's
    pods; running pods with one of these values attract the preemptor.
    """

    pool: Pool
    round_state: RoundState
    devices: DeviceColumns
    selectors: Collection[str]

    def unit(self, i: int) -> UnitFigures:
        """Returns the numbers of unit `i` of the pool, with its devices and the pods that attract the preemptor."""
        pool = self.pool
        known = self._with_devices(i, pool.figures_of(i))
        if not self.selectors:
            return known
        attracts: dict[int, int] = {}
        for pod in pool.units[i].pods:
            node = self.round_state.snapshot.index.get(pod.node)
            if pod.selector in self.selectors and node is not None:
                attracts[node] = attracts.get(node, 0) + 1
        return replace(known, attracts=tuple(sorted(attracts.items()))) if attracts else known

    def _with_devices(self, i: int, known: UnitFigures) -> UnitFigures:
        """Returns the numbers of unit `i` with the devices that it frees, also on nodes without pods of the unit."""
        held: dict[int, dict[int, int]] = {}
        for node, column, amount in device_relief(self.pool, i, self.devices, self.round_state):
            here = held.setdefault(node, {})
            here[column] = here.get(column, 0) + amount
        if not held:
            return known
        frees = dict(known.frees)
        for node, here in held.items():
            frees[node] = (*frees.get(node, ()), *here.items())
        return replace(known, frees=tuple(frees.items()))


def _gangs(
    pool: Pool, round_state: RoundState, number: Mapping[int, int], of: Mapping[int, list[int]]
) -> tuple[list[Limit], list[Multiple]]:
    """Returns the constraints between units of one gang: surplus or core but not both, and podCountMultiple.

    number: position in the pool -> position in the choice. of: position in the pool -> the unit's options. In the limit
    of a gang, the core has the weight of the maximum number of surplus units, so that core and surplus together exceed
    it.
    """
    tied: list[Limit] = []
    multiples: list[Multiple] = []
    for gang_limits in pool.gang_limits.values():
        for one in gang_limits:
            core = pool.position_of(one.core) if one.core is not None else -1
            surplus = [pool.position_of(unit) for unit in one.surplus]
            terms = [(o, 1) for i in surplus for o in of.get(i, ())]
            whole = [(o, one.most) for o in of.get(core, ())]
            if terms and (whole or len(surplus) > one.most):
                tied.append(Limit((*terms, *whole), most=one.most))
        if any(i in number for one in gang_limits for i in map(pool.position_of, one.surplus)):
            multiples += multiples_of(gang_limits[0].unit, pool, round_state, of)
    return tied, multiples


def multiples_of(unit: Unit, pool: Pool, round_state: RoundState, of: Mapping[int, list[int]]) -> list[Multiple]:
    """Returns podCountMultiple as conditions on the members of a GangGroup that remain, for each domain.

    of: position in the pool -> the unit's options. A domain without evictable surplus members has no condition.
    """
    tree, index = round_state.snapshot.tree, round_state.snapshot.index
    out: list[Multiple] = []
    for level, k in unit_multiples(unit, round_state).items():
        have: dict[int, int] = {}
        terms: dict[int, dict[int, int]] = {}
        lent: set[int] = set()
        for i in pool.group_units(unit.group_id):
            if pool.units[i].kind is UnitKind.CORE:  # evicts all members
                continue
            if pool.units[i].kind is UnitKind.SURPLUS:
                lent.update(of.get(i, ()))
            for pod in pool.units[i].pods:
                if pod.node in index:
                    domain = int(tree.domain_of[level, index[pod.node]])
                    for o in of.get(i, ()):
                        here = terms.setdefault(domain, {})
                        here[o] = here.get(o, 0) + 1
        for member in unit.members:
            if member.node in index and member.key not in round_state.draft.evicted and not terminating(member):
                domain = int(tree.domain_of[level, index[member.node]])
                have[domain] = have.get(domain, 0) + 1
        for domain, here in terms.items():
            if when := tuple(o for o in here if o in lent):
                out.append(Multiple(tuple(here.items()), when, have.get(domain, 0), k))
    return out
