# SPDX-License-Identifier: Apache-2.0
"""Scheduling rounds without a cluster, for `koordpy simulate` and `koordpy explain`.

The objects are read once, from manifests or from a cluster, and nothing is written to any cluster. The planner of the
live scheduler plans each round on a cache of the objects. After each round, its bindings and evictions are applied to
the cache. So is the work of controllers: they create pods and claims, and update the status of disruption budgets.

Main types: `SimulationResult` (`simulated_rounds.py`): result of the rounds; `BudgetLedger` (`budget_ledger.py`):
disruption budgets; `Expansion` (`pod_making.py`): created pods.

Must not import asyncio, nor OR-Tools before a problem needs it.
Start reading at `simulated_rounds.py`, then `explained_round.py`.
"""
