# SPDX-License-Identifier: Apache-2.0
"""A search for devices in which each claim may take certain devices only.

A claim of pods on several nodes needs devices that each of these nodes can use. A request for all devices still means
all devices of a node, so it has no solution if one of them is not permitted. Source: docs/rules/dra.md 7.
"""

from collections.abc import Sequence
from typing import Any

from koordpy.devices.dra.filters.claim_requests import Alternative
from koordpy.devices.dra.filters.device_search import DeviceSearch
from koordpy.devices.dra.filters.searched_claim import SearchedClaim


class RestrictedSearch(DeviceSearch):
    """A search with a mask of the permitted devices of each claim."""

    def __init__(self, *search: Any, permitted: Sequence[int | None], **options: Any) -> None:
        """permitted: mask of devices (positions) of each claim; None for all devices. Other arguments: as in
        `DeviceSearch`."""
        super().__init__(*search, **options)
        self._permitted = permitted

    def suitable_free(self) -> list[int]:
        """Returns the devices that suit a request and are free outside of the search, permitted or not."""
        permitted, self._permitted = self._permitted, [None] * len(self._permitted)
        try:
            return super().suitable_free()
        finally:
            self._permitted = permitted

    def _suits(self, claim: SearchedClaim, alternative: Alternative, at: int) -> bool:
        mask = self._permitted[claim.number]
        return (mask is None or bool(mask >> at & 1)) and super()._suits(claim, alternative, at)
