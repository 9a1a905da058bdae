"""The configuration `KoordpyConfiguration`: every setting with its default, the reader of its file, and gather goals.

Sections are records with defaults. A gather goal (`TopologyWish`) is read from an annotation of a gang.

Main types: `KoordpyConfiguration` (`configuration.py`): all settings; `TopologyWish` (`gang_topology.py`): a gather
goal; `Flag` (`configuration_file.py`): a command-line flag.

Must not know the cluster. A section defines the valid values; the package that reads a setting defines its effect.
Start reading at `configuration.py`, then `gang_topology.py`.
"""
