# SPDX-License-Identifier: Apache-2.0
"""Limits that devices set between pending members of one unit, such as a device that several members share.

A device family (`devices/device_family.py`) returns them, and the placement problem of the unit includes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from koordpy.cache.snapshot import Ints
from koordpy.pods.pod_info import PodInfo

FreedAmounts = Callable[[PodInfo], Mapping[int, int]]
"""Returns, for a bound pod, node position -> amount that its eviction adds to the capacity there at most."""


FitsAcross = Callable[[Sequence[tuple[PodInfo, int]]], bool]
"""Returns whether pods, each with its node (position), find devices together."""


class LimitColumn(NamedTuple):
    """A resource that exists only for one unit."""

    capacity: Ints
    """[nodes] free amounts."""
    asks: Mapping[bytes, int]
    """Shape -> amount that one pod takes."""
    freed: FreedAmounts


@dataclass
class MemberLimits:
    """Limits between the pending members of a unit, from one device family."""

    plugin: str = ""
    """Name of the filter that refuses members, for messages."""
    columns: list[LimitColumn] = field(default_factory=list)
    """Resources that exist only for this unit."""
    stocks: list[tuple[int, Mapping[bytes, int]]] = field(default_factory=list)
    """Devices that any node may use, each as (number of devices, shape -> number that one pod takes)."""
    one_domain: list[tuple[tuple[bytes, ...], Ints]] = field(default_factory=list)
    """(shapes, [nodes] number of the node's domain): a plan places all pods of the shapes in one domain."""
    fits_across: FitsAcross | None = None
    """Must be asked about the pods of a plan on all nodes together; None if the other limits suffice."""
    refusals: dict[bytes, str] = field(default_factory=dict)
    """Shape -> reason why no plan can place its pods together with the other members."""
