# SPDX-License-Identifier: Apache-2.0
"""Go durations as users write them; what is none is refused at once, however long it is."""

import pytest

from koordpy.api.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("1h30m", 5400.0),
        ("-1.5s", -1.5),
        ("+.5m", 30.0),
        ("1.h", 3600.0),
        ("500ms2us", 0.500002),
        ("2562047h47m", 2562047 * 3600 + 47 * 60),
    ],
)
def test_a_duration_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "1", "h", "1 h", "1h ", "1d", "1e3s", "s1", ".s", "1..s", "٣s"),
        *("2562048h", "9" * 400 + "h", "9" * 5000 + "h", "9" * 200_000, "." + "9" * 200_000, "9" * 200_000 + ".x"),
    ],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|digits"):
        parse_duration(text)
