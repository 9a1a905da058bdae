"""The status of ElasticQuotas: used, request, runtime, and the conditions Valid and OverUsed.

At most one write a second each, and only where something changed (quota-fairness.md 6 and 7). Assumed pods count: the
figures are those that the next round decides by.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from koordpy.api import keys
from koordpy.api.custom import ElasticQuota, ElasticQuotaStatus
from koordpy.api.objects import Condition
from koordpy.api.quantity import quantity_text
from koordpy.cluster.quota_faults import QuotaFault
from koordpy.cluster.quota_tree import OVER_USED
from koordpy.cluster.quotas import Quotas
from koordpy.engine.apiserver.client import ApiError, Unreachable
from koordpy.engine.status.patches import merged_conditions, patch_status
from koordpy.engine.status.writing import MOST_AT_A_TIME, LastWrites, Writing
from koordpy.planning.quota.runtime import QuotaFigures, quota_figures

logger = logging.getLogger(__name__)

VALID = "Valid"


def quota_status(
    quota: ElasticQuota, figures: QuotaFigures | None, faults: list[QuotaFault], *, now: datetime
) -> dict[str, Any]:
    """The whole status of an ElasticQuota as it should be. figures: None where it does not count at all."""
    found = figures or QuotaFigures(quota.metadata.name, {}, {}, {})
    conditions = merged_conditions(quota.status.conditions, [_valid(quota, faults), _over_used(quota, found)], now=now)
    return {
        "used": _amounts(found.used),
        "request": _amounts(found.request),
        "runtime": _amounts(found.runtime),
        "conditions": conditions,
    }


def _amounts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: quantity_text(name, amount) for name, amount in sorted(amounts.items())}


def _valid(quota: ElasticQuota, faults: list[QuotaFault]) -> Condition:
    if not faults:
        return _condition(quota, VALID, "True", "Valid", "")
    text = "; ".join(fault.told for fault in faults)
    return _condition(quota, VALID, "False", "Invalid", text)


def _over_used(quota: ElasticQuota, figures: QuotaFigures) -> Condition:
    over = sorted(figures.over)
    if not over:
        return _condition(quota, OVER_USED, "False", "WithinRuntime", "")
    text = ", ".join(
        f"{name} {quantity_text(name, figures.used[name])} > {quantity_text(name, figures.runtime[name])}"
        for name in over
    )
    return _condition(quota, OVER_USED, "True", "AboveRuntime", f"used is above runtime: {text}")


def _condition(quota: ElasticQuota, type: str, status: str, reason: str, message: str) -> Condition:
    generation = quota.metadata.generation
    return Condition(type=type, status=status, reason=reason, message=message, observed_generation=generation)


def current_status(quota: ElasticQuota) -> dict[str, Any]:
    """The status that an ElasticQuota has, in the form of `quota_status`."""
    there = quota.status
    return {
        "used": {name: str(amount) for name, amount in there.used.items()},
        "request": {name: str(amount) for name, amount in there.request.items()},
        "runtime": {name: str(amount) for name, amount in there.runtime.items()},
        "conditions": merged_conditions(there.conditions, [], now=datetime.fromtimestamp(0, UTC)),
    }


def status_patch(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch from one status to the other; resources that are no longer shown are taken out by null."""
    patch: dict[str, Any] = {}
    for name, value in wanted.items():
        if value == there.get(name):
            continue
        gone = dict.fromkeys(set(there.get(name) or ()) - set(value)) if isinstance(value, dict) else {}
        patch[name] = {**value, **gone} if isinstance(value, dict) else value
    return patch


class QuotaStatusWriter:
    """Writes what changed, gathered over `group_status_seconds`."""

    def __init__(self, writing: Writing) -> None:
        self.sent = 0
        self._writing = writing
        self._seen: object = None
        self._writes: LastWrites[dict[str, Any]] = LastWrites(writing.clock)

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await asyncio.sleep(self._writing.settings.group_status_seconds)
            await self.flush()

    async def flush(self) -> None:
        """Writes every status that is not as it should be."""
        state = self._writing.state
        if not self._writing.may_write() or not state.quotas.objects:
            return
        seen = state.quota_marks
        if seen == self._seen:
            return
        quotas = state.quota_view()
        figures = quota_figures(quotas, self._writing.settings.quota)
        faults: dict[str, list[QuotaFault]] = {}
        for fault in quotas.tree.faults:
            faults.setdefault(fault.key, []).append(fault)
        gate = asyncio.Semaphore(MOST_AT_A_TIME)
        done = True

        async def write(key: str, quota: ElasticQuota) -> None:
            nonlocal done
            async with gate:
                counted = figures.get(_counted_as(key, quota, quotas))
                # asked before each: the lease may run out between two
                done &= self._writing.may_write() and await self._write(key, quota, counted, faults.get(key, []))

        await asyncio.gather(*(write(key, quota) for key, quota in list(state.quotas.objects.items())))
        self._seen = seen if done else None

    async def _write(
        self, key: str, quota: ElasticQuota, figures: QuotaFigures | None, faults: list[QuotaFault]
    ) -> bool:
        """Whether the status is as it should be now."""
        resource, meta = self._writing.feeds.quotas.resources.get(key), quota.metadata
        if resource is None:
            return True
        there = seen = current_status(quota)
        if (sent := self._writes.trusted(key, meta.uid)) is not None:
            there = sent
            quota = msgspec.structs.replace(quota, status=msgspec.convert(sent, ElasticQuotaStatus))
        wanted = quota_status(quota, figures, faults, now=self._writing.now())
        patch = status_patch(wanted, there)
        if not patch:
            # else not our last write, or undone by an earlier one that came late: until the watch shows it
            return not status_patch(wanted, seen)
        try:
            found = await patch_status(
                self._writing.client, resource, name=meta.name, namespace=meta.namespace, status=patch
            )
        except (ApiError, Unreachable) as error:
            logger.warning("ElasticQuota %s: its status was not written: %s", key, error)
            return False
        if found:
            self.sent += 1
            self._writes.note(key, meta.uid, wanted)
        return True


def _counted_as(key: str, quota: ElasticQuota, quotas: Quotas) -> str:
    """Name of the figures of an object; that of nothing where another object of the name counts."""
    name = quota.metadata.name
    return name if key in quotas.tree.objects or name in keys.BUILT_IN_QUOTAS else ""
