"""Mode exact: orders queues by usage relative to their exact share."""

from fractions import Fraction
from typing import Any

from koordpy.fairness.order_keys import ByShare, Job
from koordpy.fairness.queue_shares import counts
from koordpy.quota.quota_book import CARDS, ShareQueue

_WITH_A_SHARE, _WITHOUT_A_SHARE, _BEYOND_ANY_SHARE = range(3)
"""Queues of mode exact: with a share; requesting without a share and using nothing; using without a share."""


class Exact(ByShare):
    """Orders queues by usage relative to their exact share."""

    def key(self, queue: ShareQueue, job: Job, oldest: float) -> Any:
        asked = job.requests()
        shares = self.shares.exact.get(queue, {})
        within = all(
            self.use.queue(queue, r) + amount <= self.quota(queue, r)
            for r, amount in asked.items()
            if amount and counts(self.quotas, queue, r)
        )
        ratio, standing = Fraction(0), _WITH_A_SHARE
        for resource, share in shares.items():
            held = self.use.queue(queue, resource)
            if share:
                ratio = max(ratio, Fraction(held) / share)
            elif held > 0:
                standing = _BEYOND_ANY_SHARE  # the ratio is infinite
            elif asked.get(resource):
                standing = max(standing, _WITHOUT_A_SHARE)
        if standing == _BEYOND_ANY_SHARE:
            ratio = Fraction(0)
        return not within, standing, ratio, self.use.queue(queue, CARDS), oldest, self.name(queue)
