# SPDX-License-Identifier: Apache-2.0
"""A round: plans all pending pods on one snapshot of the cluster, unit by unit in queue order.

The result says which pods are bound where, which pods are evicted, and why other pods stay pending. `plan_round` is a
pure function of snapshot and configuration. It runs a list of actions (`actions`) on one context; `queue` gives the
order of the units.

Main types: `plan_round` (`planning_round.py`): the entry; `RoundContext` (`round_context.py`): a round's state;
`BoundedRound` (`bounded_round.py`): live time limits.

Must not do I/O, read a clock or use randomness. Start reading at `planning_round.py`, then `round_context.py`.
"""
