"""The planner's result: a RoundPlan of plain values; the thresholds of the planner; the time limit of a round.

Every threshold is in `limits.py`, with its unit. A plan has no references to the planner's state.

Main types: `RoundPlan` (`round_plan.py`): the result; `Placement` (`round_plan.py`): a pod and its node;
`PlanningBudget` (`planning_budget.py`): the time limit.

Must not compute plans.
Start reading at `round_plan.py`, then `limits.py`.
"""
