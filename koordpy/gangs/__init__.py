# SPDX-License-Identifier: Apache-2.0
"""Reads gangs and units: which pods are planned together, which gates block a unit, and constraints between members.

A unit is a plain pod, or all gangs of a GangGroup, which start together. A gate blocks a unit before planning, for
example because members are missing.

Main types: `Unit` (`queue_units.py`) and `Groups` (`queue_units.py`): units of a snapshot; `Gang`
(`gang_settings.py`): a gang with its settings; `Gate` (`unit_gates.py`): the reason that blocks a unit.

Must not place a unit, and must not know free capacity.
Start reading at `queue_units.py`, then `unit_gates.py`.
"""
