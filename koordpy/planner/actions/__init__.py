"""The actions of a round: one module each, registered in order in one tuple.

An action is a function of the round's context, with a condition under which it has work. The main action tries each
unit in queue order; other actions release, lend or retry.

Main types: `Action` (`action_registry.py`): a step; `allocate` (`allocate.py`): the main action; `lend_runtimes`
(`lend_runtimes.py`): the second turn of units that a runtime refused.

Must not plan a unit itself: an action calls `RoundContext`. Start reading at `action_registry.py`, then `allocate.py`.
"""
