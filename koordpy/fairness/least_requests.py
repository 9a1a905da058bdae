# SPDX-License-Identifier: Apache-2.0
"""Computes the least amounts that a pending unit would add to each limit of its quotas (`QuotaNeed`).

If such an amount exceeds what the limit has left, the quota refuses the unit (repair.md 1.2, QuotaExceeded). So growing
usage can be compared with the amounts, without a plan, to find units that wait for nodes and need another reason.
"""

from collections.abc import Sequence

from koordpy.fairness.quota_admission import core_members
from koordpy.gangs.queue_units import Unit
from koordpy.plan.quota_needs import QuotaNeed
from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import Quotas


def least_requests(unit: Unit, quotas: Quotas) -> tuple[QuotaNeed, ...]:
    """Returns the amounts above 0 for all limits of the unit's quotas and their ancestors; empty without quotas.

    For each resource, the smallest members of each gang count, as many as it needs to start. For a unit without such a
    need, the lowest-ranked member counts. Amounts of claims that several pods share do not count.
    """
    tree = quotas.tree
    if not tree.quotas:
        return ()
    paths = {pod.owner: tree.path(quotas.quota_of(pod)) for pod in unit.pending}
    needs = [(gang.pending, unit.need(gang)) for gang in unit.gangs if unit.need(gang)]
    parts = needs or [(core_members(unit), 1)]
    out: list[QuotaNeed] = []
    for name in dict.fromkeys(name for path in paths.values() for name in path):
        inside = [([pod for pod in pods if name in paths[pod.owner]], len(pods), need) for pods, need in parts]
        for rigid in (False, True):
            counted = [([p for p in pods if p.owner.rigid or not rigid], size, need) for pods, size, need in inside]
            for resource in tree.quotas[name].max if any(pods for pods, *_ in counted) else ():
                amount = sum(_least(pods, size, need, resource) for pods, size, need in counted)
                if amount > 0:
                    out.append(QuotaNeed(name, rigid, resource, amount))
    return tuple(out)


def _least(pods: Sequence[PodInfo], size: int, need: int, resource: str) -> int:
    """Returns the sum of the `need` smallest requests of `size` pods, of which only `pods` count."""
    asked = sorted(pod.charged_alone.get(resource, 0) for pod in pods)
    return sum(asked[: max(0, need - (size - len(pods)))])
