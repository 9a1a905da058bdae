"""The independent check of every plan: by names and labels, with no arithmetic shared with the planner.

A plan is rejected if it breaks a filter, a quota, a limit on victims or a nomination. A rejected plan is a bug and is
not carried out.

Main types: `check_plan` (`plan_check.py`): placements; `VictimCheck` (`preemption_check.py`): victims; `PlanFault`
(`plan_fault.py`): a fault.

Must not use arrays or sums of the planner. Start reading at `plan_check.py`, then `preemption_check.py`.
"""
