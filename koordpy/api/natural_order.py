"""Natural order of names: the last word of every tie, so that a plan can be reproduced.

Source: gang-network.md section 1. A name is cut into runs of digits and of other characters; digit runs compare as
numbers and sort before text; equal names under that rule fall back to plain string order.
"""

import re

from koordpy.api.bounded_memory import remembered

NaturalKey = tuple[tuple[tuple[int, int, str], ...], str]

_RUNS = re.compile(r"[0-9]+|[^0-9]+")
_AT_ONCE = 4000
"""Digits that int() takes from a text; it refuses more than 4300."""


_LONG = 64
"""Letters of a name above which its key, a hundred times as large, is not remembered."""


def natural_key(name: str) -> NaturalKey:
    """Sort key of one name: digit runs as numbers before text, then the plain string."""
    return _remembered(name) if len(name) <= _LONG else _key(name)


def _key(name: str) -> NaturalKey:
    runs = [(0, number(run), "") if run[0] in "0123456789" else (1, 0, run) for run in _RUNS.findall(name)]
    return tuple(runs), name


_remembered = remembered(1 << 16)(_key)


def number(digits: str) -> int:
    """What digits come to, however many they are: int() takes no more than 4300."""
    if len(digits) <= _AT_ONCE:
        return int(digits)
    value = 0
    for at in range(0, len(digits), _AT_ONCE):
        part = digits[at : at + _AT_ONCE]
        value = value * 10 ** len(part) + int(part)
    return value
