# SPDX-License-Identifier: Apache-2.0
"""The part of a device family's interface by which consolidation moves running pods (`FamilyMoves`).

A moved pod is evicted and placed again in the same plan. The other methods of a family are in `device_family.py`. This
module must not know any family.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from koordpy.devices.family_round import FamilyRound, Placed


class ReturningDevices(NamedTuple):
    """The devices of moved pods on their new nodes."""

    devices: Mapping[str, Any]
    """Pod key -> allocation of the family. Empty if the family allocates only once the pods are pending again."""
    lacking: frozenset[int] = frozenset()
    """Positions of nodes that have no devices for their pods, or only devices with slower links; empty if all have."""


class FamilyMoves:
    """Devices of moved pods. By default, a family allocates none before the pods are pending again."""

    def returning_devices(self, places: Placed, now: FamilyRound) -> ReturningDevices:
        """Returns devices for moved pods on their new nodes, on the draft.

        The draft has evicted the moved pods. places: the pods as pending pods, each with its node, in rank order.
        """
        return ReturningDevices({})
