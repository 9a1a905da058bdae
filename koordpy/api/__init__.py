# SPDX-License-Identifier: Apache-2.0
"""Wire objects: the objects of the Kubernetes API as typed records. Also keys of labels, quantities and times.

The package knows Kubernetes' field names and the annotations of koordpy and Koordinator; only `keys.py` has the names
of labels and annotations. Quantities are exact integers, and times are UTC. A fault, the text on an invalid value, has
the path of its field.

Main types: `Pod` (`objects.py`) and `Node` (`objects.py`): core objects; `PodGroup` (`pod_groups.py`): a gang; `Fault`
(`field_faults.py`): an invalid value.

Must not do I/O, must not know the cache or the planner, and must not guess: an unreadable value is reported as a fault.
Start reading at `objects.py`, then `keys.py`.
"""
