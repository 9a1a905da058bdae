# SPDX-License-Identifier: Apache-2.0
"""A round: plans all pending pods on one snapshot of the cluster, unit by unit in queue order.

The result (`RoundPlan`) has the node of each pod to bind, the pods to evict, and the reason why other pods stay
pending. `plan_round` is a pure function of snapshot and configuration. It runs a list of actions (`actions`) on one
shared context; `queue` decides the order of the units.

Main types: `plan_round` (`planning_round.py`): the entry; `RoundContext` (`round_context.py`): state of a round;
`BoundedRound` (`bounded_round.py`): limits the planning time of a live round.

Must not do I/O, read a clock or use randomness. Start reading at `planning_round.py`, then `round_context.py`.
"""
