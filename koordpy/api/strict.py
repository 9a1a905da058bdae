"""Strict decoding of plain values into wire structs, with every fault named, not only the first.

The fast way is msgspec's own conversion plus a look at quantities and times. Only where that refuses, the value is
walked field by field (`koordpy.api.fieldwalk`). Source: kube-parity.md section 7.
"""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from koordpy.api.faults import Fault, FieldWalk
from koordpy.api.fieldwalk import format_of, reader_of
from koordpy.api.leafreaders import PERCENT, RFC3339, check_quantity
from koordpy.api.quantity import units

T = TypeVar("T")


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


def decode_rest(raw: Any, kind: type[T]) -> T | None:
    """What of a faulty value can be read, its faulty parts left out; None where nothing can."""
    try:
        return msgspec.convert(reader_of(cast(Any, kind))(raw, "", FieldWalk(False)), kind)
    except msgspec.ValidationError:
        return None


def _walk(raw: Any, kind: type[T], *, unknown: bool) -> tuple[T | None, list[Fault]]:
    walk = FieldWalk(unknown)
    cleaned = reader_of(cast(Any, kind))(raw, "", walk)
    if walk.faults:
        return None, walk.faults
    try:
        return msgspec.convert(cleaned, kind), []
    except msgspec.ValidationError as fault:
        return None, [Fault("", str(fault))]


# -- the look at quantities and times after the fast way --------------------------------------------------------------

_Check = Callable[[Any], None]
"""Raises ValueError where a quantity or a time cannot be read."""


def _check_quantities(value: Any) -> None:
    for resource, raw in value.items():
        units(resource, raw)


def _check_time(value: Any) -> None:
    if value and not (isinstance(value, str) and RFC3339.fullmatch(value) and datetime.fromisoformat(value)):
        raise ValueError("no time")


def _check_percent(value: Any) -> None:
    if isinstance(value, str) and not PERCENT.fullmatch(value):
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
            if part or part == "":
                check(part)

    return check_struct


def _part_checker(info: inspect.Type) -> _Check | None:
    if isinstance(info, inspect.Metadata):
        checks: dict[str | None, _Check] = {
            "time": _check_time,
            "int-or-string": _check_percent,
            "quantity": lambda value: check_quantity("", value),
        }
        return checks.get(format_of(info)) or _part_checker(info.type)
    if isinstance(info, inspect.StructType):
        return _checker(info.cls)
    if isinstance(info, inspect.UnionType):
        found = [check for part in info.types if (check := _part_checker(part)) is not None]
        return found[0] if found else None
    if isinstance(info, inspect.DictType):
        if format_of(info.value_type) == "quantity":
            return _check_quantities
        of_value = _part_checker(info.value_type)
        if of_value is None:
            return None

        def check_values(value: Any) -> None:
            for part in value.values():
                of_value(part)

        return check_values
    if isinstance(info, inspect.ListType):
        inner = _part_checker(info.item_type)
        if inner is None:
            return None

        def check_items(value: Any) -> None:
            for item in value:
                inner(item)

        return check_items
    return None
