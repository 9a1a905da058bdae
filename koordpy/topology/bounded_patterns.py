# SPDX-License-Identifier: Apache-2.0
"""Rejects regular expressions of users that could block the scheduler, such as regexMatch of a HyperNode.

Python's engine tries every way to divide a text among repetitions: `(a+)+$` on thirty letters takes minutes, and so
does `(a|a)` thirty times in a row. Therefore a pattern is accepted only if it has few repetitions, if no repetition
contains a part that matches different texts, and if its alternatives can be combined in few ways.
"""

import re
from dataclasses import dataclass

REPETITIONS = 3
"""Maximum number of repetitions (`*`, `+`, `{2,5}`) in a pattern. With n repetitions, the time of a search grows with
the n-th power of the length of the text."""
WAYS = 4096
"""Maximum number of combinations of the alternatives of a pattern. For a pattern with `REPETITIONS` repetitions the
maximum is a 64th of it."""
LETTERS = 1000
"""Maximum length of a pattern."""
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|\(\?[a-zA-Z<!=:>]?|[()|?]|[*+]|\{\d*,\d*\}|\{\d+\}|.", re.S)
"""Matches one token: an escaped character, a character class, the start of a group, a bracket or bar, a repetition, or
any other character."""
_REPEATS = re.compile(r"[*+]|\{\d*,\d*\}")


class PatternFault(ValueError):
    """The fault of a pattern; the text states it for the user."""


def read_pattern(text: str) -> re.Pattern[str]:
    """Returns the compiled pattern. Raises `PatternFault` if it is invalid, or a search could take too long."""
    if len(text) > LETTERS:
        raise PatternFault(f"{len(text)} characters, at most {LETTERS} are read")
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as fault:
        raise PatternFault(str(fault)) from None
    if pattern.flags & re.VERBOSE or "(?#" in text:
        raise PatternFault("comments in a pattern are not supported")
    # opened: the groups around the current token, from the whole pattern inwards. closed: the part just before the
    # current token, which a repetition would repeat
    opened, closed, repeats = [_Part()], _Part(), 0
    for token in _TOKEN.findall(text):
        again = _REPEATS.fullmatch(token) is not None
        repeats += again
        if closed.varies and (again or token.startswith("{")):
            raise PatternFault("a repetition of a part that matches several texts is not supported")
        part = opened[-1]
        if token == "?":  # the part before it is optional
            part.ways += part.ways // closed.ways
        elif token == "|":
            part.others, part.ways = part.others + part.ways, 1
        part.varies |= again or token in ("|", "?")
        closed = _Part()
        if token.startswith("("):
            opened.append(_Part())
        elif token == ")" and len(opened) > 1:
            closed = opened.pop()
            closed.ways += closed.others
            opened[-1].ways *= closed.ways
            opened[-1].varies |= closed.varies
    if repeats > REPETITIONS:
        raise PatternFault(f"{repeats} repetitions, at most {REPETITIONS} are read")
    ways = opened[-1].others + opened[-1].ways
    if ways > (most := WAYS if repeats < REPETITIONS else WAYS // 64):
        raise PatternFault(f"{ways} combinations of alternatives, at most {most} are tried")
    return pattern


@dataclass(slots=True)
class _Part:
    """A group, or the pattern outside of groups."""

    ways: int = 1
    """Number of combinations of nested alternatives within the alternative that is being read."""
    others: int = 0
    """Sum of these numbers over the earlier alternatives."""
    varies: bool = False
    """True if the part may match texts of different lengths or forms."""
