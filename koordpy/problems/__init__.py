"""Builds the placement problem of a unit, and chooses the method that solves it.

A problem has shapes, members in rank order, hard layers, multiples and attraction. A method applies by size and by the
kinds of constraints: sums, counting, opened places, the solver.

Main types: `Question` (`unit_placement.py`): a unit's problem and limits; `PlacementMethod` (`placement_methods.py`): a
method; `build` (`problem_building.py`): a unit as a problem.

Must not pass labels or pods to the methods: a problem is plain numbers. Start reading at `problem_building.py`, then
`placement_methods.py`.
"""
