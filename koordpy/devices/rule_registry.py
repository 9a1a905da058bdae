# SPDX-License-Identifier: Apache-2.0
"""The registry of device families with placement rules for whole jobs, and functions that call these families.

A function about a unit calls the families to which a pending pod of the unit has a device request. If only one result
is possible, the first family that returns one decides. For a unit without such pods, a function costs one check for
each kind of pods. round_state: the round's draft, filters and scores.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from koordpy.devices.ascend.jobs.npu_placement import NpuPlacement
from koordpy.devices.placement_rules import JobPlacement, JobPlan, PlaceConditions, ShownScores
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate
from koordpy.placement.problem import Problem
from koordpy.pods.family_books import AllocatedDevices
from koordpy.pods.pod_info import PodInfo

JOB_PLACEMENTS: tuple[JobPlacement, ...] = (NpuPlacement(),)
"""The families with placement rules, in the order in which they are asked."""


def asked_of(pods: Iterable[PodInfo]) -> Iterator[JobPlacement]:
    """Yields the families with placement rules to which at least one of the pods has a device request."""
    asked = {family for pod in pods for family in pod.asks}
    return (one for one in JOB_PLACEMENTS if one.family in asked) if asked else iter(())


def asked_by(unit: Unit) -> Iterator[JobPlacement]:
    """Yields the families with placement rules to which a pending pod of a unit has a device request."""
    return asked_of(pod for pod, _ in unit.kinds)


def device_gate(unit: Unit, round_state: RoundState) -> Gate | None:
    """Returns the first reason of a family why no pod of a unit may be tried; None for no reason."""
    return next((held for one in asked_by(unit) if (held := one.gate(unit, round_state)) is not None), None)


def placement_of(pod: PodInfo) -> JobPlacement | None:
    """Returns the family that chooses the node of a plain pod; None if scores choose it."""
    return next(asked_of((pod,)), None)


def rules_decide(unit: Unit, round_state: RoundState) -> bool:
    """Returns whether the rules of a family, not the goals of the general planner, decide where members are placed."""
    return any(one.decides(unit, round_state) for one in asked_by(unit))


def place_by_rules(unit: Unit, round_state: RoundState) -> JobPlan | None:
    """Returns the first family's placement of a unit; None if the general planner places it."""
    return next((plan for one in asked_by(unit) if (plan := one.place(unit, round_state)) is not None), None)


def place_members(unit: Unit, wanted: Collection[str], round_state: RoundState) -> JobPlan | None:
    """Returns the first family's placement of exactly the wanted members; None if the general planner places them."""
    plans = (one.place_members(unit, wanted, round_state) for one in asked_by(unit))
    return next((plan for plan in plans if plan is not None), None)


def hold_returns(unit: Unit, returns: Mapping[str, int], round_state: RoundState) -> None:
    """Reserves nodes on the draft for evicted members of a unit (pod key -> node), by the family that moves them."""
    if returns:
        next(one for one in asked_by(unit) if one.decides(unit, round_state)).hold_returns(returns, round_state)


def add_demands(unit: Unit, problem: Problem, round_state: RoundState) -> Problem:
    """Returns the problem with the additional resources that the rules of all families require of nodes."""
    for one in asked_by(unit):
        problem = one.add_demands(unit, problem, round_state)
    return problem


def place_conditions(unit: Unit, round_state: RoundState) -> PlaceConditions:
    """Returns the conditions of all families on the nodes of a unit, for the victim model.

    The lots of all families are joined. The sets `one_of` of the first family that has some apply.
    """
    found = [one.place_conditions(unit, round_state) for one in asked_by(unit)]
    one_of = next((each.one_of for each in found if each.one_of), ())
    return PlaceConditions(tuple(lot for each in found for lot in each.lots), one_of)


def grow_set(
    unit: Unit, ranks: Sequence[int], candidates: Collection[int], round_state: RoundState
) -> tuple[int, ...] | None:
    """Returns ranks plus the candidates that must be placed together with them; None if there are too few candidates.

    Each family adds to the result of the previous family.
    """
    grown = tuple(sorted(ranks))
    for one in asked_by(unit):
        more = one.grow_set(unit, grown, candidates, round_state)
        if more is None:
            return None
        grown = more
    return grown


def is_monotone(unit: Unit, round_state: RoundState) -> bool:
    """Returns whether, by the rules of all families, evicting more pods never makes a feasible placement infeasible."""
    return all(one.is_monotone(unit, round_state) for one in asked_by(unit))


def place_returning(
    returning: Sequence[PodInfo], round_state: RoundState
) -> Iterator[tuple[list[PodInfo], Mapping[str, int]]]:
    """Yields (pods of a job, pod key -> node) for each moved job that a family places; no nodes if the job does not
    fit."""
    for one in asked_of(returning):
        yield from one.place_returning(returning, round_state)


def deal_returning(
    places: Sequence[tuple[PodInfo, int]], round_state: RoundState
) -> Mapping[str, AllocatedDevices] | None:
    """Returns pod key -> family -> allocation of moved pods on their nodes.

    A family that allocates only once the pods are pending again adds nothing. None if the devices of a node are not
    enough for its pods.
    """
    given: dict[str, dict[str, Any]] = {}
    for one in asked_of(pod for pod, _ in places):
        dealt = one.deal_returning(places, round_state)
        if dealt is None:
            return None
        for key, own in dealt.items():
            given.setdefault(key, {})[one.family] = own
    return given


def shown_scores(pod: PodInfo, unit: Unit, round_state: RoundState) -> Iterator[ShownScores]:
    """Yields the scores of nodes that families show in `koordpy explain` for a pod of a unit."""
    for one in asked_of((pod,)):
        shown = one.shown_scores(pod, unit, round_state)
        if shown is not None:
            yield shown
