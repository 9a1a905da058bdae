"""Entitlements of users and queues, and quota admission: runtimes, fair shares, orders of queues.

Shares are exact weighted max-min fairness (water filling). Runtimes of quotas follow Koordinator's elastic quota.

Main types: `Admission` (`quota_admission.py`): the quota check; `QuotaFigures` (`quota_runtime.py`): runtimes;
`EntitlementLines` (`entitlement_lines.py`): entitlements.

Must not know nodes beyond sums of their capacity. Start reading at `fair_shares.py`, then `quota_admission.py`.
"""
