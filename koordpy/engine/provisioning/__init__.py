# SPDX-License-Identifier: Apache-2.0
"""Creates, follows and deletes ProvisioningRequests in the cluster (repair.md 3).

Each round computes which units ask for nodes. A task compares them with the requests on the API server, and creates or
deletes requests. The requests are the only stored state, so a new leader continues with them and creates none twice.

Main types: `RequestKeeper` (`request_keeper.py`): the task; `RequestWrites` (`request_writes.py`): the writes;
`RequestNews` (`request_news.py`): events and counts.

Must not decide which units ask: `koordpy.provisioning` does. Start reading at `request_keeper.py`.
"""
