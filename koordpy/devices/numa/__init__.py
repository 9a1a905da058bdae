# SPDX-License-Identifier: Apache-2.0
"""NUMA zones of nodes: which pods the kubelet's Topology Manager will admit, and from which zones (numa.md 1 to 7).

Knows reports of zones (NodeResourceTopology), what the kubelet aligns of a pod, its admission by policy and scope, and
the free amounts of each zone on a draft.

Main types: `Zones` (`admission.py`), `AlignedNode` (`aligned_node.py`), `ZoneState` (`numa_nodes.py`), `NumaZones`
(`numa_family.py`).
Must not choose nodes or victims: the family answers for each node, as other device families do. A cluster without NUMA
data runs no code of this package.
Start reading at `admission.py`, which knows neither Kubernetes objects nor the planner; then `free_amounts.py`.
"""
