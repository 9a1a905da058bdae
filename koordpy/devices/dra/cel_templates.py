# SPDX-License-Identifier: Apache-2.0
"""Templates, as CEL texts, of functions that the CEL library lacks, or that differ from Kubernetes there.

`t` is the value before the dot, `x` and `o` are the arguments. A variable hides the error of its value until it is
used. So a template must use each argument, whatever the values of the others are; each is evaluated once. `fail(TEXT)`
is an error.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from koordpy.devices.dra.cel_syntax import Tree, read_tree

_COMPARABLE = "(type(r[0]) == type(e) || type(r[0]) in [int, uint, double] && type(e) in [int, uint, double])"
"""True if an item can be compared with the previous one. Kubernetes ignores an item that cannot."""
_FIRST = '!(type(e) in [int, uint, double, bool, string]) ? fail("no such overload") : size(r) == 0'
_EMPTY = 'size(r) == 0 ? fail("{} called on empty list") : r[0]'
_SUM = 'size(r) == 0 ? {} : type(r[0]) in [int, uint, double] ? r[0] : fail("no such overload")'

LOOPS: Mapping[str, tuple[str, str, str]] = {
    "max": ("[]", f"{_FIRST} || {_COMPARABLE} && r[0] < e ? [e] : r", _EMPTY.format("max")),
    "min": ("[]", f"{_FIRST} || {_COMPARABLE} && r[0] > e ? [e] : r", _EMPTY.format("min")),
    "sum": ("[]", "size(r) == 0 ? [e] : [r[0] + e]", _SUM.format("0")),
    "list_uint_sum_uint": ("[]", "size(r) == 0 ? [e] : [r[0] + e]", _SUM.format("0u")),
    "list_double_sum_double": ("[]", "size(r) == 0 ? [e] : [r[0] + e]", _SUM.format("0.0")),
    "isSorted": (
        "[]",
        f"size(r) > 0 && !r[1] ? r : {_FIRST} ? [e, true] : [e, r[1] && !({_COMPARABLE} && r[0] > e)]",
        "size(r) == 0 || r[1]",
    ),
    "indexOf": ("[0, -1]", "[r[0] + 1, r[1] < 0 && e == x ? r[0] : r[1]]", "r[1] + 0 * size([x])"),
    "lastIndexOf": ("[0, -1]", "[r[0] + 1, e == x ? r[0] : r[1]]", "r[1] + 0 * size([x])"),
}
"""Function, or its overload for lists -> (start, step, result) of a loop over the list `t`. The step is for item `e`;
`r` is the state."""


def _converted(to: str, pattern: str) -> str:
    """Returns a template that converts a text `x`, which must match a pattern.

    Values of other types are converted as usual.
    """
    fault = f"type conversion error from 'string' to '{to}'"
    return f"type(x) == string && !x.matches(r'{pattern}') ? fail(\"{fault}\") : {to}(x)"


_TRUE, _FALSE = '["1", "t", "T", "true", "True", "TRUE"]', '["0", "f", "F", "false", "False", "FALSE"]'
BODIES: dict[tuple[str, int], str] = {
    ("includes", 2): "type(t) == list ? x in t : t == x",
    ("indexOf", 3): 'o < size(t) ? t.indexOf(x, o) : x == "" ? size(t) : -1',
    ("lastIndexOf", 3): 'o < size(t) ? t.lastIndexOf(x, o) : x == "" ? size(t) : -1',
    ("split", 2): 't == "" && x == "" ? [] : t.split(x)',
    ("split", 3): 't == "" && x == "" && o == o ? [] : t.split(x, o)',
    ("substring", 3): "o == size(t) ? t.substring(x) : t.substring(x, o)",
    ("int", 1): _converted("int", "^[+-]?[0-9]+$"),
    ("uint", 1): _converted("uint", "^[0-9]+$"),
    ("double", 1): _converted("double", r"^[^\s]+$"),
    ("bool", 1): f"type(x) != string ? bool(x) : x in {_TRUE} || !(x in {_FALSE}) && "
    """fail("type conversion error from 'string' to 'bool'")""",
    ("string", 1): "type(x) != double || x - x == 0.0 ? string(x) : x > 0.0 ? '+Inf' : x < 0.0 ? '-Inf' : 'NaN'",
    ("_[?_]", 2): "type(t) in [list, map] ? t[?x] : optional.none()",
    ("_?._", 2): "type(t) == map ? t[?x] : optional.none()",
    # for a value of unknown type: whether it is a list, or may have the field
    ("indexOf", 2): "type(t) == list",
    ("lastIndexOf", 2): "type(t) == list",
    ("has", 1): "type(t) == map",
    # for a list with items of type x to the type checker, which does not know it for every list
    ("list", 1): 'size(t) == 0 || type(t[0]) == x || fail("no such overload")',
}
for _order in ("<", "<=", ">", ">="):
    BODIES[f"_{_order}_", 2] = f't != t || x != x ? fail("NaN values cannot be ordered") : t {_order} x'
"""(function or operator, number of arguments including the value before the dot) -> template that replaces the call."""
CONVERSIONS = {"int": "string", "uint": "string", "double": "string", "bool": "string", "string": "double"}
"""Conversion in `BODIES` -> the only argument type for which the library differs from Kubernetes."""
ITEMS = frozenset(("int", "uint", "double", "bool", "string"))
"""Types of items with a separate overload of each list function."""


class Templates(NamedTuple):
    """The templates as trees."""

    loops: Mapping[str, tuple[Tree, ...]]
    bodies: Mapping[tuple[str, int], Tree]


def parsed_templates(parse: Callable[[str], bytes]) -> Templates:
    """Returns the templates as trees. parse: returns the serialized tree of a text, unchecked."""

    def tree(text: str) -> Tree:
        return read_tree(parse(text), "Parsed")[1].expr

    loops = {name: tuple(tree(text) for text in texts) for name, texts in LOOPS.items()}
    return Templates(loops, {call: tree(text) for call, text in BODIES.items()})
