# SPDX-License-Identifier: Apache-2.0
"""The state of a claim during a search for devices, and the rules about several devices that a search applies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from koordpy.devices.dra.filters.claim_requests import Alternative, ClaimSpec, ConstraintSpec
from koordpy.devices.dra.ledger.offered_devices import OfferedDevice


class PairRule(Protocol):
    """A rule about the devices that pods of a search may get together."""

    def is_linked(self, search: Any, claim: int, at: int) -> bool:
        """Returns whether a claim may get a device (position) besides those that the search has taken."""

    def apart(self, claim: int) -> tuple[int, ...] | None:
        """Returns per device (position) the mask of the devices that the pods of a claim may not have with it.

        None if all devices may be combined. A device in its own mask may not be taken at all.
        """

    def is_met(self, search: Any) -> bool:
        """Returns whether the current solution of a search may be used."""


@dataclass(slots=True)
class SearchedClaim:
    """The state of one claim in a search for devices."""

    key: str
    spec: ClaimSpec
    number: int
    """Position among the claims of the search."""
    results: list[tuple[Alternative, int, dict[str, Fraction] | None]] = field(default_factory=list)
    """(alternative, device, consumed amounts) of each result so far."""
    values: list[list[tuple[str, Any]]] = field(default_factory=list)
    """Per constraint, the attribute of each device so far."""

    def add_values(self, alternative: Alternative, device: OfferedDevice) -> list[list[tuple[str, Any]]] | None:
        """Adds a device to the constraints; None if it breaks one. Returns the lists that it was added to."""
        added: list[list[tuple[str, Any]]] = []
        for constraint, values in zip(self.spec.constraints, self.values, strict=True):
            if not constraint.covers(alternative):
                continue
            value = device.attribute(constraint.attribute)
            if value is None or value[0] == "unknown" or not is_kept(constraint, value, values):
                for other in added:
                    other.pop()
                return None
            values.append(value)
            added.append(values)
        return added


def is_kept(constraint: ConstraintSpec, value: tuple[str, Any], values: Sequence[tuple[str, Any]]) -> bool:
    """Returns True if a value satisfies a constraint together with the values so far."""
    if constraint.distinct:
        return value not in values
    return not values or value == values[0]
