# SPDX-License-Identifier: Apache-2.0
"""Decodes the plain value of a manifest (dicts and lists) into a wire object such as `Pod`, with all faults and
warnings.

msgspec alone stops at the first fault. Therefore each type gets a reader, which is built once from its declared fields.
A reader visits a value, records faults and warnings (`field_hints.py`) by the path of the field, and returns a cleaned
value: without nulls, and with numbers read from their text. msgspec then converts the cleaned value. Readers of single
values are in `leaf_readers.py`; readers of structs, lists, mappings and unions are here. Sources: kube-parity.md 2.5
and 7.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import inspect

from koordpy.api.field_faults import Fault, FieldWalk, Read, key_path, shown
from koordpy.api.scalars import Number
from koordpy.api.spelling import hint
from koordpy.decoding.field_hints import CLOSED, OPEN, PRUNED, VALUES, WHOLE
from koordpy.decoding.leaf_readers import (
    FORMATS,
    choice_reader,
    duration_reader,
    number_reader,
    quantity_values,
    read_text,
    read_truth,
    text_reader,
)

T = TypeVar("T")
_EVERYWHERE = ("apiVersion", "kind")
"""Fields that any part of an object may have."""


@dataclass(frozen=True, slots=True)
class Decoded(Generic[T]):
    """The result of decoding a plain value."""

    value: T | None
    """The object; None if there is a fault."""
    rest: T | None
    """The object without its faulty parts, for further checks; None if no part is readable."""
    faults: list[Fault]
    """Why the value is invalid; empty if it is valid."""
    doubts: list[Fault]
    """Warnings: readable values that are probably not what the author meant."""


def decode(raw: Any, kind: type[T], *, closed: bool = False, own_closed: bool = False) -> Decoded[T]:
    """Decodes a value as an object. Null means an absent field, unless null is a value of the field.

    Unknown fields are ignored by default. closed: True if they are faults, as in the configuration, which only koordpy
    reads. own_closed: True if they are faults in koordpy's custom resources, as in manifests. Objects from an API
    server have unknown fields only if another project's definition declares them.
    """
    walk = FieldWalk(closed, own_closed)
    cleaned = _reader_of(cast(Any, kind))(raw, "", walk)
    rest: T | None = None
    try:
        rest = msgspec.convert(cleaned, kind)
    except msgspec.ValidationError as fault:
        if not walk.faults:
            walk.fault("", str(fault))
    return Decoded(None if walk.faults else rest, rest, walk.faults, walk.doubts)


@cache
def _reader_of(kind: Any) -> Read:
    """Returns the reader of a struct type: (raw value, path, walk) -> cleaned value."""
    return _reader(inspect.type_info(kind))


def _read_any(raw: Any, path: str, walk: FieldWalk) -> Any:
    """Reads a value of any type. Numbers become floats or ints; infinity and NaN become texts, because JSON has
    neither."""
    if isinstance(raw, Number):
        value = raw.value
        return raw.text if value in (float("inf"), float("-inf")) or value != value else value
    if isinstance(raw, dict):
        return {key: _read_any(value, key_path(path, key), walk) for key, value in raw.items()}
    if isinstance(raw, list):
        return [_read_any(value, f"{path}[{i}]", walk) for i, value in enumerate(raw)]
    return raw


def _usable(read_in: Any, raw: Any, before: int, walk: FieldWalk) -> bool:
    """Returns True if a value that was read belongs into the cleaned value.

    With a fault, a single value is left out, but a list or mapping remains without its faulty parts. before: number of
    faults before the value was read.
    """
    return len(walk.faults) == before or (isinstance(read_in, dict | list) and read_in is not raw)


def _map_reader(info: inspect.DictType) -> Read:
    """Returns the reader of a mapping with arbitrary keys, such as labels or quantities."""
    if format_of(info.value_type) == "quantity":
        return quantity_values
    read_value = _reader(info.value_type)
    read_key = _reader(info.key_type)
    texts = read_value is read_text

    def read(raw: Any, path: str, walk: FieldWalk) -> Any:
        if not isinstance(raw, dict):
            walk.fault(path, f"must be a mapping, not {shown(raw)}")
            return {}
        # labels are the most frequent mappings and usually valid, so they have a fast path
        if texts and read_key is read_text and all(type(value) is str for value in raw.values()):
            return raw
        out = {}
        for key, value in raw.items():
            at = key_path(path, key)
            if value is None:
                # an API server reads a null label or selector value as an empty string
                if texts:
                    out[key] = ""
                continue
            if read_key is not read_text:
                read_key(key, at, walk)
            before = len(walk.faults)
            read_in = read_value(value, at, walk)
            if _usable(read_in, value, before, walk):
                out[key] = read_in
        return out

    return read


def _list_reader(info: inspect.ListType | inspect.VarTupleType) -> Read:
    """Returns the reader of a list or tuple."""
    read_item = _reader(info.item_type)

    def read(raw: Any, path: str, walk: FieldWalk) -> Any:
        if not isinstance(raw, list):
            walk.fault(path, f"must be a list, not {shown(raw)}")
            return []
        if len(raw) < (info.min_length or 0):
            walk.fault(path, "an empty list")
        out = []
        for i, item in enumerate(raw):
            if item is None:
                walk.fault(f"{path}[{i}]", "null in a list")
                continue
            before = len(walk.faults)
            read_in = read_item(item, f"{path}[{i}]", walk)
            if _usable(read_in, item, before, walk):
                out.append(read_in)
        return out

    return read


def _means_null(part: inspect.Field) -> bool:
    """Returns True if null is a value of a field, with another meaning than an absent field."""
    allows = isinstance(part.type, inspect.UnionType) and part.type.includes_none
    return allows and part.default is not None and part.default is not msgspec.NODEFAULT


def _struct_reader(info: inspect.StructType) -> Read:
    """Returns the reader of a struct: unknown fields, checks of single fields, values, then checks of several fields.

    The readers of the fields are created at the first use, because structs may contain themselves.
    """
    readers: dict[str, Read] | None = None
    required = [part.encode_name for part in info.fields if part.required]
    names = tuple(part.encode_name for part in info.fields)
    nullable = frozenset(part.encode_name for part in info.fields if _means_null(part))
    looks, whole = VALUES.get(info.cls, {}), WHOLE.get(info.cls, ())
    closed, tells = info.cls in CLOSED, info.cls not in OPEN
    own, valid = info.cls in PRUNED, (*PRUNED.get(info.cls, ()), *_EVERYWHERE)

    def unknown(key: str, path: str, walk: FieldWalk) -> None:
        """Records an unknown field.

        In the configuration and in koordpy's custom resources it is a fault; elsewhere it gets a warning if it is
        probably misspelt.
        """
        if walk.unknown or (walk.unknown_own and own and key not in valid):
            walk.fault(key_path(path, key), f"unknown field{hint(key, names, closed=True)}")
        elif tells and key not in valid and walk.doubtful:
            near = hint(key, names, closed=closed)
            if near or closed:
                walk.doubt(key_path(path, key), f"unknown field, not read{near}")

    def read(raw: Any, path: str, walk: FieldWalk) -> Any:
        nonlocal readers
        if readers is None:
            readers = {part.encode_name: _reader(part.type) for part in info.fields}
        if not isinstance(raw, dict):
            walk.fault(path, f"must be a mapping, not {shown(raw)}")
            return {}
        faults = walk.faults
        out: dict[str, Any] = {}
        for key, value in raw.items():
            reader = readers.get(key)
            if key in looks:
                looks[key](value, key_path(path, key), walk)
            elif reader is None:
                unknown(key, path, walk)
            if value is None and key in nullable:
                out[key] = None
            elif reader is not None and value is not None:
                before = len(faults)
                read_in = reader(value, f"{path}.{key}" if path else key, walk)
                if len(faults) == before or _usable(read_in, value, before, walk):
                    out[key] = read_in
        for key in required:
            if raw.get(key) is None:
                walk.fault(key_path(path, key), "is missing")
        for look in whole:
            look(raw, path, walk)
        return out

    return read


def _union_reader(info: inspect.UnionType) -> Read:
    """Returns the reader of a union: the type of the raw value selects the reader. The struct's reader handles None."""
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
    words = {str: "a string", list: "a list", int: "a number", bool: "true or false", dict: "a mapping"}
    allowed = " or ".join(words[kinds[0]] for kinds, _ in choices)

    def read(raw: Any, path: str, walk: FieldWalk) -> Any:
        for kinds, reader in choices:
            if isinstance(raw, kinds) and (bool in kinds or not isinstance(raw, bool)):
                return reader(raw, path, walk)
        walk.fault(path, f"must be {allowed}, not {shown(raw)}")
        return None

    return read


def format_of(info: inspect.Type) -> str | None:
    """Returns the `format` in the annotation of a type, such as `quantity`; None if it has none."""
    return cast(str | None, (info.extra or {}).get("format")) if isinstance(info, inspect.Metadata) else None


_READERS: dict[Any, Read] = {}
"""Struct class, or the text of any other type -> its reader."""


def _reader(info: inspect.Type) -> Read:
    """Returns the reader of a type; creates it at the first use."""
    key = info.cls if isinstance(info, inspect.StructType) else repr(info)
    known = _READERS.get(key)
    if known is None:
        known = _READERS[key] = _new_reader(info)
    return known


def _new_reader(info: inspect.Type) -> Read:
    """Returns a new reader of a type, chosen by the type's annotation, else by its kind."""
    if isinstance(info, inspect.Metadata):
        own: Read | None = (info.extra or {}).get("reader")
        if own is not None:
            return own
        if isinstance(info.type, inspect.FloatType) and format_of(info) == "duration":
            return duration_reader(info.type.gt)
        if isinstance(info.type, inspect.StrType) and info.type.pattern is not None:
            return text_reader(info.type.pattern, info.type.max_length, (info.extra or {})["noun"])
        return FORMATS.get(format_of(info) or "") or _reader(info.type)
    if isinstance(info, inspect.StructType):
        return _struct_reader(info)
    if isinstance(info, inspect.DictType):
        return _map_reader(info)
    if isinstance(info, (inspect.ListType, inspect.VarTupleType)):
        return _list_reader(info)
    if isinstance(info, inspect.UnionType):
        return _union_reader(info)
    if isinstance(info, inspect.LiteralType):
        return choice_reader(list(info.values))
    if isinstance(info, inspect.IntType):
        return number_reader(whole=True, lowest=info.ge, highest=info.le)
    if isinstance(info, inspect.FloatType):
        return number_reader(whole=False, lowest=info.ge, above=info.gt, highest=info.le)
    simple: dict[type[inspect.Type], Read] = {
        inspect.StrType: read_text,
        inspect.BoolType: read_truth,
        inspect.AnyType: _read_any,
    }
    return simple[type(info)]
