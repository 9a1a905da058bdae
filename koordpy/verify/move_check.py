# SPDX-License-Identifier: Apache-2.0
"""Checks the devices of moved pods' claims on their new nodes (dra.md 10).

It reads pods, claims, ResourceSlices and the nodes' Devices, and shares no code with the search that chose the devices.
The conditions are:
- The claims of a moved pod are reserved for moved pods only, and no other pod names them.
- The new devices satisfy the conditions of `device_check.py`, beside all other devices of the plan.
- The slowest link between devices of one driver is at least as fast as before.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import inf
from typing import NamedTuple

from koordpy.api.claim_objects import BasicDevice
from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import NodeInfo, Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.pods.claim_refs import CLAIMS, DeviceId
from koordpy.pods.family_books import AllocatedDevices, KnownLinks
from koordpy.pods.pod_info import PodInfo
from koordpy.verify.claim_check import faults_of_claims
from koordpy.verify.device_check import DeviceCheck
from koordpy.verify.plan_check import found
from koordpy.verify.plan_fault import Check, PlanFault

STANDARD = "resource.kubernetes.io/"
BUS_GBPS = {"PIX": 12.0, "NODE": 9.0, "SYS": 8.0}
"""GB/s of a pair that no Device states: one PCIe root, one NUMA node, different NUMA nodes."""


class MovedPod(NamedTuple):
    """A moved pod with its new node (position) and its new devices by family."""

    pod: PodInfo
    node: int
    devices: AllocatedDevices


def check_moved_devices(moved: Iterable[MovedPod], draft: Draft, config: KoordpyConfiguration) -> list[PlanFault]:
    """Returns the faults of the devices of moved pods with claims.

    moved: all moved pods of the plan. In the draft, they must be evicted and the preemptor placed.
    """
    coming = list(moved)
    claiming = [one for one in coming if CLAIMS in one.pod.asks and CLAIMS in draft.ledgers]
    if not claiming:
        return []
    before = _SlowestLinks(DeviceCheck(draft), draft.snapshot, config)
    texts = list(_other_users(coming, claiming, before.devices, draft))
    with draft.trial():
        for one in coming:
            draft.assign(one.pod, one.node, devices=one.devices)
        texts += faults_of_claims([one.pod for one in claiming], draft)
        after = _SlowestLinks(DeviceCheck(draft), draft.snapshot, config)
        nodes, index = draft.snapshot.nodes, draft.snapshot.index
        for one in claiming:
            old, new = draft.evicted[one.pod.key], nodes[one.node]
            if old.node not in index:
                continue
            had = before.of(before.devices.stated_devices(old, nodes[index[old.node]]), nodes[index[old.node]])
            gets = after.of(after.devices.devices_of(one.pod, new, shares=False), new)
            if gets < had:
                texts.append(f"{one.pod.key} on {new.name}: its devices are linked at {gets} GB/s, before at {had}")
    return found(Check.RETURNS, texts)


def _other_users(
    moved: Sequence[MovedPod], claiming: Sequence[MovedPod], devices: DeviceCheck, draft: Draft
) -> Iterator[str]:
    """Yields the faults of claims that a pod uses or names which does not move."""
    going = {one.pod.uid for one in moved}
    naming = {
        key: pod.key
        for pod in draft.snapshot.pods.values()
        if CLAIMS in pod.asks and not pod.finished and pod.uid not in going
        for key in devices.claims_of(pod)
    }
    for one in claiming:
        for key in devices.claims_of(draft.evicted[one.pod.key]):
            status = devices.claims[key].status
            if status.allocation is None:
                continue
            others = [each.name for each in status.reserved_for if each.uid not in going]
            others += [naming[key]] if key in naming else []
            if others or not status.reserved_for:
                text = f"is used by {others[0]}, too" if others else "is reserved for no pod"
                yield f"{one.pod.key} is moved, and its resource claim {key} {text}"


class _SlowestLinks:
    """The slowest links between sets of devices."""

    def __init__(self, devices: DeviceCheck, snapshot: Snapshot, config: KoordpyConfiguration) -> None:
        self.devices, self._snapshot = devices, snapshot
        self._gbps = {**BUS_GBPS, **config.gpu.link_bandwidth}

    def of(self, some: Mapping[DeviceId, BasicDevice], node: NodeInfo) -> float:
        """Returns GB/s of the slowest pair of one driver; infinite for less than two devices of each driver."""
        views = (view.links_of(node.name) for view in self._snapshot.families.values())
        links = next((one for one in views if one is not None), None)
        pairs = combinations(some.items(), 2)
        return min(
            (self._pair(a[1], b[1], a[0].driver, links) for a, b in pairs if a[0].driver == b[0].driver), default=inf
        )

    def _pair(self, a: BasicDevice, b: BasicDevice, driver: str, links: KnownLinks | None) -> float:
        """Returns GB/s of a pair: as the Device of the node states it, else by the devices' places on the PCI bus."""
        i, j = _position(a, driver, links), _position(b, driver, links)
        if links is not None and links.compared is not None and i is not None and j is not None:
            return links.compared[i][j] / 10**6
        roots, numas = ({_place(one, at, links)[k] for one, at in ((a, i), (b, j))} for k in (0, 1))
        if len(roots) == 1 and None not in roots:
            return self._gbps["PIX"]
        if None in numas:
            return 0.0
        return self._gbps["NODE" if len(numas) == 1 else "SYS"]


def _position(device: BasicDevice, driver: str, links: KnownLinks | None) -> int | None:
    """Returns the position of a device in the node's Device; None if the Device does not have it."""
    if links is None:
        return None
    uuid = _text(device, "uuid") or _text(device, f"{driver}/uuid")
    at = links.ids.get(uuid or "")
    return at if at is not None else links.bus_ids.get(_text(device, f"{STANDARD}pciBusID") or "")


def _place(device: BasicDevice, at: int | None, links: KnownLinks | None) -> tuple[str | None, int | None]:
    """Returns the PCIe root and the NUMA node of a device; None for an unknown one."""
    numa = device.attributes.get(f"{STANDARD}numaNode")
    listed = numa.numbers[0] if numa is not None and numa.numbers else None
    root, zone = _text(device, f"{STANDARD}pcieRoot"), listed if numa is None or numa.number is None else numa.number
    if links is None or at is None:
        return root, zone
    stated = links.numa[at]
    return links.roots[at] or root, zone if stated is None else stated


def _text(device: BasicDevice, name: str) -> str | None:
    """Returns the string value of an attribute; None without one."""
    value = device.attributes.get(name)
    return value.text if value is not None else None
