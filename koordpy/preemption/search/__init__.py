# SPDX-License-Identifier: Apache-2.0
"""The search for running pods that must be evicted, or moved, so that a pending unit can be placed.

A search tries one scenario after another: which members of the unit are placed, and which rules may evict. In each, a
set of victims is found by counting, CP-SAT or a greedy choice. The set is accepted only if its dry run on the draft,
with all filters, places the members.

Main types: `PreemptionSearch` (`preemption_search.py`): a round's shared state; `DryRun` (`dry_run.py`): the trial;
`PreemptionPlan` (`preemption_plan.py`): the result.

Must not write to the API server: a preemption plan is a value. Start reading at `preemption_search.py`, then
`select_victims.py`.
"""
