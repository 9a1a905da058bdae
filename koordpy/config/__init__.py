# SPDX-License-Identifier: Apache-2.0
"""The configuration file of koordpy: `KoordpyConfiguration` has every setting with its default.

Also here is the reader of the annotation for network topology, because the configuration has default gather goals in
the same form: the locality in the network that a gang requests (`TopologyWish`).

Main types: `KoordpyConfiguration` (`configuration.py`): all settings; `TopologyWish` (`gang_topology.py`): a gather
goal; `Flag` (`configuration_file.py`): a command-line flag.

Must not know the cluster. A section defines the valid values; the package that reads a setting defines its effect.
Start reading at `configuration.py`, then `gang_topology.py`.
"""
