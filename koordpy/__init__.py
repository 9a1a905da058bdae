# SPDX-License-Identifier: Apache-2.0
"""koordpy: a Kubernetes scheduler for gangs and network topology on clusters of accelerators.

Planning is a pure function, called once a round: from a snapshot of the cluster and a configuration it computes a plan.
The live scheduler, `koordpy simulate` and `koordpy explain` all call it. The docstring of each package below states its
responsibility, its main types and its limits.

Main types: `plan_round` (`planning_round.py`): the planner; `Snapshot` (`snapshot.py`): its input; `RoundPlan`
(`round_plan.py`): its result.

Must not import from a layer above: the import-linter contracts in pyproject.toml list the layers of the packages.
Start reading at `planning_round.py` for the planner, at `scheduler.py` for the live scheduler.
"""

__version__ = "0.1.0"
