# SPDX-License-Identifier: Apache-2.0
"""Builds the tree of the network topology: which nodes share a switch, block or spine.

The layers are read from the ClusterNetworkTopology object, or from Volcano's HyperNodes. For planning, the tree of
domains is stored as arrays (levels, parents, node ranges); for display it is converted to a networkx graph.

Main types: `Tree` (`topology_tree.py`): domains; `Level` (`topology_tree.py`): one layer's domains; `Layers`
(`topology_layers.py`): layers and labels.

Must not know pods or free capacity. Start reading at `topology_tree.py`, then `topology_layers.py`.
"""
