"""ElasticQuotas: the tree of quotas, the usage of each quota and user, and the history of preemption between units.

Amounts are updated per event and summed per snapshot, O(changed pods).

Main types: `QuotaTree` (`quota_tree.py`): quotas and parents; `QuotaBook` (`quota_book.py`): follows pods; `QuotaUse`
(`quota_book.py`): amounts by quota.

Must not decide the share of a tenant: `fairness` does. Start reading at `quota_tree.py`, then `quota_book.py`.
"""
