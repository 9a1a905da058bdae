# SPDX-License-Identifier: Apache-2.0
"""Quantities and versions of selectors: values, faults and order of keys."""

import math
import random
from fractions import Fraction

import pytest

from koordpy.devices.dra.cel_values import (
    MAX_DIGITS,
    MAX_EXPONENT,
    NANO,
    CelQuantity,
    CelVersion,
    numbers_of_version,
    parse_cel_quantity,
    parse_cel_version,
)

QUANTITIES = {
    "0": (0, True),
    "80Gi": (80 * 2**30, True),
    "Gi": (0, True),
    ".": (0, True),
    "-5": (-5, True),
    "+5.": (5, True),
    ".5": (Fraction(1, 2), False),
    "500m": (Fraction(1, 2), False),
    "1000m": (1, False),
    "1e3": (1000, True),
    "12E": (12 * 10**18, False),
    "1.5Gi": (3 * 2**29, False),
    "1Pi": (2**50, False),
    "100Ei": (2**63 - 1, False),
    "0.1n": (Fraction(1, NANO), False),
    "-0.1n": (Fraction(-1, NANO), False),
    "1n": (Fraction(1, NANO), False),
    "9223372036854775807": (2**63 - 1, False),
    "922337203685477580": (922337203685477580, True),
    "0e5": (0, True),
    "0Pi": (0, False),
    "0.0000000000000000000": (0, False),
    "1e4294967297": (10, True),
    "1e0000000000000000000000001": (10, True),
}
"""Text -> (value, whether asInteger returns it), as resource.Quantity of Kubernetes 1.37 has it."""


@pytest.mark.parametrize(("text", "wanted"), QUANTITIES.items())
def test_quantities(text: str, wanted: tuple[Fraction, bool]) -> None:
    found = parse_cel_quantity(text)
    assert (Fraction(found.nanos, NANO), found.is_plain) == wanted
    assert CelQuantity.from_key(found.key, found.form) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1x",
        "1 Gi",
        " 1",
        "1.2.3",
        "1GiB",
        "--1",
        "1e",
        "i",
        "e-20",
        "Pi",
        ".Ei",
        "1e9223372036854775808",
        "9" * 5000,
    ],
)
def test_texts_that_are_no_quantities(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cel_quantity(text)


@pytest.mark.parametrize("sign", ["", "-"])
def test_the_longest_quantities_have_keys(sign: str) -> None:
    value = parse_cel_quantity(f"{sign}{'9' * MAX_DIGITS}e{MAX_EXPONENT}")
    for _ in range(100):  # a selector of 10 KiB has room for few sums
        assert CelQuantity.from_key(value.key, value.form) == value
        value = value.plus(value)
    with pytest.raises(ValueError, match="unable to parse numeric part"):
        parse_cel_quantity("9" * (MAX_DIGITS + 1))


def test_floats_of_quantities_that_are_too_large_are_infinite() -> None:
    assert parse_cel_quantity("1.5").approximate_float() == 1.5
    assert parse_cel_quantity("1e400").approximate_float() == math.inf
    assert parse_cel_quantity("-1e400").approximate_float() == -math.inf


def test_keys_of_quantities_order_as_the_values() -> None:
    rng = random.Random(7)
    values = [0, 1, -1, *(rng.choice((1, -1)) * rng.randrange(10 ** rng.randrange(1, 40)) for _ in range(500))]
    keys = sorted(CelQuantity(value, -9, True).key for value in values)
    assert [CelQuantity.from_key(key, 0).nanos for key in keys] == sorted(values)


DECIMAL_ZERO = "0Pi"
SUMS = [
    # whether asInteger returns the sum and the difference
    ("1", "1", True, True),
    ("1", "0", True, True),
    ("0m", "1", True, True),
    ("1", "0m", True, True),
    ("1000m", "1", False, False),
    ("0", "1000m", False, False),
    ("1", DECIMAL_ZERO, False, False),
    (DECIMAL_ZERO, "1", False, False),
    (DECIMAL_ZERO, "0", False, False),
    ("1Pi", "1Pi", False, False),
    ("12E", "11E", False, True),
    ("12E", "1", False, False),
    ("9E", "9E", False, True),
    ("5E", "4E", True, True),
    ("5E", "1n", False, False),
]


@pytest.mark.parametrize(("a", "b", "sum_is_plain", "difference_is_plain"), SUMS)
def test_sums_are_integers_or_decimals(a: str, b: str, sum_is_plain: bool, difference_is_plain: bool) -> None:
    x, y = parse_cel_quantity(a), parse_cel_quantity(b)
    assert (x.plus(y).nanos, x.minus(y).nanos) == (x.nanos + y.nanos, x.nanos - y.nanos)
    assert (x.plus(y).is_plain, x.minus(y).is_plain) == (sum_is_plain, difference_is_plain)


LEAST = -(2**63)
LEAST_DIFFERENCES = {"0": LEAST, "5": LEAST + 5, "-1": 2**63 - 1, "1Pi": 2**50 + 2**63, DECIMAL_ZERO: 2**63}
"""Text of a quantity -> what Kubernetes computes for it minus the least integer."""


@pytest.mark.parametrize(("text", "wanted"), LEAST_DIFFERENCES.items())
def test_the_least_integer_is_negated_in_64_bits(text: str, wanted: int) -> None:
    assert parse_cel_quantity(text).minus(CelQuantity.of_integer(LEAST)).nanos == wanted * NANO


FLOATS = {
    "1": 1.0,
    "0.3": 0.30000000000000004,
    "700m": 0.7000000000000001,
    "1e23": 1e23,
    "1e400": math.inf,
    "0e-400": 0.0,
}


@pytest.mark.parametrize(("text", "wanted"), FLOATS.items())
def test_floats_have_the_rounding_errors_of_go(text: str, wanted: float) -> None:
    assert parse_cel_quantity(text).approximate_float() == wanted


ORDERED = [
    "0.0.0-0",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-alpha-1",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "1.0.10",
    "1.2.0",
    "10.0.0",
]
"""Versions in the order of precedence (semver 2.0.0, 11)."""


def test_keys_of_versions_order_by_precedence() -> None:
    keys = [parse_cel_version(text).key for text in ORDERED]
    assert keys == sorted(keys) and len(set(keys)) == len(keys)
    assert parse_cel_version("1.0.0+a").key == parse_cel_version("1.0.0").key
    assert numbers_of_version(keys[9]) == (1, 0, 10)


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.x", "1..3", f"{2**64}.0.0", "1.2.3-é"],
)
def test_texts_that_are_no_versions(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cel_version(text)


NORMALIZED = {
    "v1": CelVersion(1, 0, 0, ()),
    "v01.02": CelVersion(1, 2, 0, ()),
    "1.2.003-rc.1": CelVersion(1, 2, 3, ("rc", 1)),
    "00.0.0": CelVersion(0, 0, 0, ()),
}


@pytest.mark.parametrize(("text", "wanted"), NORMALIZED.items())
def test_normalized_versions(text: str, wanted: CelVersion) -> None:
    assert parse_cel_version(text, True) == wanted


def test_short_versions_with_a_pre_release_are_no_versions() -> None:
    with pytest.raises(ValueError, match="short version cannot contain"):
        parse_cel_version("1.2-rc", True)
