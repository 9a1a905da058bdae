# SPDX-License-Identifier: Apache-2.0
"""Functions of device selectors that koordpy adds to the CEL library (dra.md 3), as tables without the library.

`DECLARATIONS` are for the type checker. The functions of `implementations` run in Python: they take and return only
text, numbers, booleans and the messages of `Values`, because the library cannot pass other values to Python safely.
List functions have no entry there: `cel_completion.py` makes them loops of the library.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import copysign
from typing import Any, NamedTuple

from koordpy.devices.dra.cel_syntax import FORM, QUANTITY, QUANTITY_KEY, VERSION, VERSION_KEY
from koordpy.devices.dra.cel_values import (
    INT64,
    CelQuantity,
    CelVersion,
    numbers_of_version,
    parse_cel_quantity,
    parse_cel_version,
)

_FORM_BITS = range(16)
"""The bits of the form of a quantity."""
NO_OVERLOAD = "no such overload"
"""Error of a function that has no overload for its arguments."""


class Overload(NamedTuple):
    """One overload of a function, with types by name: `string`, `quantity`, `list(int)`."""

    function: str
    id: str
    result: str
    arguments: tuple[str, ...]
    is_member: bool = False
    """True if the first argument is before the dot."""


def _overloads() -> Iterator[Overload]:
    yield Overload("quantity", "string_to_quantity", "quantity", ("string",))
    yield Overload("isQuantity", "is_quantity_string", "bool", ("string",))
    yield Overload("sign", "quantity_sign", "int", ("quantity",))
    yield Overload("isInteger", "quantity_is_integer", "bool", ("quantity",), True)
    yield Overload("asInteger", "quantity_get_int", "int", ("quantity",), True)
    yield Overload("asApproximateFloat", "quantity_get_float", "double", ("quantity",), True)
    for name, other in product(("add", "sub"), ("quantity", "int")):
        yield Overload(name, f"quantity_{name}_{other}", "quantity", ("quantity", other), True)
    for kind, name in product(("quantity", "semver"), ("isGreaterThan", "isLessThan")):
        yield Overload(name, f"{kind}_{name}", "bool", (kind, kind), True)
    for kind in ("quantity", "semver"):
        yield Overload("compareTo", f"{kind}_compareTo", "int", (kind, kind), True)
    yield Overload("semver", "string_to_semver", "semver", ("string",))
    yield Overload("semver", "string_bool_to_semver", "semver", ("string", "bool"))
    yield Overload("isSemver", "is_semver_string", "bool", ("string",))
    yield Overload("isSemver", "is_semver_string_bool", "bool", ("string", "bool"))
    for name in ("major", "minor", "patch"):
        yield Overload(name, f"semver_{name}", "int", ("semver",), True)
    for kind in ("int", "uint", "double", "bool", "string"):
        yield Overload("sort", f"list_{kind}_sort", f"list({kind})", (f"list({kind})",), True)
        yield Overload("isSorted", f"list_{kind}_is_sorted_bool", "bool", (f"list({kind})",), True)
        for name in ("min", "max"):
            yield Overload(name, f"list_{kind}_{name}_{kind}", kind, (f"list({kind})",), True)
    for kind in ("int", "uint", "double"):
        yield Overload("sum", f"list_{kind}_sum_{kind}", kind, (f"list({kind})",), True)
    yield Overload("indexOf", "list_a_index_of_int", "int", ("list(dyn)", "dyn"), True)
    yield Overload("lastIndexOf", "list_a_last_index_of_int", "int", ("list(dyn)", "dyn"), True)
    yield Overload("includes", "list_includes_dyn_dyn", "bool", ("dyn", "dyn"), True)
    # numbers of different types are compared by value; the library evaluates it, but does not declare it
    widths = {"int": "int64", "uint": "uint64", "double": "double"}
    for (sign, name), (a, b) in product(_ORDERS.items(), product(widths, widths)):
        if a != b:
            yield Overload(sign, f"{name}_{widths[a]}_{widths[b]}", "bool", (a, b))


_ORDERS = {"_<_": "less", "_<=_": "less_equals", "_>_": "greater", "_>=_": "greater_equals"}
DECLARATIONS: Sequence[Overload] = tuple(_overloads())
"""Overloads beyond those of the library."""

DECLARATIONS_OF_LISTS = """
functions:
- name: flatten
  overloads:
  - id: list_flatten
    target: {type_name: list, params: [&list {type_name: list, params: [{type_name: T, is_type_param: true}]}]}
    return: *list
  - id: list_flatten_int
    target: &any {type_name: list, params: [{type_name: dyn}]}
    args: [&int {type_name: int}]
    return: *any
- name: slice
  overloads: [{id: list_slice, target: *list, args: [*int, *int], return: *list}]
- name: distinct
  overloads: [{id: list_distinct, target: *list, return: *list}]
- name: reverse
  overloads: [{id: list_reverse, target: *list, return: *list}]
"""
"""Functions of lists of any type, in the library's format, because only that format has type parameters."""


def form_field(value: CelQuantity) -> list[float]:
    """Returns the form of a quantity as a field of its message: a zero for each bit, negative if the bit is 1.

    Two messages are equal if their fields are equal. How a quantity is stored must not matter for equality, and 0.0 and
    -0.0 are equal.
    """
    return [-0.0 if value.form >> at & 1 else 0.0 for at in _FORM_BITS]


class Values:
    """Creates and reads the messages of quantities and versions. Must not be used for other values."""

    def __init__(self, quantity: Callable[..., Any], version: Callable[..., Any]) -> None:
        """quantity, version: classes of the messages `kubernetes.Quantity` and `kubernetes.Semver`."""
        self._quantity = quantity
        self._version = version

    def of_quantity(self, value: CelQuantity) -> Any:
        """Returns the message of a quantity."""
        return self._quantity(**{QUANTITY_KEY: value.key, FORM: form_field(value)})

    def of_version(self, value: CelVersion) -> Any:
        """Returns the message of a version."""
        return self._version(**{VERSION_KEY: value.key})

    def quantity(self, message: Any) -> CelQuantity:
        """Returns the quantity in a message. Raises `TypeError` for another message."""
        if message.DESCRIPTOR.full_name != QUANTITY:
            raise TypeError(NO_OVERLOAD)
        form = sum((copysign(1, one) < 0) << at for at, one in enumerate(getattr(message, FORM)))
        return CelQuantity.from_key(getattr(message, QUANTITY_KEY), form)

    def version_key(self, message: Any) -> str:
        """Returns the key of the version in a message. Raises `TypeError` for another message."""
        if message.DESCRIPTOR.full_name != VERSION:
            raise TypeError(NO_OVERLOAD)
        return str(getattr(message, VERSION_KEY))


class Implementation(NamedTuple):
    """The Python function of one overload. Both types of messages count as one type here."""

    function: str
    id: str
    result: str
    arguments: tuple[str, ...]
    is_member: bool
    run: Callable[..., Any]


def implementations(values: Values) -> list[Implementation]:
    """Returns the functions that run in Python."""

    def is_valid(parse: Callable[..., object], *words: Any) -> bool:
        try:
            parse(*words)
        except ValueError:
            return False
        return True

    def compare(a: Any, b: Any) -> int:
        if a.DESCRIPTOR.full_name == QUANTITY:
            x, y = values.quantity(a).key, values.quantity(b).key
        else:
            x, y = values.version_key(a), values.version_key(b)
        return (x > y) - (x < y)

    def sign(a: Any) -> int:
        nanos = values.quantity(a).nanos
        return (nanos > 0) - (nanos < 0)

    def amount(of: Any) -> CelQuantity:
        return CelQuantity.of_integer(of) if isinstance(of, int) else values.quantity(of)

    def add(a: Any, b: Any) -> Any:
        return values.of_quantity(amount(a).plus(amount(b)))

    def subtract(a: Any, b: Any) -> Any:
        return values.of_quantity(amount(a).minus(amount(b)))

    def number(at: int) -> Callable[[Any], int]:
        # a part of a version may need 64 bits; an integer of CEL has only 63 bits and a sign
        def read(a: Any) -> int:
            found = numbers_of_version(values.version_key(a))[at]
            return found if found in INT64 else found - 2**64

        return read

    def fail(text: str) -> bool:
        raise ValueError(text)

    rows: list[tuple[str, str, tuple[str, ...], Callable[..., Any]]] = [
        ("quantity", "quantity", ("string",), lambda text: values.of_quantity(parse_cel_quantity(text))),
        ("isQuantity", "bool", ("string",), lambda text: is_valid(parse_cel_quantity, text)),
        ("sign", "int", ("quantity",), sign),
        (".isInteger", "bool", ("quantity",), lambda a: values.quantity(a).is_plain),
        (".asInteger", "int", ("quantity",), lambda a: values.quantity(a).as_integer()),
        (".asApproximateFloat", "double", ("quantity",), lambda a: values.quantity(a).approximate_float()),
        (".isGreaterThan", "bool", ("quantity", "quantity"), lambda a, b: compare(a, b) > 0),
        (".isLessThan", "bool", ("quantity", "quantity"), lambda a, b: compare(a, b) < 0),
        (".compareTo", "int", ("quantity", "quantity"), compare),
        ("semver", "semver", ("string",), lambda text: values.of_version(parse_cel_version(text))),
        ("semver", "semver", ("string", "bool"), lambda text, how: values.of_version(parse_cel_version(text, how))),
        ("isSemver", "bool", ("string",), lambda text: is_valid(parse_cel_version, text)),
        ("isSemver", "bool", ("string", "bool"), lambda text, how: is_valid(parse_cel_version, text, how)),
        ("fail", "bool", ("string",), fail),
    ]
    for other in ("quantity", "int"):
        rows.append((".add", "quantity", ("quantity", other), add))
        rows.append((".sub", "quantity", ("quantity", other), subtract))
    rows += [(f".{name}", "int", ("semver",), number(at)) for at, name in enumerate(("major", "minor", "patch"))]
    return [
        Implementation(name.removeprefix("."), f"{name}{'_'.join(arguments)}", result, arguments, name[0] == ".", run)
        for name, result, arguments, run in rows
    ]
