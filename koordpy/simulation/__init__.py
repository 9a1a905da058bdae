"""Rounds without a cluster, on a cache that changes only between rounds: for `koordpy simulate` and `koordpy explain`.

The planner of the live scheduler is used. Bindings, evictions and disruption budgets are applied to the cache after
each round.

Main types: `SimulationResult` (`simulated_rounds.py`): the rounds; `BudgetLedger` (`budget_ledger.py`): disruption
budgets; `Expansion` (`pod_making.py`): created pods.

Must not import asyncio, nor OR-Tools before a problem needs it.
Start reading at `simulated_rounds.py`, then `explained_round.py`.
"""
