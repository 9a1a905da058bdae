# SPDX-License-Identifier: Apache-2.0
"""Checks every plan independently of the planner, in simple code, before it is carried out.

A plan is rejected if it breaks a filter, a quota or a limit on victims. A rejection means that the planner has a bug:
the plan is logged and not carried out. The checks go through pods one by one, with objects, names and labels. They
share no arithmetic with the planner, so that the same error cannot be in both.

Main types: `check_plan` (`plan_check.py`): placements; `VictimCheck` (`preemption_check.py`): victims; `PlanFault`
(`plan_fault.py`): a fault.

Must not use arrays or sums of the planner. Start reading at `plan_check.py`, then `preemption_check.py`.
"""
