# SPDX-License-Identifier: Apache-2.0
"""Settings of resource claims (dynamic resource allocation): section `dra` of the configuration."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from koordpy.api.object_names import ObjectName, ResourceName
from koordpy.config.config_values import Size, Span


class DeviceClassMapping(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Resource under which quotas count the devices of some classes."""

    name: ResourceName
    device_class_names: Annotated[tuple[ObjectName, ...], Meta(min_length=1)]
    capacity: str = ""
    """Capacity of which amounts are counted instead of devices; empty for devices."""


class Dra(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Resource claims."""

    choice: Literal["topology", "firstFit"] = "topology"
    """Devices of a node by their links, or the first ones that kube-scheduler finds."""
    preemption: bool = True  # evictions may free devices of claims
    extended_resources: bool = True
    """Whether devices serve extended resources on nodes without allocatable units of them."""
    binding_timeout: Span = 600.0  # wait for binding conditions of devices
    search_limit: Size = 100_000
    """Devices tried on a node until the search is given up."""
    device_class_mappings: tuple[DeviceClassMapping, ...] = ()


def mapping_faults(dra: Dra) -> Iterator[tuple[str, str, str]]:
    """Yields (field at fault, the other field, text) of classes that are mapped twice."""
    known: dict[str, str] = {}
    for i, mapping in enumerate(dra.device_class_mappings):
        for j, name in enumerate(mapping.device_class_names):
            field = f"dra.deviceClassMappings[{i}].deviceClassNames[{j}]"
            if name in known:
                yield field, known[name], f'"{name}" is mapped twice'
            known.setdefault(name, field)
