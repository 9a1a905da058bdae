"""Mode gpu-count: users by the accelerators that they hold, per weight."""

from fractions import Fraction
from typing import Any

from koordpy.api.natural import natural_key
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.quotas import ShareQueue
from koordpy.planning.orders.keys import INFINITE, Job, QueueKeys


class CountOrder(QueueKeys):
    """Users by accelerators per weight."""

    def queue_of_pod(self, pod: PodInfo) -> ShareQueue:
        return ShareQueue("", self.use.quotas.user_of(pod))

    def key(self, queue: ShareQueue, job: Job, oldest: float) -> Any:
        held, weight = self.use.user_devices(queue.user), self.config.weights.get(queue.user, 1)
        ratio: Any = (Fraction(held) / Fraction(weight) if held else 0) if weight else INFINITE
        return ratio, oldest, natural_key(queue.user)
