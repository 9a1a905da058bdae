"""Capacity columns for claims of members: volumes and devices that only one node has.

Volumes. Claims of one class compete for volumes that only one node reaches, such as local disks. Assume that a larger
claim fits a subset of the volumes of each smaller claim, namely its largest volumes. Then the claims on a node find
volumes if and only if, for each size, at most as many claims of this size or above are there as volumes that fit them
(Hall's condition for nested sets). Assigning the smallest fitting volume, in any order, finds them. So each size
becomes a column. The caller refuses other cases.

Devices. Members with separate resource claims (from a claim template) request devices of one node. If the sets of
matching devices are equal or disjoint, the claims on a node find devices if and only if at most as many request each
set as devices of it are free. So each set becomes a column.
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
"""([nodes] capacity, shape -> amount for one pod of it)."""


@dataclass(frozen=True)
class ClaimConstraints:
    """columns: capacity for claims of one class; unknown: classes that columns cannot express."""

    columns: tuple[Column, ...]
    unknown: frozenset[str]


def volumes_among(
    kinds: Mapping[bytes, PodInfo], draft: Draft, table: DomainTable, classes: Iterable[str]
) -> ClaimConstraints:
    """Returns the constraints between the open claims of the given classes. kinds: shape -> pod; no two pods share a
    claim."""
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
    """Returns the columns of one class; None if its volumes and claims do not meet the assumption above."""
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
        return None  # a claim with a choice might use the volume of a claim without one
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
    """Returns the constraints between open resource claims; None if columns cannot express them. kinds: shape -> pod;
    no two pods share a claim that is to be allocated."""
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
        return None  # a claim with a choice might use the device of a claim without one
    columns = []
    for devices, own in asks.items():
        room = np.zeros(len(draft.snapshot.nodes), dtype=np.int64)
        for name, number in offered[devices].items():
            if name in draft.snapshot.index:
                room[draft.snapshot.index[name]] = number
        columns.append((room, own))
    return tuple(columns)
