"""What a change of each kind of object means: its entry in the cache, and the pending units that it may help.

A function or class for each kind of object updates the cache and wakes units by queueing hints.

Main types: `Hub` (`change_hub.py`): where changes go; `PodChanges` (`pod_changes_live.py`): pods; `WorkloadChanges`
(`workload_changes.py`): workloads.

Must not write to the API server, and must not start a round itself.
Start reading at `object_changes.py`, then `pod_changes_live.py`.
"""
