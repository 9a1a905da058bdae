# SPDX-License-Identifier: Apache-2.0
"""Quantities and versions as device selectors compare them (dra.md 3), without the CEL library.

A quantity is an integer in units of 10^-9, rounded away from zero; a version is a semantic version 2.0.0. Each has a
key, a text with the same order as the values, so that the CEL library compares keys as strings, without calling Python
functions. Parsing and its errors are those of `resource.Quantity` and of the Go package blang/semver, which Kubernetes
uses for selectors, except for MAX_EXPONENT and MAX_DIGITS.
"""

import re
from dataclasses import dataclass
from math import inf

NANO = 10**9
"""Nanos in one unit, the finest fraction; finer input is rounded away from zero."""
MAX_EXPONENT = 400
"""Decimal exponents beyond +- this are replaced by it, because exact arithmetic with them would take too long."""
MAX_DIGITS = 3800
"""Maximum number of digits of a quantity. Python converts integers of up to 4300 digits; the difference is for the
exponent, the nanos and sums."""
INT64 = range(-(2**63), 2**63)
_FORMS = range(1 << 16)
"""The forms of quantities (`CelQuantity.form`)."""
_LEAST_SCALE = len(_FORMS) // 4
"""Scales from minus this value fit into a form. MAX_DIGITS and MAX_EXPONENT are far below."""
_MAX_BINARY = INT64[-1] * NANO
"""Larger quantities with a binary suffix are reduced to this value, in nanos."""

_QUANTITY = re.compile(r"[+-]?([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_EXPONENT = re.compile(r"[eE]([+-]?)0*([0-9]{1,19})", re.ASCII)
_PART = re.compile(r"[0-9A-Za-z-]+", re.ASCII)
_DIGITS = re.compile(r"[0-9]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class CelQuantity:
    """A quantity in an expression, as `resource.Quantity` stores it: an unscaled integer times 10^scale.

    Two forms of one value, such as `1` and `1000m`, are equal and have one key, but differ in `isInteger`, in the last
    digit of `asApproximateFloat` and in the form of their sums.
    """

    nanos: int
    """Value times 10^9."""
    scale: int
    """Exponent of ten in which the value is stored. Below -9 only for a zero."""
    is_fixed: bool
    """True if the unscaled integer has 64 bits. False: stored as a decimal of any length, for which Kubernetes does not
    decide whether it is an integer."""

    @property
    def is_plain(self) -> bool:
        """True if `asInteger` can return the value. It cannot for some integers, such as `1000m` and `1Pi`."""
        return self.is_fixed and self.scale >= 0 and self.nanos // NANO in INT64

    @property
    def key(self) -> str:
        """A text that orders as the values do: sign, number of digits, digits.

        The last two are complemented for a negative value, so that a larger amount orders first.
        """
        digits = str(abs(self.nanos))
        if self.nanos >= 0:
            return f"1{len(digits):04}{digits}"
        return f"0{9999 - len(digits):04}{digits.translate(_COMPLEMENT)}"

    @property
    def form(self) -> int:
        """How the value is stored, as a number of 16 bits."""
        return 2 * (self.scale + _LEAST_SCALE) + self.is_fixed

    @classmethod
    def from_key(cls, key: str, form: int) -> "CelQuantity":
        """Returns the quantity with a key and a form."""
        digits = key[5:]
        nanos = int(digits) if key[0] == "1" else -int(digits.translate(_COMPLEMENT))
        return cls(nanos, form // 2 - _LEAST_SCALE, bool(form % 2))

    @classmethod
    def of_integer(cls, value: int) -> "CelQuantity":
        """Returns an integer of 64 bits as a quantity."""
        return cls(value * NANO, 0, True)

    def as_integer(self) -> int:
        """Returns the value. Raises `ValueError` if it is no plain integer."""
        if not self.is_plain:
            raise ValueError("cannot convert value to integer")
        return self.nanos // NANO

    def approximate_float(self) -> float:
        """Returns a float near the value, with the rounding errors of Go; infinite if the amount is too large."""
        try:
            unscaled = float(self._unscaled(self.scale))
        except OverflowError:
            unscaled = inf if self.nanos > 0 else -inf
        return unscaled * _power_as_float(self.scale) if self.scale else unscaled

    def plus(self, other: "CelQuantity") -> "CelQuantity":
        """Returns the sum."""
        return self._fixed_sum(other) or CelQuantity(self.nanos + other.nanos, min(self.scale, other.scale), False)

    def minus(self, other: "CelQuantity") -> "CelQuantity":
        """Returns the difference."""
        if other.is_fixed and other._unscaled(other.scale) == INT64[0] and (found := self._fixed_sum(other)):
            return found  # in 64 bits -(-2^63) is -2^63; Kubernetes is exact only if this sum does not fit
        return self.plus(CelQuantity(-other.nanos, other.scale, other.is_fixed))

    def _fixed_sum(self, other: "CelQuantity") -> "CelQuantity | None":
        """Returns the sum if Kubernetes computes it in 64 bits. None: as a decimal."""
        if not (self.is_fixed and other.is_fixed):
            return None
        if other.nanos == 0:
            return self
        if self.nanos == 0:
            return other
        scale = min(self.scale, other.scale)
        a, b = self._unscaled(scale), other._unscaled(scale)
        return (
            CelQuantity(self.nanos + other.nanos, scale, True) if all(one in INT64 for one in (a, b, a + b)) else None
        )

    def _unscaled(self, scale: int) -> int:
        """Returns the value divided by 10^scale, where this is an integer."""
        places = scale + 9
        return self.nanos // _power(places) if places >= 0 else self.nanos * _power(-places)


_COMPLEMENT = str.maketrans("0123456789", "9876543210")


def parse_cel_quantity(text: str) -> CelQuantity:
    """Returns the value of a quantity such as `80Gi`. Raises `ValueError` with the fault in Kubernetes' words."""
    match = _QUANTITY.fullmatch(text) if text else None
    if match is None:
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    whole, fraction, suffix = match[1].lstrip("0"), match[2] or "", match[3]
    exponent, shift = 0, 0
    if suffix in _DECIMAL:
        exponent = _DECIMAL[suffix]
    elif suffix in _BINARY:
        shift = _BINARY[suffix]
    elif (found := _EXPONENT.fullmatch(suffix)) is not None and (exponent := int(found[1] + found[2])) in INT64:
        exponent = (exponent + 2**31) % 2**32 - 2**31  # Kubernetes keeps 32 bits
        exponent = max(-MAX_EXPONENT, min(MAX_EXPONENT, exponent))
    else:
        raise ValueError("unable to parse quantity's suffix")
    digits = (whole or "0") + fraction  # a suffix alone is 0
    if len(digits) > MAX_DIGITS:
        raise ValueError("unable to parse numeric part of quantity")
    sign = -1 if text[0] == "-" else 1
    number, scale = int(digits), exponent - len(fraction)
    if shift and not fraction and len(whole or "0") + shift * 3 // 10 < 15 and number << shift in INT64:
        return CelQuantity.of_integer(sign * (number << shift))
    if not shift and len(digits) <= 18 and scale >= -9:
        return CelQuantity(sign * number * _power(scale + 9), scale, True)
    if not (match[1] or fraction):
        raise ValueError("unable to parse numeric part of quantity")
    if number == 0:
        return CelQuantity(0, scale, False)
    nanos = _ceiling((number << shift) * NANO * _power(max(scale, 0)), max(-scale, 0))
    if shift and nanos > _MAX_BINARY:
        return CelQuantity(sign * _MAX_BINARY, 0, False)
    return CelQuantity(sign * nanos, -9, False)


def _power(exponent: int) -> int:
    """Returns 10 to the power of a number that is not negative."""
    return int(10**exponent)


def _power_as_float(exponent: int) -> float:
    """Returns 10 to the power of a number, as Pow10 of Go does: from two factors, each the nearest float."""
    if exponent < -323:
        return 0.0
    if exponent > 308:
        return inf
    high, low = divmod(abs(exponent), 32)
    if exponent >= 0:
        return float(f"1e{32 * high}") * float(f"1e{low}")
    return float(f"1e-{32 * high}") / float(f"1e{low}")


def _ceiling(number: int, places: int) -> int:
    """Returns number / 10^places, rounded up."""
    return -(-number // _power(places))


@dataclass(frozen=True, slots=True)
class CelVersion:
    """A semantic version in an expression. Build metadata is not kept, because it has no precedence."""

    major: int
    minor: int
    patch: int
    pre: tuple[int | str, ...]
    """Identifiers of the pre-release, empty for a release."""

    @property
    def key(self) -> str:
        """A text that orders as the versions do. A release is after its pre-releases, a number before a word."""
        pre = "".join(f"0{one:020}" if isinstance(one, int) else f"1{one}!" for one in self.pre)
        return f"{self.major:020}{self.minor:020}{self.patch:020}{f'-{pre} ' if self.pre else '~'}"


def numbers_of_version(key: str) -> tuple[int, int, int]:
    """Returns (major, minor, patch) of the version with a key."""
    return int(key[:20]), int(key[20:40]), int(key[40:60])


def parse_cel_version(text: str, normalize: bool = False) -> CelVersion:
    """Returns a semantic version. normalize: accept `v1.2` and `01.2.3` too. Raises `ValueError` with the fault."""
    if normalize:
        text = _normalized(text)
    if not text:
        raise ValueError("Version string empty")
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise ValueError("No Major.Minor.Patch elements found")
    major, minor = _number("Major", parts[0]), _number("Minor", parts[1])
    patch, plus, build = parts[2].partition("+")
    patch, dash, pre = patch.partition("-")
    number = _number("Patch", patch)
    identifiers = tuple(_identifier(one) for one in pre.split(".")) if dash else ()
    for one in build.split(".") if plus else ():
        if not one:
            raise ValueError("Build meta data is empty")
        if _PART.fullmatch(one) is None:
            raise ValueError(f'Invalid character(s) found in build meta data "{one}"')
    return CelVersion(major, minor, number, identifiers)


def _number(name: str, text: str) -> int:
    """Returns a part of a version. Raises `ValueError`. name: as in the message."""
    if _DIGITS.fullmatch(text) is None:
        raise ValueError(f'Invalid character(s) found in {name.lower()} number "{text}"')
    if len(text) > 1 and text[0] == "0":
        raise ValueError(f'{name} number must not contain leading zeroes "{text}"')
    return _uint64(text)


def _uint64(text: str) -> int:
    """Returns an unsigned number of 64 bits. Raises `ValueError`."""
    if not text:
        raise ValueError('strconv.ParseUint: parsing "": invalid syntax')
    if len(text) > 20 or int(text) >= 2**64:
        raise ValueError(f'strconv.ParseUint: parsing "{text}": value out of range')
    return int(text)


def _identifier(text: str) -> int | str:
    """Returns an identifier of a pre-release. Raises `ValueError`."""
    if not text:
        raise ValueError("Prerelease is empty")
    if _DIGITS.fullmatch(text) is not None:
        if len(text) > 1 and text[0] == "0":
            raise ValueError(f'Numeric PreRelease version must not contain leading zeroes "{text}"')
        return _uint64(text)
    if _PART.fullmatch(text) is None:
        raise ValueError(f'Invalid character(s) found in prerelease "{text}"')
    return text


def _normalized(text: str) -> str:
    """Returns a version without the prefix `v` and leading zeros, with three parts. Raises `ValueError`."""
    parts = text.removeprefix("v").split(".", 2)
    for at, part in enumerate(parts):
        if len(part) > 1:
            rest = part.lstrip("0")
            parts[at] = rest if rest[:1].isascii() and rest[:1].isdigit() else "0" + rest
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise ValueError("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)
