# SPDX-License-Identifier: Apache-2.0
"""Values of the gauges of quotas, shares and accelerators, computed when metrics are scraped (kube-parity.md 5)."""

from collections.abc import Iterable

from koordpy.api import keys
from koordpy.api.objects import Pod, condition_of
from koordpy.config.configuration import Fairness
from koordpy.config.configuration import Quota as QuotaSettings
from koordpy.fairness.queue_shares import queue_ages, queue_shares, user_shares
from koordpy.fairness.quota_runtime import all_quota_amounts
from koordpy.plan.pending_reason import Reason
from koordpy.pods.resource_amounts import Amounts
from koordpy.quota.quota_book import CARDS, Quotas, ShareQueue, device_hundredths

Gauges = dict[tuple[str, ...], float]


def quota_gauges(quotas: Quotas, settings: QuotaSettings) -> Gauges:
    """Returns (quota, resource, kind) -> cores, bytes or devices.

    The built-in quotas are limited to resources that nodes have, because pods may request any number of others.
    """
    out: Gauges = {}
    if not quotas.tree.quotas:
        return out
    for name, of_quota in all_quota_amounts(quotas, settings).items():
        quota = quotas.tree.quotas.get(name)
        kinds = {"runtime": of_quota.runtime, "used": of_quota.used, "request": of_quota.request}
        if quota is not None:
            kinds |= {"min": {r: quota.least(r) for r in quota.max}, "max": quota.max}
        for kind, amounts in kinds.items():
            for resource, amount in amounts.items():
                if quota is None and resource not in quotas.total:
                    continue
                out[name, resource, kind] = amount / 1000 if resource == "cpu" else amount
    return out


def share_gauges(quotas: Quotas, config: Fairness) -> Gauges:
    """Returns (queue or user, kind) -> accelerators. kind: `fair` for the fair share, `used` for the usage.

    In mode gpu-count the entries are users.
    """
    out: Gauges = {}
    if config.mode in ("exact", "kai"):
        shares = queue_shares(quotas, config, queue_ages(quotas, {})).whole
        for queue, amounts in shares.items():
            name = queue.quota or queue.user
            whole = {r: int(amount) for r, amount in amounts.items() if r in keys.ACCELERATORS}
            held = (
                quotas.used.get(queue.quota, {}) if queue.quota else quotas.queues.get(ShareQueue("", queue.user), {})
            )
            out[name, "fair"] = device_hundredths(whole) / 100
            out[name, "used"] = held.get(CARDS, 0) / 100
    elif config.mode == "gpu-count":
        for user, share in user_shares(quotas, config, {}).whole.items():
            out[user, "fair"] = float(share)
            out[user, "used"] = quotas.users.get(user, {}).get(CARDS, 0) / 100
    return out


def reason_gauges(pods: Iterable[Pod]) -> Gauges:
    """Returns (reason) -> number of pending pods with the condition PodScheduled=False, for each reason of koordpy.

    Pods without the condition, or with a reason of another program, are left out.
    """
    out: Gauges = {(str(reason),): 0.0 for reason in Reason if reason is not Reason.NEVER_FITS}
    for pod in pods:
        found = condition_of(pod.status.conditions, "PodScheduled")
        if found is not None and found.status == "False" and (found.reason,) in out:
            out[found.reason,] += 1
    return out


def accelerator_gauges(nodes: Iterable[tuple[Amounts, Amounts]]) -> Gauges:
    """Returns (resource, state) -> devices of all nodes, used or free.

    nodes: (allocatable amounts, amounts that its pods use) of each node.
    """
    out: Gauges = {}
    for allocatable, held in nodes:
        for resource in allocatable:
            if resource not in keys.ACCELERATORS:
                continue
            devices = 100 if resource in keys.HUNDREDTHS else 1
            used = held.get(resource, 0)
            free = max(0, allocatable[resource] - used)
            for state, amount in (("used", used), ("free", free)):
                out[resource, state] = out.get((resource, state), 0.0) + amount / devices
    return out
