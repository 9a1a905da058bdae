# SPDX-License-Identifier: Apache-2.0
"""Victims of a plan: nominations first, then evictions; nominations reserve capacity until the unit is planned again.

If one eviction is refused, the rest of the plan is dropped. Watches start rounds without a pending unit: for stale
gangs and for quotas above their runtime.

Main types: `Evictor` (`evictor.py`): eviction plans; `EvictionCalls` (`eviction_calls.py`): API calls; `Nominations`
(`nominations.py`): reserved capacity.

Must not choose victims: the plan lists them.
Start reading at `evictor.py`, then `nominations.py`.
"""
