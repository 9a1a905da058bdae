# SPDX-License-Identifier: Apache-2.0
"""How much each user, queue and ElasticQuota may use: fair shares, runtimes of quotas, quota admission, queue order.

A fair share orders the queue, and limits what may be reclaimed. It is exact weighted max-min fairness (water filling).
A runtime limits what a quota may use now. It follows Koordinator's elastic quota.

Main types: `Admission` (`quota_admission.py`): the quota check; `QuotaAmounts` (`quota_runtime.py`): runtimes;
`Entitlements` (`tenant_entitlements.py`): entitlements.

Must not know nodes beyond sums of their capacity. Start reading at `fair_shares.py`, then `quota_admission.py`.
"""
