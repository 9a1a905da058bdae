# SPDX-License-Identifier: Apache-2.0
"""Numbers with their nouns."""

import pytest

from koordpy.api.counted_nouns import count_noun


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 slots"),
        (1, "1 slot"),
        (2, "2 slots"),
        (0.5, "0.5 slots"),
        (0.29, "0.29 slots"),
        (12_345_678, "12345678 slots"),
        (1_234_567.5, "1234567.5 slots"),
    ],
)
def test_a_number_is_told_in_full_with_the_noun_that_goes_with_it(number: float, text: str) -> None:
    assert count_noun(number, "slot") == text
