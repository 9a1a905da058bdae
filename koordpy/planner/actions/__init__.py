# SPDX-License-Identifier: Apache-2.0
"""The actions of a round, its steps: one module each, registered in order in one tuple (`ACTIONS`).

An action is a function of the round's context, with a condition under which it has work. The main action, `allocate`,
tries each unit in queue order. Before it, quotas give back what they use above their runtime. After it, some units are
tried again, and gangs that have lost members are evicted.

Main types: `Action` (`action_registry.py`): a step; `allocate` (`allocate.py`): the main action; `lend_runtimes`
(`lend_runtimes.py`): the second turn of units that a runtime refused.

Must not plan a unit itself: an action calls `RoundContext`. Start reading at `action_registry.py`, then `allocate.py`.
"""
