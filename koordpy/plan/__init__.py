# SPDX-License-Identifier: Apache-2.0
"""What a round of planning returns, and what limits it: `RoundPlan`, the planner's thresholds, the time limit.

A plan says which pods are bound, evicted or stay pending, as plain values without references to the planner's state.
Every threshold is in `limits.py`, with its unit.

Main types: `RoundPlan` (`round_plan.py`): the result; `Placement` (`round_plan.py`): a pod and its node;
`PlanningBudget` (`planning_budget.py`): the time limit.

Must not compute plans.
Start reading at `round_plan.py`, then `limits.py`.
"""
