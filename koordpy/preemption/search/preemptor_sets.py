# SPDX-License-Identifier: Apache-2.0
"""Preemptor sets: the groups of pending members for which one search looks for victims (docs/rules/preemption.md 1).

The members of a set are placed together, or no pod is evicted for them. First the set of all pending members is tried,
then the core: the members that the unit needs to start. If the core already runs, each pending member is a set by
itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from koordpy.devices.rule_registry import grow_set
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.placement.goals import core_of
from koordpy.placement.problem import Problem
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.search.device_columns import DeviceColumns


@dataclass(frozen=True, eq=False)
class PreemptorSet:
    """Pending members of a unit for which one search looks for victims."""

    unit: Unit
    problem: Problem
    """The placement problem of the unit. Only the members of the set are pending in it."""
    pods: tuple[PodInfo, ...]
    """The members of the set."""
    devices: DeviceColumns = field(default_factory=DeviceColumns)
    """The columns of `problem.free` with free devices."""


def members_preempt_individually(unit: Unit) -> bool:
    """Returns True if each pending member preempts by itself: the core of the unit is bound, or the unit has no
    core."""
    if unit.plain is None and not unit.is_gang:
        return True  # pods that share GPUs but are in no gang: victims are searched for each of them (preemption.md 1)
    if unit.plain is not None or not unit.bound_any or any(unit.need(gang) for gang in unit.gangs):
        return False
    return all(len(gang.live) + gang.succeeded >= gang.min_member for gang in unit.gangs)


def preemptor_sets(unit: Unit, problem: Problem, round_state: RoundState) -> Iterator[tuple[int, ...]]:
    """Yields the sets as ranks of members: all pending members, then the core; if no core is needed, each rank alone.

    If the rules of a device family require members to start together, such as the pods of one block of nodes, these
    members stay in one set. A set is left out if its members cannot run together, because they need the same exclusive
    claim.
    """
    pending = problem.pending
    core = core_of(problem, pending)
    if core is None or not pending:
        return
    if members_preempt_individually(unit):
        left = list(pending)
        while left:
            ranks = grow_set(unit, left[:1], left, round_state) or (left[0],)
            yield ranks
            left = [rank for rank in left if rank not in ranks]
        return
    if not _conflict_on_claim(unit, pending, round_state):
        yield pending
    least = grow_set(unit, core or pending[:1], pending, round_state)
    if least is not None and least != pending and not _conflict_on_claim(unit, least, round_state):
        yield least


def _conflict_on_claim(unit: Unit, ranks: Sequence[int], round_state: RoundState) -> bool:
    """Returns True if the given members can never run together, because they use the same claim and only one pod may
    use it."""
    pods = [unit.members[rank] for rank in ranks]
    gang = next((pod.gang for pod in pods if pod.gang is not None and round_state.concerned(pod)), None)
    return gang is not None and round_state.member_constraints(gang).are_exclusive([pod.shape for pod in pods])
