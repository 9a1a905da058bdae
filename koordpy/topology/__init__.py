"""The network topology: layers, the tree of domains, and Volcano's HyperNodes as a second source.

The tree is arrays for planning (levels, parents, node ranges) and a networkx graph as its validated model. A fault in a
topology names the layers in effect.

Main types: `Tree` (`topology_tree.py`): domains; `Level` (`topology_tree.py`): one layer's domains; `Layers`
(`topology_layers.py`): layers and labels.

Must not know pods or free capacity. Start reading at `topology_tree.py`, then `topology_layers.py`.
"""
