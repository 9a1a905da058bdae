"""Devices among the members of a gang: what one member's resource claims take, the others' must not count on.

Members with claims of their own, as a claim template makes them, want devices that one node alone offers. Where what
is wanted are sets of devices that are equal or have none in common, the claims that meet on a node find devices exactly
if of each set no more are wanted there than are free, and find them in any order: so each set makes a column of room.
"""

from collections.abc import Mapping

import numpy as np

from koordpy.cluster.devices import DeviceId
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Draft, Ints
from koordpy.planning.filters.dra import DynamicResources

Column = tuple[Ints, dict[bytes, int]]
"""([nodes] room, shape -> what a pod of it takes)."""


def devices_among(kinds: Mapping[bytes, PodInfo], draft: Draft) -> tuple[Column, ...] | None:
    """What open resource claims leave each other; None where it cannot be said in this way.

    kinds: shape -> pod; no two pods share a claim that is to be allocated.
    """
    objects = draft.snapshot.devices
    if objects is None:
        return None
    asks: dict[frozenset[DeviceId], dict[bytes, int]] = {}
    offered: dict[frozenset[DeviceId], Mapping[str, int]] = {}
    for shape, pod in kinds.items():
        for found in DynamicResources(pod, draft, objects).sought():
            if found is None:
                return None
            devices, numbers = found
            own = asks.setdefault(devices, {})
            own[shape] = own.get(shape, 0) + 1
            offered[devices] = numbers
    if sum(map(len, asks)) > len(frozenset[DeviceId]().union(*asks)):
        return None  # a claim that need not might take the device of one that must
    columns = []
    for devices, own in asks.items():
        room = np.zeros(len(draft.snapshot.nodes), dtype=np.int64)
        for name, number in offered[devices].items():
            if name in draft.snapshot.index:
                room[draft.snapshot.index[name]] = number
        columns.append((room, own))
    return tuple(columns)
