# SPDX-License-Identifier: Apache-2.0
"""Builds entries of the SimulationResult document, and defines their order (simulate.md 3)."""

from collections.abc import Mapping
from typing import Any

from koordpy.api.natural_order import NaturalKey, natural_key
from koordpy.api.quantity import cpu_text
from koordpy.api.times import rfc3339
from koordpy.fairness.quota_runtime import QuotaAmounts
from koordpy.plan.gang_repair import GangRepair
from koordpy.plan.round_plan import GangReport
from koordpy.quota.quota_tree import QuotaNode


def object_order(key: str) -> tuple[NaturalKey, NaturalKey]:
    """Returns the sort key of `namespace/name`: namespace, then name, in natural order."""
    namespace, _, name = key.partition("/")
    return natural_key(namespace), natural_key(name)


def pod_fields(key: str) -> dict[str, str]:
    namespace, _, name = key.partition("/")
    return {"namespace": namespace, "pod": name}


def quota_fields(key: str, of_quota: QuotaAmounts, quota: QuotaNode | None) -> dict[str, Any]:
    """Returns an entry of `quotas` in the output. quota: None for a built-in quota, which has no min and max."""

    def shown(amounts: Mapping[str, int]) -> dict[str, Any]:
        return {r: cpu_text(amount) if r == "cpu" else amount for r, amount in sorted(amounts.items())}

    return {
        "name": key,
        "min": shown({r: quota.least(r) for r in quota.max} if quota is not None else {}),
        "max": shown(quota.max if quota is not None else {}),
        "request": shown(of_quota.request),
        "runtime": shown(of_quota.runtime),
        "used": shown(of_quota.used),
        "allocated": shown(of_quota.allocated),
        "guaranteed": shown(of_quota.guaranteed),
        "nonPreemptibleUsed": shown(of_quota.rigid_used),
    }


def gang_fields(report: GangReport, proof: str) -> dict[str, Any]:
    """Returns an entry of `gangs` in the output."""
    domain = report.domain
    return {
        "name": report.name,
        "members": report.members,
        "minMember": report.min_member,
        "bound": report.bound,
        "status": str(report.status),
        "domain": None if domain is None else {"layer": domain[0], "name": domain[1]},
        "proof": proof,
        "message": report.message,
        "origin": report.origin,
        "workload": dict(report.workload) if report.workload is not None else None,
        "repair": repair_fields(report.repair) if report.repair is not None else None,
    }


def repair_fields(repair: GangRepair) -> dict[str, Any]:
    """Returns the entry `repair` of a gang in the output."""
    return {
        "policy": repair.policy,
        "missing": repair.missing,
        "ranks": list(repair.ranks),
        "lost": [{"pod": one.pod_key, "node": one.node, "cause": one.cause} for one in repair.lost],
        "hurt": list(repair.hurt),
        "seats": dict(repair.seats),
        "seatsUntil": rfc3339(repair.seats_until) if repair.seats_until is not None else None,
    }
