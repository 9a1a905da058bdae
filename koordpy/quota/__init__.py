"""ElasticQuotas: the tree of quotas, the use of each quota and user, and the history of preemption between them.

Amounts are updated per event and summed per snapshot, O(changed pods).

Main types: `QuotaTree` (`quota_tree.py`): quotas and parents; `QuotaBook` (`quota_book.py`): follows pods; `QuotaUse`
(`quota_book.py`): amounts by quota.

Must not decide what a tenant deserves: `fairness` does.
Start reading at `quota_tree.py`, then `quota_book.py`.
"""
