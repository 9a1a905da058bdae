# SPDX-License-Identifier: Apache-2.0
"""The actions of a round, in the order in which they run."""

from collections.abc import Callable
from typing import NamedTuple

from koordpy.planner.actions.allocate import allocate
from koordpy.planner.actions.give_back_overuse import give_back_overuse
from koordpy.planner.actions.lend_runtimes import lend_runtimes
from koordpy.planner.actions.release_stale_gangs import release_stale_gangs
from koordpy.planner.actions.retry_followers import retry_followers
from koordpy.planner.round_context import RoundContext


class Action(NamedTuple):
    """One step of a round."""

    run: Callable[[RoundContext], None]
    """Runs the step on the context."""
    applies: Callable[[RoundContext], bool] | None = None
    """Returns False if the action has nothing to do in a round. None for an action that runs in every round."""


ACTIONS: tuple[Action, ...] = (
    Action(give_back_overuse, RoundContext.has_overuse_check),
    Action(allocate),
    Action(retry_followers, RoundContext.has_followers),
    Action(lend_runtimes, RoundContext.has_loans),
    Action(release_stale_gangs, RoundContext.has_bound_gangs),
)
