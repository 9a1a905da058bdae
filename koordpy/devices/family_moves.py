# SPDX-License-Identifier: Apache-2.0
"""The part of a device family's interface by which consolidation moves running pods (`FamilyMoves`).

A moved pod is evicted and placed again in the same plan. The other methods of a family are in `device_family.py`. This
module must not know any family.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from koordpy.cache.snapshot import Ints
from koordpy.devices.family_round import FamilyRound, Placed
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


class ReturningDevices(NamedTuple):
    """The devices of moved pods on their new nodes."""

    devices: Mapping[str, Any]
    """Pod key -> allocation of the family. Empty if the family allocates only once the pods are pending again."""
    lacking: frozenset[int] = frozenset()
    """Positions of nodes that have no devices for their pods, or only devices with slower links; empty if all have."""


class MovedAmounts(NamedTuple):
    """Numbers of devices, for a proof that no moves help. Together they must not exclude moves that help."""

    free: Ints
    """[nodes] devices that are free on the draft; at least."""
    requested: Mapping[str, int]
    """Pod key -> devices that a member, or a moved pod on its new node, takes; at most."""
    freed: Mapping[str, int]
    """Key of a bound pod -> devices that come free on its node if it moves; at least."""


class FamilyMoves:
    """Devices of moved pods. By default, a family allocates none before the pods are pending again."""

    def returning_devices(self, places: Placed, now: FamilyRound) -> ReturningDevices:
        """Returns devices for moved pods on their new nodes, on the draft.

        The draft has evicted the moved pods. places: the pods as pending pods, each with its node, in rank order.
        """
        return ReturningDevices({})

    def moved_amounts(
        self, members: Iterable[PodInfo], moved: Iterable[PodInfo], inputs: FilterInputs
    ) -> MovedAmounts | None:
        """Returns the devices of a search for moves as numbers; None if the family counts none.

        members: pending pods of the preemptor. moved: bound pods that may move.
        """
        return None
