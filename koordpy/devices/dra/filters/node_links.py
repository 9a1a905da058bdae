# SPDX-License-Identifier: Apache-2.0
"""Links between the devices that a node reaches, and their NUMA nodes and PCIe roots.

If the Device of the node knows a pair, by `uuid` or PCI bus, the pair has the link class that the Device states. For
other pairs it follows from attributes: PIX for equal `resource.kubernetes.io/pcieRoot`; else NODE for equal, SYS for
different `resource.kubernetes.io/numaNode`; else unknown. Values are in kB/s. Source: docs/rules/dra.md 6.
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any

from koordpy.devices.dra.ledger.offered_devices import OfferedDevice
from koordpy.plan.limits import DEVICE_TWINS
from koordpy.pods.family_books import KnownLinks

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"
BUS_ID = "resource.kubernetes.io/pciBusID"
KBS = 10**6
"""kB/s in a GB/s."""
ASSUMED = {"PIX": 12, "NODE": 9, "SYS": 8}
"""GB/s of the classes that follow from attributes."""
UNKNOWN = 0

Place = tuple[Any, Any]
"""(PCIe root, NUMA node) of a device; None for an unknown one."""


def place_of(device: OfferedDevice) -> Place:
    """Returns the place of a device by its attributes. Of a list of NUMA nodes, the first one counts."""
    root, numa = device.attribute(PCIE_ROOT), device.attribute(NUMA_NODE)
    stated = device.facts.attributes.get(NUMA_NODE)
    first = stated.numbers[0] if stated is not None and stated.numbers else None
    return (
        root[1] if root is not None and root[0] == "string" else None,
        numa[1] if numa is not None and numa[0] == "int" else first,
    )


def assumed_link(a: Place, b: Place, figures: Mapping[str, float]) -> int:
    """Returns kB/s of the link of two devices by their places. figures: GB/s of classes that replace `ASSUMED`."""
    if a[0] is not None and a[0] == b[0]:
        name = "PIX"
    elif a[1] is None or b[1] is None:
        return UNKNOWN
    else:
        name = "NODE" if a[1] == b[1] else "SYS"
    return round(figures.get(name, ASSUMED[name]) * KBS)


class NodeLinks:
    """The links of the devices of one node; devices are known by their position."""

    def __init__(
        self, devices: Sequence[OfferedDevice], known: KnownLinks | None, figures: Mapping[str, float]
    ) -> None:
        """known: links of the node's Device; None for none. figures: GB/s of classes, as in `gpu.linkBandwidth`."""
        self.drivers = [device.id.driver for device in devices]
        self._figures = figures
        self._known = known
        self.at = [_position(device, known) if known is not None else None for device in devices]
        """Position of each device in the Device; None for an unknown one."""
        self.places = [self._place(i, device) for i, device in enumerate(devices)]
        self.has_matrix = known is not None and known.classes is not None and any(one is not None for one in self.at)
        """True if the Device states the link of a pair."""

    def _place(self, i: int, device: OfferedDevice) -> Place:
        """Returns the place of a device: from the node's Device if it states one, else from attributes."""
        root, numa = place_of(device)
        at = self.at[i]
        if self._known is None or at is None:
            return root, numa
        stated = self._known.numa[at]
        return self._known.roots[at] or root, stated if stated is not None else numa

    def value(self, i: int, j: int) -> int:
        """Returns kB/s of a pair, by its class on the node."""
        return self._value(i, j, self._known.classes if self._known is not None else None)

    @cached_property
    def values(self) -> tuple[tuple[int, ...], ...]:
        """[devices][lower devices] kB/s of each pair, by its class on the node."""
        matrix, at = self._known.classes if self._known is not None else None, self.at
        known = [one for one in at if one is not None]
        if matrix is not None and len(known) == len(at):
            return tuple(tuple(matrix[known[j]][one] for j in range(i)) for i, one in enumerate(known))
        return tuple(tuple(self.value(j, i) for j in range(i)) for i in range(len(at)))

    def compared(self, i: int, j: int) -> int:
        """Returns kB/s of a pair, by its class over all nodes."""
        return self._value(i, j, self._known.compared if self._known is not None else None)

    def compared_to(self, i: int, at: int | None) -> int:
        """Returns kB/s of a device and a position in the node's Device, by its class over all nodes; `UNKNOWN` for no
        known position."""
        if self._known is None or at is None:
            return UNKNOWN
        own, matrix = self.at[i], self._known.compared
        if matrix is not None and own is not None and own != at:
            return matrix[own][at]
        return assumed_link(self.places[i], (self._known.roots[at] or None, self._known.numa[at]), self._figures)

    @property
    def size(self) -> int:
        """Number of devices in the node's Device; 0 without one."""
        return len(self._known.numa) if self._known is not None else 0

    def _value(self, i: int, j: int, matrix: Sequence[Sequence[int]] | None) -> int:
        a, b = self.at[i], self.at[j]
        if matrix is not None and a is not None and b is not None:
            return matrix[a][b]
        return assumed_link(self.places[i], self.places[j], self._figures)

    def are_nested(self, devices: Sequence[int]) -> bool:
        """Returns whether the links that follow from the places of devices form nested groups: PCIe roots inside NUMA
        nodes, which are known for all devices or for none, and each class faster than the next one."""
        numas: dict[Any, set[Any]] = {}
        for i in devices:
            root, numa = self.places[i]
            numas.setdefault(root, set()).add(numa)
        every = set().union(*numas.values())
        if any(len(some) > 1 for root, some in numas.items() if root is not None) or (len(every) > 1 and None in every):
            return False
        pix, node, sys = (self._figures.get(name, value) for name, value in ASSUMED.items())
        return pix > node > sys > UNKNOWN

    def lowest(self, i: int, j: int) -> int | None:
        """Returns kB/s of a pair as the Device states it, the lower of both directions; None if it does not."""
        a, b = self.at[i], self.at[j]
        if self._known is None or self._known.lowest is None or a is None or b is None:
            return None
        return self._known.lowest[a][b]

    def twins(self) -> list[Hashable]:
        """Returns a key of each device; devices with equal keys have equal links to all devices."""
        keys: list[Hashable] = list(zip(self.drivers, self.places, strict=True))
        if not self.has_matrix:
            return keys
        known = [i for i, at in enumerate(self.at) if at is not None]
        out = [(key, i if at is not None else None) for i, (key, at) in enumerate(zip(keys, self.at, strict=True))]
        for i, j in combinations(known, 2) if len(known) <= DEVICE_TWINS else ():
            if keys[i] == keys[j] and out[j][1] == j and self._equal(i, j, known):
                out[j] = out[i]
        return list(out)

    def _equal(self, i: int, j: int, known: Sequence[int]) -> bool:
        """Returns whether two devices have equal links to all other devices that the Device knows."""
        return all(
            self.value(i, k) == self.value(j, k) and self.lowest(i, k) == self.lowest(j, k)
            for k in known
            if k not in (i, j)
        )


def _position(device: OfferedDevice, known: KnownLinks) -> int | None:
    """Returns the position of a device in the Device, by its uuid, else by its PCI bus; None if it is not there."""
    for name, positions in ((f"{device.id.driver}/uuid", known.ids), (BUS_ID, known.bus_ids)):
        stated = device.attribute(name)
        if stated is not None and stated[0] == "string" and stated[1] in positions:
            return positions[stated[1]]
    return None
