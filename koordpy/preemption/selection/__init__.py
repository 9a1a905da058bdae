"""The choice of victim units as plain numbers: offers per node, bounds, counting, CP-SAT, and the reprieve.

Harm is lexicographic, in cost levels 1 to 9. Covers of one node are a knapsack by dynamic programming.

Main types: `VictimUnit` (`victim_units.py`): pods evicted together; `Choices` (`victim_choice.py`): a problem;
`NodeCovers` (`node_covers.py`): covers of one node.

Must not know filters: a choice is tried on the draft by `search`.
Start reading at `victim_choice.py`, then `victim_units.py`.
"""
