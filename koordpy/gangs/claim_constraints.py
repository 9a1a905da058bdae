# SPDX-License-Identifier: Apache-2.0
"""Columns of node capacity for members of a gang with unbound PersistentVolumeClaims that compete for volumes of the
same node. For columns see `member_constraints.py`.

Volumes. Claims of one storage class compete for volumes that only one node reaches, such as local disks. Assumption:
the volumes that fit a larger claim are the largest ones of those that fit a smaller claim. Then all claims on a node
find volumes if and only if this holds for each size: the number of claims of at least this size is at most the number
of volumes that fit such a claim (Hall's condition for nested sets). Taking the smallest fitting volume for each claim,
in any order, finds an assignment. So each size becomes a column. The caller refuses other cases.
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
    """Result for volumes. columns: of all classes that columns can express; unknown: names of the other classes."""

    columns: tuple[Column, ...]
    unknown: frozenset[str]


def volumes_among(
    kinds: Mapping[bytes, PodInfo], draft: Draft, table: DomainTable, classes: Iterable[str]
) -> ClaimConstraints:
    """Returns the constraints between the open claims of storage classes. kinds: shape -> pod, and no two pods share a
    claim; table: domains by node label; classes: names of the storage classes."""
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
    # candidates are sorted by size: a larger claim must have the end of the list of a smaller claim
    sets = sorted({claim.candidates for _, claim in claims}, key=len)
    if any(smaller != larger[len(larger) - len(smaller) :] for smaller, larger in pairwise(sets)):
        return None
    # volume -> [nodes] True if the node reaches it; a volume of several nodes would be counted on each
    near = {name: reach.of(objects.volumes[name]) for name in sets[-1]}
    if any(int(nodes.sum()) > 1 for nodes in near.values()):
        return None
    # [nodes] where a new volume can be provisioned for all claims, and for some claim
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
