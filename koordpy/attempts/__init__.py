# SPDX-License-Identifier: Apache-2.0
"""Planning of one unit in a round: gates, quotas, placement, the independent check, then preemption, and the outcome.

The planner calls `plan_unit` for each unit (a plain pod or a gang) of a round, in queue order. The result is a
`UnitOutcome`: bound, preempting, waiting, deferred or rejected. Preemption is a pipeline: rules that permit evictions,
sets of victims, dry run with every filter, independent check, result.

Main types: `plan_unit` (`unit_attempt.py`): plans a unit; `UnitOutcome` (`unit_outcome.py`): the result; `preempt`
(`preemption_pipeline.py`): searches victims.

Must not choose which unit is planned next: the planner does that.
Start reading at `unit_attempt.py`, then `preemption_pipeline.py`.
"""
