# SPDX-License-Identifier: Apache-2.0
"""Readers of single values in manifests and in the configuration: strings, times, numbers, quantities, durations.

Each reader takes (raw value, path of the field, walk). It returns the cleaned value, which msgspec then converts. If
the value is invalid, the reader adds a fault to the walk, and the returned value is meaningless. `strict_decoding.py`
chooses the reader by the type of the field. Sources: kube-parity.md sections 2.5 and 7.
"""

import re
from collections.abc import Mapping
from typing import Any

from koordpy.api.durations import parse_duration
from koordpy.api.field_faults import FieldWalk, Read, key_path, kind_name, literal, shown
from koordpy.api.object_names import split_address
from koordpy.api.quantity import parse_exact, units
from koordpy.api.scalars import Number
from koordpy.api.times import time_text

MAX_INT = 2**63 - 1
"""Largest integer of the Kubernetes API."""
PERCENT = re.compile(r"[0-9]+%", re.ASCII)


def check_quantity(resource: str, raw: Any) -> None:
    """Raises ValueError if a value is not a valid quantity of a resource. resource: empty if unknown."""
    units(resource, _number(raw))


def _number(raw: Any) -> str | int | float:
    """Returns a value of a type that a quantity may have; raises ValueError for another type."""
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise ValueError(f"must be a quantity, not {kind_name(raw)}")
    return raw


def read_text(raw: Any, path: str, walk: FieldWalk) -> Any:
    """Reads a string. An unquoted number on which readers of YAML disagree is read as its text."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, Number) and raw.soft:
        return raw.text
    walk.fault(path, f"must be a string, not {shown(raw)}")
    return ""


def text_reader(pattern: str, longest: int | None, noun: str) -> Read:
    """Returns a reader of strings that match a pattern. longest: maximum length; None for no limit.

    noun: name of the value in faults.
    """
    form = re.compile(pattern)

    def read(raw: Any, path: str, walk: FieldWalk) -> Any:
        text = read_text(raw, path, walk)
        fits = form.fullmatch(text) and (longest is None or len(text) <= longest)
        # an empty text for another raw value means that `read_text` has already recorded a fault
        if (text or raw == "") and not fits:
            walk.fault(path, f"{literal(raw)} is not a valid {noun}")
        return text

    return read


def read_time(raw: Any, path: str, walk: FieldWalk) -> Any:
    """Reads a time as RFC 3339 text. A date alone, or a blank instead of the T, is also accepted, as in YAML."""
    text = read_text(raw, path, walk)
    try:
        return time_text(text) if text else text
    except ValueError as fault:
        walk.fault(path, str(fault))
        return ""


def read_truth(raw: Any, path: str, walk: FieldWalk) -> Any:
    """Reads a boolean."""
    if not isinstance(raw, bool):
        walk.fault(path, f"must be true or false, not {shown(raw)}")
    return raw


def number_reader(
    *, whole: bool, lowest: float | None = None, above: float | None = None, highest: float | None = None
) -> Read:
    """Returns a reader of numbers within 64 bits and some bounds; None for no bound.

    whole: True to reject fractions. lowest, highest: smallest and largest valid number. above: the number itself is
    invalid, larger numbers are valid.
    """
    noun = "a whole number" if whole else "a number"

    def read(raw: Any, path: str, walk: FieldWalk) -> Any:
        value = raw.value if isinstance(raw, Number) else raw
        if whole and isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            walk.fault(path, f"must be {noun}, not {shown(raw)}")
        elif not -MAX_INT - whole <= value <= MAX_INT:
            walk.fault(path, f"{literal(raw)} is out of range")
        elif lowest is not None and value < lowest:
            below = (
                f"must be at least {lowest:.15g}, not {value}" if lowest > 0 else f"{value} is less than {lowest:.15g}"
            )
            walk.fault(path, below)
        elif above is not None and value <= above:
            walk.fault(path, f"{value} is not above {above:.15g}")
        elif highest is not None and value > highest:
            walk.fault(path, f"{value} is more than {highest:.15g}")
        return value

    return read


def choice_reader(values: list[Any]) -> Read:
    """Returns a reader of one of several words or numbers.

    The value false is read as `off` if `off` is a choice, because YAML 1.1 reads `off` without quotes as a boolean.
    """

    def read(raw: Any, path: str, walk: FieldWalk) -> Any:
        if raw is False and "off" in values:
            return "off"
        if any(type(value) is type(raw) and value == raw for value in values):
            return raw
        words = ", ".join(str(value) for value in sorted(values))
        allowed = words if len(values) == 1 else f"one of {words}"
        walk.fault(path, f"must be {allowed}, not {literal(raw)}")
        return values[0]

    return read


def quantity_values(raw: Any, path: str, walk: FieldWalk) -> Any:
    """Reads a mapping of quantities; entries that are null or have a fault are left out."""
    if not isinstance(raw, dict):
        walk.fault(path, f"must be a mapping, not {shown(raw)}")
        return {}
    out = {}
    for key, value in raw.items():
        if value is None:
            continue
        text = value.text if isinstance(value, Number) else value
        try:
            check_quantity(key, text)
        except ValueError as fault:
            walk.fault(key_path(path, key), str(fault))
        else:
            out[key] = text
    return out


def read_quantity(raw: Any, path: str, walk: FieldWalk) -> Any:
    """Reads a quantity as its text."""
    text = raw.text if isinstance(raw, Number) else raw
    try:
        check_quantity("", text)
    except ValueError as fault:
        walk.fault(path, str(fault))
    return text


def read_amount(raw: Any, path: str, walk: FieldWalk) -> Any:
    """Reads a quantity of no resource as its text: it may be a fraction, and below 0."""
    text = raw.text if isinstance(raw, Number) else raw
    try:
        parse_exact(_number(text))
    except ValueError as fault:
        walk.fault(path, str(fault))
    return text


_read_whole = number_reader(whole=True)


def read_int_or_percent(raw: Any, path: str, walk: FieldWalk) -> Any:
    """Reads a whole number or a percentage such as `25%`."""
    if isinstance(raw, str):
        if not PERCENT.fullmatch(raw):
            walk.fault(path, f"{raw!r} is neither a whole number nor a percentage")
        return raw
    return _read_whole(raw, path, walk)


def duration_reader(above: float | None) -> Read:
    """Returns a reader of Go durations as seconds, at least 0. above: seconds that must be exceeded; None for no
    bound."""

    def read(raw: Any, path: str, walk: FieldWalk) -> Any:
        if not isinstance(raw, str):
            walk.fault(path, f"must be a duration (as in 30s, 1h30m), not {shown(raw)}")
            return 0.0
        try:
            seconds = parse_duration(raw)
        except ValueError as fault:
            walk.fault(path, str(fault))
            return 0.0
        if seconds < 0:
            walk.fault(path, f"{raw!r} is negative")
        elif above is not None and seconds <= above:
            walk.fault(path, f"{raw!r} is not longer than {above:g}s")
        return seconds

    return read


def read_address(raw: Any, path: str, walk: FieldWalk) -> Any:
    """Reads a listen address such as `:10259`; an empty text is a fault."""
    text = read_text(raw, path, walk)
    if text or raw == "":
        try:
            split_address(text)
        except ValueError as fault:
            walk.fault(path, str(fault))
    return text


FORMATS: Mapping[str, Read] = {
    "quantity": read_quantity,
    "amount": read_amount,
    "int-or-string": read_int_or_percent,
    "time": read_time,
    "listen-address": read_address,
}
"""`format` in the annotation of a type (`koordpy.api.objects`) -> reader of values of this type."""
