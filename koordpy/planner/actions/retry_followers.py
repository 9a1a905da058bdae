# SPDX-License-Identifier: Apache-2.0
"""Tries followers again: plain pods that did not fit, but with affinity or spread that a later placement may satisfy.

Example: a pod that requires a database pod near it is tried before the database pod.
"""

from koordpy.attempts.unit_outcome import PlacedUnit
from koordpy.planner.round_context import RoundContext


def retry_followers(context: RoundContext) -> None:
    """Tries each follower that fits some node now.

    Repeats this until a pass places none, because a follower may help another.
    """
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
