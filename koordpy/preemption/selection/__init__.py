# SPDX-License-Identifier: Apache-2.0
"""Chooses the least harmful set of victims as plain numbers: by bounds, counting, CP-SAT, or a greedy choice.

Harm is compared lexicographically, in the cost levels 1 to 9 of docs/rules/preemption.md 5. A cover of a node is a set
of victims on it that frees given amounts there. The cheapest cover is found by dynamic programming (a knapsack).

Main types: `VictimUnit` (`victim_units.py`): pods that are evicted together; `Choices` (`victim_choice.py`): the choice
of victims as a problem in numbers; `NodeCovers` (`node_covers.py`): the cheapest covers of one node.

Must not know filters: `preemption/search` tries each chosen set on the draft.
Start reading at `victim_choice.py`, then `victim_units.py`.
"""
