# SPDX-License-Identifier: Apache-2.0
"""Limits the planning time of rounds and searches: new pods end an ordinary round early, but not a search.

The planner gets the limits as a `PlanningBudget` (`plan/planning_budget.py`), and checks them between two units.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.plan.planning_budget import PlanningBudget


@dataclass(slots=True)
class RoundDeadline:
    """Decides when an ordinary round ends because pods were created.

    The planner calls it in its own thread, while the event loop changes `queue.last_added`.
    """

    queue: UnitQueue
    clock: Callable[[], float]
    began: float
    """Clock time at which the round began."""
    least_seconds: float
    """Seconds that the round may plan at least, even if pods are created."""
    first: float = inf
    """Clock time at which the planner began with the first unit; infinite before."""

    def begin(self) -> None:
        """Records that the first unit is tried now."""
        self.first = self.clock()

    def part(self) -> float:
        """Returns the seconds that the round may plan while new pods wait.

        They are at least as many as passed between the start of the round and its first unit, which is the time for the
        snapshot. Otherwise, while pods are created all the time, most of the time would be spent on snapshots.
        """
        return max(self.least_seconds, self.first - self.began)

    def has_passed(self) -> bool:
        """Returns True if pods were created since the round began, and the round has planned for `part()` seconds."""
        return self.queue.last_added > self.began and self.clock() - self.first >= self.part()


def round_budget(
    queue: UnitQueue, settings: EngineSettings, clock: Callable[[], float], *, gives_back: bool
) -> PlanningBudget:
    """Returns the budget of an ordinary round that begins now. gives_back: True if pods of quotas above their runtime
    are evicted in it."""
    deadline = RoundDeadline(queue, clock, clock(), settings.newcomer_seconds)
    return PlanningBudget(
        searches=False,
        ends=deadline.has_passed,
        begins=deadline.begin,
        gives_back=gives_back,
        clock=clock,
        shared=deadline.part,
        came=lambda: queue.came,
    )


def search_budget(settings: EngineSettings, clock: Callable[[], float]) -> PlanningBudget:
    """Returns the budget of a search that begins now: `planning.roundSeconds`, whether or not pods are created."""
    until = clock() + settings.config.planning.round_seconds
    return PlanningBudget(searches=True, ends=lambda: clock() >= until, gives_back=False, clock=clock)
