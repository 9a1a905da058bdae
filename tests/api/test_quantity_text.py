# SPDX-License-Identifier: Apache-2.0
"""Canonical texts of quantities, and exponents, as resource.Quantity of Kubernetes 1.37 has them."""

import pytest

from koordpy.api.quantity import canonical_text, parse_exact

CANONICAL = {
    "0": "0",
    "0e3": "0",
    "1e3": "1e3",
    "1E4": "10e3",
    "1500e0": "1500",
    "007E-1": "700e-3",
    "0.5e9": "500e6",
    "1e-9": "1e-9",
    "1E": "1E",
    "1500": "1500",
    "2000": "2k",
    "0.5": "500m",
    "2048Mi": "2Gi",
}
"""Text -> the same quantity as the API server writes it."""


@pytest.mark.parametrize(("text", "wanted"), CANONICAL.items())
def test_canonical_texts_keep_the_kind_of_suffix(text: str, wanted: str) -> None:
    assert canonical_text(text) == wanted


def test_exponents_may_have_leading_zeros() -> None:
    assert parse_exact("5e" + "0" * 5000 + "3") == parse_exact("5e+00003") == 5000
