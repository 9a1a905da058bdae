# SPDX-License-Identifier: Apache-2.0
"""Every field of every kind that is read, with every kind of value that it cannot have: one fault, at its path."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import inspect as types

from koordpy.api.field_faults import key_path
from koordpy.api.scalars import Number
from koordpy.decoding.strict_decoding import decode, format_of
from koordpy.offline.read_kinds import _KINDS, Kind

Step = str | int
TEXTS: tuple[Any, ...] = (5, True, [], {}, Number("1.5"))
WRONG: dict[type[types.Type], tuple[Any, ...]] = {
    types.StrType: TEXTS,
    types.IntType: ("x", True, 1.5, [], {}, Number("1.5"), Number("1" + "0" * 30), Number("-1" + "0" * 30)),
    types.FloatType: ("x", True, [], {}),
    types.BoolType: ("yes", 1, 0, [], {}),
    types.ListType: ("x", 5, True, {}),
    types.VarTupleType: ("x", 5, True, {}),
    types.DictType: ("x", 5, True, []),
    types.StructType: ("x", 5, True, []),
}
OF_FORMAT: dict[str, tuple[Any, ...]] = {
    "quantity": (True, [], {}, "1K", "", "-1", "0x10"),
    "amount": (True, [], {}, "1K", "", "0x10"),
    "time": (5, True, [], {}, "soon", "2026-13-01T00:00:00Z"),
    "int-or-string": (True, [], {}, "many", "5", 1.5),
}


def fields(info: types.Type, at: tuple[Step, ...] = ()) -> Iterator[tuple[tuple[Step, ...], tuple[Any, ...]]]:
    """(way to a field, values it cannot have) of a type and all below it."""
    if isinstance(info, types.Metadata):
        own = OF_FORMAT.get(format_of(info) or "")
        if own is None:
            yield from fields(info.type, at)
        else:
            yield at, own
        return
    if isinstance(info, types.UnionType):
        parts = [part for part in info.types if not isinstance(part, types.NoneType)]
        if len(parts) == 1:
            yield from fields(parts[0], at)
        else:
            right = [_shape(part) for part in parts]
            others: tuple[Any, ...] = (5, "x", True, [], {})
            yield at, tuple(value for value in others if type(value) not in right)
        return
    if isinstance(info, types.AnyType):
        return
    yield at, WRONG[type(info)]
    if isinstance(info, types.StructType):
        for part in info.fields:
            yield from fields(part.type, (*at, part.encode_name))
    elif isinstance(info, types.ListType | types.VarTupleType):
        yield from fields(info.item_type, (*at, 0))
    elif isinstance(info, types.DictType):
        yield from fields(info.value_type, (*at, "example.com/key"))


def _shape(info: types.Type) -> type:
    shapes: dict[type[types.Type], type] = {
        types.StrType: str, types.IntType: int, types.BoolType: bool, types.ListType: list, types.VarTupleType: list,
        types.DictType: dict,
        types.StructType: dict,
    }  # fmt: skip
    return shapes[type(info)]


def holding(way: tuple[Step, ...], value: Any) -> Any:
    """The smallest value that has another at the end of a way."""
    for step in reversed(way):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def path(way: tuple[Step, ...]) -> str:
    at = ""
    for step in way:
        at = f"{at}[{step}]" if isinstance(step, int) else key_path(at, step)
    return at


@pytest.mark.parametrize("kind", {kind.name: kind for kind in _KINDS.values()}.values(), ids=lambda kind: kind.name)
def test_a_value_that_a_field_cannot_have_is_one_fault_at_its_path(kind: Kind) -> None:
    tried = 0
    for way, wrong in fields(types.type_info(kind.type)):
        for value in wrong if way else ():
            raw = holding(way, value)
            found = decode(raw, kind.type)
            assert (found.value, [fault.path for fault in found.faults]) == (None, [path(way)]), (way, value)
            assert found.faults[0].text
            assert isinstance(found.rest, kind.type)
            tried += 1
    assert tried >= 20


@pytest.mark.parametrize("kind", {kind.name: kind for kind in _KINDS.values()}.values(), ids=lambda kind: kind.name)
def test_null_is_an_absent_field_and_a_fault_in_a_list(kind: Kind) -> None:
    for way, _ in fields(types.type_info(kind.type)):
        found = decode(holding(way, None), kind.type)
        if not way or isinstance(way[-1], int):
            assert found.value is None and [fault.path for fault in found.faults] == [path(way)]
        else:
            assert isinstance(found.value, kind.type) and found.faults == []
