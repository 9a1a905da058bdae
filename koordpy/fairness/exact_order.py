# SPDX-License-Identifier: Apache-2.0
"""Mode exact of the queue order: the queue with the smallest usage, relative to its fair share, has the next turn."""

from fractions import Fraction
from typing import Any

from koordpy.fairness.order_keys import ByShare, Job
from koordpy.fairness.queue_shares import counts
from koordpy.quota.quota_book import CARDS, ShareQueue

_WITH_A_SHARE, _WITHOUT_A_SHARE, _BEYOND_ANY_SHARE = range(3)
"""Classes of queues, the first one is served first: the queue has a share of each resource; its next job requests a
resource without a share for the queue; it uses such a resource already."""


class Exact(ByShare):
    """Orders queues by their usage relative to their unrounded fair share."""

    def key(self, queue: ShareQueue, job: Job, oldest: float) -> Any:
        """Returns the sort key of a queue; the smallest is next.

        The criteria in order: the next job stays within the queue's min; the class of the queue; the largest ratio of
        usage to share over all resources; accelerators in use; the age of the oldest job; the name.
        """
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
