# SPDX-License-Identifier: Apache-2.0
"""Learns which pods kubelets reject, and keeps pods of the same request shape from these nodes for a while (numa.md 8).

A kubelet may reject a pod that fits the totals of its node, for example because no NUMA zone has its devices together.
The scheduler sees the rejection as a Failed pod that never ran. The cache has one memory of rejections, live and
offline, and the filter NodeRepair reads the closed nodes from the Snapshot.

Main types: `RequestShape` (`request_shapes.py`): the pods that a kubelet treats alike; `Strikes` (`strikes.py`): until
when a shape is closed on a node; `RejectionMemory` (`rejection_memory.py`): rejections by node; `ClosedNodes`
(`closed_nodes.py`): the nodes that are closed at a moment.

Must not read a clock: callers pass times. Start reading at `strikes.py`, then `rejection_memory.py`.
"""
