# SPDX-License-Identifier: Apache-2.0
"""Reserved capacity in a round: how much of the free capacity is available to a unit, on nodes and in quotas.

Capacity is reserved for nominated pods while their victims terminate, and for units at the head of the queue. The
available capacity of a unit is the free capacity less the reservations of other holders that are closed to the unit.

Main types: `ReservationLedger` (`reservation_ledger.py`): all reservations of a round; `AvailableCapacity`
(`available_capacity.py`): reservations on nodes that one unit must respect; `View` (`capacity_view.py`): what counts as
used.

Must not decide which unit gets a reservation: the queue and the preemption pipeline do. Start reading at
`reservation_ledger.py`, then `available_capacity.py`.
"""
