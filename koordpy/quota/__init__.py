# SPDX-License-Identifier: Apache-2.0
"""ElasticQuotas as they take effect, the usage of each quota and user, and which unit was recently evicted for which.

Amounts are updated with each watch event and summed once a snapshot, O(changed pods).

Main types: `QuotaTree` (`quota_tree.py`): quotas and parents; `QuotaBook` (`quota_book.py`): follows pods; `QuotaUse`
(`quota_book.py`): amounts by quota.

Must not decide the share of a tenant: `fairness` does. Start reading at `quota_tree.py`, then `quota_book.py`.
"""
