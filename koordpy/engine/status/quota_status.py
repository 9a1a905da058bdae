# SPDX-License-Identifier: Apache-2.0
"""Writes the status of ElasticQuotas: used, request, runtime, and the conditions Valid and OverUsed.

A quota is written at most once a second, and only if its status has changed (quota-fairness.md 6 and 7). Assumed pods
are included, so that the status has the same amounts that the next round uses.
"""

from collections.abc import Iterable, Mapping

from koordpy.api import keys
from koordpy.api.custom_objects import ElasticQuota, ElasticQuotaStatus
from koordpy.api.objects import Condition, Quantities
from koordpy.api.quantity import quantity_text
from koordpy.engine.client.api_resources import Resource
from koordpy.engine.engine_context import Context
from koordpy.engine.status.reconciler import WholeStatusWriter
from koordpy.engine.status.status_patches import condition_for, merged_conditions
from koordpy.fairness.quota_runtime import QuotaAmounts, all_quota_amounts
from koordpy.quota.quota_book import Quotas
from koordpy.quota.quota_owners import QuotaFault
from koordpy.quota.quota_tree import OVER_USED

VALID = "Valid"
"""Type of the condition that is False if a quota contradicts itself or the quota tree. Its message lists all faults."""


def quota_status(
    quota: ElasticQuota, amounts: QuotaAmounts | None, faults: list[QuotaFault], *, now: float
) -> ElasticQuotaStatus:
    """Returns the whole status of an ElasticQuota.

    amounts: of the quota; None if the quota has no effect, because of a fault or its namespace.
    """
    found = amounts or QuotaAmounts(quota.metadata.name, {}, {}, {})
    conditions = merged_conditions(quota.status.conditions, [_valid(quota, faults), _over_used(quota, found)], now=now)
    return ElasticQuotaStatus(
        used=_amounts(found.used),
        request=_amounts(found.request),
        runtime=_amounts(found.runtime),
        conditions=conditions,
    )


def _amounts(amounts: Mapping[str, int]) -> Quantities:
    return {name: quantity_text(name, amount) for name, amount in sorted(amounts.items())}


def _valid(quota: ElasticQuota, faults: list[QuotaFault]) -> Condition:
    if not faults:
        return condition_for(quota, VALID, "True", "Valid", "")
    text = "; ".join(fault.message for fault in faults)
    return condition_for(quota, VALID, "False", "Invalid", text)


def _over_used(quota: ElasticQuota, amounts: QuotaAmounts) -> Condition:
    over = sorted(amounts.over)
    if not over:
        return condition_for(quota, OVER_USED, "False", "WithinRuntime", "")
    text = ", ".join(
        f"{name} {quantity_text(name, amounts.used[name])} > {quantity_text(name, amounts.runtime[name])}"
        for name in over
    )
    return condition_for(quota, OVER_USED, "True", "AboveRuntime", f"used is above runtime: {text}")


class QuotaStatusWriter(WholeStatusWriter[ElasticQuota, ElasticQuotaStatus]):
    """Writes all ElasticQuotas with amounts that may have changed."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._marks: object = None
        """`ClusterState.quota_marks` when `_amounts` was computed."""
        self._amounts: dict[str, QuotaAmounts | None] = {}
        """Key of an ElasticQuota -> its amounts; None for a quota without effect."""
        self._faults: dict[str, list[QuotaFault]] = {}
        """Key of an ElasticQuota -> its faults; only of quotas with faults."""

    def _overdue(self) -> Iterable[str]:
        """Computes the amounts of all quotas if anything changed, and returns all quotas. A pod may change the amounts
        of any quota, so single quotas are not marked."""
        state = self._context.state
        if state.quota_marks == self._marks or not (state.quotas.objects or self._amounts):
            return ()
        self._marks = state.quota_marks
        quotas = state.quota_view()
        amounts, before = all_quota_amounts(quotas, self._context.settings.config.quota), self._amounts
        self._amounts = {
            key: amounts.get(_counted_as(key, quota, quotas)) for key, quota in state.quotas.objects.items()
        }
        self._faults = {}
        for fault in quotas.tree.faults:
            self._faults.setdefault(fault.key, []).append(fault)
        return dict.fromkeys((*before, *self._amounts))

    def _find(self, key: str) -> tuple[ElasticQuota, Resource] | None:
        quota, resource = self._context.state.quotas.objects.get(key), self._context.feeds.quotas.resources.get(key)
        return (quota, resource) if quota is not None and resource is not None else None

    def _render(self, key: str, obj: ElasticQuota, there: ElasticQuotaStatus) -> ElasticQuotaStatus:
        return quota_status(obj, self._amounts.get(key), self._faults.get(key, []), now=self._context.now())


def _counted_as(key: str, quota: ElasticQuota, quotas: Quotas) -> str:
    """Returns the name under which the quota tree counts an ElasticQuota; empty if another object of this name takes
    effect."""
    name = quota.metadata.name
    return name if key in quotas.tree.objects or name in keys.BUILT_IN_QUOTAS else ""
