# SPDX-License-Identifier: Apache-2.0
"""How the pending members of a unit limit each other by devices: what a device family tells the unit's problem."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordpy.cache.snapshot import Ints


@dataclass
class MemberLimits:
    """Limits between the pending members of a unit by devices of one family."""

    plugin: str = ""
    """Name of the filter that refuses members, for messages."""
    columns: list[tuple[Ints, Mapping[bytes, int]]] = field(default_factory=list)
    """([nodes] capacity, shape -> amount that one pod of the shape takes) of resources that exist only for the unit."""
    stocks: list[tuple[int, Mapping[bytes, int]]] = field(default_factory=list)
    """(capacity, shape -> amount that one pod takes) of devices that any node may use."""
    one_node: list[tuple[bytes, ...]] = field(default_factory=list)
    """Sets of shapes of which a plan places all pods on one node."""
    refusals: dict[bytes, str] = field(default_factory=dict)
    """Shape -> why no plan can place its pods together with the other members."""
