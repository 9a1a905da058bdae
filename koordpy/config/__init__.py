"""The configuration `KoordpyConfiguration`: every setting with its default, the reader of its file, and gather goals.

Sections are records with defaults. A gather goal (`TopologyWish`) is read from annotations of a gang.

Main types: `KoordpyConfiguration` (`configuration.py`): all settings; `TopologyWish` (`gang_topology.py`): a gather
goal; `Flag` (`configuration_file.py`): a flag.

Must not know the cluster. A section states which values are valid; their effect belongs to the room that reads it.
Start reading at `configuration.py`, then `gang_topology.py`.
"""
