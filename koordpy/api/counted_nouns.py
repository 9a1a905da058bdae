# SPDX-License-Identifier: Apache-2.0
"""Texts for messages: a number with its noun, and lists of names."""

from collections.abc import Sequence

NAMED = 4
"""Default number of names before `and N more`."""


def count_noun(number: float, noun: str) -> str:
    """Returns `1 pod`, `3 pods` or `0.5 pods`. The plural adds an s; numbers below 10^15 have no exponent."""
    return f"{number:.15g} {noun}" if number == 1 else f"{number:.15g} {noun}s"


def name_first(names: Sequence[str], most: int = NAMED) -> str:
    """Returns the first `most` names as a text, followed by the number of the remaining names if there are any."""
    text = ", ".join(names[:most])
    return f"{text} and {len(names) - most} more" if len(names) > most else text


def join_words(names: Sequence[str]) -> str:
    """Returns all names as a text: `a`, `a and b` or `a, b and c`. There must be at least one name."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
