# SPDX-License-Identifier: Apache-2.0
"""Decides if the members that must be placed fit at all, without searching the best placement.

Used for the empty cluster (`never_fits.py`), where only yes or no matters. So goals are left out, each domain that may
contain the unit is tried alone, and a search stops at the first placement. Answers are True, False, or None for "not
decided in time".
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from koordpy.api.quantity import quantity_text
from koordpy.cache.snapshot import Ints
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.gathered_parts import has_parts
from koordpy.gangs.queue_units import Unit
from koordpy.placement.goals import slots_by_level
from koordpy.placement.problem import Problem, hard_regions, only_ranks
from koordpy.plan.limits import (
    EMPTIED_REGIONS,
)
from koordpy.plan.round_plan import Proof
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.placement_methods import can_place, is_hopeless, place_problem
from koordpy.problems.problem_building import partitions


def has_placement(unit: Unit, problem: Problem, round_state: RoundState) -> bool | None:
    """Returns True if a plan can place as many members as each gang needs (at least one pod), False if no plan can.

    None if that is not decided: the time is used up, or more than `EMPTIED_REGIONS` domains may contain the unit.
    """
    if is_hopeless(problem):
        return False
    parts = [part for part in partitions(unit, problem, round_state) if not is_hopeless(part)]
    if problem.multiples:
        return _any(_solved(replace(part, attract=np.zeros_like(part.attract), pipeline=1)) for part in parts)
    regions = [region for part in parts for region in _regions(part) if not is_hopeless(region)]
    found = _any(_within(region) for region in regions[:EMPTIED_REGIONS])
    return None if found is False and len(regions) > EMPTIED_REGIONS else found


def _any(answers: Iterable[bool | None]) -> bool | None:
    """Returns True as soon as an answer is True; else None if any answer is None; else False."""
    sure = True
    for answer in answers:
        if answer:
            return True
        sure = sure and answer is not None
    return False if sure else None


def _solved(problem: Problem) -> bool | None:
    """Returns True, False or None (not decided) for any problem, from a search for the best placement."""
    found = place_problem(problem)
    return True if found.placed else False if found.proof is Proof.INFEASIBLE else None


def _regions(problem: Problem) -> Iterator[Problem]:
    """Yields, for each domain of the hard layer that may contain the unit, the problem limited to it, without goals."""
    for level, domain in hard_regions(problem):
        inside = np.asarray(problem.tree.domain_of[level] == domain, dtype=np.int64)
        shapes = tuple(replace(shape, allowed=shape.allowed * inside) for shape in problem.shapes)
        yield replace(problem, shapes=shapes, hard=0, gather=False, scarce=None, already_used=None)


def _within(problem: Problem) -> bool | None:
    """Returns whether a problem without goals is feasible; None if that is not decided here.

    Tries all pending members, then the core of lowest ranks (or one pod of each shape, if no gang needs any). If these
    do not fit, but other members might, the general search decides.
    """
    proofs = {can_place(_all_of(problem, problem.pending))}
    if Proof.FEASIBLE in proofs:
        return True
    if sum(problem.needs) == len(problem.pending):
        sure = True
    elif any(problem.needs):
        core, sure = _core(problem)
        proofs = {can_place(_all_of(problem, core))}
    else:
        first = {problem.members[rank].shape: rank for rank in reversed(problem.pending)}
        proofs, sure = {can_place(_all_of(problem, [rank])) for rank in first.values()}, not problem.interactions
    if Proof.FEASIBLE in proofs:
        return True
    if not sure:
        return _solved(problem)
    return False if proofs == {Proof.INFEASIBLE} else None


def _all_of(problem: Problem, ranks: Collection[int]) -> Problem:
    """Returns the problem of placing all members of the given ranks and no others."""
    asked = Counter(problem.members[rank].gang for rank in ranks)
    needs = tuple(asked[gang] for gang in range(len(problem.needs)))
    return replace(only_ranks(problem, ranks), needs=needs)


def _core(problem: Problem) -> tuple[list[int], bool]:
    """Returns (ranks of the core, True if this core fits whenever any core fits).

    For each gang, the core has the needed number of members of lowest rank. It is enough to try this core if there are
    no interactions, and in each gang all members are needed or have one shape.
    """
    core, sure = list[int](), not problem.interactions
    for gang, need in enumerate(problem.needs):
        own = [rank for rank in problem.pending if problem.members[rank].gang == gang]
        core += own[:need]
        sure = sure and (need in (0, len(own)) or len({problem.members[rank].shape for rank in own}) == 1)
    return core, sure


def kind_key(unit: Unit) -> Hashable:
    """Returns a key to cache answers: units with equal keys either all fit or all do not fit."""
    if unit.plain is not None:
        return unit.plain.shape, unit.plain.owner
    gangs = tuple((unit.need(gang), gang.wish, gang.hard_keys) for gang in unit.gangs)
    position = {gang.ref: i for i, gang in enumerate(unit.gangs)}
    waiting, standing = Counter[Hashable](), list[Hashable]()
    for pod in unit.members:
        gang = position[pod.gang] if pod.gang is not None else 0
        if pod.pending:
            waiting[gang, pod.shape, pod.owner] += 1
        else:
            standing.append((gang, pod.uid, pod.node))
    own = (unit.id, *(pod.key for pod in unit.members)) if has_parts(unit) else ()
    return own, gangs, tuple(waiting.items()), tuple(standing)


def unit_kinds(unit: Unit) -> Iterable[PodInfo]:
    """Returns one pending pod of each shape."""
    return {pod.shape: pod for pod in reversed(unit.pending)}.values()


def is_numeric(unit: Unit, round_state: RoundState) -> bool:
    """Returns True if the unit's filters depend only on numbers of pods, of resources and of devices."""
    kinds = list(unit_kinds(unit))
    if has_parts(unit) or any(round_state.concerned(pod) or round_state.of(pod).refusal is not None for pod in kinds):
        return False
    rules = [rule for pod in kinds for rule in round_state.of(pod).rules]
    return all(rule.is_number for rule in rules)


def one_kind(problem: Problem) -> bool:
    """Returns True if all shapes fit the same nodes in the same numbers, so that slots of one shape are valid for
    all."""
    first = problem.shapes[0]
    alike = all(one.request == first.request and np.array_equal(one.allowed, first.allowed) for one in problem.shapes)
    return len(problem.shapes) == 1 or (alike and not problem.interactions and not problem.copies_by_rules)


def has_domain(unit: Unit, problem: Problem, round_state: RoundState) -> bool:
    """Returns True if some domain of the hard layer that may contain the unit has enough slots for the core."""
    needed = problem.core_size
    return any(
        int(slots_by_level(part, part.reference())[level][domain]) >= needed
        for part in partitions(unit, problem, round_state)
        for level, domain in hard_regions(part)
    )


def usable_slots(parts: Iterable[Problem], level: int) -> Ints:
    """Returns [domains of the level] the usable slots of the reference shape.

    parts: the problem limited to each value of a topology key (`partitions`). A unit can use only one of these parts,
    so the result is the maximum over them.
    """
    found = [slots_by_level(part, part.reference())[level] for part in parts]
    return np.asarray(np.max(found, axis=0) if found else np.zeros(1), dtype=np.int64)


def least_asked(unit: Unit, asked: Callable[[PodInfo], int]) -> int:
    """Returns a lower bound of the total request of a plan for one resource.

    For each gang, the smallest requests are added up, as many as the gang needs; if no gang needs any, the smallest
    request of one pod. asked: returns the request of a pod.
    """
    if not any(unit.need(gang) for gang in unit.gangs):
        return min(asked(pod) for pod in unit.pending)
    return sum(sum(sorted(asked(pod) for pod in gang.pending)[: unit.need(gang)]) for gang in unit.gangs)


def amount_text(resource: str, amount: int) -> str:
    """Returns text such as `8Gi memory`."""
    return f"{quantity_text(resource, amount)} {resource}"


def members_required(number: int) -> str:
    """Returns text such as `8 are required`."""
    return f"{number} {'is' if number == 1 else 'are'} required"


def required_text(resource: str, amount: int) -> str:
    """Returns text such as `8Gi are required`."""
    text = quantity_text(resource, amount)
    return f"{text} {'is' if text == '1' else 'are'} required"
