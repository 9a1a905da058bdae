"""How long the rounds and searches of the live scheduler plan (`plan/planning_budget.py`)."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.plan.planning_budget import PlanningBudget


@dataclass(slots=True)
class RoundDeadline:
    """When an ordinary round ends because other pods were created. Called in the planner's thread, too."""

    queue: UnitQueue
    clock: Callable[[], float]
    began: float
    least_seconds: float
    """Seconds that pods which are created meanwhile wait for the round at least."""
    first: float = inf
    """When the first unit was tried."""

    def begin(self) -> None:
        """The first unit is tried."""
        self.first = self.clock()

    def part(self) -> float:
        """Seconds that the round may plan while others wait: as long as it took to begin, at least. Else a stream of
        pods would leave time for nothing but snapshots."""
        return max(self.least_seconds, self.first - self.began)

    def has_passed(self) -> bool:
        """Returns True if pods were created since the round began, and it has planned for its part."""
        return self.queue.last_added > self.began and self.clock() - self.first >= self.part()


def round_budget(
    queue: UnitQueue, settings: EngineSettings, clock: Callable[[], float], *, gives_back: bool
) -> PlanningBudget:
    """Returns the budget of an ordinary round that begins now. gives_back: whether quotas give back in it."""
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
    """Returns the budget of a search that begins now."""
    until = clock() + settings.config.planning.round_seconds
    return PlanningBudget(searches=True, ends=lambda: clock() >= until, gives_back=False, clock=clock)
