"""Planning of one unit in a round: gates, quotas, placement, the independent check, then preemption, and the outcome.

The outcome is one of the variants in `unit_outcome.py`. Preemption is a pipeline: rules, candidate sets, filters, dry
run, check, result.

Main types: `plan_unit` (`unit_attempt.py`): plans a unit; `BoundUnit` (`unit_outcome.py`): a placed unit;
`SearchResult`
(`preemption_pipeline.py`): a search's result.

Must not choose the next unit: the order belongs to the planner.
Start reading at `unit_attempt.py`, then `preemption_pipeline.py`.
"""
