# SPDX-License-Identifier: Apache-2.0
"""Tries units again that a quota's runtime refused, this time without unusable demand of other quotas.

The demand of a pending unit raises the runtime of its quota, and so reserves quota for the unit. Without a second
attempt, two units that each request more than the other leaves would block each other even in an empty cluster. A unit
that fits no node, or that waits for a full node pool, would reserve quota that it cannot use. So at the end of a round,
each unit that a runtime refused is tried again, in queue order:

- First, runtimes are computed without unsatisfiable demand of other quotas.
- If a runtime still refuses the unit, the demand of some other units is also left out: units that cannot use every node
  that this unit could use. Then the unit may not use capacity that these other units can use.

The unit gets free capacity only: no pod is evicted for it. Koordinator has no such step: it leaves the unit pending.
"""

from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

from koordpy.attempts.unit_attempt import equivalence_class
from koordpy.attempts.unit_outcome import (
    DeferredUnit,
    PlacedUnit,
    PreemptingUnit,
    UnitOutcome,
    WaitingUnit,
    is_refused_by_runtime,
)
from koordpy.cache.reservations import ClosedTo, withheld
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.infeasibility.unsatisfiable_demand import Reaches, demand_without, units_that_cannot_start
from koordpy.planner.round_context import RoundContext
from koordpy.reservations.capacity_view import QuotaDemand, View


def lend_runtimes(context: RoundContext) -> None:
    """Tries the units that a runtime refused again, in the order of their first attempts.

    Also runs after the planning time is used up, because a unit refused in this round is not tried in the next round.
    """
    # a unit that got capacity has no demand any more. Quotas with pods that start later must not be lent from
    outcomes, round_state = context.outcomes, context.round_state
    second = [one for one in outcomes if is_refused_by_runtime(one)]
    served = [one for one in outcomes if isinstance(one, PlacedUnit) or (isinstance(one, WaitingUnit) and one.awaits)]
    got = {one.unit.id for one in served}
    loans = _Loans([unit for unit in round_state.groups.units() if unit.id not in got], context)
    promised = _quotas_of_later_starts(outcomes, round_state)
    failed: set[Hashable] = set()
    done: dict[str, UnitOutcome] = {}
    for one in second:
        unit, key = one.unit, equivalence_class(one.unit, round_state)
        for policy in context.policies if key is not None else ():
            key = policy.extend_key(unit, key)
        if key is not None and key in failed:
            continue
        refusals = round_state.admission.core_refusals(unit, round_state.draft.quotas)
        if not promised.isdisjoint(refusal.quota for refusal in refusals):
            continue  # once the promised pods start, usage would exceed the runtime, and pods would be evicted again
        outcome = loans.attempt(unit)
        if isinstance(outcome, PlacedUnit | DeferredUnit):
            done[unit.id] = outcome
        else:
            failed.add(key)
    if done:
        outcomes[:] = [*(one for one in outcomes if one.unit.id not in done), *done.values()]


def _quotas_of_later_starts(outcomes: list[UnitOutcome], round_state: RoundState) -> frozenset[str]:
    """Returns the quotas, with their ancestors, of pods that will start in a later round on freed or reserved capacity.

    These pods are preemptors with victims in this round, and nominated pods.
    """
    pods, draft, quotas = round_state.snapshot.pods, round_state.draft, round_state.snapshot.quotas
    keys = {key for one in outcomes if isinstance(one, PreemptingUnit) for key in one.nodes}
    keys |= {key for key in round_state.reservations.feasible if key not in draft.placed}
    return frozenset(name for key in keys for name in quotas.tree.path(quotas.quota_of(pods[key])))


class _Loans:
    """The second attempts of a round, and the demand that is left out in them."""

    def __init__(self, waiting: list[Unit], context: RoundContext) -> None:
        """waiting: pending units without capacity."""
        round_state = context.round_state
        self._round_state, self._reaches = round_state, Reaches(round_state)
        self._attempt = context.attempt_in_free_capacity
        self._unsatisfiable = {unit.id: unit for unit in units_that_cannot_start(waiting, round_state)}
        """Id -> unit that cannot start whatever other units do, so that its demand must not reserve quota."""
        quotas = round_state.snapshot.quotas
        self._satisfiable = {
            unit.id: (unit, frozenset(name for pod in unit.pending for name in quotas.tree.path(quotas.quota_of(pod))))
            for unit in waiting
            if unit.id not in self._unsatisfiable
        }
        """Id -> (unit, its quotas with their ancestors) of the other pending units."""
        self._demands: dict[Hashable, QuotaDemand] = {}

    def attempt(self, unit: Unit) -> UnitOutcome:
        """Tries a unit without unsatisfiable demand of other quotas.

        If a runtime still refuses the unit, it is tried again on only the capacity that the ignored units could not
        use.
        """
        round_state, quotas = self._round_state, self._round_state.snapshot.quotas
        own = frozenset(quotas.quota_of(pod) for pod in unit.pending)
        outcome = self._attempt(unit, self._state_without(own, []))
        if is_refused_by_runtime(outcome) and (apart := self._units_elsewhere(unit, own)):
            lent = self._state_without(own, apart)
            if lent.admission.refusal(unit, round_state.draft.quotas) is None:
                usable = _usable_capacity(apart, round_state)
                with round_state.draft.with_withheld(withheld("units of other quotas", ClosedTo.BEHIND, usable)):
                    outcome = self._attempt(unit, lent)
        if isinstance(outcome, PlacedUnit):
            self._unsatisfiable.pop(unit.id, None)
            self._satisfiable.pop(unit.id, None)
            self._demands.clear()
        return outcome

    def _units_elsewhere(self, unit: Unit, own: frozenset[str]) -> list[Unit]:
        """Returns the units of other quotas that cannot use at least one of the nodes that this unit could use."""
        reach = self._reaches.of(unit)
        others = [other for other, paths in self._satisfiable.values() if not paths & own]
        return [other for other in others if (reach & ~self._reaches.of(other)).any()]

    def _state_without(self, own: frozenset[str], apart: list[Unit]) -> RoundState:
        """Returns the round state with runtimes computed without demand of unsatisfiable units and of the units
        `apart`.

        Demand in the quotas `own` still counts.
        """
        key = own, frozenset(unit.id for unit in apart)
        if key not in self._demands:
            quotas = self._round_state.snapshot.quotas
            self._demands[key] = demand_without([*self._unsatisfiable.values(), *apart], quotas, own)
        return self._round_state.of_view(View(demand=self._demands[key]))


def _usable_capacity(units: Iterable[Unit], round_state: RoundState) -> NDArray[np.int64]:
    """Returns [nodes, columns]: free capacity on nodes that pending pods of the units could use.

    A pod could use a node if labels, taints and size allow it, now or once other pods are gone.
    """
    draft, columns = round_state.draft, round_state.snapshot.columns
    free, amounts = draft.free(), np.zeros_like(draft.used)
    for pod in {pod.shape: pod for unit in units for pod, _ in unit.kinds}.values():
        able = round_state.could_hold(pod)
        for name, amount in pod.requests.items():
            if amount and not round_state.ignored(name):
                column = columns[name]
                amounts[able, column] = np.maximum(free[able, column], 0)
    return amounts
