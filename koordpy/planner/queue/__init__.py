"""The queue of a round: the order of units, starving units, backfill, and the rank of a waiting unit.

Units are ordered by priority and by the fairness of their queue. Policies may reserve capacity for the head of the
queue.

Main types: `UnitOrder` (`unit_order.py`): the order; `StarvationGuard` (`starvation.py`): starving units; `Backfill`
(`backfill.py`): reservations with an end.

Must not place a unit or choose victims. Start reading at `unit_order.py`, then `queue_policy.py`.
"""
