"""A round: plans units in queue order on one snapshot, then reports why units stay pending.

`plan_round` is a pure function of snapshot and configuration. A round is a list of actions (`actions`) on one context;
`queue` gives the order.

Main types: `plan_round` (`planning_round.py`): the entry; `RoundContext` (`round_context.py`): a round's state;
`BoundedRound` (`bounded_round.py`): live time limits.

Must not do I/O, read a clock or use randomness. Start reading at `planning_round.py`, then `round_context.py`.
"""
