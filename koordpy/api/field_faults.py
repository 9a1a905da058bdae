# SPDX-License-Identifier: Apache-2.0
"""Faults of values that users write, such as `spec.containers: is missing`: the path of the field, and a text.

A fault means that an object, or a part of it, cannot be read. A warning, called doubt in the code, is about a value
that can be read but is probably not what its author meant. A `FieldWalk` collects both while one object is read. The
readers of fields add faults to it and never raise. Source: kube-parity.md section 7.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from koordpy.api.scalars import Number

MAX_FAULTS = 1000
"""Maximum number of faults listed for one object."""
MAX_DOUBTS = 100
"""Maximum number of warnings for one object."""
MAX_SHOWN = 60
"""Maximum number of characters of a value in a fault's text."""
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)


class InputFaultsError(Exception):
    """Invalid input. `lines` has one line for each fault; commands exit with status 2."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class UnreadableError(ValueError):
    """A value that cannot be read, or exceeds a limit; the text states the fault and its path."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: the path of the field from the root (empty for the root), and the text."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


def key_path(path: str, key: str) -> str:
    """Returns the path of a mapping's entry.

    Keys with special characters are in brackets: `requests[nvidia.com/gpu]`.
    """
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


@dataclass(slots=True)
class FieldWalk:
    """Collects the faults and warnings of one object while it is read."""

    unknown: bool
    """True if unknown fields are faults in every object."""
    unknown_own: bool = False
    """True if unknown fields are faults in objects of koordpy's own custom resources."""
    faults: list[Fault] = field(default_factory=list)
    doubts: list[Fault] = field(default_factory=list)
    """Warnings."""

    def fault(self, path: str, text: str) -> None:
        """Records a fault, up to `MAX_FAULTS`, because YAML aliases can repeat a fault without limit."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(path, text))
        elif len(self.faults) == MAX_FAULTS:
            self.faults.append(Fault("", f"more than {MAX_FAULTS} faults, the rest is not listed"))

    @property
    def doubtful(self) -> bool:
        """True if a further warning would still be recorded, so that computing its text is useful."""
        return len(self.doubts) < MAX_DOUBTS

    def doubt(self, path: str, text: str) -> None:
        """Records a warning, up to `MAX_DOUBTS` for one object."""
        if self.doubtful:
            self.doubts.append(Fault(path, text))


def one_line(text: str) -> str:
    """Returns a message that quotes input of a user on one line.

    Control characters are escaped, because they could change the terminal of the reader.
    """
    text = " ".join(text.splitlines())
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


Read = Callable[[Any, str, FieldWalk], Any]
"""Function from (raw value, path, walk) to a value. It adds faults to the walk; after a fault its result is
meaningless."""


def kind_name(value: Any) -> str:
    """Returns the type of a plain value (from YAML or JSON) in a user's words."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float, Number)):
        return "a number"
    for kind, name in ((str, "a string"), (list, "a list"), (dict, "a mapping")):
        if isinstance(value, kind):
            return name
    return "null"


def literal(value: Any) -> str:
    """Returns a plain value as its author wrote it: null, true, 5, a string in quotes, or JSON.

    A text of more than `MAX_SHOWN` characters is cut.
    """
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]!r}..."
    # JSON has no infinity; the text of YAML differs from Python's only by a dot
    text = repr(value) if isinstance(value, Number | float) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def shown(value: Any) -> str:
    """Returns the type of a plain value; for scalars also the value."""
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, (int, float, Number, str)):
        return f"the {kind_name(value).removeprefix('a ')} {literal(value)}"
    return kind_name(value)
