# SPDX-License-Identifier: Apache-2.0
"""Tries followers again: plain pods that failed, although a pod placed after them may satisfy their affinity or spread.

Example: a pod that requires a database pod near it comes before the database pod in the queue.
"""

from koordpy.attempts.unit_outcome import PlacedUnit
from koordpy.planner.round_context import RoundContext


def retry_followers(context: RoundContext) -> None:
    """Tries each follower that fits some node now, and repeats until a pass places none, because one may help
    another."""
    round_state, outcomes = context.round_state, context.outcomes
    has_placed = True
    while has_placed:
        has_placed = False
        for position in list(context.followers):
            unit = outcomes[position].unit
            if unit.plain is None or not round_state.of(unit.plain).slots.any():
                continue
            context.followers.remove(position)
            outcomes[position] = context.attempt(unit)
            has_placed |= isinstance(outcomes[position], PlacedUnit)
