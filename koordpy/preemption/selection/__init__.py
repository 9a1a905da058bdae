# SPDX-License-Identifier: Apache-2.0
"""Chooses the least harmful set of victims as plain numbers: by bounds, counting, CP-SAT, or a greedy choice.

Harm is compared lexicographically, in the cost levels 1 to 9 of docs/rules/preemption.md 5. A cover of a node is a set
of its victims that frees given amounts; the cheapest one is a knapsack by dynamic programming.

Main types: `VictimUnit` (`victim_units.py`): pods evicted together; `Choices` (`victim_choice.py`): the problem;
`NodeCovers` (`node_covers.py`): covers of one node.

Must not know filters: a choice is tried on the draft by `search`.
Start reading at `victim_choice.py`, then `victim_units.py`.
"""
