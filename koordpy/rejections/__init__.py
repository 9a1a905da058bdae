# SPDX-License-Identifier: Apache-2.0
"""Learns which pods kubelets reject, and closes these nodes to pods of the same request shape for a while (numa.md 8).

A kubelet may reject a pod although it fits the totals of the node, for example because no NUMA zone has all its
devices. The scheduler sees the rejection as a Failed pod that never ran. A rejection that closes the node to the pod's
request shape is a strike; each further strike closes it for longer. The cache has one memory of rejections, live and
offline, and the filter NodeRepair reads the closed nodes from the Snapshot.

Main types: `RequestShape` (`request_shapes.py`): pods that a kubelet admits or rejects alike; `Strikes` (`strikes.py`):
until when a node is closed to a shape; `RejectionMemory` (`rejection_memory.py`): rejections by node; `ClosedNodes`
(`closed_nodes.py`): the nodes that are closed at one moment.

Must not read a clock: callers pass times. Start reading at `strikes.py`, then `rejection_memory.py`.
"""
