# SPDX-License-Identifier: Apache-2.0
"""Cache of the cluster, as in kube-scheduler: stores objects as watch events change them, and gives Snapshots to
rounds.

`ClusterState` passes each object to an index, called book (nodes, pods, gangs, neighbours, workloads). A Snapshot is
the immutable state at one moment. A Draft is a Snapshot with the changes of one round, each of which can be undone.

Main types: `ClusterState` (`cluster_state.py`): the cache; `Snapshot` (`snapshot.py`) and `Draft` (`plan_draft.py`):
the planner's input and its scratch copy.

Must not plan, do I/O or read a clock. Device families appear only as books, views and ledgers.
Start reading at `snapshot.py`, then `plan_draft.py` and `pod_book.py`.
"""
