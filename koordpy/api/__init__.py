"""Wire objects as types: what users and the API server write, with keys, quantities and times.

The room knows Kubernetes' field names and the annotations of koordpy and Koordinator; each label and annotation is
named in `keys.py` alone. Quantities are exact integers, times are UTC, and a fault names the path of its field.

Main types: `Pod` (`objects.py`) and `Node` (`objects.py`): core objects; `PodGroup` (`pod_groups.py`): a gang; `Fault`
(`field_faults.py`): a fault.

Must not do I/O, must not know the cache or the planner, and must not guess: an unreadable value is a fault.
Start reading at `objects.py`, then `keys.py`.
"""
