# SPDX-License-Identifier: Apache-2.0
"""The kubelet's gRPC messages, built from a table at import, so that no generated code is needed.

The field numbers are those of k8s.io/kubelet pkg/apis/deviceplugin/v1beta1 and pkg/apis/podresources/v1.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = tuple[str, int, str]
"""(name, number, type). The type is string, bytes, bool, int32, int64, map (string to string) or a message; a leading
`*` means repeated."""

_Proto = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Proto.TYPE_STRING,
    "bytes": _Proto.TYPE_BYTES,
    "bool": _Proto.TYPE_BOOL,
    "int32": _Proto.TYPE_INT32,
    "int64": _Proto.TYPE_INT64,
}

VERSION = "v1beta1"
"""Version of the device plugin API."""
# Prefixes of gRPC methods: package and service. The kubelet serves Registration and PodResourcesLister, the plugin
# serves DevicePlugin.
REGISTRATION = "/v1beta1.Registration/"
DEVICE_PLUGIN = "/v1beta1.DevicePlugin/"
POD_RESOURCES = "/v1.PodResourcesLister/"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""Values of field `health` of a device."""

_PLUGIN: Mapping[str, tuple[Field, ...]] = {
    "Empty": (),
    "DevicePluginOptions": (("pre_start_required", 1, "bool"), ("get_preferred_allocation_available", 2, "bool")),
    "RegisterRequest": (
        ("version", 1, "string"),
        ("endpoint", 2, "string"),
        ("resource_name", 3, "string"),
        ("options", 4, "DevicePluginOptions"),
    ),
    "NUMANode": (("ID", 1, "int64"),),
    "TopologyInfo": (("nodes", 1, "*NUMANode"),),
    "Device": (("ID", 1, "string"), ("health", 2, "string"), ("topology", 3, "TopologyInfo")),
    "ListAndWatchResponse": (("devices", 1, "*Device"),),
    "ContainerPreferredAllocationRequest": (
        ("available_deviceIDs", 1, "*string"),
        ("must_include_deviceIDs", 2, "*string"),
        ("allocation_size", 3, "int32"),
    ),
    "PreferredAllocationRequest": (("container_requests", 1, "*ContainerPreferredAllocationRequest"),),
    "ContainerPreferredAllocationResponse": (("deviceIDs", 1, "*string"),),
    "PreferredAllocationResponse": (("container_responses", 1, "*ContainerPreferredAllocationResponse"),),
    "ContainerAllocateRequest": (("devices_ids", 1, "*string"),),
    "AllocateRequest": (("container_requests", 1, "*ContainerAllocateRequest"),),
    "CDIDevice": (("name", 1, "string"),),
    "ContainerAllocateResponse": (("envs", 1, "map"), ("annotations", 4, "map"), ("cdi_devices", 5, "*CDIDevice")),
    "AllocateResponse": (("container_responses", 1, "*ContainerAllocateResponse"),),
    "PreStartContainerRequest": (("devices_ids", 1, "*string"),),
    "PreStartContainerResponse": (),
}
"""Message -> fields, of the device plugin API."""
_PODS: Mapping[str, tuple[Field, ...]] = {
    "ListPodResourcesRequest": (),
    "ContainerDevices": (("resource_name", 1, "string"), ("device_ids", 2, "*string")),
    "ContainerResources": (("name", 1, "string"), ("devices", 2, "*ContainerDevices")),
    "PodResources": (("name", 1, "string"), ("namespace", 2, "string"), ("containers", 3, "*ContainerResources")),
    "ListPodResourcesResponse": (("pod_resources", 1, "*PodResources"),),
}
"""Message -> fields, of the PodResources API."""


def message_classes(package: str, tables: Mapping[str, tuple[Field, ...]]) -> dict[str, Any]:
    """Returns message name -> class. tables: message name -> fields.

    A map field is, by the protocol, a repeated message with the fields key and value.
    """
    # The kubelet's files are proto3. Both syntaxes have one wire format, and in proto2 a message also knows which
    # fields were sent, so that an absent field is not taken for an empty one.
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


MESSAGES = {**message_classes("v1beta1", _PLUGIN), **message_classes("v1", _PODS)}
"""Message name -> class, of both APIs: no name occurs in both."""


def message(kind: str, /, **fields: Any) -> Any:
    """Returns a message of the kubelet's API. kind: its name in the API; fields: values by the names in the tables."""
    return MESSAGES[kind](**fields)
