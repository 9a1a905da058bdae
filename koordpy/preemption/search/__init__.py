"""The search for victims: scenarios, candidates, the dry run on the draft with all filters, and relocation.

Candidate sets are found by counting, CP-SAT or a greedy choice. A set is accepted only if its dry run places the
preemptor.

Main types: `PreemptionSearch` (`preemption_search.py`): a round's shared state; `DryRun` (`dry_run.py`): the trial;
`PreemptionPlan` (`preemption_plan.py`): the result.

Must not write to the API server: a preemption plan is a value. Start reading at `preemption_search.py`, then
`select_victims.py`.
"""
