# SPDX-License-Identifier: Apache-2.0
"""Preemption for a unit with a broken gang: a gang that runs with fewer members than it needs (repair.md 4.2 and 4.3).

For such a unit a plan with victims must place all missing members; otherwise no pod is evicted. If the gang's repair
policy is `wait`, it may use free capacity only. All other units preempt as usual.
"""

from dataclasses import replace

from koordpy.attempts.preemption_pipeline import preempt
from koordpy.attempts.unit_outcome import UnitOutcome, WaitingUnit
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.broken_gangs import is_broken, only_waits, with_whole_needs
from koordpy.gangs.queue_units import Unit
from koordpy.preemption.search.preemption_search import PreemptionSearch


def preempt_or_repair(refused: WaitingUnit, now: RoundState, search: PreemptionSearch) -> UnitOutcome:
    """Returns the outcome of a unit that found no capacity: with victims, or waiting with the reason.

    Gangs that are not broken are left to `preempt`, which takes the same arguments.
    """
    unit = refused.unit
    if not (unit.bound_any and is_broken(unit.gangs)):
        return preempt(refused, now, search)
    if only_waits(unit.gangs, now.snapshot, now.config.repair):
        return refused
    gangs = with_whole_needs(unit.gangs)
    if gangs is None:
        return refused
    asking = replace(refused, attempt=replace(refused.attempt, unit=Unit(id=unit.id, gangs=gangs)))
    found = preempt(asking, now, search)
    return replace(found, attempt=replace(found.attempt, unit=unit))
