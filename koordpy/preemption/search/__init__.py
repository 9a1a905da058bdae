# SPDX-License-Identifier: Apache-2.0
"""The search for running pods that must be evicted, or moved, so that a pending unit can be placed.

A search tries one scenario after another. A scenario is a choice of pending members to be placed, and the rules that
may evict for them. In each scenario, a set of victims is found by counting, CP-SAT or a greedy choice. The set is
accepted only if its dry run on the draft, with all filters, places the members.

Main types: `PreemptionSearch` (`preemption_search.py`): state that all searches of a round share; `DryRun`
(`dry_run.py`): tries a set of victims; `PreemptionPlan` (`preemption_plan.py`): the result.

Must not write to the API server: a preemption plan is a value. Start reading at `preemption_search.py`, then
`select_victims.py`.
"""
