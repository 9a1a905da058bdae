# SPDX-License-Identifier: Apache-2.0
"""The minimum bandwidth among the devices of a pod's claims (annotation `min-bandwidth`). Source: dra.md 6.

It applies to all pairs of devices of one driver, and the node's Device must know these devices. A driver without a
device in the Device object is left out in two cases: the Device knows devices of another driver of the pod, or the pod
also has allocatable GPUs (network cards beside GPUs). In all other cases the node cannot guarantee the bandwidth.
"""

from collections.abc import Sequence
from typing import NamedTuple

from koordpy.api import keys
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.filters.node_links import KBS, NodeLinks
from koordpy.pods.pod_info import PodInfo

MOST_GBS = 10**9
"""Largest number that is read as a bandwidth."""


def least_bandwidth(pod: PodInfo) -> int:
    """Returns the minimum bandwidth of a pod in kB/s; 0 for none. Raises ValueError with a message for its owner."""
    text = pod.pod.metadata.annotations.get(keys.GPU_MIN_BANDWIDTH)
    if text is None:
        return 0
    try:
        value = float(text) if text.isascii() and "_" not in text else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST_GBS:
        what = f"{text!r} is not a positive number of GB/s"
        raise ValueError(f"annotation {keys.GPU_MIN_BANDWIDTH} cannot be read: {what}")
    return max(1, round(value * KBS))


def bandwidth_fault(pod: PodInfo) -> str:
    """Returns why the minimum bandwidth of a pod cannot be read; empty if it can."""
    try:
        least_bandwidth(pod)
    except ValueError as fault:
        return str(fault)
    return ""


class PodBandwidth(NamedTuple):
    """The minimum bandwidth of one pod."""

    claims: frozenset[int]
    """Claims of the pod, by their position in the search."""
    fixed: tuple[int, ...]
    """Devices of claims that are allocated already."""
    least: int
    """In kB/s."""
    has_gpus: bool
    """True if the pod gets allocatable GPUs of the node, too."""


class Bandwidth:
    """The minimum bandwidths of pods on one node. Implements `PairRule`."""

    def __init__(self, links: NodeLinks, pods: Sequence[PodBandwidth]) -> None:
        self._links, self._pods = links, pods
        self._known = {links.drivers[i] for i, at in enumerate(links.at) if at is not None}
        """Drivers with at least one device in the Device object."""

    def is_linked(self, search: DeviceSearch, claim: int, at: int) -> bool:
        """Implements `PairRule.is_linked`, for drivers that the Device knows."""
        driver = self._links.drivers[at]
        if driver not in self._known or search.devices[at].multi:
            return True
        for pod in self._pods:
            if claim in pod.claims:
                near = (i for i in self._devices(search, pod) if i != at and self._links.drivers[i] == driver)
                if any((self._links.lowest(i, at) or 0) < pod.least for i in near):
                    return False
        return True

    def apart(self, claim: int) -> tuple[int, ...] | None:
        """Implements `PairRule.apart`, as far as the Device knows the drivers."""
        pods = [pod for pod in self._pods if claim in pod.claims]
        if not pods:
            return None
        drivers = self._links.drivers
        out = [0] * len(drivers)
        for i, driver in enumerate(drivers):
            for j, other in enumerate(drivers if driver in self._known else ()):
                slow = (pod for pod in pods if i != j and (self._links.lowest(i, j) or 0) < pod.least)
                for pod in slow if driver == other else ():
                    out[i] |= 1 << j | (1 << i if j in pod.fixed else 0)
        return tuple(out)

    def is_met(self, search: DeviceSearch) -> bool:
        """Implements `PairRule.is_met`: fails if a driver is unknown to the Device and may not be left out."""
        for pod in self._pods:
            drivers = [self._links.drivers[i] for i in self._devices(search, pod)]
            pairs = {one for one in drivers if drivers.count(one) > 1}
            if pairs - self._known and not (pod.has_gpus or self._known & set(drivers)):
                return False
        return True

    def _devices(self, search: DeviceSearch, pod: PodBandwidth) -> list[int]:
        """Returns the devices that a pod has whole."""
        chosen = (one for i, claim in enumerate(search.chosen()) if i in pod.claims for one in claim)
        return [*pod.fixed, *(at for one, at in chosen if not one.admin and not search.devices[at].multi)]
