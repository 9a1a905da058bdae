"""Cache of the cluster: objects are stored as they change, and read as immutable Snapshots; a Draft is a plan's copy
with undo.

`ClusterState` passes each object to a book (nodes, pods, gangs, neighbours, workloads). A snapshot costs O(changed
nodes).

Main types: `ClusterState` (`cluster_state.py`): the cache; `Snapshot` (`snapshot.py`) and `Draft` (`plan_draft.py`):
the planner's input and its scratch copy.

Must not plan, do I/O or read a clock. Device families appear only as books, views and ledgers.
Start reading at `snapshot.py`, then `plan_draft.py` and `pod_book.py`.
"""
