# SPDX-License-Identifier: Apache-2.0
"""Wire objects of dynamic resource allocation, DRA (resource.k8s.io v1, v1beta1 and v1beta2).

As in `objects.py`, only fields that a decision may depend on are declared. A field that koordpy does not support is
declared as `Raw`, so that an object that uses it can be refused.
"""

# ruff: noqa: RUF012 - msgspec copies the defaults of structs

from typing import Any

import msgspec

from koordpy.api.objects import KubernetesObject, NodeSelector, Quantity, Wire

Raw = dict[str, Any]
"""A mapping that is not read further."""


class CelSelector(Wire, frozen=True):
    expression: str = ""


class DeviceSelector(Wire, frozen=True):
    cel: CelSelector | None = None


class ExactRequest(Wire, frozen=True):
    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool | None = None
    tolerations: list[Raw] = []
    capacity: Raw | None = None


class DeviceRequest(ExactRequest, frozen=True):
    """A device request. v1beta1 has the fields of `exactly` in the request itself."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: list[Raw] = []

    @property
    def exact(self) -> ExactRequest:
        """The request for one exact device class, in either spelling."""
        return self.exactly or self


class DeviceClaim(Wire, frozen=True):
    requests: list[DeviceRequest] = []
    constraints: list[Raw] = []
    config: list[Raw] = []


class ResourceClaimSpec(Wire, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceResult(Wire, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class DeviceResults(Wire, frozen=True):
    """Allocated devices. config: parameters for drivers, copied from the claim and its classes."""

    results: list[DeviceResult] = []
    config: list[Raw] = []


class Allocation(Wire, frozen=True):
    devices: DeviceResults = DeviceResults()
    node_selector: NodeSelector | None = None


class ClaimConsumer(Wire, frozen=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Wire, frozen=True):
    allocation: Allocation | None = None
    reserved_for: list[ClaimConsumer] = []


class ResourceClaim(KubernetesObject, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ClaimTemplateSpec(Wire, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(KubernetesObject, frozen=True):
    """Template from which a controller creates claims; offline `koordpy.simulation.claim_controllers` does."""

    spec: ClaimTemplateSpec = ClaimTemplateSpec()


class DeviceClassSpec(Wire, frozen=True):
    selectors: list[DeviceSelector] = []
    config: list[Raw] = []


class DeviceClass(KubernetesObject, frozen=True):
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceAttribute(Wire, frozen=True):
    """An attribute with one of four types. A version is only known to exist: no supported selector reads it."""

    text: str | None = msgspec.field(name="string", default=None)
    number: int | None = msgspec.field(name="int", default=None)
    truth: bool | None = msgspec.field(name="bool", default=None)
    version: str | None = None


class DeviceCapacity(Wire, frozen=True):
    value: Quantity = "0"


class DeviceTaint(Wire, frozen=True):
    effect: str = ""


class BasicDevice(Wire, frozen=True):
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: list[Raw] = []
    taints: list[DeviceTaint] = []


class SliceDevice(BasicDevice, frozen=True):
    """A device of a slice. v1beta1 has all fields except the name below `basic`."""

    name: str = ""
    basic: BasicDevice | None = None
    binding_conditions: list[str] = []
    allow_multiple_allocations: bool | None = None
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None

    @property
    def facts(self) -> BasicDevice:
        """Attributes and capacity of the device, in either spelling."""
        return self.basic or self


class ResourcePool(Wire, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(Wire, frozen=True):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[SliceDevice] = []
    shared_counters: list[Raw] = []


class ResourceSlice(KubernetesObject, frozen=True):
    spec: ResourceSliceSpec = ResourceSliceSpec()


DEVICE_KINDS: tuple[type[Wire], ...] = (ResourceClaim, ResourceSlice, DeviceClass)
