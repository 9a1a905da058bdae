# SPDX-License-Identifier: Apache-2.0
"""The cache of the cluster, as in kube-scheduler: stores objects from watch events, and creates a Snapshot for a round.

`ClusterState` passes each object to an index, called book. There are books for nodes, pods, gangs, neighbours (counts
of pods for inter-pod filters), workloads and devices. A Snapshot is the immutable state at one moment. A Draft is a
Snapshot with the changes of one round, each of which can be undone.

Main types: `ClusterState` (`cluster_state.py`): the cache; `Snapshot` (`snapshot.py`): the planner's input; `Draft`
(`plan_draft.py`): the planner's working copy.

Must not plan, do I/O or read a clock. It knows device families only by their books, views and ledgers.
Start reading at `snapshot.py`, then `plan_draft.py` and `pod_book.py`.
"""
