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
}
"""Text -> (value, whether asInteger returns it), as resource.Quantity of Kubernetes 1.37 has it."""


@pytest.mark.parametrize(("text", "wanted"), QUANTITIES.items())
def test_quantities(text: str, wanted: tuple[Fraction, bool]) -> None:
    found = parse_cel_quantity(text)
    assert (Fraction(found.nanos, NANO), found.is_plain) == wanted
    assert CelQuantity.from_key(found.key, found.is_plain) == found


@pytest.mark.parametrize("text", ["", "x", "1x", "1 Gi", " 1", "1.2.3", "1GiB", "--1", "1e", "i", "e-20", "9" * 5000])
def test_texts_that_are_no_quantities(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cel_quantity(text)


@pytest.mark.parametrize("sign", ["", "-"])
def test_the_longest_quantities_have_keys(sign: str) -> None:
    value = parse_cel_quantity(f"{sign}{'9' * MAX_DIGITS}e{MAX_EXPONENT}")
    for _ in range(100):  # a selector of 10 KiB has room for few sums
        assert CelQuantity.from_key(value.key, value.is_plain) == value
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
    keys = sorted(CelQuantity(value, True).key for value in values)
    assert [CelQuantity.from_key(key, True).nanos for key in keys] == sorted(values)


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
