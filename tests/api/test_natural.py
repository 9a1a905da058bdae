# SPDX-License-Identifier: Apache-2.0
"""Names in natural order (gang-network.md section 1), however many digits they have."""

from itertools import pairwise

import pytest

from koordpy.api.natural_order import natural_key

MANY = "9" * 5000


@pytest.mark.parametrize(
    "names",
    [
        ["2", "10", "a", "a2", "a10", "a10b", "b"],
        ["a01", "a1", "a2"],
        ["", "-1", "w-2", "w-10", "w-x"],
        ["w-7", f"w-{MANY}", f"w-1{MANY}", "w-a"],
        [f"w-{MANY[:-1]}8x", f"w-{MANY}", f"w-{MANY}-1"],
    ],
)
def test_digits_compare_as_numbers_and_come_before_text(names: list[str]) -> None:
    assert all(natural_key(one) < natural_key(other) for one, other in pairwise(names))
