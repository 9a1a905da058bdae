# SPDX-License-Identifier: Apache-2.0
"""Checks the minimum bandwidth between the devices of a pod's resource claims (annotation `min-bandwidth`, dra.md 6).

For each pair of devices of one driver, the bandwidth in the node's Device object must be at least that of the
annotation. The module shares no code with the choice of devices.

If the Device has no data about a driver's devices, the bandwidth of these devices is normally a fault. It is not
checked in two cases: the Device has data about another driver of the pod; or the pod requests another extended resource
of the node, such as allocatable GPUs.
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
    """A device as this check uses it: its identity and its string attributes."""

    driver: str
    name: str
    texts: Mapping[str, str]
    """Attributes with string values: name with domain -> value."""


def slow_links(
    pod: PodInfo,
    node: NodeInfo,
    devices: Sequence[LinkedDevice],
    offered: Callable[[str], Iterable[LinkedDevice]],
    snapshot: Snapshot,
) -> list[str]:
    """Returns the faults of the links between a pod's devices on a node.

    devices: devices of all claims of the pod. offered: returns all devices of a driver that the node can use.
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
    """Returns the position of a device in the node's Device; None if the Device does not have it."""
    if links is None:
        return None
    found = links.ids.get(device.texts.get(f"{device.driver}/uuid", ""))
    return found if found is not None else links.bus_ids.get(device.texts.get(BUS_ID, ""))


def _has_resources(pod: PodInfo, node: NodeInfo) -> bool:
    """Returns True if a pod requests an extended resource that the node's allocatable amounts contain."""
    stated = node.node.status.allocatable
    return any("/" in name and str(stated.get(name, "0")) != "0" for name in pod.requests)
