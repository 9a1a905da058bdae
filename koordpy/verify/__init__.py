# SPDX-License-Identifier: Apache-2.0
"""The independent check of every plan before it is carried out: a second opinion on the planner, in simple code.

A plan is rejected if it breaks a filter, a quota or a limit on victims. Rejection means a bug of the
planner: the plan is logged and not carried out. The checks go pod by pod over objects, names and labels, and share no
arithmetic with the planner, so that one error cannot be in both.

Main types: `check_plan` (`plan_check.py`): placements; `VictimCheck` (`preemption_check.py`): victims; `PlanFault`
(`plan_fault.py`): a fault.

Must not use arrays or sums of the planner. Start reading at `plan_check.py`, then `preemption_check.py`.
"""
