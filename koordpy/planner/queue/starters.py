# SPDX-License-Identifier: Apache-2.0
"""A dry run of the queue: finds the pending pods that would start on the current draft, on free capacity alone.

`give_back_overuse` uses it to find out if an eviction helps any pod. The draft is the same afterwards.
"""

from collections.abc import Hashable

from koordpy.attempts.unit_attempt import equivalence_class, plan_unit
from koordpy.attempts.unit_outcome import BoundUnit, PreemptingUnit, WaitingUnit
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.unit_gates import Gate
from koordpy.planner.queue.unit_order import UnitOrder


def starters(round_state: RoundState) -> frozenset[str]:
    """Returns the keys of the pods that would be placed.

    Once a unit fails, other units of its equivalence class are skipped.
    """
    draft, snapshot = round_state.draft, round_state.snapshot
    pods, fairness = snapshot.pods.values(), round_state.config.fairness
    queue = UnitOrder(round_state.groups.units(), use=draft.quotas, pods=pods, config=fairness, now=snapshot.now)
    found: set[str] = set()
    failed: set[Hashable] = set()
    with draft.trial():
        for unit in queue:
            key = equivalence_class(unit, round_state)
            if key is not None and key in failed:
                continue
            outcome = plan_unit(unit, round_state)
            match outcome:
                case BoundUnit(nodes=nodes) | PreemptingUnit(nodes=nodes):
                    found.update(nodes)
                    queue.placed()
                case WaitingUnit(diagnosis=Gate()):
                    pass
                case _:
                    failed.add(key)
    return frozenset(found)
