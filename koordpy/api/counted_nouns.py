"""Numbers with their nouns, and names, as sentences have them."""

from collections.abc import Sequence

NAMED = 4
"""Names before `and N more`."""


def counted(number: float, noun: str) -> str:
    """`1 pod`, `3 pods`, `0.5 pods`; large ones in full, too."""
    return f"{number:.15g} {noun}" if number == 1 else f"{number:.15g} {noun}s"


def named(names: Sequence[str], most: int = NAMED) -> str:
    """The first few names, and how many more there are."""
    text = ", ".join(names[:most])
    return f"{text} and {len(names) - most} more" if len(names) > most else text


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`: all names, at least one."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
