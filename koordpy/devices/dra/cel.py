# SPDX-License-Identifier: Apache-2.0
"""Compiles and evaluates the CEL selectors of devices (dra.md 3). Only this module imports cel-expr-python.

    selector = compile_selector('device.attributes["gpu.example.com"].model == "a"')
    facts = DeviceFacts("gpu.example.com", device.attributes, device.capacity, False)
    selector.matches(facts)

`compile_selector` parses a text, refuses by name what koordpy does not support (`cel_syntax.first_refusal`), checks
types and completes the tree (`cel_completion.py`). Compiled texts are cached. Verdicts are cached in the facts, so use
one `DeviceFacts` for each device as long as its slice does not change. An evaluation takes 4 us, the first one of a
device 20 us more.

The library and protobuf are imported when the first selector is compiled, because the import takes 50 ms.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from koordpy.api.bounded_memory import cached
from koordpy.api.claim_objects import DeviceAttribute, DeviceCapacity
from koordpy.devices.dra.cel_values import parse_cel_quantity, parse_cel_version

MAX_BYTES = 10 * 1024
"""Maximum length of an expression in the API, in bytes of UTF-8."""
_ADVICE = "CEL optional chaining (.? followed by orValue()) or guarding the check with has()"
HINT = f". consider using {_ADVICE} for optional fields"
"""kube-scheduler's advice after `no such key: NAME`."""
TOO_DEEP = "CEL expressions nested deeper than 32"
"""Refusal of an expression that is nested too deep for the library's parser. Kubernetes reads 250 levels."""
UNSUPPORTED_VALUE = "unsupported attribute value"
"""Error of an attribute with a type other than int, bool, string and version, such as a list."""


class SelectorError(ValueError):
    """An expression that does not compile. The text follows `CEL compile error: `."""


class UnsupportedSelector(ValueError):
    """An expression that uses an unsupported feature, such as `CEL function find()`.

    The text follows `unsupported: `.
    """


class SelectorRuntimeError(ValueError):
    """An error in the evaluation of a device. The text follows `CEL runtime error: `.

    If a key is missing, the text ends with `HINT`.
    """


class DeviceFacts:
    """The attributes and capacity of one device, for selectors. Must not change.

    Verdicts are cached here, so each selector is evaluated once for a device. Evaluating several selectors for one
    device, then for the next device, is faster than several devices for one selector: each device is prepared only
    once.
    """

    __slots__ = ("_attributes", "_capacity", "_driver", "_shared", "_verdicts")

    def __init__(
        self,
        driver: str,
        attributes: Mapping[str, DeviceAttribute],
        capacity: Mapping[str, DeviceCapacity],
        allow_multiple_allocations: bool = False,
    ) -> None:
        """driver: domain of the names that have none. attributes, capacity: by name, as in the API."""
        self._driver = driver
        self._attributes = attributes
        self._capacity = capacity
        self._shared = allow_multiple_allocations
        self._verdicts: dict[str, bool | str] = {}


class Selector:
    """A compiled expression."""

    __slots__ = ("_expression", "text")

    def __init__(self, text: str, expression: Any) -> None:
        """text: as written. expression: compiled by the library."""
        self.text = text
        self._expression = expression

    def matches(self, facts: DeviceFacts) -> bool:
        """Returns whether a device matches. Raises `SelectorRuntimeError`."""
        verdict = facts._verdicts.get(self.text)
        if verdict is None:
            verdict = facts._verdicts[self.text] = _library().verdict(self._expression, facts)
        if isinstance(verdict, str):
            raise SelectorRuntimeError(verdict)
        return verdict


def compile_selector(text: str) -> Selector:
    """Returns a compiled expression. Raises `SelectorError` and `UnsupportedSelector`."""
    found = _compiled(text)
    if isinstance(found, Selector):
        return found
    raise type(found)(*found.args)


@cached(4096)
def _compiled(text: str) -> Selector | SelectorError | UnsupportedSelector:
    """Returns a compiled expression, or the error that prevents compilation."""
    try:
        return Selector(text, _library().compile(text))
    except (SelectorError, UnsupportedSelector) as fault:
        return fault


_MADE: list["_Library"] = []


def _library() -> "_Library":
    """Returns the library, imported at the first use."""
    if not _MADE:
        _MADE.append(_Library())
    return _MADE[0]


_CONFIG = """
extensions:
- {name: strings, version: 2}
- {name: optional}
- {name: bindings}
- {name: sets}
"""
"""The features of the library that are enabled, as in Kubernetes 1.37."""
_LISTS = "- {name: lists}"
"""Functions of lists, for evaluation only: `DECLARATIONS` and `DECLARATIONS_OF_LISTS` have stricter types."""


class _Library:
    """Two environments of the library: one checks types, the other evaluates. In the second one the device is a map."""

    def __init__(self) -> None:
        from cel_expr_python import cel
        from google.protobuf import message_factory

        from koordpy.devices.dra.cel_completion import CAPACITY_VARIABLE, Completion
        from koordpy.devices.dra.cel_functions import DECLARATIONS, DECLARATIONS_OF_LISTS, Values, implementations
        from koordpy.devices.dra.cel_messages import message_pool, safe_text
        from koordpy.devices.dra.cel_syntax import (
            QUANTITY,
            VERSION,
            TreeFault,
            TreeTooDeep,
            asks_for_field,
            first_refusal,
        )

        kinds = cel.Type
        named = {"int": kinds.INT, "uint": kinds.UINT, "double": kinds.DOUBLE, "bool": kinds.BOOL,
                 "string": kinds.STRING, "dyn": kinds.DYN, "quantity": cel.Type(QUANTITY),
                 "semver": cel.Type(VERSION)}  # fmt: skip

        def kind(name: str) -> Any:
            inner = re.fullmatch(r"list\((\w+)\)", name)
            return kinds.List(named[inner[1]]) if inner is not None else named[name]

        def extension(rows: Any, run: Callable[[Any], Any]) -> Any:
            functions: dict[str, list[Any]] = {}
            for one in rows:
                functions.setdefault(one.function, []).append(
                    cel.Overload(one.id, kind(one.result), [kind(a) for a in one.arguments], one.is_member, run(one))
                )
            return cel.CelExtension("kubernetes", [cel.FunctionDecl(*one) for one in functions.items()])

        pool = message_pool()
        classes = [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in (QUANTITY, VERSION)]
        self._values = Values(*classes)

        def environment(config: str, variables: dict[str, Any], added: Any) -> Any:
            how = cel.NewEnvConfigFromYaml(config)
            return cel.NewEnv(descriptor_pool=pool, config=how, variables=variables, extensions=[added])

        declared, device = _CONFIG + DECLARATIONS_OF_LISTS, cel.Type("kubernetes.DRADevice")
        capacity = kinds.Map(kinds.STRING, kinds.Map(kinds.STRING, named["quantity"]))
        added = extension(DECLARATIONS, lambda _: None)
        self._check = environment(declared, {"device": device, CAPACITY_VARIABLE: capacity}, added)
        self._check_fields = environment(declared, {"device": device}, added)
        self._run = environment(
            _CONFIG + _LISTS,
            {"device": kinds.DYN},
            extension(implementations(self._values), lambda one: one.run),
        )
        self._refusal, self._asks_for_field = first_refusal, asks_for_field
        self._too_deep, self._fault = TreeTooDeep, TreeFault
        self._completion = Completion(lambda text: self._check.compile(text, disable_check=True).serialize())
        self._types, self._safe_text = kinds, safe_text
        self._last: tuple[DeviceFacts | None, Any] = (None, None)
        # messages of equal values are shared: most devices of a cluster have the same capacities and versions
        self._quantity = cached(4096)(lambda text: self._values.of_quantity(parse_cel_quantity(text)))
        self._version = cached(4096)(lambda text: self._values.of_version(parse_cel_version(text)))

    def compile(self, text: str) -> Any:
        """Returns an expression of the library. Raises `SelectorError` and `UnsupportedSelector`."""
        try:
            if len(text.encode()) > MAX_BYTES:
                raise SelectorError(f"must not be longer than {MAX_BYTES} bytes")
        except UnicodeEncodeError:
            raise SelectorError("must be valid UTF-8") from None
        try:
            return self._compile(text)
        except self._too_deep:
            raise UnsupportedSelector(TOO_DEEP) from None

    def _compile(self, text: str) -> Any:
        """Implements `compile` for a text of valid length. Also raises `TreeTooDeep`."""
        try:
            parsed = self._check.compile(text, disable_check=True).serialize()
            if (refused := self._refusal(parsed)) is not None:
                raise UnsupportedSelector(refused)
            # has(device.capacity) asks for a field, but not for a variable
            check = self._check_fields if self._asks_for_field(parsed, "capacity") else self._check
            checked = check.compile(text)
        except RuntimeError as fault:
            raise _compile_fault(str(fault)) from None
        kind = checked.return_type()
        if kind not in (self._types.BOOL, self._types.DYN):
            raise _not_bool(kind.name())
        try:
            done = self._completion.complete(checked.serialize())
        except self._fault as fault:
            raise _located(text, fault.offset, str(fault)) from None
        for constant in done.constants:
            kind, value = self._evaluated_constant(constant)
            if kind == self._types.ERROR:
                raise SelectorError(f"program instantiation failed: {value}")
        for place, test in done.patterns:
            if self._evaluated_constant(test)[0] == self._types.ERROR:
                raise _located(text, place, "invalid matches argument")
        if not done.reads_device:
            kind, _ = self._evaluated_constant(done.tree)
            if kind not in (self._types.BOOL, self._types.ERROR):
                raise _not_bool(kind.name())
        return self._expression(done.tree)

    def _expression(self, tree: bytes) -> Any:
        """Returns a completed tree as an expression. Raises `UnsupportedSelector`."""
        try:
            return self._run.deserialize(tree)
        except RuntimeError:
            raise UnsupportedSelector(TOO_DEEP) from None

    def _evaluated_constant(self, tree: bytes) -> tuple[Any, Any]:
        """Returns (type, value) of a completed tree that does not read the device."""
        return self._evaluated(self._expression(tree), self._run.Activation({}))

    def _evaluated(self, expression: Any, activation: Any) -> tuple[Any, Any]:
        """Returns (type, value) of an expression. The value of an error is its text."""
        try:
            found = expression.eval(activation)
        except (RuntimeError, ValueError, LookupError) as fault:
            return self._types.ERROR, _error_text(str(fault))
        kind, value = found.type(), found.value()
        return kind, _error_text(str(value)) if kind == self._types.ERROR else value

    def verdict(self, expression: Any, facts: DeviceFacts) -> bool | str:
        """Returns whether a device matches, or the text of the error."""
        try:
            device = self._prepared(facts)
        except ValueError as fault:
            return _error_text(str(fault))
        kind, value = self._evaluated(expression, device)
        if kind == self._types.BOOL:
            return bool(value)
        if kind == self._types.ERROR:
            return str(value)
        return f"CEL result of type {_kind_text(kind.name())} could not be converted to bool"

    def _prepared(self, facts: DeviceFacts) -> Any:
        """Returns a device in the form that the library reads.

        Only the last one is cached, because it takes about 10 KB.
        """
        device, activation = self._last
        if device is not facts:
            activation = self._run.Activation({"device": self._device(facts)})
            self._last = facts, activation
        return activation

    def _device(self, facts: DeviceFacts) -> dict[str, Any]:
        """Returns a device in the form that the library reads. Raises `ValueError`."""
        attributes: dict[str, dict[str, Any]] = {}
        capacity: dict[str, dict[str, Any]] = {}
        for name, one in facts._attributes.items():
            domain, short = _split(name, facts._driver)
            attributes.setdefault(domain, {})[short] = self._attribute(name, one)
        for name, given in facts._capacity.items():
            domain, short = _split(name, facts._driver)
            capacity.setdefault(domain, {})[short] = self._quantity(str(given.value))
        return {
            "driver": facts._driver,
            "allowMultipleAllocations": facts._shared,
            "attributes": attributes,
            "capacity": capacity,
        }

    def _attribute(self, name: str, one: DeviceAttribute) -> Any:
        """Returns the value of an attribute. Raises `ValueError`."""
        if one.number is not None:
            return one.number
        if one.truth is not None:
            return one.truth
        if one.text is not None:
            return self._safe_text(one.text)
        if one.version is None:
            raise ValueError(f"attribute {name}: {UNSUPPORTED_VALUE}")
        try:
            return self._version(one.version)
        except ValueError as fault:
            raise ValueError(f"attribute {name}: parse semantic version: {fault}") from None


def _split(name: str, driver: str) -> tuple[str, str]:
    """Returns (domain, name) of an attribute or capacity."""
    domain, slash, short = name.partition("/")
    return (domain, short) if slash else (driver, name)


def _located(text: str, offset: int, fault: str) -> SelectorError:
    """Returns the error of a fault at a position of the text, in the form of the library's errors."""
    before = text[:offset].split("\n")
    line, column = len(before), len(before[-1])
    shown = f" | {text.split(chr(10))[line - 1]}\n | {'.' * column}^"
    return SelectorError(f"compilation failed: ERROR: <input>:{line}:{column + 1}: {fault}\n{shown}")


def _not_bool(kind: str) -> SelectorError:
    """Returns the error of an expression of another type than bool."""
    return SelectorError(f"must evaluate to bool or the unknown type, not {_kind_text(kind)}")


def _kind_text(kind: str) -> str:
    """Returns a type as Kubernetes writes it: `LIST<INT>` -> `list(int)`."""
    return re.sub(r"\b[A-Z]+\b", lambda found: found[0].lower(), kind).translate(str.maketrans("<>", "()"))


_STATUS = re.compile(r"(?:[A-Z]+_?)+: ")
_NO_KEY = re.compile(r'Key not found in map : (?:"(.*)"|(.*))', re.DOTALL)
_NO_INDEX = re.compile(r"Index error: index=(-?\d+) size=\d+|index out of bounds: (-?\d+)")
_WORDS = {"divide by zero": "division by zero", "modulus by zero": "modulus by zero"}


def _compile_fault(text: str) -> SelectorError | UnsupportedSelector:
    """Returns the error for a text that the library does not compile."""
    if "recursion" in text:
        return UnsupportedSelector(TOO_DEEP)
    text = _STATUS.sub("", text, count=1)
    return SelectorError(f"compilation failed: {re.sub(r' .[A-Z_]+.$', '', text)}")


def _error_text(text: str) -> str:
    """Returns the text of a runtime error in the words of Kubernetes."""
    text = _STATUS.sub("", text, count=1)
    if (found := _NO_KEY.fullmatch(text)) is not None:
        return f"no such key: {found[1] if found[1] is not None else found[2]}{HINT}"
    if (found := _NO_INDEX.match(text)) is not None:
        return f"index out of bounds: {found[1] or found[2]}"
    if text.startswith(("No matching overloads found", "no_such_field")):
        return "no such overload"
    return _WORDS.get(text, text)
