# SPDX-License-Identifier: Apache-2.0
"""Creates, follows and deletes ProvisioningRequests in the cluster (repair.md 3).

A ProvisioningRequest asks the cluster autoscaler for nodes. Each round computes which units need more nodes. A task
compares these units with the requests on the API server, and creates or deletes requests. The requests are the only
stored state, so a new leader continues with them and creates no request twice.

Main types: `RequestKeeper` (`request_keeper.py`): the task; `RequestWrites` (`request_writes.py`): the writes;
`RequestNews` (`request_news.py`): events and metrics.

Must not decide which units need nodes: `koordpy.provisioning` does. Start reading at `request_keeper.py`.
"""
