# SPDX-License-Identifier: Apache-2.0
"""The configuration file of koordpy: `KoordpyConfiguration` has every setting with its default.

The reader of the network topology annotation is also here, because the configuration has default gather goals in the
same form. A gather goal is the locality in the network that a gang requests (`TopologyWish`).

Main types: `KoordpyConfiguration` (`configuration.py`): all settings; `TopologyWish` (`gang_topology.py`): gather
goals; `Flag` (`configuration_file.py`): a command-line flag.

Must not know the cluster. A section defines valid values; the package that uses a setting defines its effect.
Start reading at `configuration.py`, then `gang_topology.py`.
"""
