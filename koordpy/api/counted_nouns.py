# SPDX-License-Identifier: Apache-2.0
"""Texts of numbers with nouns, and of lists of names, for messages."""

from collections.abc import Sequence

NAMED = 4
"""Default number of names before `and N more`."""


def count_noun(number: float, noun: str) -> str:
    """Returns `1 pod`, `3 pods` or `0.5 pods`; numbers below 10^15 have no exponent. The plural adds an s."""
    return f"{number:.15g} {noun}" if number == 1 else f"{number:.15g} {noun}s"


def name_first(names: Sequence[str], most: int = NAMED) -> str:
    """Returns the first `most` names, and how many more there are."""
    text = ", ".join(names[:most])
    return f"{text} and {len(names) - most} more" if len(names) > most else text


def join_words(names: Sequence[str]) -> str:
    """Returns `a`, `a and b` or `a, b and c`: all names, at least one."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
