# SPDX-License-Identifier: Apache-2.0
"""Gangs and units: which pods are planned together, which gates block a unit, and constraints between members.

A unit is a plain pod, or a group of gangs that start together. A gate blocks a unit before planning, for example
because members are missing.

Main types: `Unit` (`queue_units.py`) and `Groups` (`queue_units.py`): units of a snapshot; `Gang`
(`gang_settings.py`): settings; `Gate` (`unit_gates.py`): a refusal.

Must not place a unit, and must not know free capacity.
Start reading at `queue_units.py`, then `unit_gates.py`.
"""
