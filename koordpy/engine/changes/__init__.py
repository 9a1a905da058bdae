# SPDX-License-Identifier: Apache-2.0
"""Handles watch events of each kind of object: updates the cache, and wakes the pending units that the event may help.

Each kind of object has a function or class here. As in kube-scheduler, queueing hints (`engine/wakeups.py`) select the
units to wake.

Main types: `Hub` (`change_hub.py`): shared state of all handlers; `PodChanges` (`pod_changes_live.py`): pods;
`WorkloadChanges` (`workload_changes.py`): workloads.

Must not write to the API server, and must not start a round itself.
Start reading at `object_changes.py`, then `pod_changes_live.py`.
"""
