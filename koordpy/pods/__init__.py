"""A pod as the planner sees it: its request, its gang, its terms about other pods, and the objects that it names.

A `PodInfo` is made once per version of a pod, and every other room uses it. Amounts are integers by resource name.

Main types: `PodInfo` (`pod_info.py`): a pod; `GangRef` (`gang_refs.py`): its gang; `VolumeObjects` (`volume_book.py`):
volumes and claims.

Must not know free capacity of nodes or plans.
Start reading at `pod_info.py`, then `resource_amounts.py`.
"""
