# SPDX-License-Identifier: Apache-2.0
"""The subset of CEL that device selectors need (kube-parity.md 6): comparisons, in, &&, ||, ! over device facts.

    device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model in ["a", "b"]

For any other expression `parse` raises `Unsupported`, and the claim is refused with this reason. If an expression reads
a fact that a device does not state, CEL raises an error; here the device does not match. An expression is parsed into a
function from the facts of a device to a value.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from koordpy.api.label_selectors import int64
from koordpy.api.quantity import parse_exact
from koordpy.plan.limits import CEL_NESTING

Value = Any
"""Value of an expression: bool, int, text, quantity, list or mapping."""
Lookup = Callable[["Facts"], Value]
"""A parsed expression or part of it: returns the value for a device. Raises `Missing`."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?\d+)(?![\w.])|(?P<text>"[^"\\]*"|'[^'\\]*')|(?P<word>[A-Za-z_]\w*)"""
    r"""|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!()\[\].,]))"""
)
"""A number, a text in quotes, a word or a sign, after blanks."""


class Unsupported(ValueError):
    """An expression outside the supported subset."""


class Missing(Exception):
    """Raised if a device does not state a fact that an expression reads."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Attributes and capacity of a device by domain, then by name."""

    driver: str
    """Name of the driver that publishes the device."""
    attributes: Mapping[str, Mapping[str, Value]]
    """Domain -> name -> value."""
    capacity: Mapping[str, Mapping[str, Value]]
    """Domain -> name -> quantity."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed selector."""

    of: Lookup

    def matches(self, facts: Facts) -> bool:
        """Returns whether the selector matches a device."""
        try:
            return self.of(facts) is True
        except Missing:
            return False


def parse(text: str) -> Expression:
    """Parses an expression. Raises `Unsupported`."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise Unsupported(f"expression {text!r}")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    parser = _Parser(tokens, text)
    found = parser.either()
    if parser.rest:
        raise Unsupported(f"expression {text!r}")
    return Expression(found)


def _chain(sides: list[Lookup], decided: bool) -> Lookup:
    """Combines the sides of && (decided: False) or || (decided: True).

    A side with the deciding value decides even if another side is an error, as in CEL. Iterative, because a selector
    may have thousands of sides.
    """
    if len(sides) == 1:
        return sides[0]

    def value(facts: Facts) -> Value:
        all_known = True
        for side in sides:
            try:
                found = side(facts)
            except Missing:
                all_known = False
                continue
            if found is decided:
                return decided
            all_known = all_known and isinstance(found, bool)
        if not all_known:
            raise Missing
        return not decided

    return value


def _same(a: Value, b: Value) -> bool:
    """Returns whether two values are equal; values of different types are not."""
    return type(a) is type(b) and bool(a == b)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Value, Value], bool]:
    """Returns a comparison that raises `Missing` for values of different types, and for booleans."""

    def value(a: Value, b: Value) -> bool:
        if type(a) is not type(b) or isinstance(a, bool):
            raise Missing
        return compare(a, b)

    return value


def _contains(a: Value, b: Value) -> bool:
    """Returns whether a value is an item of a list, or a name that a domain states."""
    if not isinstance(b, list | Mapping):
        raise Missing
    return any(_same(a, one) for one in b)


_COMPARISONS: dict[str, Callable[[Value, Value], bool]] = {
    "==": _same,
    "!=": lambda a, b: not _same(a, b),
    "<": _ordered(lambda a, b: a < b),
    ">": _ordered(lambda a, b: a > b),
    "<=": _ordered(lambda a, b: a <= b),
    ">=": _ordered(lambda a, b: a >= b),
    "in": _contains,
}
"""Operator -> function of both sides."""


class _Parser:
    """Recursive descent parser. Each method parses one level of precedence: || before && before comparisons before
    operands."""

    def __init__(self, tokens: list[tuple[str, str]], text: str) -> None:
        self.rest = tokens[::-1]
        self.text = text
        self.nested = 0

    def _next(self) -> str:
        """Returns the next sign or word without reading it; empty for another token or the end."""
        return self.rest[-1][1] if self.rest and self.rest[-1][0] in ("sign", "word") else ""

    def _take(self, wanted: str = "") -> tuple[str, str]:
        """Reads the next token; returns (kind, text). Raises `Unsupported` at the end, or if it is not `wanted`."""
        if not self.rest or (wanted and self._next() != wanted):
            raise Unsupported(f"expression {self.text!r}")
        return self.rest.pop()

    def either(self) -> Lookup:
        """Parses operands of ||."""
        sides = [self.both()]
        while self._next() == "||":
            self._take()
            sides.append(self.both())
        return _chain(sides, True)

    def both(self) -> Lookup:
        """Parses operands of &&."""
        sides = [self.compared()]
        while self._next() == "&&":
            self._take()
            sides.append(self.compared())
        return _chain(sides, False)

    def compared(self) -> Lookup:
        """Parses a comparison, or an operand alone."""
        left = self.single()
        compare = _COMPARISONS.get(self._next())
        if compare is None:
            return left
        self._take()
        right = self.single()
        return lambda facts: compare(left(facts), right(facts))

    def single(self) -> Lookup:
        """Parses an operand. Raises `Unsupported` if operands are nested too deeply, which would exceed the stack."""
        self.nested += 1
        if self.nested > CEL_NESTING:
            raise Unsupported(f"expression nested more than {CEL_NESTING} deep")
        found = self._single()
        self.nested -= 1
        return found

    def _single(self) -> Lookup:
        """Parses a negation, an expression in brackets, a list, a constant, a fact of the device, or `has`."""
        if self._next() == "!":
            self._take()
            inner = self.single()

            def negated(facts: Facts) -> Value:
                value = inner(facts)
                if not isinstance(value, bool):
                    raise Missing
                return not value

            return negated
        if self._next() == "(":
            self._take()
            inner = self.either()
            self._take(")")
            return inner
        if self._next() == "[":
            return self._listed()
        kind, text = self._take()
        if kind == "number":
            if (number := int64(text)) is None:
                raise Unsupported(f"expression {self.text!r}")
            return _constant(number)
        if kind == "text":
            return _constant(text[1:-1])
        if text in ("true", "false"):
            return _constant(text == "true")
        if text == "quantity":
            self._take("(")
            kind, text = self._take()
            self._take(")")
            if kind != "text":
                raise Unsupported(f"expression {self.text!r}")
            return _constant(parse_exact(text[1:-1]))
        if text == "device":
            return self._device()
        if text == "has":
            return self._has()
        raise Unsupported(f"expression {self.text!r}")

    def _listed(self) -> Lookup:
        """Parses a list such as `["a", "b"]`."""
        self._take("[")
        items: list[Lookup] = []
        while self._next() != "]":
            items.append(self.single())
            if self._next() == ",":
                self._take()
        self._take("]")
        return lambda facts: [item(facts) for item in items]

    def _device(self) -> Lookup:
        """Parses a fact of a device after `device`: its driver, or an attribute or capacity of a domain."""
        self._take(".")
        section = self._take()[1]
        if section == "driver":
            return lambda facts: facts.driver
        if section not in ("attributes", "capacity"):
            raise Unsupported(f"expression {self.text!r}")
        self._take("[")
        kind, domain = self._take()
        self._take("]")
        if kind != "text":
            raise Unsupported(f"expression {self.text!r}")

        def table(facts: Facts) -> Mapping[str, Value]:
            of = facts.attributes if section == "attributes" else facts.capacity
            return of.get(domain[1:-1], {})

        name = self._name()
        if name is None:
            return table

        def value(facts: Facts) -> Value:
            found = table(facts).get(name)
            if found is None:
                raise Missing
            return found

        if section == "capacity" and self._next() == ".":
            return self._compare_to(value)
        return value

    def _name(self) -> str | None:
        """Parses `.name` or `["name"]` after a domain; returns None if neither follows."""
        if self._next() == ".":
            self._take()
            word, name = self._take()
            if word != "word":
                raise Unsupported(f"expression {self.text!r}")
            return name
        if self._next() == "[":
            self._take()
            kind, text = self._take()
            self._take("]")
            if kind != "text":
                raise Unsupported(f"expression {self.text!r}")
            return text[1:-1]
        return None

    def _has(self) -> Lookup:
        """Parses `has(device.attributes["d"].name)`, which is true if a device states the attribute."""
        self._take("(")
        self._take("device")
        inner = self._device()
        self._take(")")

        def value(facts: Facts) -> Value:
            try:
                return not isinstance(inner(facts), Mapping)
            except Missing:
                return False

        return value

    def _compare_to(self, left: Lookup) -> Lookup:
        """Parses `.compareTo(quantity("1Gi"))`, which is -1, 0 or 1 as in the CEL of Kubernetes."""
        self._take(".")
        self._take("compareTo")
        self._take("(")
        right = self.single()
        self._take(")")

        def value(facts: Facts) -> Value:
            a, b = left(facts), right(facts)
            if type(a) is not type(b):
                raise Missing
            return (a > b) - (a < b)

        return value


def _constant(value: Value) -> Lookup:
    """Returns an expression that has the same value for every device."""
    return lambda facts: value
