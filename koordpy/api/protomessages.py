"""Protobuf messages built from a table: no generated code to keep in step with a compiler."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = tuple[str, int, str]
"""(name, number, type): string, bytes, bool, int32, int64, map (string to string) or a message; `*` in front =
repeated."""

_Proto = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Proto.TYPE_STRING,
    "bytes": _Proto.TYPE_BYTES,
    "bool": _Proto.TYPE_BOOL,
    "int32": _Proto.TYPE_INT32,
    "int64": _Proto.TYPE_INT64,
}


def message_classes(package: str, tables: Mapping[str, tuple[Field, ...]]) -> dict[str, Any]:
    """Message classes by name. A pool of its own keeps clear of other users of the same package name."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, fields in tables.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number, label=_Proto.LABEL_OPTIONAL)
            if kind.startswith("*"):
                kind, field.label = kind[1:], _Proto.LABEL_REPEATED
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
                continue
            field.type = _Proto.TYPE_MESSAGE
            field.type_name = f".{package}.{kind}"
            if kind == "map":
                entry = message.nested_type.add(name=f"{field_name.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                for n, part in enumerate(("key", "value"), start=1):
                    entry.field.add(name=part, number=n, type=_Proto.TYPE_STRING, label=_Proto.LABEL_OPTIONAL)
                field.label, field.type_name = _Proto.LABEL_REPEATED, f".{package}.{name}.{entry.name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in tables}
