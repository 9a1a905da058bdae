# SPDX-License-Identifier: Apache-2.0
"""Limits that devices set between pending members of one unit, such as a device that several members share.

A device family (`devices/device_family.py`) returns them, and the placement problem of the unit includes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordpy.cache.snapshot import Ints


@dataclass
class MemberLimits:
    """Limits between the pending members of a unit, from one device family."""

    plugin: str = ""
    """Name of the filter that refuses members, for messages."""
    columns: list[tuple[Ints, Mapping[bytes, int]]] = field(default_factory=list)
    """Resources that exist only for this unit, each as ([nodes] capacity, shape -> amount that one pod takes)."""
    stocks: list[tuple[int, Mapping[bytes, int]]] = field(default_factory=list)
    """Devices that any node may use, each as (number of devices, shape -> number that one pod takes)."""
    one_node: list[tuple[bytes, ...]] = field(default_factory=list)
    """Sets of shapes: a plan places all pods of the shapes of one set on one node."""
    refusals: dict[bytes, str] = field(default_factory=dict)
    """Shape -> reason why no plan can place its pods together with the other members."""
