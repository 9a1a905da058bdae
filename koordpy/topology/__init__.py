# SPDX-License-Identifier: Apache-2.0
"""The network topology: which nodes share a switch, block or spine.

Layers come from the ClusterNetworkTopology object, or from Volcano's HyperNodes. The tree of domains is arrays for
planning (levels, parents, node ranges), and a networkx graph for display.

Main types: `Tree` (`topology_tree.py`): domains; `Level` (`topology_tree.py`): one layer's domains; `Layers`
(`topology_layers.py`): layers and labels.

Must not know pods or free capacity. Start reading at `topology_tree.py`, then `topology_layers.py`.
"""
