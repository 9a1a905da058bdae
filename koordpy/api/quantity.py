"""Kubernetes quantities as exact integers.

Source: kube-parity.md section 2.5. cpu is kept in milli-cores, everything else in whole units (bytes, devices);
both are rounded up. Never a float: 2^53 and 2^53 + 1 stay different.
"""

import re
from fractions import Fraction
from math import ceil

from koordpy.api.bounded_memory import remembered
from koordpy.api.field_faults import UnreadableError
from koordpy.api.keys import ACCELERATORS

_NUMBER = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(.*)", re.ASCII | re.DOTALL)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,4})", re.ASCII)
_SUFFIX = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3),
    "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}  # fmt: skip
_BINARY = [(2**60, "Ei"), (2**50, "Pi"), (2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")]

MAX_UNITS = 2**56
"""Larger amounts are cut to this: no machine has as much of anything, and a hundred of them stay within 64 bits."""
MAX_SUM = 2**61
"""Sums of amounts are cut to this, so that one more amount stays within 64 bits."""

MAX_ACCELERATORS = 2**40
"""Accelerators are cut to this: what is counted in hundredths of them, over many pods, stays within 64 bits as well."""

RawQuantity = str | int | float

MAX_DIGITS = 400


def parse_exact(raw: RawQuantity) -> Fraction:
    """The exact value of a quantity. Raises UnreadableError with what is wrong."""
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
        scale = Fraction(10) ** max(-400, min(400, int(exponent[1])))
    value = Fraction(number if number[-1] != "." else number + "0") * scale
    return -value if sign == "-" else value


def is_extended(resource: str) -> bool:
    """Whether a resource is an extended one: prefixed, and not kubernetes.io's own."""
    prefix, slash, _ = resource.partition("/")
    return bool(slash) and not prefix.endswith("kubernetes.io")


def units(resource: str, raw: RawQuantity) -> int:
    """Amount of a resource: milli-cores of cpu, whole units of everything else, rounded up.

    Raises UnreadableError: unreadable, negative, or a part of an extended resource.
    """
    most = MAX_ACCELERATORS if resource in ACCELERATORS else MAX_UNITS
    return _units(raw, 1000 if resource == "cpu" else 1, is_extended(resource), most)


@remembered(1 << 14)
def _units(raw: RawQuantity, scale: int, whole: bool, most: int) -> int:
    """Without the name, which pods make up by the thousand."""
    value = parse_exact(raw)
    if value < 0:
        raise UnreadableError(f"{str(raw)!r} is negative")
    if whole and value.denominator != 1:
        raise UnreadableError(f"{str(raw)!r} must be whole for an extended resource")
    return min(ceil(value * scale), most)


def cpu_text(milli: int) -> str:
    """Milli-cores as the shortest quantity: 1500 -> `1500m`, 2000 -> `2`."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def memory_text(amount: int) -> str:
    """Bytes as the shortest exact binary quantity: 1073741824 -> `1Gi`."""
    for size, suffix in _BINARY:
        if amount and amount % size == 0:
            return f"{amount // size}{suffix}"
    return str(amount)


def quantity_text(resource: str, amount: int) -> str:
    """An amount in the units of `units`, written as people write it."""
    if resource == "cpu":
        return cpu_text(amount)
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return memory_text(amount)
    return str(amount)
