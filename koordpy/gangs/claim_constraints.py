"""What members' claims take of each other: volumes and devices that one node alone has.

Claims of one class take volumes that one node alone reaches, as local disks are. Where larger claims can take a part of
what smaller ones can, its larger end, the claims that meet on a node find volumes exactly if, for each size, no more
claims of that size and above are there than volumes that they can take (Hall's condition for nested sets); and taking
the smallest that fits, in any order, finds them. So each size makes a column of room. The caller refuses the rest.

Members with resource claims of their own, as a claim template makes them, want devices that one node alone offers.
Where what is wanted are sets of devices that are equal or have none in common, the claims that meet on a node find
devices exactly if of each set no more are wanted there than are free, and find them in any order: so each set makes a
column of room.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.devices.dra.filters.claim_filter import DynamicResources
from koordpy.devices.dra.ledger.claim_book import DeviceId, claim_view
from koordpy.framework.pod_rule_filter import DomainTable
from koordpy.plugins.volume_binding import OpenClaim, VolumeBinding, VolumeReach
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import VolumeObjects

Column = tuple[Ints, dict[bytes, int]]
"""([nodes] room, shape -> what a pod of it takes)."""


@dataclass(frozen=True)
class ClaimConstraints:
    """columns: room for claims of one class. unknown: classes of which it cannot be said in this way."""

    columns: tuple[Column, ...]
    unknown: frozenset[str]


def volumes_among(
    kinds: Mapping[bytes, PodInfo], draft: Draft, table: DomainTable, classes: Iterable[str]
) -> ClaimConstraints:
    """What the open claims of the given classes leave each other. kinds: shape -> pod; no two pods share a claim."""
    objects = draft.snapshot.storage
    reach = VolumeReach(draft.snapshot.nodes, table)
    wanted: dict[str, list[tuple[bytes, OpenClaim]]] = {name: [] for name in classes}
    for shape, pod in kinds.items():
        for claim in VolumeBinding(pod, draft, objects, reach).open_claims():
            if claim.class_name in wanted and not claim.reserved:
                wanted[claim.class_name].append((shape, claim))
    columns: list[Column] = []
    unknown: list[str] = []
    for name, claims in wanted.items():
        found = _columns(claims, objects, reach) if len(claims) > 1 else []
        if found is None:
            unknown.append(name)
        else:
            columns += found
    return ClaimConstraints(tuple(columns), frozenset(unknown))


def _columns(
    claims: Sequence[tuple[bytes, OpenClaim]], objects: VolumeObjects, reach: VolumeReach
) -> list[Column] | None:
    """The columns of one class; None where its volumes and claims are not as said above."""
    sets = sorted({claim.candidates for _, claim in claims}, key=len)
    if any(smaller != larger[len(larger) - len(smaller) :] for smaller, larger in pairwise(sets)):
        return None
    near = {name: reach.of(objects.volumes[name]) for name in sets[-1]}
    if any(int(nodes.sum()) > 1 for nodes in near.values()):
        return None
    everywhere = np.logical_and.reduce([claim.made for _, claim in claims])
    somewhere = np.logical_or.reduce([claim.made for _, claim in claims])
    counts = [np.zeros(len(everywhere), dtype=np.int64) + sum(near[name] for name in names) for names in sets]
    mixed = somewhere & ~everywhere
    if bool((mixed & (counts[-1] > 0)).any()):
        return None  # a claim that need not might take the volume of one that must
    columns: list[Column] = []
    for names, count in zip(sets, counts, strict=True):
        asks: dict[bytes, int] = {}
        for shape, claim in claims:
            if len(claim.candidates) <= len(names):
                asks[shape] = asks.get(shape, 0) + 1
        if sum(asks.values()) > 1:
            columns.append((np.where(everywhere | mixed, len(claims), count).astype(np.int64), asks))
    return columns


def devices_among(kinds: Mapping[bytes, PodInfo], draft: Draft) -> tuple[Column, ...] | None:
    """What open resource claims leave each other; None where it cannot be said in this way.

    kinds: shape -> pod; no two pods share a claim that is to be allocated.
    """
    objects = claim_view(draft.snapshot.families).objects
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
