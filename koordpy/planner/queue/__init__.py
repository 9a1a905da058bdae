# SPDX-License-Identifier: Apache-2.0
"""The queue of a round: in which order pending units are tried, and for which of them capacity is reserved.

Queues of users or ElasticQuotas take turns by fair share; within a queue, units are ordered by priority. Two policies
reserve capacity for a unit that would otherwise never start: the starvation guard, and backfill.

Main types: `UnitOrder` (`unit_order.py`): the order; `StarvationGuard` (`starvation.py`): starving units; `Backfill`
(`backfill.py`): reservations with an end.

Must not place a unit or choose victims. Start reading at `unit_order.py`, then `queue_policy.py`.
"""
