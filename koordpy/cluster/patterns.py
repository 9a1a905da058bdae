"""Regular expressions that others write, searched in bounded time.

Python's engine tries every way of dividing a text among repetitions: `(a+)+$` on thirty letters takes minutes, and the
scheduler with it. What can be divided in more ways than a power of the text's length, or a high one, is refused.
"""

import re

REPETITIONS = 3
"""In one pattern."""
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
    groups, closed, repeats = [False], False, 0
    # of each open group: whether its text may have several lengths or forms; `closed`: that of the one just ended
    for token in _TOKEN.findall(text):
        again = _REPEATS.fullmatch(token) is not None
        repeats += again
        if closed and (again or token.startswith("{")):
            raise PatternFault("a repetition of what varies by itself is not read")
        if token.startswith("("):
            groups.append(False)
        closed = token == ")" and len(groups) > 1 and groups.pop()
        groups[-1] |= closed or again or token in ("|", "?")
    if repeats > REPETITIONS:
        raise PatternFault(f"{repeats} repetitions, at most {REPETITIONS} are read")
    return pattern
