"""The kubelet's gRPC messages, built from a table: no generated code to keep in step with a compiler.

Sources: k8s.io/kubelet pkg/apis/deviceplugin/v1beta1 and pkg/apis/podresources/v1, whose field numbers these are.
"""

from collections.abc import Mapping
from typing import Any

from koordpy.api.protomessages import Field, message_classes

VERSION = "v1beta1"
REGISTRATION = "/v1beta1.Registration/"
DEVICE_PLUGIN = "/v1beta1.DevicePlugin/"
POD_RESOURCES = "/v1.PodResourcesLister/"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

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
_PODS: Mapping[str, tuple[Field, ...]] = {
    "ListPodResourcesRequest": (),
    "ContainerDevices": (("resource_name", 1, "string"), ("device_ids", 2, "*string")),
    "ContainerResources": (("name", 1, "string"), ("devices", 2, "*ContainerDevices")),
    "PodResources": (("name", 1, "string"), ("namespace", 2, "string"), ("containers", 3, "*ContainerResources")),
    "ListPodResourcesResponse": (("pod_resources", 1, "*PodResources"),),
}

MESSAGES = {**message_classes("v1beta1", _PLUGIN), **message_classes("v1", _PODS)}


def message(kind: str, /, **fields: Any) -> Any:
    """A message of the kubelet's API by its name there."""
    return MESSAGES[kind](**fields)
