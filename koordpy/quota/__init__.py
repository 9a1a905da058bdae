# SPDX-License-Identifier: Apache-2.0
"""ElasticQuotas as they take effect, the usage of each quota and user, and the history of recent evictions.

Amounts are updated with each watch event and added up once for each snapshot, O(changed pods).

Main types: `QuotaTree` (`quota_tree.py`): quotas with their parents; `QuotaBook` (`quota_book.py`): sums that follow
watch events; `QuotaUse` (`quota_book.py`): usage that follows a draft.

Must not decide the share of a tenant: `fairness` does. Start reading at `quota_tree.py`, then `quota_book.py`.
"""
