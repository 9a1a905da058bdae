# SPDX-License-Identifier: Apache-2.0
"""Creates, follows and deletes ProvisioningRequests in the cluster (repair.md 3).

Rounds say which units ask for nodes. A task compares that with the requests on the API server, which are the only
memory, and writes the difference. So a new leader continues where the last one stopped, and creates nothing twice.

Main types: `RequestKeeper` (`request_keeper.py`): the task; `RequestWrites` (`request_writes.py`): the writes;
`RequestNews` (`request_news.py`): events and counts.

Must not decide which units ask: `koordpy.provisioning` does. Start reading at `request_keeper.py`.
"""
