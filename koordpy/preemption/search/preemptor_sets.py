"""Who is asked for: some pending members of a unit that are to be placed together, or not at all.

Source: preemption.md 1: all pending members, then the core; one by one where no core is needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from koordpy.cluster.pods import PodInfo
from koordpy.planning.figures import Figures
from koordpy.planning.jobs.ascend.relief import whole_blocks
from koordpy.planning.placement.goals import core_of
from koordpy.planning.placement.problem import Problem
from koordpy.planning.units import Unit


@dataclass(frozen=True, eq=False)
class Asked:
    """Some pending members of a unit. problem: with just these pending. devices: the column of its GPUs, if any."""

    unit: Unit
    problem: Problem
    pods: tuple[PodInfo, ...]
    devices: int | None = None


def one_by_one(unit: Unit) -> bool:
    """Whether its core is bound, or it has none, so that each further member asks for itself."""
    if unit.plain is None and not unit.is_gang:
        return True  # a group of GPUs outside any gang: victims are looked for member by member (preemption.md 1)
    if unit.plain is not None or not unit.bound_any or any(unit.need(gang) for gang in unit.gangs):
        return False
    return all(len(gang.standing) + gang.succeeded >= gang.min_member for gang in unit.gangs)


def beneficiaries(unit: Unit, problem: Problem, figures: Figures) -> Iterator[tuple[int, ...]]:
    """Ranks that are to be placed together: all, then the core; one by one where no core is needed."""
    pending = problem.pending
    core = core_of(problem, pending)
    if core is None or not pending:
        return
    if one_by_one(unit):
        for rank in pending:
            yield (rank,)
        return
    if not _parted(unit, pending, figures):
        yield pending
    least = whole_blocks(unit, core or pending[:1], figures)
    if least is not None and least != pending and not _parted(unit, least, figures):
        yield least


def _parted(unit: Unit, ranks: Sequence[int], figures: Figures) -> bool:
    """Whether no room is enough for all of them: they use a claim that one pod alone may use."""
    pods = [unit.members[rank] for rank in ranks]
    gang = next((pod.gang for pod in pods if pod.gang is not None and figures.concerned(pod)), None)
    return gang is not None and figures.among(gang).parted([pod.shape for pod in pods])
