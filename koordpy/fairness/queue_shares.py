# SPDX-License-Identifier: Apache-2.0
"""Fair shares of all users or queues of a cluster: collects demand and settings, and applies the configured mode.

Source: docs/rules/quota-fairness.md 1 and 3. In modes exact and kai, an ElasticQuota is a queue: min is its guaranteed
quota, max its limit, and shared-weight its weight. A user outside of quotas is a queue beside the top quotas. In mode
gpu-count, users share accelerators. Shares depend only on running plus pending requests, and not on which pods run now,
so they are constant within a round.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

from koordpy.api.natural_order import natural_key
from koordpy.config.configuration import Fairness
from koordpy.fairness.fair_shares import Claim, Rational, exact_and_whole_shares, kai_shares
from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import CARDS, COUNT, Quotas, ShareQueue

K = TypeVar("K")
V = TypeVar("V")

_MILLI = Fraction(1, 1000)
"""Unit of rounding if any pod requests a fraction of a device."""
NEVER = float("inf")
"""Creation time of a queue that has neither a quota object nor a job: it counts as the youngest."""


@dataclass(frozen=True)
class Shares(Generic[K, V]):
    """Shares of all queues or users."""

    exact: Mapping[K, V]
    """Unrounded shares. In mode kai they are in whole units, because KAI-Scheduler's formula gives only these."""
    whole: Mapping[K, V]
    """Shares in whole units."""


QueueShares = Shares[ShareQueue, Mapping[str, Rational]]
"""Queue -> counted resource -> share, in milli-cores of cpu and whole units of everything else."""
UserShares = Shares[str, Rational]
"""User -> share of accelerators, in devices (mode gpu-count)."""


def oldest_jobs(whose: Callable[[PodInfo], K], pods: Iterable[PodInfo]) -> dict[K, float]:
    """Returns queue or user -> creation time of its oldest pod. The argument `whose` returns the queue or user of a
    pod.

    Running pods count, too. Otherwise placing a pod could change a share, and tenants would take capacity from each
    other in turn.
    """
    oldest: dict[K, float] = {}
    for pod in pods:
        if pod.bound or pod.pending:
            own = whose(pod)
            oldest[own] = min(oldest.get(own, pod.created), pod.created)
    return oldest


def queue_ages(quotas: Quotas, oldest: Mapping[ShareQueue, float]) -> dict[ShareQueue, float]:
    """Returns queue -> age, the oldest queue first; ties by name.

    The age is the creation time of the ElasticQuota, or of the oldest job for a user's queue, in seconds since the
    epoch. oldest: queue -> creation time of its oldest job.
    """
    ages = {ShareQueue(name): quota.created for name, quota in quotas.tree.quotas.items()}
    for queue in (*quotas.queues, *quotas.queues_waiting):
        if not queue.quota:
            ages[queue] = oldest.get(queue, NEVER)
    order = sorted(ages, key=lambda queue: (ages[queue], natural_key(queue.quota or queue.user), queue.user))
    return {queue: ages[queue] for queue in order}


def queue_shares(quotas: Quotas, config: Fairness, ages: Mapping[ShareQueue, float]) -> QueueShares:
    """Returns the shares of all queues in the modes exact and kai.

    ages: every queue, the oldest first (`queue_ages`).
    """
    exact: dict[ShareQueue, dict[str, Rational]] = {queue: {} for queue in ages}
    whole: dict[ShareQueue, dict[str, Rational]] = {queue: {} for queue in ages}
    asked = {name for sums in (quotas.queues, quotas.queues_waiting) for held in sums.values() for name in held}
    for resource in sorted(asked - {COUNT, CARDS}):
        queues = [queue for queue in ages if counts(quotas, queue, resource)]
        claims = _claims(quotas, config, queues, resource)
        total = quotas.shared.get(resource, 0)
        if config.mode == "kai":
            shares = rounded = kai_shares(total, claims)
        else:
            shares, rounded = exact_and_whole_shares(total, claims)
        for queue, share, units in zip(queues, shares, rounded, strict=True):
            exact[queue][resource], whole[queue][resource] = share, units
    return QueueShares(exact, whole)


def counts(quotas: Quotas, queue: ShareQueue, resource: str) -> bool:
    """Returns True if a resource is counted for a queue: for a quota if its max has the resource, for a user always."""
    return not queue.quota or resource in quotas.tree.quotas[queue.quota].max


def _claims(quotas: Quotas, config: Fairness, queues: Sequence[ShareQueue], resource: str) -> list[Claim]:
    """Returns the claims of queues for one resource, in the same order.

    The parent of a claim is given by its position.
    """
    position = {queue.quota: i for i, queue in enumerate(queues) if queue.quota}
    held, waiting, every = quotas.queues, quotas.queues_waiting, quotas.tree.quotas
    claims = []
    for queue in queues:
        request = held[queue].get(resource, 0) if queue in held else 0
        if queue in waiting:
            request += waiting[queue].get(resource, 0)
        if not queue.quota:  # weights in thousandths, like those of quotas
            claims.append(Claim(request=request, weight=1000 * _weight(config, queue.user)))
            continue
        quota = every[queue.quota]
        claims.append(
            Claim(
                request=request,
                quota=quota.min.get(resource, 0),
                limit=quota.max[resource],
                weight=quota.weight.get(resource, 0),
                parent=position.get(quota.parent, -1) if quota.parent else -1,
            )
        )
    return claims


def user_shares(quotas: Quotas, config: Fairness, oldest: Mapping[str, float]) -> UserShares:
    """Returns the share of every user in mode gpu-count: accelerators by weight, without guarantee, limit or tree.

    oldest: user -> creation time of the oldest job. If one unit is left for several equal users, the older user gets
    it, then the naturally first name.
    """
    users = {*quotas.users_sharing, *quotas.users_waiting}
    order = sorted(users, key=lambda user: (oldest.get(user, NEVER), natural_key(user)))
    total = _cards(quotas.shared_cards)
    claims = [
        Claim(
            request=_devices(quotas.users_sharing.get(user, {})) + _devices(quotas.users_waiting.get(user, {})),
            weight=_weight(config, user),
        )
        for user in order
    ]
    whole = all(amount.denominator == 1 for amount in (total, *(claim.request for claim in claims)))
    shares, rounded = exact_and_whole_shares(total, claims, unit=1 if whole else _MILLI)
    return UserShares(dict(zip(order, shares, strict=True)), dict(zip(order, rounded, strict=True)))


def _devices(amounts: Mapping[str, int]) -> Rational:
    """Returns the accelerators in the summed requests of pods, in devices."""
    return _cards(amounts.get(CARDS, 0))


def _cards(hundredths: int) -> Rational:
    """Returns hundredths of a device as devices."""
    return hundredths // 100 if hundredths % 100 == 0 else Fraction(hundredths, 100)


def _weight(config: Fairness, user: str) -> Rational:
    """Returns the configured weight of a user as an exact number; 1 by default."""
    weight = config.weights.get(user, 1)
    return int(weight) if weight == int(weight) else Fraction(str(weight))
