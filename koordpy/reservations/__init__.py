# SPDX-License-Identifier: Apache-2.0
"""Reserved capacity in a round: how much of the free capacity is available to a unit, on nodes and in quotas.

Capacity is reserved for nominated pods while their victims terminate, and for units at the head of the queue. What is
available to a unit is the free capacity less the reservations of other holders that are closed to the unit.

Main types: `ReservationLedger` (`reservation_ledger.py`): reservations; `AvailableCapacity` (`available_capacity.py`):
nodes; `View` (`capacity_view.py`): a unit's view.

Must not decide which unit gets a reservation: the queue and the preemption pipeline do. Start reading at
`reservation_ledger.py`, then `available_capacity.py`.
"""
