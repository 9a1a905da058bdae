"""The walk along a struct's types that finds every fault of a plain value, by its path.

It gives a cleaned value where there is none: null left out, numbers read by their text. Sources: kube-parity.md
sections 2.5 and 7.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast

from msgspec import inspect

from koordpy.api.durations import parse_duration
from koordpy.api.quantity import units
from koordpy.api.scalars import Number

MAX_INT = 2**63 - 1
MAX_FAULTS = 1000
"""Faults listed of one object."""
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
RFC3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})")
PERCENT = re.compile(r"[0-9]+%", re.ASCII)


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


@cache
def reader_of(kind: Any) -> "Read":
    """The walk of a struct type: (raw value, path, walk) -> cleaned value."""
    return _reader(inspect.type_info(kind))


# -- what a value is called -------------------------------------------------------------------------------------------


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


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return f"a truth value ({str(value).lower()})"
    if isinstance(value, (int, float, Number, str)):
        text = repr(value)
        return f"{kind_name(value)} ({text if len(text) <= 60 else text[:57] + '...'})"
    return kind_name(value)


# -- texts of a certain form ------------------------------------------------------------------------------------------


def time_text(text: str) -> str:
    """An RFC 3339 time; dates and times with a blank are put into that form. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is no time (as in 2026-01-01T00:00:00Z)") from None
    if RFC3339.fullmatch(text):
        return text
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat().replace("+00:00", "Z")


def check_quantity(resource: str, raw: Any) -> None:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise ValueError(f"{kind_name(raw)} in place of a quantity")
    units(resource, raw)


def _duration(raw: Any) -> float:
    if not isinstance(raw, str):
        raise ValueError(f"{_shown(raw)} in place of a duration (as in 30s, 1h30m)")
    seconds = parse_duration(raw)
    if seconds < 0:
        raise ValueError(f"{raw!r} is negative")
    return seconds


# -- the walk ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Walk:
    unknown: bool
    faults: list[Fault] = field(default_factory=list)

    def fault(self, path: str, text: str) -> None:
        """Takes a fault down. Aliases can repeat one without end, so that the list has one."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(path, text))
        elif len(self.faults) == MAX_FAULTS:
            self.faults.append(Fault("", f"more than {MAX_FAULTS} faults, the rest is not listed"))


Read = Callable[[Any, str, Walk], Any]
"""(raw, path, walk) -> cleaned value; faults go to the walk, and the value does not matter then."""


def _read_any(raw: Any, path: str, walk: Walk) -> Any:
    if isinstance(raw, Number):
        value = raw.value
        return raw.text if value in (float("inf"), float("-inf")) or value != value else value
    if isinstance(raw, dict):
        return {key: _read_any(value, key_path(path, key), walk) for key, value in raw.items()}
    if isinstance(raw, list):
        return [_read_any(value, f"{path}[{i}]", walk) for i, value in enumerate(raw)]
    return raw


def _read_text(raw: Any, path: str, walk: Walk) -> Any:
    if isinstance(raw, str):
        return raw
    if isinstance(raw, Number) and raw.soft:
        return raw.text
    walk.fault(path, f"{_shown(raw)} in place of text")
    return ""


def _read_time(raw: Any, path: str, walk: Walk) -> Any:
    text = _read_text(raw, path, walk)
    try:
        return time_text(text) if text else text
    except ValueError as fault:
        walk.fault(path, str(fault))
        return ""


def _read_truth(raw: Any, path: str, walk: Walk) -> Any:
    if not isinstance(raw, bool):
        walk.fault(path, f"{_shown(raw)} in place of true or false")
    return raw


def _int_reader(lowest: int | None, highest: int | None) -> Read:
    def read(raw: Any, path: str, walk: Walk) -> Any:
        value = raw.value if isinstance(raw, Number) else raw
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            walk.fault(path, f"{_shown(raw)} in place of a whole number")
        elif not -MAX_INT - 1 <= value <= MAX_INT:
            walk.fault(path, f"{_shown(raw)} is out of range")
        elif lowest is not None and value < lowest:
            walk.fault(path, f"{value} is less than {lowest}")
        elif highest is not None and value > highest:
            walk.fault(path, f"{value} is more than {highest}")
        return value

    return read


def _float_reader(lowest: float | None, above: float | None) -> Read:
    def read(raw: Any, path: str, walk: Walk) -> Any:
        value = raw.value if isinstance(raw, Number) else raw
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            walk.fault(path, f"{_shown(raw)} in place of a number")
            return 0.0
        if not abs(value) <= MAX_INT:
            walk.fault(path, f"{_shown(raw)} is out of range")
            return 0.0
        if lowest is not None and value < lowest:
            walk.fault(path, f"{value} is less than {lowest:g}")
        elif above is not None and value <= above:
            walk.fault(path, f"{value} is not above {above:g}")
        return float(value)

    return read


def _choice_reader(values: list[Any]) -> Read:
    """One of some words or numbers. An unquoted `off` is a truth value in YAML 1.1."""

    def read(raw: Any, path: str, walk: Walk) -> Any:
        if raw is False and "off" in values:
            return "off"
        if any(type(value) is type(raw) and value == raw for value in values):
            return raw
        words = ", ".join(str(value) for value in sorted(values))
        walk.fault(path, f"{_shown(raw)} is none of: {words}")
        return values[0]

    return read


def _quantity_values(raw: Any, path: str, walk: Walk) -> Any:
    if not isinstance(raw, dict):
        walk.fault(path, f"{_shown(raw)} in place of a mapping")
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
        out[key] = text
    return out


def _read_quantity(raw: Any, path: str, walk: Walk) -> Any:
    text = raw.text if isinstance(raw, Number) else raw
    try:
        check_quantity("", text)
    except ValueError as fault:
        walk.fault(path, str(fault))
    return text


def _read_int_or_percent(raw: Any, path: str, walk: Walk) -> Any:
    if isinstance(raw, str):
        if not PERCENT.fullmatch(raw):
            walk.fault(path, f"{raw!r} is neither a whole number nor a percentage")
        return raw
    return _int_reader(None, None)(raw, path, walk)


def _read_duration(raw: Any, path: str, walk: Walk) -> Any:
    try:
        return _duration(raw)
    except ValueError as fault:
        walk.fault(path, str(fault))
        return 0.0


_FORMATS: Mapping[str, Read] = {
    "quantity": _read_quantity,
    "int-or-string": _read_int_or_percent,
    "time": _read_time,
    "duration": _read_duration,
}


def _map_reader(info: inspect.DictType) -> Read:
    if format_of(info.value_type) == "quantity":
        return _quantity_values
    read_value = _reader(info.value_type)
    read_key = _reader(info.key_type)
    texts = read_value is _read_text

    def read(raw: Any, path: str, walk: Walk) -> Any:
        if not isinstance(raw, dict):
            walk.fault(path, f"{_shown(raw)} in place of a mapping")
            return {}
        out = {}
        for key, value in raw.items():
            at = key_path(path, key)
            if value is None:
                # An API server makes the empty text of a null label or selector value.
                if texts:
                    out[key] = ""
                continue
            if read_key is not _read_text:
                read_key(key, at, walk)
            out[key] = read_value(value, at, walk)
        return out

    return read


def _list_reader(info: inspect.ListType | inspect.VarTupleType) -> Read:
    read_item = _reader(info.item_type)

    def read(raw: Any, path: str, walk: Walk) -> Any:
        if not isinstance(raw, list):
            walk.fault(path, f"{_shown(raw)} in place of a list")
            return []
        out = []
        for i, item in enumerate(raw):
            if item is None:
                walk.fault(f"{path}[{i}]", "null in a list")
            else:
                out.append(read_item(item, f"{path}[{i}]", walk))
        return out

    return read


def _struct_reader(info: inspect.StructType) -> Read:
    readers: dict[str, Read] | None = None
    required = [part.encode_name for part in info.fields if part.required]

    def read(raw: Any, path: str, walk: Walk) -> Any:
        nonlocal readers
        if readers is None:
            readers = {part.encode_name: _reader(part.type) for part in info.fields}
        if not isinstance(raw, dict):
            walk.fault(path, f"{_shown(raw)} in place of a mapping")
            return {}
        out = {}
        for key, value in raw.items():
            reader = readers.get(key)
            if reader is None:
                if walk.unknown:
                    walk.fault(key_path(path, key), "unknown field")
            elif value is not None:
                out[key] = reader(value, key_path(path, key), walk)
        for key in required:
            if key not in out:
                walk.fault(key_path(path, key), "is missing")
        return out

    return read


def _union_reader(info: inspect.UnionType) -> Read:
    parts = [part for part in info.types if not isinstance(part, inspect.NoneType)]
    if len(parts) == 1:
        return _reader(parts[0])
    by_kind = {
        inspect.StrType: (str,),
        inspect.ListType: (list,),
        inspect.IntType: (int, Number),
        inspect.BoolType: (bool,),
        inspect.DictType: (dict,),
        inspect.StructType: (dict,),
    }
    choices = [(by_kind[type(part)], _reader(part)) for part in parts]
    words = {str: "text", list: "a list", int: "a number", bool: "true or false", dict: "a mapping"}
    allowed = " or ".join(words[kinds[0]] for kinds, _ in choices)

    def read(raw: Any, path: str, walk: Walk) -> Any:
        for kinds, reader in choices:
            if isinstance(raw, kinds) and (bool in kinds or not isinstance(raw, bool)):
                return reader(raw, path, walk)
        walk.fault(path, f"{_shown(raw)} in place of {allowed}")
        return None

    return read


def format_of(info: inspect.Type) -> str | None:
    return cast(str | None, (info.extra or {}).get("format")) if isinstance(info, inspect.Metadata) else None


_READERS: dict[Any, Read] = {}


def _reader(info: inspect.Type) -> Read:
    key = info.cls if isinstance(info, inspect.StructType) else repr(info)
    known = _READERS.get(key)
    if known is None:
        known = _READERS[key] = _new_reader(info)
    return known


def _new_reader(info: inspect.Type) -> Read:
    if isinstance(info, inspect.Metadata):
        return _FORMATS.get(format_of(info) or "") or _reader(info.type)
    if isinstance(info, inspect.StructType):
        return _struct_reader(info)
    if isinstance(info, inspect.DictType):
        return _map_reader(info)
    if isinstance(info, (inspect.ListType, inspect.VarTupleType)):
        return _list_reader(info)
    if isinstance(info, inspect.UnionType):
        return _union_reader(info)
    if isinstance(info, inspect.LiteralType):
        return _choice_reader(list(info.values))
    if isinstance(info, inspect.IntType):
        return _int_reader(info.ge, info.le)
    if isinstance(info, inspect.FloatType):
        return _float_reader(info.ge, info.gt)
    simple: dict[type[inspect.Type], Read] = {
        inspect.StrType: _read_text,
        inspect.BoolType: _read_truth,
        inspect.AnyType: _read_any,
    }
    return simple[type(info)]
