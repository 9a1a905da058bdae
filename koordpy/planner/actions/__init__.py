# SPDX-License-Identifier: Apache-2.0
"""The actions of a round: the steps that a round runs one after the other (`ACTIONS`), one module each.

An action is a function of the round's context, with an optional test whether it has work. The main action, `allocate`,
tries each unit in queue order; when broken gangs have had their turns, it moves gangs that have lost members (`repair`)
and hurt members (`move_hurt_members`). Before it, quotas give back usage above their runtime. After it, some units are
tried again, and stale gangs are evicted.

Main types: `Action` (`action_registry.py`): one step; `allocate` (`allocate.py`): the main action; `lend_runtimes`
(`lend_runtimes.py`): tries units again that a runtime refused.

Must not plan a unit itself: an action calls methods of `RoundContext`. Start reading at `action_registry.py`, then
`allocate.py`.
"""
