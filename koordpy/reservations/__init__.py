"""Reserved capacity in a round: one ledger computes the capacity that is available to a unit, on nodes and in quotas.

Nominations, policies of the queue and units in progress reserve capacity. Available capacity is free capacity less the
reservations of other holders.

Main types: `ReservationLedger` (`reservation_ledger.py`): reservations; `AvailableCapacity` (`available_capacity.py`):
nodes; `View` (`capacity_view.py`): a unit's view.

Must not decide which unit gets a reservation: the queue and the preemption pipeline do. Start reading at
`reservation_ledger.py`, then `available_capacity.py`.
"""
