# SPDX-License-Identifier: Apache-2.0
"""Sets of devices of one machine by the links between them, for every family of devices.

Main types: `Pattern` (`link_pattern.py`): link classes of a machine; `Tables` (`link_tables.py`): slowest pair, best
ring and packing of every set of devices; `Masks` (`device_masks.py`): sets of devices; `Partitioner`
(`device_partitioning.py`): the best divisions of sets among pods; `LinkBoard` (`link_board.py`): links and places.

Must not know pods, nodes or families. Start reading at `link_tables.py`.
"""
