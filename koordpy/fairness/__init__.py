# SPDX-License-Identifier: Apache-2.0
"""The amounts that users, queues and ElasticQuotas may use: fair shares, runtimes, quota admission, queue order.

A fair share orders the queue, and limits what may be reclaimed. It is computed by exact weighted max-min fairness
(water filling). A runtime limits what a quota may use now. It is computed as in Koordinator's elastic quota.

Main types: `Admission` (`quota_admission.py`): checks a unit against its quotas; `QuotaAmounts` (`quota_runtime.py`):
request, usage and runtime of a quota; `Entitlements` (`tenant_entitlements.py`): the mins or fair shares of tenants.

Must not know nodes beyond sums of their capacity. Start reading at `fair_shares.py`, then `quota_admission.py`.
"""
