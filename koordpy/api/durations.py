# SPDX-License-Identifier: Apache-2.0
"""Reads and writes Go durations (`1h30m`, `500ms`), which users write in annotations and in the configuration."""

import re
from fractions import Fraction

_UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_MOST_NS = 2**63 - 1
"""Maximum of a Go duration, in nanoseconds."""
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def parse_duration(text: str) -> float:
    """Returns the seconds of a Go duration, in the grammar of `time.ParseDuration`. Raises ValueError if invalid.

    A unit is mandatory, except for a plain `0`. The maximum is 2^63 - 1 nanoseconds, 292 years.
    """
    rest = text[1:] if text[:1] in "+-" and text else text
    if rest == "0":
        return 0.0
    if not rest:
        raise ValueError(f"{text!r} is no duration")
    total, at = Fraction(0), 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None:
            raise ValueError(f"{text!r} is no duration (as in 30s, 1h30m)")
        total += Fraction(part[1] if part[1][-1] != "." else part[1] + "0") * _UNIT_NS[part[2]]
        at = part.end()
    if total > _MOST_NS:
        raise ValueError(f"{text[:20]!r} is too long a duration")
    return float(total / 10**9) * (-1 if text[0] == "-" else 1)


def duration_text(seconds: float) -> str:
    """Returns a number of seconds as a Go duration, to the nanosecond: `1h30m`, `0.5s`."""
    nanoseconds = round(Fraction(seconds) * 10**9)
    text = ""
    for unit in ("h", "m"):
        whole, nanoseconds = divmod(nanoseconds, _UNIT_NS[unit])
        text += f"{whole}{unit}" if whole else ""
    if nanoseconds or not text:
        whole, part = divmod(nanoseconds, 10**9)
        text += f"{whole}{f'.{part:09}'.rstrip('0') if part else ''}s"
    return text
