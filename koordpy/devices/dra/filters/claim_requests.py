# SPDX-License-Identifier: Apache-2.0
"""Requests of resource claims in the form that the search reads: alternatives of each request, constraints over
devices.

A `ClaimSpec` depends on the claim's spec alone, so members of a gang with equal claims share one object.
`ClaimSpec.unsupported` names a feature that koordpy does not support. Source: docs/rules/dra.md 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import msgspec

from koordpy.api.claim_objects import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceToleration,
    ExactRequest,
    SubRequest,
)
from koordpy.api.quantity import parse_exact
from koordpy.devices.dra.ledger.offered_devices import DeviceOffers
from koordpy.pods.claim_refs import claim_title

MAX_RESULTS = 32
"""Maximum number of devices of a claim."""
ALL = "All"
DERIVED = "derived attributes"
"""The feature that a request with `derivedAttributes` needs; koordpy never supports it."""


class SelectorText(NamedTuple):
    """One CEL selector, with its origin for messages."""

    origin: str
    """`class NAME`, or empty for the claim itself."""
    number: int
    text: str


@dataclass(frozen=True, eq=False)
class Alternative:
    """A request for devices of one class: `exactly` of a request, or one entry of its `firstAvailable`."""

    name: str
    """Name in results: `request` or `request/alternative`."""
    request: str
    class_name: str
    selectors: tuple[SelectorText, ...]
    """Selectors of the class, then those of the request."""
    count: int
    """Number of devices; not read if `all` is True."""
    all: bool
    """True for every matching device of the node."""
    admin: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: tuple[tuple[str, Fraction], ...]
    """(capacity, amount) that each device must provide."""


@dataclass(frozen=True, eq=False)
class RequestSpec:
    """A request of a claim."""

    name: str
    alternatives: tuple[Alternative, ...]
    has_choice: bool
    """True if the alternatives are entries of `firstAvailable`, even if there is one entry only."""


@dataclass(frozen=True, eq=False)
class ConstraintSpec:
    """A constraint over the devices of some requests."""

    names: frozenset[str]
    """Names of requests, or `request/alternative`; empty for all requests of the claim."""
    attribute: str
    """Attribute with its domain."""
    distinct: bool
    """True if no two values may be equal; False if all must be equal."""

    def covers(self, alternative: Alternative) -> bool:
        """Returns whether the constraint applies to the devices of an alternative."""
        return not self.names or alternative.request in self.names or alternative.name in self.names


@dataclass(frozen=True, eq=False)
class ClaimSpec:
    """The requests and constraints of a claim."""

    content: bytes
    """Equal for claims with equal specs."""
    requests: tuple[RequestSpec, ...]
    constraints: tuple[ConstraintSpec, ...]
    unsupported: str
    """Feature that koordpy does not serve; empty for none."""
    missing: str
    """Request with a class that does not exist, as a sentence; empty for none."""

    @property
    def is_simple(self) -> bool:
        """True if each request takes a number of devices of one class, without constraints."""
        return not self.constraints and all(
            len(one.alternatives) == 1 and not (one.alternatives[0].all or one.alternatives[0].admin)
            for one in self.requests
        )

    @property
    def least(self) -> int:
        """The smallest number of devices that the claim needs. A request for all devices of a node counts as 1."""
        return sum(min(1 if one.all else one.count for one in r.alternatives) for r in self.requests)


def claim_spec(devices: DeviceClaim, offers: DeviceOffers) -> ClaimSpec:
    """Returns the requests of a claim, cached by the content of its spec."""
    content = msgspec.json.encode((devices.requests, devices.constraints))
    known: ClaimSpec | None = offers.memo.get((claim_spec, content))
    if known is None:
        known = offers.memo[claim_spec, content] = _read(content, devices, offers)
    return known


def _read(content: bytes, devices: DeviceClaim, offers: DeviceOffers) -> ClaimSpec:
    missing = unsupported = ""
    requests = []
    for request in devices.requests:
        alternatives = []
        for name, exact in request.alternatives:
            found = offers.classes.get(exact.device_class_name)
            if found is None:
                missing = missing or f"request {name}: device class {exact.device_class_name} does not exist"
                continue
            if any(one.cel is None for one in (*found.spec.selectors, *exact.selectors)):
                unsupported = unsupported or "selectors other than CEL"
            if exact.derived_attributes:
                unsupported = unsupported or DERIVED
            alternatives.append(_alternative(request, name, exact, found))
        requests.append(RequestSpec(request.name, tuple(alternatives), bool(request.first_available)))
    constraints = tuple(
        ConstraintSpec(
            frozenset(one.requests), one.match_attribute or one.distinct_attribute, bool(one.distinct_attribute)
        )
        for one in devices.constraints
    )
    return ClaimSpec(content, tuple(requests), constraints, unsupported, missing)


def has_derived_attributes(devices: DeviceClaim) -> bool:
    """Returns whether a request of a claim defines derived attributes."""
    return any(exact.derived_attributes for request in devices.requests for _, exact in request.alternatives)


def _alternative(request: DeviceRequest, name: str, exact: ExactRequest, found: DeviceClass) -> Alternative:
    of_class, own = found.spec.selectors, exact.selectors
    texts = [(f"class {found.metadata.name}", i, one) for i, one in enumerate(of_class)]
    texts += [("", i, one) for i, one in enumerate(own)]
    wanted = exact.capacity.requests if exact.capacity is not None else {}
    return Alternative(
        name=name,
        request=request.name,
        class_name=exact.device_class_name,
        selectors=tuple(SelectorText(o, i, one.cel.expression) for o, i, one in texts if one.cel is not None),
        count=1 if exact.count is None else exact.count,
        all=exact.allocation_mode == ALL,
        admin=bool(exact.admin_access) and not isinstance(exact, SubRequest),
        tolerations=tuple(exact.tolerations),
        capacity=tuple((key, parse_exact(amount)) for key, amount in wanted.items()),
    )


def class_alternative(name: str, offers: DeviceOffers) -> Alternative:
    """Returns a request for one device of a class, without own selectors."""
    return _alternative(DeviceRequest(), "", ExactRequest(device_class_name=name), offers.classes[name])


def too_many_devices(key: str, number: int) -> str:
    """Returns the error of a claim that needs more devices than an allocation may have."""
    return f"claim {claim_title(key)}: number of requested devices {number} exceeds the claim limit of {MAX_RESULTS}"


def alternatives_of(specs: Sequence[ClaimSpec]) -> list[Alternative]:
    """Returns all alternatives of claims, in order."""
    return [one for spec in specs for request in spec.requests for one in request.alternatives]


class UndecidedNode(Exception):
    """Raised if the search cannot decide about a node. text: the reason, as the refusal of the node."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class AttemptFault(Exception):
    """Raised for a fault of a claim that ends the attempt of its whole unit. text: for the message."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class UnallocatedClaim(NamedTuple):
    """A claim that needs an allocation."""

    key: str
    """`namespace/name`."""
    spec: ClaimSpec
