# SPDX-License-Identifier: Apache-2.0
"""Carries out plans with victims: writes nominations first, then evicts the victims.

Nominations reserve the capacity until a later round binds the preemptors. If one eviction is refused, the rest of the
plan is dropped. `timed_rounds.py` starts rounds that no pending unit asks for: for stale and broken gangs, and for
quotas above their runtime.

Main types: `Evictor` (`evictor.py`): eviction plans; `EvictionCalls` (`eviction_calls.py`): API calls; `Nominations`
(`nominations.py`): reserved capacity.

Must not choose victims: the plan lists them.
Start reading at `evictor.py`, then `nominations.py`.
"""
