# SPDX-License-Identifier: Apache-2.0
"""Amounts that a running unit of a quota could get by evicting pods in no quota, if the unit were pending.

Source: docs/rules/quota-fairness.md 4. Used when quotas give back usage above their runtime
(`planner/actions/give_back_overuse.py`): a unit is not evicted for that if it could return at once by evicting pods in
no quota. Pods of strictly lower priority yield. With `quota.noQuotaYields: always`, all pods of koordpy's schedulers in
the default quota yield to a unit within the min of its quotas. With `fairness.reclaim: all`, pods count as yielding
without regard to shares.
"""

from collections.abc import Mapping

import numpy as np

from koordpy.api.keys import DEFAULT_QUOTA
from koordpy.fairness.tenant_entitlements import Mins
from koordpy.feasibility.round_state import RoundState
from koordpy.pods.resource_amounts import add_amounts
from koordpy.preemption.search.victim_pool import Pool

Freed = tuple[tuple[str, int], ...]
"""Amounts that yield: (resource, amount), sorted by resource."""


class YieldingPods:
    """Finds the pods in no quota that yield to a unit of the pool."""

    def __init__(self, pool: Pool, round_state: RoundState) -> None:
        self._pool, self._round_state, self._config = pool, round_state, round_state.config
        self._holdings = pool.tenant_usage(Mins(round_state.snapshot.quotas))
        self._units: list[int] | None = None
        self._known: dict[tuple[int | None, bool], Freed] = {}

    def to(self, i: int) -> Freed:
        """Returns the amounts that pods in no quota would yield to unit `i` of the pool."""
        setting, pods = self._config.quota.no_quota_yields, self._pool.units[i].pods
        if setting == "never":
            return ()
        shares = self._config.fairness.reclaim == "all" and self._config.fairness.mode != "off"
        never = not self._config.preemption.enabled or any(p.preemption_policy == "Never" for p in pods)
        default = shares or (setting == "always" and self._within_min(i))
        key = None if never else min(pod.priority for pod in pods), default
        if key not in self._known:
            self._known[key] = self._freed(*key)
        return self._known[key]

    def _freed(self, below: int | None, default: bool) -> Freed:
        """Returns the amounts of all units that yield. below: units of a lower priority yield; None: no unit yields by
        priority. default: True if all units of koordpy's schedulers in the default quota yield."""
        pool, quotas = self._pool, self._round_state.snapshot.quotas
        if self._units is None:
            every = np.nonzero(np.array(pool.alive, dtype=bool))[0].tolist()
            self._units = [k for k in every if () in self._holdings.usage_of(k)]
        total: dict[str, int] = {}
        for k in self._units:
            unit = pool.units[k]
            ours = default and not pool.foreign(k) and all(quotas.quota_of(pod) == DEFAULT_QUOTA for pod in unit.pods)
            if ours or (below is not None and unit.priority < below):
                add_amounts(total, self._holdings.usage_of(k)[()])
        return tuple(sorted((r, amount) for r, amount in total.items() if amount > 0))

    def _within_min(self, i: int) -> bool:
        """Returns True if the unit's quotas use at most their min of each resource that the unit uses."""
        config, tree = self._config, self._round_state.snapshot.quotas.tree
        if config.fairness.reclaim == "off" or config.preemption.across_quotas == "any":
            return False
        use = self._round_state.draft.quotas
        usage: Mapping[str, int] = {r: n for of in self._holdings.usage_of(i).values() for r, n in of.items() if n}
        return all(
            use.used(name, resource) <= tree.quotas[name].least(resource)
            for path in self._holdings.usage_of(i)
            for name in (tenant.quota for tenant in path)
            for resource in usage
            if resource in tree.quotas[name].max
        )
