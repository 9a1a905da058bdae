# SPDX-License-Identifier: Apache-2.0
"""The JSON schema of the chart's `config`, derived from KoordpyConfiguration, so that helm refuses what koordpy would.

`python -m tests.charts.configuration_schema` writes it into values.schema.json after the configuration has changed;
test_chart_files.py says when that was forgotten. Left out is what the chart decides itself.
"""

import json
from pathlib import Path
from typing import Any

from msgspec import inspect

from koordpy.config.configuration import ClientConnection, KoordpyConfiguration

SCHEMA = Path(__file__).resolve().parents[2] / "charts" / "koordpy" / "values.schema.json"
DECIDED_BY_THE_CHART = {
    KoordpyConfiguration: {"apiVersion", "kind", "bindAddress"},
    ClientConnection: {"kubeconfig"},
}
GO_DURATION = r"^[+-]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"

Json = dict[str, Any]


def configuration_schema() -> Json:
    """The schema of the whole section, with what koordpy checks beyond types and a schema can say. Durations that must
    be longer than others it cannot compare."""
    schema = _schema(inspect.type_info(KoordpyConfiguration))
    sections = schema["properties"]
    spread = sections["filters"]["properties"]["podTopologySpread"]
    spread |= _where("defaultConstraints", {"minItems": 1}, then="defaultingType", be={"const": "List"})
    return schema


def _where(field: str, given: Json, *, then: str, be: Json) -> Json:
    """Where a field is given and like this, another one must be given and like that."""
    return {
        "if": {"required": [field], "properties": {field: given}},
        "then": {"required": [then], "properties": {then: be}},
    }


def _schema(info: Any) -> Json:
    match info:
        case inspect.Metadata(type=inspect.FloatType(), extra={"format": "duration"}):
            longer = {"allOf": [{"pattern": "[1-9]"}]} if info.type.gt == 0 else {}
            return {"type": "string", "pattern": GO_DURATION, **longer}
        case inspect.Metadata(type=inspect.StrType() as text):
            return _schema(text)
        case inspect.StructType():
            hidden = DECIDED_BY_THE_CHART.get(info.cls, set())
            fields = [field for field in info.fields if field.encode_name not in hidden]
            required = [field.encode_name for field in fields if field.required]
            return {
                "type": "object",
                "additionalProperties": False,
                **({"required": required} if required else {}),
                "properties": {field.encode_name: _schema(field.type) for field in fields},
            }
        case inspect.UnionType():
            (one,) = (part for part in info.types if not isinstance(part, inspect.NoneType))
            schema = _schema(one)
            # helm drops a null that its chart has a value for, and validates any other
            return {**schema, "type": [schema["type"], "null"]} if schema.get("type") == "number" else schema
        case inspect.ListType() | inspect.VarTupleType():
            least = {"minItems": info.min_length} if info.min_length else {}
            return {"type": "array", "items": _schema(info.item_type), **least}
        case inspect.DictType(key_type=inspect.LiteralType() as key):
            names = {name: _schema(info.value_type) for name in key.values}
            return {"type": "object", "additionalProperties": False, "properties": names}
        case inspect.DictType(key_type=inspect.Metadata(type=inspect.StrType(pattern=str() as pattern))):
            values = {pattern: _schema(info.value_type)}
            return {"type": "object", "additionalProperties": False, "patternProperties": values}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _schema(info.value_type)}
        case inspect.LiteralType():
            # A bare `off` is a truth value in YAML; koordpy takes it for the word.
            return {"enum": [*info.values, *([False] if "off" in info.values else [])]}
        case inspect.IntType():
            return {"type": "integer", **_bounds(info)}
        case inspect.FloatType():
            return {"type": "number", **_bounds(info)}
        case inspect.StrType():
            form = {"pattern": info.pattern, "maxLength": info.max_length} if info.pattern else {}
            return {"type": "string", **form}
        case inspect.BoolType():
            return {"type": "boolean"}
    raise NotImplementedError(f"the configuration has a type that has no schema yet: {info}")


def _bounds(info: inspect.IntType | inspect.FloatType) -> Json:
    bounds = {"minimum": info.ge, "exclusiveMinimum": info.gt, "maximum": info.le, "exclusiveMaximum": info.lt}
    return {name: value for name, value in bounds.items() if value is not None}


def main() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    schema["properties"]["config"] = configuration_schema()
    SCHEMA.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
