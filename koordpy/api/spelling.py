"""Which known name a misspelt one was meant to be: the difference of a letter, of case or of a plural.

A name that is close to a known one is worth a word to its author; anything further away is somebody else's.
"""

from collections.abc import Iterable

from koordpy.api.bounded_memory import remembered
from koordpy.api.reading_limits import NAME_LETTERS

_FORGIVEN = ((12, 3), (8, 2), (5, 1))
"""(letters of the shorter name, letters that may differ). Names of fewer are too close to one another: only their case
is forgiven."""
_SHORT = 3
"""Names of so many letters may be a plural in place of a singular, or the other way round."""


def meant(name: str, known: Iterable[str], *, closed: bool = False) -> str:
    """The known name that is nearest to a misspelt one, the first in order of equals; empty where none is near.

    closed: no other name stands there, so that a letter of a short name is forgiven, too.
    """
    return _meant(name, tuple(known), closed) if len(name) <= NAME_LETTERS else ""


@remembered(1 << 12)
def _meant(name: str, known: tuple[str, ...], closed: bool) -> str:
    folded = name.casefold()
    best, least = "", len(folded) + 1
    for other in sorted(known):
        if other == name:
            return ""
        mine = other.casefold()
        letters = min(len(mine), len(folded))
        allowed = next((most for length, most in _FORGIVEN if letters >= length), 0)
        if letters >= _SHORT and (closed or mine.rstrip("s") == folded.rstrip("s")):
            allowed = max(allowed, 1)
        far = _distance(folded, mine, allowed)
        if far <= allowed and far < least:
            best, least = other, far
    return best


def hint(name: str, known: Iterable[str], *, closed: bool = False) -> str:
    """`, did you mean NAME?`, or nothing where no known name is near."""
    near = meant(name, known, closed=closed)
    return f", did you mean {near}?" if near else ""


def _distance(one: str, other: str, most: int) -> int:
    """Letters to add, drop, change, or swap with their neighbour; `most` + 1 stands for anything above `most`."""
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        earlier, before, row = before, row, [i]
        for j, its in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != its))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
        if min(row) > most and min(before) > most:
            return most + 1
    return min(row[-1], most + 1)
