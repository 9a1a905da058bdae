# SPDX-License-Identifier: Apache-2.0
"""Natural order of names: `node-2` sorts before `node-10`.

It is the last tie-break of every order, so that plans are reproducible. A name is split into runs of digits and runs of
other characters. Runs of digits compare as numbers and sort before text. Names that are equal by this rule (`a1`,
`a01`) are ordered as plain strings. Source: gang-network.md section 1.
"""

import re

from koordpy.api.bounded_memory import cached

NaturalKey = tuple[tuple[tuple[int, int, str], ...], str]
"""(runs, name). A run is (0, number, "") for digits, or (1, 0, text)."""

_RUNS = re.compile(r"[0-9]+|[^0-9]+")
_AT_ONCE = 4000
"""Number of digits that are converted at once, because int() rejects more than 4300 digits."""


_LONG = 64
"""Maximum length of a name with a cached key. The limit saves memory: a key is a hundred times as large as its name."""


def natural_key(name: str) -> NaturalKey:
    """Returns the sort key of a name: runs of digits as numbers before text, then the plain string."""
    return _remembered(name) if len(name) <= _LONG else _key(name)


def _key(name: str) -> NaturalKey:
    """Returns the sort key without a cache."""
    runs = [(0, number(run), "") if run[0] in "0123456789" else (1, 0, run) for run in _RUNS.findall(name)]
    return tuple(runs), name


_remembered = cached(1 << 16)(_key)


def number(digits: str) -> int:
    """Returns the value of a text of any number of digits; int() alone rejects more than 4300 digits."""
    if len(digits) <= _AT_ONCE:
        return int(digits)
    value = 0
    for at in range(0, len(digits), _AT_ONCE):
        part = digits[at : at + _AT_ONCE]
        value = value * 10 ** len(part) + int(part)
    return value
