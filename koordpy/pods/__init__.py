# SPDX-License-Identifier: Apache-2.0
"""Reads pods for the planner: requests, gang, affinity terms about other pods, and the objects that a pod refers to.

A `PodInfo` is built once per version of a pod, and every other package uses it. Amounts are integers by resource name.

Main types: `PodInfo` (`pod_info.py`): a pod; `GangRef` (`gang_refs.py`): its gang; `VolumeObjects` (`volume_book.py`):
volumes and claims.

Must not know free capacity of nodes or plans. Start reading at `pod_info.py`, then `resource_amounts.py`.
"""
