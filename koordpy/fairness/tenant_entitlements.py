# SPDX-License-Identifier: Apache-2.0
"""Entitlements: the amounts that each tenant may use before other tenants may reclaim from it.

There are two kinds with one interface (`Entitlements`), so that the rules of preemption need not distinguish them
(docs/rules/preemption.md 3.2 and 3.3, quota-fairness.md 3):

- `Mins`: tenants are ElasticQuotas, and are entitled to their min.
- Fair shares, by fairness mode. In gpu-count, tenants are users, and accelerators are counted in hundredths. In exact
  and kai, tenants are queues in a tree, and every shared resource is counted.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from koordpy.api import keys
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import Fairness
from koordpy.fairness.queue_shares import (
    QueueShares,
    UserShares,
    counts,
    oldest_jobs,
    queue_ages,
    queue_shares,
    user_shares,
)
from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import CARDS, Quotas, QuotaUse, ShareQueue, card_hundredths

ACCELERATORS = "accelerators"
"""The resource that gpu-count counts, in hundredths of a device."""

Tenant = ShareQueue
"""A quota, a user or a queue."""
Path = tuple[Tenant, ...]
"""A tenant preceded by the tenants above it, from the top down."""


class Entitlements(ABC):
    """The entitlements of all tenants, of one kind (mins, or fair shares).

    Amounts are in hundredths of a device for `ACCELERATORS`, else in the units of requests (milli-cores of cpu, whole
    units).
    """

    pod_by_pod = False
    """True if each pod of a preemptor counts in its own tenants. False if all its pods count in those of the first
    pod."""

    @abstractmethod
    def path(self, pod: PodInfo) -> Path:
        """Returns the tenants of a pod, from the top down; empty if the pod has no tenant of this kind."""

    def amounts(self, requests: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the counted part of a pod's requests, by resource."""
        return requests

    @abstractmethod
    def counted(self, tenant: Tenant, resource: str) -> bool:
        """Returns True if a resource is shared out to a tenant."""

    @abstractmethod
    def use(self, use: QuotaUse, tenant: Tenant, resource: str) -> int:
        """Returns the amount of a resource that pods of a tenant, and of tenants below it, use. use: the usage to read
        from."""

    @abstractmethod
    def share(self, tenant: Tenant, resource: str) -> Fraction | int:
        """Returns the entitlement of a tenant, rounded to whole units of the resource."""

    def exact(self, tenant: Tenant, resource: str) -> Fraction | int:
        """Returns the entitlement of a tenant, unrounded."""
        return self.share(tenant, resource)

    def resources(self, tenant: Tenant) -> list[str]:
        """Returns the resources that a tenant has a share of, sorted by name; for messages."""
        return []


def entitlements_of(snapshot: Snapshot, config: Fairness, quotas: Quotas | None = None) -> Entitlements | None:
    """Returns the fair shares of the configured mode; None in mode off.

    quotas: capacity, usage and demand to share; None for those of the snapshot.
    """
    quotas, pods = quotas or snapshot.quotas, snapshot.pods.values()
    if config.mode == "off":
        return None
    if config.mode == "gpu-count":
        return _Users(snapshot, user_shares(quotas, config, oldest_jobs(quotas.user_of, pods)))
    ages = queue_ages(quotas, oldest_jobs(quotas.queue_of, pods))
    return _Queues(snapshot, queue_shares(quotas, config, ages))


@dataclass(frozen=True)
class Mins(Entitlements):
    """The min of every quota, in each resource that the quota's max names."""

    quotas: Quotas
    pod_by_pod = True

    def path(self, pod: PodInfo) -> Path:
        """Returns the pod's quota and those above it, from the top down; empty for a pod in a built-in quota."""
        return tuple(ShareQueue(name) for name in self.quotas.tree.path(self.quotas.quota_of(pod)))

    def counted(self, tenant: Tenant, resource: str) -> bool:
        """Returns True if the quota's max names the resource."""
        return resource in self.quotas.tree.quotas[tenant.quota].max

    def use(self, use: QuotaUse, tenant: Tenant, resource: str) -> int:
        """Returns the usage of pods in a quota and below it."""
        return use.used(tenant.quota, resource)

    def share(self, tenant: Tenant, resource: str) -> int:
        """Returns the min of a quota; 0 for a resource that min does not name."""
        return self.quotas.tree.quotas[tenant.quota].least(resource)


@dataclass(frozen=True)
class _Users(Entitlements):
    """Shares of users in mode gpu-count. Each pod has one tenant, its user."""

    snapshot: Snapshot
    shares: UserShares

    def path(self, pod: PodInfo) -> Path:
        """Returns the pod's user; empty for a pod of the system quota."""
        quotas = self.snapshot.quotas
        return () if quotas.quota_of(pod) == keys.SYSTEM_QUOTA else (ShareQueue("", quotas.user_of(pod)),)

    def amounts(self, requests: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the accelerators of a request, in hundredths of a device; empty without any."""
        devices = card_hundredths(requests)
        return {ACCELERATORS: devices} if devices else {}

    def counted(self, tenant: Tenant, resource: str) -> bool:
        """Returns True for accelerators, the only resource that is shared out."""
        return resource == ACCELERATORS

    def use(self, use: QuotaUse, tenant: Tenant, resource: str) -> int:
        """Returns the accelerators that a user's pods hold, in hundredths of a device."""
        return use.user(tenant.user, CARDS)

    def share(self, tenant: Tenant, resource: str) -> Fraction:
        """Returns the share of a user, rounded to whole devices, in hundredths of a device."""
        return Fraction(self.shares.whole.get(tenant.user, 0)) * 100

    def exact(self, tenant: Tenant, resource: str) -> Fraction:
        """Returns the unrounded share of a user, in hundredths of a device."""
        return Fraction(self.shares.exact.get(tenant.user, 0)) * 100


@dataclass(frozen=True)
class _Queues(Entitlements):
    """Shares of queues in modes exact and kai. A pod's tenants are its queue and the quotas above it."""

    snapshot: Snapshot
    shares: QueueShares

    def path(self, pod: PodInfo) -> Path:
        """Returns the pod's queue and those above it, from the top down; empty for a pod of the system quota."""
        quotas = self.snapshot.quotas
        if quotas.quota_of(pod) == keys.SYSTEM_QUOTA:
            return ()
        queue = quotas.queue_of(pod)
        return tuple(ShareQueue(name) for name in quotas.tree.path(queue.quota)) if queue.quota else (queue,)

    def counted(self, tenant: Tenant, resource: str) -> bool:
        """Returns True if a queue counts a resource: a quota the keys of its max, a user every resource."""
        return counts(self.snapshot.quotas, tenant, resource)

    def resources(self, tenant: Tenant) -> list[str]:
        """Returns the resources that the queue has a share of, sorted by name."""
        return sorted(self.shares.whole.get(tenant, {}))

    def use(self, use: QuotaUse, tenant: Tenant, resource: str) -> int:
        """Returns the usage of a queue; for a quota, including all tenants below it."""
        return use.queue(tenant, resource)

    def share(self, tenant: Tenant, resource: str) -> Fraction:
        """Returns the share of a queue in whole units; 0 without a share."""
        return Fraction(self.shares.whole.get(tenant, {}).get(resource, 0))

    def exact(self, tenant: Tenant, resource: str) -> Fraction:
        """Returns the unrounded share of a queue; 0 without a share."""
        return Fraction(self.shares.exact.get(tenant, {}).get(resource, 0))


def usage_above(use: int, share: Fraction | int) -> int:
    """Returns the usage above a share, rounded up; 0 or less if usage is within the share.

    While less than this amount is evicted, usage stays above the share.
    """
    return ceil(use - share)


def evictable_amount(use: int, share: Fraction | int) -> int:
    """Returns the amount that may be evicted without going below min(use, share)."""
    return max(0, floor(use - share))
