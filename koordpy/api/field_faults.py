"""Faults of a value that somebody wrote: by the path of the field, in a user's words (kube-parity.md section 7)."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from koordpy.api.scalars import Number

MAX_FAULTS = 1000
"""Faults listed of one object."""
MAX_DOUBTS = 100
"""Doubts told of one object."""
MAX_SHOWN = 60
"""Characters of a value in a fault's text."""
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)


class InputFaultsError(Exception):
    """Bad input; `lines` names every fault, one a line (exit status 2)."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class UnreadableError(ValueError):
    """A value that cannot be read, or holds more than is read; the text says what and where."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: the path of the field from the root (empty = the root), and what is wrong."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


def key_path(path: str, key: str) -> str:
    """Path of a mapping's entry; keys with other characters stand in brackets: `requests[nvidia.com/gpu]`."""
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


@dataclass(slots=True)
class FieldWalk:
    """A walk through one object, with what it found."""

    unknown: bool
    """Whether fields that no type has are faults."""
    faults: list[Fault] = field(default_factory=list)
    doubts: list[Fault] = field(default_factory=list)

    def fault(self, path: str, text: str) -> None:
        """Takes a fault down. Aliases can repeat one without end, so that the list has one."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(path, text))
        elif len(self.faults) == MAX_FAULTS:
            self.faults.append(Fault("", f"more than {MAX_FAULTS} faults, the rest is not listed"))

    @property
    def doubtful(self) -> bool:
        """Whether further doubts are told."""
        return len(self.doubts) < MAX_DOUBTS

    def doubt(self, path: str, text: str) -> None:
        if self.doubtful:
            self.doubts.append(Fault(path, text))


def one_line(text: str) -> str:
    """A text that quotes its input, on one line and without what a terminal would obey."""
    text = " ".join(text.splitlines())
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


Read = Callable[[Any, str, FieldWalk], Any]
"""(raw, path, walk) -> cleaned value; faults go to the walk, and the value does not matter then."""


def kind_name(value: Any) -> str:
    """What a plain value is, in a user's words."""
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, (int, float, Number)):
        return "a number"
    for kind, name in ((str, "text"), (list, "a list"), (dict, "a mapping")):
        if isinstance(value, kind):
            return name
    return "null"


def literal(value: Any) -> str:
    """A plain value as its author wrote it: null, true, 5, a text in quotes, JSON of the rest; long ones are cut."""
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]!r}..."
    # JSON has no infinity; YAML and Python agree on it but for a point
    text = repr(value) if isinstance(value, Number | float) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def shown(value: Any) -> str:
    """What a plain value is, and the value itself where it is short."""
    if isinstance(value, bool):
        return f"a truth value ({str(value).lower()})"
    if isinstance(value, (int, float, Number, str)):
        return f"{kind_name(value)} ({literal(value)})"
    return kind_name(value)
