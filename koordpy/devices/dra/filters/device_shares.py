# SPDX-License-Identifier: Apache-2.0
"""How much of each capacity a share of a device consumes, and whether a device can provide a requested amount.

Amounts are exact fractions. Source: dra.md 5.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil
from typing import TypeVar

from koordpy.api.claim_objects import CapacityPolicy
from koordpy.api.quantity import canonical_amount, parse_exact
from koordpy.devices.dra.filters.claim_requests import Alternative, AttemptFault
from koordpy.devices.dra.ledger.offered_devices import OfferedDevice

MAX_AMOUNT = 2**63 - 1
Provided = TypeVar("Provided")


class AmountError(Exception):
    """A requested amount that is below 0 or above the API's largest number."""


def rounded(wanted: Fraction | None, value: Fraction, policy: CapacityPolicy | None) -> Fraction | None:
    """Returns the amount that a request of `wanted` consumes of a capacity of `value`; None if the policy allows no
    amount.

    wanted: None for a request that does not name the capacity.
    """
    if wanted is not None and not 0 <= wanted <= MAX_AMOUNT:
        raise AmountError(str(wanted))
    default = policy.default if policy is not None else None
    if wanted is None:
        return value if default is None else parse_exact(default)
    if policy is None or (default is not None and wanted == parse_exact(default)):
        return wanted
    allowed = policy.valid_range
    if allowed is not None:
        least = parse_exact(allowed.min) if allowed.min is not None else Fraction(0)
        step = parse_exact(allowed.step) if allowed.step is not None else Fraction(0)
        amount = max(wanted, least)
        if step > 0:
            amount = least + ceil((amount - least) / step) * step
        return None if allowed.max is not None and amount > parse_exact(allowed.max) else amount
    if policy.valid_values:
        return min((one for one in map(parse_exact, policy.valid_values) if one >= wanted), default=None)
    return wanted


def consumed_amounts(alternative: Alternative, device: OfferedDevice) -> Mapping[str, Fraction] | None:
    """Returns capacity (with its domain) -> amount that a request consumes of a device, of every capacity.

    None if the device lacks a requested capacity or can never provide the amount. Raises `AmountError`.
    """
    wanted = {device.full_name(name): amount for name, amount in alternative.capacity}
    if wanted.keys() - device.capacity.keys():
        return None
    policies = {device.full_name(name): one.request_policy for name, one in device.facts.capacity.items()}
    out: dict[str, Fraction] = {}
    for name, value in device.capacity.items():
        amount = rounded(wanted.get(name), value, policies[name])
        if amount is None or amount > value:
            return None
        out[name] = amount
    return out


def can_hold(alternative: Alternative, device: OfferedDevice) -> bool:
    """Returns whether the whole of a device provides the requested capacities. Raises `AmountError`."""
    if not alternative.capacity:
        return True
    policies = {device.full_name(name): one.request_policy for name, one in device.facts.capacity.items()}
    for name, wanted in alternative.capacity:
        full = device.full_name(name)
        value = device.capacity.get(full)
        amount = rounded(wanted, value, policies[full]) if value is not None else None
        if value is None or amount is None or amount > value:
            return False
    return True


def provided(
    of: Callable[[Alternative, OfferedDevice], Provided],
    alternative: Alternative,
    device: OfferedDevice,
    claim: str = "",
) -> Provided | None:
    """Returns the result of `can_hold` or `consumed_amounts`. For a requested amount out of range, raises
    `AttemptFault` with the claim's name, or returns None if `claim` is empty."""
    try:
        return of(alternative, device)
    except AmountError as what:
        if claim:
            raise AttemptFault(f"claim {claim}: capacity request {what} is out of range") from None
        return None


def consumed_text(amounts: Mapping[str, Fraction], device: OfferedDevice) -> tuple[tuple[str, str], ...]:
    """Returns (capacity as the device names it, quantity) of a share."""
    facts = device.facts.capacity
    return tuple((name, canonical_amount(amounts[device.full_name(name)], str(facts[name].value))) for name in facts)
