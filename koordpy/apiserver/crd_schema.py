# SPDX-License-Identifier: Apache-2.0
"""Checks custom resources by the schema of their CustomResourceDefinition, with kube-apiserver's messages.

There are three steps: `prune` removes unknown fields, `fill_defaults` sets defaults, and `faults_of` validates. Only
those parts of OpenAPI are supported that koordpy's definitions use: types, required fields, enums, bounds, patterns,
lists of type map and set, anyOf and not. CEL rules (x-kubernetes-validations) are not evaluated, so an object that only
CEL would reject is accepted.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import orjson

from koordpy.apiserver.served_resources import Object

Fault = tuple[str, str, str]
"""(field, cause reason, message), the argument of `status_errors.invalid`."""

_META = frozenset(("apiVersion", "kind", "metadata"))
"""Top-level fields that are valid even if the schema does not declare them."""
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"


def _type_of(value: Any) -> str:
    """Returns the type of a value in OpenAPI's words; a float without a fraction is an integer, as in JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _shown(value: Any) -> str:
    """Returns a value as text for a message; for a list or mapping, its type."""
    return orjson.dumps(value).decode() if not isinstance(value, dict | list) else f'"{_type_of(value)}"'


def _typed(schema: Object, value: Any) -> str | None:
    """Returns the expected type if the value has another type; None if the type is right."""
    found = _type_of(value)
    if schema.get(_INT_OR_STRING):
        return None if found in ("integer", "string") else "integer,string"
    wanted = schema.get("type")
    if wanted is None or found == wanted or (wanted == "number" and found == "integer"):
        return None
    return str(wanted)


def _bounds(schema: Object, value: Any, path: str) -> Iterator[Fault]:
    """Yields faults against length, pattern, format, size and enum."""

    def fault(text: str, shown: str = "") -> Fault:
        return path, "FieldValueInvalid", f"Invalid value: {shown or _shown(value)}: {path} in body {text}"

    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield fault(f"should be at least {schema['minLength']} chars long")
        if "maxLength" in schema and len(value) > schema["maxLength"]:
            yield path, "FieldValueTooLong", f"Too long: may not be more than {schema['maxLength']} bytes"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield fault(f"should match '{schema['pattern']}'")
        if schema.get("format") == "date-time":
            try:
                datetime.fromisoformat(value)
            except ValueError:
                yield fault("must be of type date-time: " + _shown(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            yield fault(f"should be greater than or equal to {schema['minimum']}")
        if "maximum" in schema and value > schema["maximum"]:
            yield fault(f"should be less than or equal to {schema['maximum']}")
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield fault(f"should have at least {schema['minItems']} items", str(len(value)))
        if "maxItems" in schema and len(value) > schema["maxItems"]:
            yield path, "FieldValueTooMany", f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
    elif isinstance(value, dict) and "maxProperties" in schema and len(value) > schema["maxProperties"]:
        most = schema["maxProperties"]
        yield path, "FieldValueTooMany", f"Too many: {len(value)}: must have at most {most} items"
    if "enum" in schema and not any(
        choice == value and _type_of(choice) == _type_of(value) for choice in schema["enum"]
    ):
        choices = ", ".join(orjson.dumps(choice).decode() for choice in schema["enum"])
        yield path, "FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {choices}"


def _junctors(schema: Object, value: Any, path: str) -> Iterator[Fault]:
    """Yields faults against `anyOf` and `not`. For a value of type integer or string, `_typed` checks the anyOf
    instead."""

    def fault(text: str) -> Fault:
        return path, "FieldValueInvalid", f'Invalid value: {_shown(value)}: "{path}" must {text}'

    branches = schema.get("anyOf")
    if branches and not schema.get(_INT_OR_STRING) and all(any(faults_of(b, value, path)) for b in branches):
        yield fault("validate at least one schema (anyOf)")
    if "not" in schema and not any(faults_of(schema["not"], value, path)):
        yield fault("not validate the schema (not)")


def _duplicates(schema: Object, items: list[Any], path: str) -> Iterator[Fault]:
    """Yields a fault for each repeated item of a set, or repeated key of a map."""
    kind = schema.get("x-kubernetes-list-type")
    if kind not in ("map", "set"):
        return
    seen = set()
    for at, item in enumerate(items):
        if kind == "map":
            if not isinstance(item, dict):
                continue
            subject: Any = {key: item.get(key) for key in sorted(schema.get("x-kubernetes-list-map-keys", ()))}
        else:
            subject = item
        text = orjson.dumps(subject).decode()
        if text in seen:
            yield f"{path}[{at}]", "FieldValueDuplicate", f"Duplicate value: {text}"
        seen.add(text)


def _child(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def faults_of(schema: Object, value: Any, path: str = "") -> Iterator[Fault]:
    """Yields every fault of a custom resource, in the order of the fields.

    path: path of the value in the object; empty for the object itself.
    """
    if value is None and schema.get("nullable"):
        return
    wanted = _typed(schema, value)
    if wanted is not None:
        found = _shown(value) if value is None else f'"{_type_of(value)}"'
        text = f"Invalid value: {found}: {path} in body must be of type {wanted}: {found}"
        yield path, "FieldValueTypeInvalid", text
        return
    yield from _bounds(schema, value, path)
    yield from _junctors(schema, value, path)
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield _child(path, name), "FieldValueRequired", "Required value"
        properties = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        for name, item in value.items():
            if name in properties:
                if path or name not in _META:
                    yield from faults_of(properties[name], item, _child(path, name))
            elif isinstance(extra, dict):
                yield from faults_of(extra, item, _child(path, name))
    elif isinstance(value, list):
        yield from _duplicates(schema, value, path)
        items = schema.get("items")
        if isinstance(items, dict):
            for at, item in enumerate(value):
                yield from faults_of(items, item, f"{path}[{at}]")


def prune(schema: Object, value: Any, path: str = "") -> tuple[Any, list[str]]:
    """Returns (value without fields that are unknown to the schema, paths of these fields)."""
    unknown: list[str] = []
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        keep = bool(schema.get(_PRESERVE)) or extra is True
        result = {}
        for name, item in value.items():
            where = _child(path, name)
            if not path and name in _META:
                result[name] = item
            elif name in properties:
                result[name], below = prune(properties[name], item, where)
                unknown += below
            elif isinstance(extra, dict):
                result[name], below = prune(extra, item, where)
                unknown += below
            elif keep:
                result[name] = item
            else:
                unknown.append(where)
        return result, unknown
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        items = []
        for at, item in enumerate(value):
            kept, below = prune(schema["items"], item, f"{path}[{at}]")
            items.append(kept)
            unknown += below
        return items, unknown
    return value, unknown


def fill_defaults(schema: Object, value: Any) -> Any:
    """Returns the value with the schema's defaults for absent fields."""
    if isinstance(value, dict):
        result = dict(value)
        for name, child in schema.get("properties", {}).items():
            if name not in result and "default" in child:
                result[name] = child["default"]
            if name in result:
                result[name] = fill_defaults(child, result[name])
        return result
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [fill_defaults(schema["items"], item) for item in value]
    return value
