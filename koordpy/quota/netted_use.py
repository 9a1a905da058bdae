# SPDX-License-Identifier: Apache-2.0
"""Usage of quotas and users in which a terminating pod and the nominated pod that replaces it count once.

If both counted, a quota would seem fuller than it will be, and a search for victims would evict a pod too many.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from koordpy.pods.pod_info import PodInfo
from koordpy.quota.quota_book import QuotaUse, ShareQueue


class NettedUse(QuotaUse):
    """Usage that includes reservations and terminating pods, as it limits the pods of one unit.

    In the quotas, users and queues of the unit, and in all above them: usage plus the amount by which reserved amounts
    exceed terminating amounts. In all others: usage less terminating amounts.
    """

    def __init__(
        self, base: QuotaUse, *, pods: Collection[PodInfo], leaving: Iterable[PodInfo], coming: Iterable[PodInfo]
    ) -> None:
        """base: usage of the draft. pods: the pods of the unit. leaving: terminating pods, which `base` still counts.
        coming: nominated pods of other units with reservations that are closed to the unit; `base` does not count
        them."""
        super().__init__(base.quotas)
        quotas = base.quotas
        none = replace(quotas, usage={}, demand={})
        self._base, self._leaving, self._coming = base, QuotaUse(none), QuotaUse(none)
        for pod in leaving:
            self._leaving.change(pod, 1)
        for pod in coming:
            self._coming.change(pod, 1)
        self._own_quotas = {name for pod in pods for name in quotas.tree.path(quotas.quota_of(pod))}
        self._own_users = {quotas.user_of(pod) for pod in pods}
        self._own_queues = {quotas.queue_of(pod) for pod in pods}

    def _netted(self, usage_in: Callable[[QuotaUse], int], *, own: bool) -> int:
        """Returns one netted amount.

        usage_in: reads the amount from a usage. own: True for a quota, user or queue of the unit.
        """
        held, leaving = usage_in(self._base), usage_in(self._leaving)
        return held + max(0, usage_in(self._coming) - leaving) if own else held - leaving

    def used(self, quota: str, resource: str) -> int:
        """Returns the netted usage of a resource by pods in a quota and below it."""
        return self._netted(lambda use: use.used(quota, resource), own=quota in self._own_quotas)

    def rigid_used(self, quota: str, resource: str) -> int:
        """Returns the netted usage by non-preemptible pods in a quota and below it."""
        return self._netted(lambda use: use.rigid_used(quota, resource), own=quota in self._own_quotas)

    def user(self, user: str, resource: str) -> int:
        """Returns the netted usage of a resource by a user's pods."""
        return self._netted(lambda use: use.user(user, resource), own=user in self._own_users)

    def queue(self, queue: ShareQueue, resource: str) -> int:
        """Returns the netted usage of a resource by pods of a queue."""
        return self._netted(lambda use: use.queue(queue, resource), own=self._is_own(queue))

    def _is_own(self, queue: ShareQueue) -> bool:
        """Returns True if a queue is the queue of a pod of the unit, or a quota above it."""
        return queue in self._own_queues or queue.quota in self._own_quotas
