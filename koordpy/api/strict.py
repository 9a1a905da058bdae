"""Strict decoding of plain values into wire structs, with every fault named, not only the first.

The fast way is msgspec's own conversion plus a look at quantities and times. Only where that refuses, the value is
walked field by field along the struct's types; the walk names all faults by their path and, where there is none after
all (a null, a number that is to be read by its text), gives a cleaned value. Source: kube-parity.md sections 2.5, 7.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from koordpy.api.documents import Number
from koordpy.api.durations import parse_duration
from koordpy.api.quantity import units

T = TypeVar("T")

MAX_INT = 2**63 - 1
MAX_FAULTS = 1000
"""Faults listed of one object."""
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_RFC3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})")
_PERCENT = re.compile(r"[0-9]+%", re.ASCII)


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


def decode(raw: Any, kind: type[T], *, plain: bool = False) -> tuple[T | None, list[Fault]]:
    """(object, no faults) or (None, every fault). Unknown fields are ignored, null stands for an absent field.

    `plain`: the caller knows that no Number stands in raw, so that the fast way may be tried.
    """
    if plain:
        try:
            value = msgspec.convert(raw, kind)
            check = _checker(cast(Any, kind))
            if check is not None:
                check(value)
            return value, []
        except ValueError:
            pass
    return _walk(raw, kind, unknown=False)


def decode_closed(raw: Any, kind: type[T]) -> tuple[T | None, list[Fault]]:
    """As `decode`, but an unknown field is a fault: for what only koordpy reads (configuration)."""
    return _walk(raw, kind, unknown=True)


def _walk(raw: Any, kind: type[T], *, unknown: bool) -> tuple[T | None, list[Fault]]:
    walk = _Walk(unknown)
    cleaned = _reader_of(cast(Any, kind))(raw, "", walk)
    if walk.faults:
        return None, walk.faults
    try:
        return msgspec.convert(cleaned, kind), []
    except msgspec.ValidationError as fault:
        return None, [Fault("", str(fault))]


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
    if _RFC3339.fullmatch(text):
        return text
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat().replace("+00:00", "Z")


def _quantity(resource: str, raw: Any) -> None:
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
class _Walk:
    unknown: bool
    faults: list[Fault] = field(default_factory=list)

    def fault(self, path: str, text: str) -> None:
        """Takes a fault down. Aliases can repeat one without end, so that the list has one."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(path, text))
        elif len(self.faults) == MAX_FAULTS:
            self.faults.append(Fault("", f"more than {MAX_FAULTS} faults, the rest is not listed"))


_Read = Callable[[Any, str, _Walk], Any]
"""(raw, path, walk) -> cleaned value; faults go to the walk, and the value does not matter then."""


def _read_any(raw: Any, path: str, walk: _Walk) -> Any:
    if isinstance(raw, Number):
        value = raw.value
        return raw.text if value in (float("inf"), float("-inf")) or value != value else value
    if isinstance(raw, dict):
        return {key: _read_any(value, key_path(path, key), walk) for key, value in raw.items()}
    if isinstance(raw, list):
        return [_read_any(value, f"{path}[{i}]", walk) for i, value in enumerate(raw)]
    return raw


def _read_text(raw: Any, path: str, walk: _Walk) -> Any:
    if isinstance(raw, str):
        return raw
    if isinstance(raw, Number) and raw.soft:
        return raw.text
    walk.fault(path, f"{_shown(raw)} in place of text")
    return ""


def _read_time(raw: Any, path: str, walk: _Walk) -> Any:
    text = _read_text(raw, path, walk)
    try:
        return time_text(text) if text else text
    except ValueError as fault:
        walk.fault(path, str(fault))
        return ""


def _read_truth(raw: Any, path: str, walk: _Walk) -> Any:
    if not isinstance(raw, bool):
        walk.fault(path, f"{_shown(raw)} in place of true or false")
    return raw


def _int_reader(lowest: int | None, highest: int | None) -> _Read:
    def read(raw: Any, path: str, walk: _Walk) -> Any:
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


def _float_reader(lowest: float | None, above: float | None) -> _Read:
    def read(raw: Any, path: str, walk: _Walk) -> Any:
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


def _choice_reader(values: list[Any]) -> _Read:
    """One of some words or numbers. An unquoted `off` is a truth value in YAML 1.1."""

    def read(raw: Any, path: str, walk: _Walk) -> Any:
        if raw is False and "off" in values:
            return "off"
        if any(type(value) is type(raw) and value == raw for value in values):
            return raw
        words = ", ".join(str(value) for value in sorted(values))
        walk.fault(path, f"{_shown(raw)} is none of: {words}")
        return values[0]

    return read


def _quantity_values(raw: Any, path: str, walk: _Walk) -> Any:
    if not isinstance(raw, dict):
        walk.fault(path, f"{_shown(raw)} in place of a mapping")
        return {}
    out = {}
    for key, value in raw.items():
        if value is None:
            continue
        text = value.text if isinstance(value, Number) else value
        try:
            _quantity(key, text)
        except ValueError as fault:
            walk.fault(key_path(path, key), str(fault))
        out[key] = text
    return out


def _read_quantity(raw: Any, path: str, walk: _Walk) -> Any:
    text = raw.text if isinstance(raw, Number) else raw
    try:
        _quantity("", text)
    except ValueError as fault:
        walk.fault(path, str(fault))
    return text


def _read_int_or_percent(raw: Any, path: str, walk: _Walk) -> Any:
    if isinstance(raw, str):
        if not _PERCENT.fullmatch(raw):
            walk.fault(path, f"{raw!r} is neither a whole number nor a percentage")
        return raw
    return _int_reader(None, None)(raw, path, walk)


def _read_duration(raw: Any, path: str, walk: _Walk) -> Any:
    try:
        return _duration(raw)
    except ValueError as fault:
        walk.fault(path, str(fault))
        return 0.0


_FORMATS: Mapping[str, _Read] = {
    "quantity": _read_quantity,
    "int-or-string": _read_int_or_percent,
    "time": _read_time,
    "duration": _read_duration,
}


def _map_reader(info: inspect.DictType) -> _Read:
    if _format(info.value_type) == "quantity":
        return _quantity_values
    read_value = _reader(info.value_type)
    read_key = _reader(info.key_type)
    texts = read_value is _read_text

    def read(raw: Any, path: str, walk: _Walk) -> Any:
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


def _list_reader(info: inspect.ListType | inspect.VarTupleType) -> _Read:
    read_item = _reader(info.item_type)

    def read(raw: Any, path: str, walk: _Walk) -> Any:
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


def _struct_reader(info: inspect.StructType) -> _Read:
    readers: dict[str, _Read] | None = None
    required = [part.encode_name for part in info.fields if part.required]

    def read(raw: Any, path: str, walk: _Walk) -> Any:
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


def _union_reader(info: inspect.UnionType) -> _Read:
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

    def read(raw: Any, path: str, walk: _Walk) -> Any:
        for kinds, reader in choices:
            if isinstance(raw, kinds) and (bool in kinds or not isinstance(raw, bool)):
                return reader(raw, path, walk)
        walk.fault(path, f"{_shown(raw)} in place of {allowed}")
        return None

    return read


def _format(info: inspect.Type) -> str | None:
    return cast(str | None, (info.extra or {}).get("format")) if isinstance(info, inspect.Metadata) else None


_READERS: dict[Any, _Read] = {}


@cache
def _reader_of(kind: Any) -> _Read:
    return _reader(inspect.type_info(kind))


def _reader(info: inspect.Type) -> _Read:
    key = info.cls if isinstance(info, inspect.StructType) else repr(info)
    known = _READERS.get(key)
    if known is None:
        known = _READERS[key] = _new_reader(info)
    return known


def _new_reader(info: inspect.Type) -> _Read:
    if isinstance(info, inspect.Metadata):
        return _FORMATS.get(_format(info) or "") or _reader(info.type)
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
    simple: dict[type[inspect.Type], _Read] = {
        inspect.StrType: _read_text,
        inspect.BoolType: _read_truth,
        inspect.AnyType: _read_any,
    }
    return simple[type(info)]


# -- the look at quantities and times after the fast way --------------------------------------------------------------

_Check = Callable[[Any], None]
"""Raises ValueError where a quantity or a time cannot be read."""


def _check_quantities(value: Any) -> None:
    for resource, raw in value.items():
        units(resource, raw)


def _check_time(value: Any) -> None:
    if value and not (isinstance(value, str) and _RFC3339.fullmatch(value) and datetime.fromisoformat(value)):
        raise ValueError("no time")


def _check_percent(value: Any) -> None:
    if isinstance(value, str) and not _PERCENT.fullmatch(value):
        raise ValueError("no percentage")


@cache
def _checker(kind: Any) -> _Check | None:
    """Looks at every quantity and time of a struct; None where it can hold none."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    parts = [(part.name, check) for part in info.fields if (check := _part_checker(part.type)) is not None]
    if not parts:
        return None

    def check_struct(value: Any) -> None:
        for name, check in parts:
            part = getattr(value, name)
            if part:
                check(part)

    return check_struct


def _part_checker(info: inspect.Type) -> _Check | None:
    if isinstance(info, inspect.Metadata):
        checks: dict[str | None, _Check] = {
            "time": _check_time,
            "int-or-string": _check_percent,
            "quantity": lambda value: _quantity("", value),
        }
        return checks.get(_format(info)) or _part_checker(info.type)
    if isinstance(info, inspect.StructType):
        return _checker(info.cls)
    if isinstance(info, inspect.UnionType):
        found = [check for part in info.types if (check := _part_checker(part)) is not None]
        return found[0] if found else None
    if isinstance(info, inspect.DictType):
        if _format(info.value_type) == "quantity":
            return _check_quantities
        return None
    if isinstance(info, inspect.ListType):
        inner = _part_checker(info.item_type)
        if inner is None:
            return None

        def check_items(value: Any) -> None:
            for item in value:
                inner(item)

        return check_items
    return None
