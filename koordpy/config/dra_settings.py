# SPDX-License-Identifier: Apache-2.0
"""Settings of resource claims (dynamic resource allocation): section `dra` of the configuration."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from koordpy.api.object_names import ObjectName, ResourceName
from koordpy.config.config_values import Size, Span


class DeviceClassMapping(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The resource under which quotas count the devices of some device classes."""

    name: ResourceName
    device_class_names: Annotated[tuple[ObjectName, ...], Meta(min_length=1)]
    capacity: str = ""
    """Name of a device capacity: its amounts are counted. Empty if devices are counted."""


class Dra(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of resource claims."""

    choice: Literal["topology", "firstFit"] = "topology"
    """How devices of a node are chosen: by their links, or as kube-scheduler does, the first devices that fit."""
    preemption: bool = True  # evictions may free devices of claims
    extended_resources: bool = True
    """True if devices serve extended resources on nodes that have no allocatable units of them."""
    binding_timeout: Span = 600.0  # wait for binding conditions of devices
    search_limit: Size = 100_000
    """Maximum number of devices that are tried on a node before the search ends without a result."""
    device_class_mappings: tuple[DeviceClassMapping, ...] = ()


def mapping_faults(dra: Dra) -> Iterator[tuple[str, str, str]]:
    """Yields a fault (its field, the other field, text) for each device class that is mapped twice."""
    known: dict[str, str] = {}
    for i, mapping in enumerate(dra.device_class_mappings):
        for j, name in enumerate(mapping.device_class_names):
            field = f"dra.deviceClassMappings[{i}].deviceClassNames[{j}]"
            if name in known:
                yield field, known[name], f'"{name}" is mapped twice'
            known.setdefault(name, field)
