# SPDX-License-Identifier: Apache-2.0
"""Limits members of a gang by their unbound PersistentVolumeClaims, which compete for existing volumes of a node.

Such claims compete for volumes that only one node can use, such as local disks. The limits are columns of node capacity
(`member_constraints.py`), one column per storage class and claim size. They are exact under one assumption: the volumes
that fit a larger claim are the largest of the volumes that fit a smaller claim. Then all claims on a node find volumes
if and only if, for each size, there are at most as many claims of at least this size as volumes that fit such a claim
(Hall's condition for nested sets). An assignment is found by taking the smallest fitting volume for each claim, in any
order. If the assumption is not true for a class, its name is returned, and the caller refuses its pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from koordpy.cache.plan_draft import Draft
from koordpy.cache.snapshot import Ints
from koordpy.framework.pod_rule_filter import DomainTable
from koordpy.plugins.volume_binding import OpenClaim, VolumeBinding, VolumeReach
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import VolumeObjects

Column = tuple[Ints, dict[bytes, int]]
"""([nodes] capacity, shape -> amount for one pod of the shape)."""


@dataclass(frozen=True)
class ClaimConstraints:
    """The limits. columns: columns of all classes for which they are exact. unknown: names of all other classes."""

    columns: tuple[Column, ...]
    unknown: frozenset[str]


def volumes_among(
    kinds: Mapping[bytes, PodInfo], draft: Draft, table: DomainTable, classes: Iterable[str]
) -> ClaimConstraints:
    """Returns the constraints between the open claims of the given storage classes. kinds: shape -> one of its pods; no
    two pods may share a claim. table: domains by node label. classes: names of the storage classes."""
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
    """Returns the columns of one class; None if its volumes and claims do not meet the assumption in the module
    docstring. claims: (shape, open claim) of all members."""
    # candidates are sorted by size: those of a larger claim must be the end of the list of a smaller claim
    sets = sorted({claim.candidates for _, claim in claims}, key=len)
    if any(smaller != larger[len(larger) - len(smaller) :] for smaller, larger in pairwise(sets)):
        return None
    # volume -> [nodes] True if the node can use it; a volume that several nodes can use would be counted on each
    near = {name: reach.of(objects.volumes[name]) for name in sets[-1]}
    if any(int(nodes.sum()) > 1 for nodes in near.values()):
        return None
    # [nodes] True if new volumes can be provisioned for all claims; True if for at least one claim
    everywhere = np.logical_and.reduce([claim.made for _, claim in claims])
    somewhere = np.logical_or.reduce([claim.made for _, claim in claims])
    counts = [np.zeros(len(everywhere), dtype=np.int64) + sum(near[name] for name in names) for names in sets]
    mixed = somewhere & ~everywhere
    if bool((mixed & (counts[-1] > 0)).any()):
        return None  # a claim that could get a new volume might use up a volume that another claim needs
    columns: list[Column] = []
    for names, count in zip(sets, counts, strict=True):
        asks: dict[bytes, int] = {}
        for shape, claim in claims:
            if len(claim.candidates) <= len(names):
                asks[shape] = asks.get(shape, 0) + 1
        if sum(asks.values()) > 1:
            columns.append((np.where(everywhere | mixed, len(claims), count).astype(np.int64), asks))
    return columns
