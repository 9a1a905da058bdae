# SPDX-License-Identifier: Apache-2.0
"""Finds the known name that a misspelt name was probably meant to be, for `did you mean NAME?` in messages.

Two names are similar if they differ in a few letters, in case or by a plural s. The limits are strict, because a less
similar label or field probably belongs to another project. Cost: O(known names x length).
"""

from collections.abc import Iterable

from koordpy.api.bounded_memory import cached
from koordpy.api.reading_limits import NAME_LETTERS

_FORGIVEN = ((12, 3), (8, 2), (5, 1))
"""(minimum length of the shorter name, number of letters that may differ).

Shorter names may differ only in case or by a plural s.
"""
_SHORT = 3
"""Minimum length of names that may differ by a plural s."""


def meant(name: str, known: Iterable[str], *, closed: bool = False) -> str:
    """Returns the known name that is most similar to a misspelt name; of several the first in alphabetical order.

    Empty if no known name is similar, or if the name itself is known. closed: True if only known names are valid at
    this place; then short names may also differ in one letter.
    """
    return _meant(name, tuple(known), closed) if len(name) <= NAME_LETTERS else ""


@cached(1 << 12)
def _meant(name: str, known: tuple[str, ...], closed: bool) -> str:
    """Returns the result of `meant`, from a cache."""
    folded = name.casefold()
    best, least = "", len(folded) + 1
    for other in sorted(known):
        if other == name:
            return ""
        mine = other.casefold()
        letters = min(len(mine), len(folded))
        # allowed: number of letters that may differ
        allowed = next((most for length, most in _FORGIVEN if letters >= length), 0)
        if letters >= _SHORT and (closed or mine.rstrip("s") == folded.rstrip("s")):
            allowed = max(allowed, 1)
        far = _distance(folded, mine, allowed)
        if far <= allowed and far < least:
            best, least = other, far
    return best


def hint(name: str, known: Iterable[str], *, closed: bool = False) -> str:
    """Returns `, did you mean NAME?`, or an empty string if no known name is near."""
    near = meant(name, known, closed=closed)
    return f", did you mean {near}?" if near else ""


def _distance(one: str, other: str, most: int) -> int:
    """Returns the number of letters to add, drop, change, or swap with a neighbour; `most` + 1 for any number above
    `most`."""
    above, width = most + 1, len(other)
    if abs(len(one) - width) > most:
        return above
    # row[j]: distance of the letters of `one` so far to the first j letters of `other`, `above` if it is larger than
    # `most`; before, earlier: the two previous rows. Only columns near the diagonal can be within `most`.
    before: list[int] = []
    row, least = list(range(width + 1)), 0
    for i, letter in enumerate(one):
        earlier, before, row = before, row, [above] * (width + 1)
        row[0], lowest, least = i + 1, least, i + 1
        for j in range(i - most if i > most else 0, i + most + 1 if i + most < width else width):
            its = other[j]
            # conditions instead of `min`: this is the innermost loop
            cost = before[j] if letter == its else before[j] + 1
            if before[j + 1] < cost:
                cost = before[j + 1] + 1
            if row[j] < cost:
                cost = row[j] + 1
            if i and j and letter == other[j - 1] and one[i - 1] == its and earlier[j - 1] < cost:
                cost = earlier[j - 1] + 1
            row[j + 1] = cost
            if cost < least:
                least = cost
        if least > most and lowest > most:
            return above
    return row[width] if row[width] < above else above
