# SPDX-License-Identifier: Apache-2.0
"""Functions that ask the families of a moved pod about its devices (`FamilyMoves`, `DeviceLedger.moved_together`)."""

from collections.abc import Iterable, Sequence
from typing import Any

from koordpy.cache.plan_draft import Draft
from koordpy.devices.family_moves import MovedAmounts, ReturningDevices
from koordpy.devices.family_registry import FAMILIES, families_of
from koordpy.devices.family_round import FamilyRound, Placed
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


def moved_together(pods: Iterable[PodInfo], draft: Draft) -> frozenset[str] | None:
    """Returns the uids of all pods that must move if bound pods move, because they use the same devices.

    None if a family does not let the pods move.
    """
    found: set[str] = set()
    for pod in pods:
        for family in pod.asks:
            ledger = draft.ledgers.get(family)
            own = ledger.moved_together(pod, draft.snapshot.pods) if ledger is not None else frozenset[str]()
            if own is None:
                return None
            found |= own
    return frozenset(found)


def moved_amounts(members: Sequence[PodInfo], moved: Sequence[PodInfo], inputs: FilterInputs) -> list[MovedAmounts]:
    """Returns the numbers of devices of a search for moves, of each family that counts them."""
    asked = {name for pod in (*members, *moved) for name in pod.asks}
    found = (
        family.moved_amounts(members, moved, inputs)
        for family in FAMILIES
        if family.name in asked and family.name in inputs.snapshot.families
    )
    return [one for one in found if one is not None]


def returning_devices(places: Placed, now: FamilyRound) -> ReturningDevices:
    """Returns pod key -> family -> allocation of moved pods on their new nodes, and the nodes that lack devices."""
    devices: dict[str, dict[str, Any]] = {}
    lacking: set[int] = set()
    snapshot = now.inputs.snapshot
    for family in FAMILIES:
        own = [(pod, node) for pod, node in places if family in families_of(pod, snapshot)]
        found = family.returning_devices(own, now) if own else ReturningDevices({})
        lacking |= found.lacking
        for key, given in found.devices.items():
            devices.setdefault(key, {})[family.name] = given
    return ReturningDevices(devices, frozenset(lacking))
