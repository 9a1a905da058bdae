# SPDX-License-Identifier: Apache-2.0
"""The API server's client: credentials, typed calls, replies, served versions, rate limits, and the leader lease.

Bodies are decoded into the typed objects of `koordpy.api.objects`. Each error is an `ApiError` (the server replied) or
`Unreachable` (no valid reply). A token bucket limits the rate of calls.

Main types: `ApiClient` (`api_client.py`): calls; `ClusterAccess` (`credentials.py`): address and credentials;
`LeaderElector` (`leader_lease.py`): the lease.

Must not know the scheduler: the agent and the command line use this package, too.
Start reading at `api_client.py`, then `credentials.py`.
"""
