# SPDX-License-Identifier: Apache-2.0
"""Reads Kubernetes quantities (`500m`, `16Gi`) as exact integers, and writes amounts as quantities.

The amount of cpu is in milli-cores, of any other resource in whole units (bytes, devices); both are rounded up. Floats
are not used, so 2^53 and 2^53 + 1 are different amounts. Source: kube-parity.md section 2.5.
"""

import re
from fractions import Fraction
from math import ceil

from koordpy.api.bounded_memory import cached
from koordpy.api.field_faults import UnreadableError
from koordpy.api.keys import ACCELERATORS

# number and suffix; the suffix is a unit or an exponent
_NUMBER = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(.*)", re.ASCII | re.DOTALL)
_EXPONENT = re.compile(r"[eE]([+-]?)0*([0-9]{1,4})", re.ASCII)
_HAS_EXPONENT = re.compile(r"[eE][+-]?[0-9]+$", re.ASCII)
_SUFFIX = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3),
    "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}  # fmt: skip
_BINARY = [(2**60, "Ei"), (2**50, "Pi"), (2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")]

MAX_UNITS = 2**56
"""Larger amounts are reduced to this value. No machine has more of any resource, and the sum of a hundred such amounts
fits 64 bits."""
MAX_SUM = 2**61
"""Larger sums of amounts are reduced to this value, so that a sum plus one more amount fits 64 bits."""

MAX_ACCELERATORS = 2**40
"""Larger numbers of accelerators are reduced to this value, so that their hundredths, summed over many pods, fit 64
bits."""

RawQuantity = str | int | float
"""A quantity as it is written in a manifest or by the API server."""

MAX_DIGITS = 400
"""Maximum number of digits of a quantity. Exact arithmetic with more digits could take long; no resource needs them."""


def parse_exact(raw: RawQuantity) -> Fraction:
    """Returns the exact value of a quantity. Raises `UnreadableError` with the fault."""
    if isinstance(raw, bool):
        raise UnreadableError(f"{str(raw).lower()} is no quantity")
    text = str(raw).strip(" \t\r\n")
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] == ".":
        raise UnreadableError(f"{text!r} is no quantity (as in 2, 500m, 16Gi)")
    sign, number, suffix = match.groups()
    if len(number) > MAX_DIGITS:
        raise UnreadableError(f"{text[:20]}... has more than {MAX_DIGITS} digits")
    scale = _SUFFIX.get(suffix)
    if scale is None:
        exponent = _EXPONENT.fullmatch(suffix)
        if exponent is None:
            raise UnreadableError(f"{text!r} is no quantity (as in 2, 500m, 16Gi)")
        # limited, because computing 10^9999 takes long, and such an amount is reduced or rounded anyway
        scale = Fraction(10) ** max(-400, min(400, int(exponent[1] + exponent[2])))
    value = Fraction(number if number[-1] != "." else number + "0") * scale
    return -value if sign == "-" else value


def is_extended(resource: str) -> bool:
    """Returns True if a resource is an extended resource: its name has a prefix that does not end with
    `kubernetes.io`."""
    prefix, slash, _ = resource.partition("/")
    return bool(slash) and not prefix.endswith("kubernetes.io")


def units(resource: str, raw: RawQuantity) -> int:
    """Returns the amount of a resource: milli-cores of cpu, whole units of other resources, rounded up.

    Raises `UnreadableError` if the quantity is unreadable, negative, or a fraction of an extended resource.
    """
    most = MAX_ACCELERATORS if resource in ACCELERATORS else MAX_UNITS
    return _units(raw, 1000 if resource == "cpu" else 1, is_extended(resource), most)


@cached(1 << 14)
def _units(raw: RawQuantity, scale: int, whole: bool, most: int) -> int:
    """Returns the amount of a quantity, from a cache.

    scale: 1000 for cpu, else 1. whole: True if a fraction is a fault. most: maximum of the result. The resource's name
    is not an argument, because pods may have thousands of invented names, which would fill the cache.
    """
    value = parse_exact(raw)
    if value < 0:
        raise UnreadableError(f"{str(raw)!r} is negative")
    if whole and value.denominator != 1:
        raise UnreadableError(f"{str(raw)!r} must be whole for an extended resource")
    return min(ceil(value * scale), most)


def cpu_text(milli: int) -> str:
    """Returns milli-cores as the shortest quantity: 1500 -> `1500m`, 2000 -> `2`."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def memory_text(amount: int) -> str:
    """Returns bytes as the shortest exact binary quantity: 1073741824 -> `1Gi`."""
    for size, suffix in _BINARY:
        if amount and amount % size == 0:
            return f"{amount // size}{suffix}"
    return str(amount)


def quantity_text(resource: str, amount: int) -> str:
    """Returns an amount as a quantity for messages. amount: in the unit of the function `units`."""
    if resource == "cpu":
        return cpu_text(amount)
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return memory_text(amount)
    return str(amount)


_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_SUFFIXES = ("", "k", "M", "G", "T", "P", "E")


def canonical_amount(amount: Fraction, like: RawQuantity = "") -> str:
    """Returns an exact amount in Kubernetes' canonical form: no fraction, the largest suffix that allows it.

    like: a quantity with the kind of suffixes that is used: binary (`Gi`), an exponent (`e3`) or decimal.
    """
    text = str(like).strip()
    if _HAS_EXPONENT.search(text):
        return _exponent_text(ceil(amount * 10**9))
    if amount.denominator == 1:
        number, binary = int(amount), text.endswith("i")
        scale, suffixes = (1024, _BINARY_SUFFIXES) if binary else (1000, _DECIMAL_SUFFIXES)
        at = 0
        while number and number % scale == 0 and at + 1 < len(suffixes):
            number //= scale
            at += 1
        return f"{number}{suffixes[at]}"
    milli, micro = amount * 1000, amount * 10**6
    if milli.denominator == 1:
        return f"{milli}m"
    return f"{micro}u" if micro.denominator == 1 else f"{ceil(amount * 10**9)}n"


def _exponent_text(nanos: int) -> str:
    """Returns nanos as whole units with an exponent that is a multiple of 3: 1500 -> `1500e-9`, 0 -> `0`."""
    exponent = -9 if nanos else 0
    while nanos and nanos % 1000 == 0:
        nanos //= 1000
        exponent += 3
    return f"{nanos}e{exponent}" if exponent else str(nanos)


def canonical_text(raw: RawQuantity) -> str:
    """Returns a quantity in canonical form. Raises `UnreadableError`."""
    return canonical_amount(parse_exact(raw), raw)
