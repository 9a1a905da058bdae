"""Scheduling rounds without a cluster, for `koordpy simulate` and `koordpy explain`.

The input is manifests, or a snapshot of a cluster. The planner of the live scheduler plans each round on a cache. After
each round, its bindings and evictions, and the work of controllers, are applied to the cache: created pods, claims and
the status of disruption budgets.

Main types: `SimulationResult` (`simulated_rounds.py`): the rounds; `BudgetLedger` (`budget_ledger.py`): disruption
budgets; `Expansion` (`pod_making.py`): created pods.

Must not import asyncio, nor OR-Tools before a problem needs it.
Start reading at `simulated_rounds.py`, then `explained_round.py`.
"""
