"""Regular expressions that others write, searched in bounded time.

Python's engine tries every way of dividing a text among repetitions: `(a+)+$` on thirty letters takes minutes, and the
scheduler with it, and so does `(a|a)` thirty times in a row. What can be divided in more ways than a power of the
text's length, or a high one, or chosen in many ways, is refused.
"""

import re
from dataclasses import dataclass

REPETITIONS = 3
"""In one pattern."""
WAYS = 4096
"""In which the forms of a pattern's parts go together; 64 count as another repetition."""
LETTERS = 1000
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|\(\?[a-zA-Z<!=:>]?|[()|?]|[*+]|\{\d*,\d*\}|\{\d+\}|.", re.S)
_REPEATS = re.compile(r"[*+]|\{\d*,\d*\}")


class PatternFault(ValueError):
    """What is wrong with a pattern."""


def read_pattern(text: str) -> re.Pattern[str]:
    """The pattern, which `search` runs in bounded time. Raises PatternFault."""
    if len(text) > LETTERS:
        raise PatternFault(f"{len(text)} letters, at most {LETTERS} are read")
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as fault:
        raise PatternFault(str(fault)) from None
    if pattern.flags & re.VERBOSE or "(?#" in text:
        raise PatternFault("a pattern with comments is not read")
    opened, closed, repeats = [_Part()], _Part(), 0
    for token in _TOKEN.findall(text):
        again = _REPEATS.fullmatch(token) is not None
        repeats += again
        if closed.varies and (again or token.startswith("{")):
            raise PatternFault("a repetition of what varies by itself is not read")
        part = opened[-1]
        if token == "?":  # the part before it, or nothing
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
        raise PatternFault(f"{ways} ways to choose among its forms, at most {most} are tried")
    return pattern


@dataclass(slots=True)
class _Part:
    """A group, or what is not in any."""

    ways: int = 1
    """Forms of the alternative that is read, one for each way to choose among those of its parts."""
    others: int = 0
    """Those of the alternatives before."""
    varies: bool = False
    """Whether its text may have several lengths or forms."""
