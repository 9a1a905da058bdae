"""What modes exact and kai share: a tree of queues with shares of the round."""

from collections.abc import Iterable, Mapping
from typing import Any

from koordpy.api.config import Fairness
from koordpy.api.natural import natural_key
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.quotas import QuotaUse, ShareQueue
from koordpy.planning.orders.keys import QueueKeys
from koordpy.planning.quota.queues import QueueShares, queue_ages, queue_shares


class ByShare(QueueKeys):
    """Queues of a tree, with what each deserves in this round."""

    def __init__(self, use: QuotaUse, config: Fairness, pods: Iterable[PodInfo]) -> None:
        super().__init__(use, config, pods)
        self.quotas = use.quotas
        self.ages = queue_ages(self.quotas, self.oldest(pods))
        self.shares: QueueShares = queue_shares(self.quotas, config, self.ages)
        self.limits = {name: quota.max for name, quota in self.quotas.tree.quotas.items()}

    def oldest(self, pods: Iterable[PodInfo]) -> Mapping[ShareQueue, float]:
        """Age of the oldest job of each queue, where the order of ages decides anything: not for unrounded shares."""
        return {}

    def queue_of_pod(self, pod: PodInfo) -> ShareQueue:
        return self.quotas.queue_of(pod)

    def above(self, queue: ShareQueue) -> tuple[ShareQueue, ...]:
        return tuple(ShareQueue(name) for name in reversed(self.quotas.tree.path(queue.quota)[:-1]))

    def quota(self, queue: ShareQueue, resource: str) -> int:
        return self.quotas.tree.quotas[queue.quota].least(resource) if queue.quota else 0

    def name(self, queue: ShareQueue) -> Any:
        return natural_key(queue.quota or queue.user), queue.user
