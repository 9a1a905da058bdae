# SPDX-License-Identifier: Apache-2.0
"""Turns a unit (gangs or a plain pod) into a placement problem of plain numbers, and chooses the method that solves it.

A problem has shapes, members in rank order, required layers, multiples and attraction. Methods are tried in a fixed
order, the cheapest first: sums, counting, opened places (for members with required affinity to each other), and the
solver. The constraints of the unit decide which methods apply.

Main types: `build` (`problem_building.py`): turns a unit into a problem; `PlacementMethod` (`placement_methods.py`): a
method; `Question` (`unit_placement.py`): the kind of placement that is requested.

Must not pass labels or pods to the methods: a problem is plain numbers. Start reading at `problem_building.py`, then
`placement_methods.py`.
"""
