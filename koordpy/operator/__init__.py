# SPDX-License-Identifier: Apache-2.0
"""The process of `koordpy run`: the scheduler on the main event loop, kopf in a thread, webhooks, and the tenant API.

kopf watches koordpy's topology objects, so that their status is written. The webhooks add GPU variables to pods, and
review changes of quotas.

Main types: `OperatorHost` (`process_host.py`): the process; `KopfThread` (`kopf_handlers.py`): runs kopf; `TenantApi`
(`tenant_api.py`): answers requests of tenants.

Must not plan. Only this package imports kopf (import-linter).
Start reading at `process_host.py`, then `kopf_handlers.py`.
"""
