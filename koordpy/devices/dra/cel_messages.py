# SPDX-License-Identifier: Apache-2.0
"""The protobuf messages that the CEL library evaluates for device selectors (dra.md 3).

The device is declared as a message, so that reading an unknown field is a compile error, as in Kubernetes. Quantities
and versions are messages that are compared by one field, their key (`cel_values.py`).
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2, wrappers_pb2

from koordpy.devices.dra.cel_syntax import FORM, QUANTITY_KEY, VERSION_KEY

_FIELD = descriptor_pb2.FieldDescriptorProto


def message_pool() -> Any:
    """Returns the descriptor pool of the messages."""
    file = descriptor_pb2.FileDescriptorProto(name="koordpy/cel_values.proto", package="kubernetes", syntax="proto2")
    file.dependency.append("google/protobuf/struct.proto")
    quantity = file.message_type.add(name="Quantity")
    quantity.field.add(name=QUANTITY_KEY, number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)
    quantity.field.add(name=FORM, number=2, label=_FIELD.LABEL_REPEATED, type=_FIELD.TYPE_DOUBLE)
    version = file.message_type.add(name="Semver")
    version.field.add(name=VERSION_KEY, number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)
    device = file.message_type.add(name="DRADevice")
    device.field.add(name="driver", number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)
    device.field.add(name="allowMultipleAllocations", number=2, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_BOOL)
    for number, name in ((3, "attributes"), (4, "capacity")):
        # a map to google.protobuf.Struct is map(string, map(string, dyn)) to the type checker
        entry = device.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)
        value = entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_MESSAGE)
        value.type_name = ".google.protobuf.Struct"
        field = device.field.add(name=name, number=number, label=_FIELD.LABEL_REPEATED, type=_FIELD.TYPE_MESSAGE)
        field.type_name = f".kubernetes.DRADevice.{entry.name}"
    pool = descriptor_pool.DescriptorPool()
    for known in (struct_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR):
        copy = descriptor_pb2.FileDescriptorProto()
        known.CopyToProto(copy)
        pool.Add(copy)
    pool.Add(file)
    return pool


def safe_text(text: str) -> Any:
    """Returns a text in a form that can be passed to the library safely.

    The library cuts a plain text at a NUL character, but not a wrapped text. It crashes on a lone surrogate.
    """
    if not text.isascii():
        text = text.encode(errors="replace").decode()
    return wrappers_pb2.StringValue(value=text) if "\0" in text else text
