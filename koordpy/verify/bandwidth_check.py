# SPDX-License-Identifier: Apache-2.0
"""The independent check of the minimum bandwidth among the devices of a pod's claims (annotation `min-bandwidth`).

It reads pair by pair what the node's Device states, and shares no code with the choice of devices. A pair of one driver
must be as fast as the annotation demands. A driver of which the Device knows no device has no pairs to check if the
Device knows another driver of the pod, or if the pod has another resource of the node, such as allocatable GPUs.
Source: dra.md 6.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from koordpy.api import keys
from koordpy.cache.snapshot import NodeInfo, Snapshot
from koordpy.pods.family_books import KnownLinks
from koordpy.pods.pod_info import PodInfo

BUS_ID = "resource.kubernetes.io/pciBusID"
KBS_IN_GBS = 10**6


class LinkedDevice(NamedTuple):
    """A device that a pod has whole."""

    driver: str
    name: str
    texts: Mapping[str, str]
    """Attributes that are texts, by their names with domain."""


def slow_links(
    pod: PodInfo,
    node: NodeInfo,
    devices: Sequence[LinkedDevice],
    offered: Callable[[str], Iterable[LinkedDevice]],
    snapshot: Snapshot,
) -> list[str]:
    """Returns the faults of a pod's devices on a node.

    devices: of all claims of the pod. offered: returns all devices of a driver that the node reaches.
    """
    text = pod.pod.metadata.annotations.get(keys.GPU_MIN_BANDWIDTH)
    if text is None or not devices:
        return []
    views = (view.links_of(node.name) for view in snapshot.families.values())
    links = next((one for one in views if one is not None), None)
    known = {one.driver for one in devices if _position(one, links) is not None}
    for driver in {one.driver for one in devices} - known:
        known |= {driver for one in offered(driver) if _position(one, links) is not None}
    beside = bool(known) or _has_resources(pod, node)
    faults: list[str] = []
    for a, b in combinations(devices, 2):
        if a.driver != b.driver or (a.driver not in known and beside):
            continue
        i, j = _position(a, links), _position(b, links)
        lowest = links.lowest[i][j] if links and links.lowest and i is not None and j is not None else 0
        if lowest + 1 < float(text) * KBS_IN_GBS:
            faults.append(f"devices {a.name} and {b.name} are not linked at {text} GB/s")
    return faults


def _position(device: LinkedDevice, links: KnownLinks | None) -> int | None:
    """Returns the position of a device in the node's Device; None for an unknown one."""
    if links is None:
        return None
    found = links.ids.get(device.texts.get(f"{device.driver}/uuid", ""))
    return found if found is not None else links.bus_ids.get(device.texts.get(BUS_ID, ""))


def _has_resources(pod: PodInfo, node: NodeInfo) -> bool:
    """Returns whether a pod requests an extended resource of which the node states allocatable units."""
    stated = node.node.status.allocatable
    return any("/" in name and str(stated.get(name, "0")) != "0" for name in pod.requests)
