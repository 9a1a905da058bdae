# SPDX-License-Identifier: Apache-2.0
"""NUMA zones of nodes: which pods the kubelet's Topology Manager will admit, and from which zones (numa.md 1 to 7).

The package reads reports of zones (NodeResourceTopology) and the amounts of a pod that the kubelet aligns, predicts the
kubelet's admission by policy and scope, and computes the free amounts of each zone on a draft.

Main types: `Zones` (`admission.py`): sizes of a node's zones; `AlignedNode` (`aligned_node.py`): a node's zones as read
from its report; `ZoneState` (`zone_state.py`): free amounts on a draft; `NumaZones` (`numa_family.py`): the family.
Must not choose nodes or victims: the family answers for each node, as other device families do. A cluster without NUMA
data runs no code of this package.
Start reading at `admission.py`, which knows neither Kubernetes objects nor the planner; then `free_amounts.py`.
"""
