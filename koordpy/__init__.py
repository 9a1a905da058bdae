"""koordpy: a Kubernetes scheduler for gangs and network topology on clusters of accelerators.

A round is a pure function: a snapshot of the cluster and a configuration in, a plan out. The live scheduler, `koordpy
simulate` and `koordpy explain` share it. Each room below states its subject, its main types and its limits in its own
docstring.

Main types: `plan_round` (`planning_round.py`): the planner; `Snapshot` (`snapshot.py`): its input; `RoundPlan`
(`round_plan.py`): its result.

Must not import a room of a higher line: the contracts of import-linter in pyproject.toml list the lines.
Start reading at `planning_round.py` for the planner, at `scheduler.py` for the live scheduler.
"""

__version__ = "0.1.0"
