# SPDX-License-Identifier: Apache-2.0
"""Defines the result of a round of planning (`RoundPlan`), the planner's thresholds, and the time limit of a round.

A plan says which pods are bound, which are evicted, and which stay pending. It has plain values, without references to
the planner's state. Every threshold is in `limits.py`, with its unit.

Main types: `RoundPlan` (`round_plan.py`): the result; `Placement` (`round_plan.py`): a pod and its node;
`PlanningBudget` (`planning_budget.py`): the time limit.

Must not compute plans.
Start reading at `round_plan.py`, then `limits.py`.
"""
