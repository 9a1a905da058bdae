# SPDX-License-Identifier: Apache-2.0
"""Wire objects (typed records) of dynamic resource allocation, DRA: resource.k8s.io v1, v1beta1 and v1beta2.

As in `objects.py`, only fields that a decision may depend on are declared. A field that koordpy does not support is
declared as `Raw`, so that an object with this field can be refused.
"""

# ruff: noqa: RUF012 - msgspec copies the defaults of structs

from collections.abc import Sequence
from typing import Any

import msgspec

from koordpy.api.objects import Amount, Condition, KubernetesObject, NodeSelector, Quantity, Time, Wire

Raw = dict[str, Any]
"""A mapping of which the content is not read."""


class CelSelector(Wire, frozen=True):
    expression: str = ""


class DeviceSelector(Wire, frozen=True):
    cel: CelSelector | None = None


class DeviceToleration(Wire, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Wire, frozen=True):
    requests: dict[str, Amount] = {}


class ExactRequest(Wire, frozen=True):
    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None
    derived_attributes: list[Raw] = []


class SubRequest(ExactRequest, frozen=True):
    """One alternative in the list `firstAvailable` of a request. The API has no `adminAccess` here."""

    name: str = ""


class DeviceRequest(ExactRequest, frozen=True):
    """A device request. In v1beta1 the fields of `exactly` are in the request itself."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: list[SubRequest] = []

    @property
    def exact(self) -> ExactRequest:
        """The request for one exact device class, in the form of v1 or of v1beta1."""
        return self.exactly or self

    @property
    def alternatives(self) -> Sequence[tuple[str, ExactRequest]]:
        """(name in allocation results, request) of each alternative, the preferred first; a single one if there is no
        `firstAvailable`."""
        if self.first_available:
            return [(f"{self.name}/{one.name}", one) for one in self.first_available]
        return [(self.name, self.exact)]


class DeviceConstraint(Wire, frozen=True):
    """A constraint over the devices of the named requests; without names over all requests of the claim."""

    requests: list[str] = []
    match_attribute: str = ""
    distinct_attribute: str = ""


class DeviceClaim(Wire, frozen=True):
    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    config: list[Raw] = []


class ResourceClaimSpec(Wire, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceResult(Wire, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    share_id: str = msgspec.field(name="shareID", default="")
    consumed_capacity: dict[str, Amount] = {}
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []


class DeviceResults(Wire, frozen=True):
    """Allocated devices. config: parameters for drivers, copied from the claim and from its device classes."""

    results: list[DeviceResult] = []
    config: list[Raw] = []


class Allocation(Wire, frozen=True):
    devices: DeviceResults = DeviceResults()
    node_selector: NodeSelector | None = None
    allocation_timestamp: Time | None = None


class ClaimConsumer(Wire, frozen=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class AllocatedDevice(Wire, frozen=True):
    """State of an allocated device, as its driver reports it."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    conditions: list[Condition] = []


class ResourceClaimStatus(Wire, frozen=True):
    allocation: Allocation | None = None
    reserved_for: list[ClaimConsumer] = []
    devices: list[AllocatedDevice] = []


class ResourceClaim(KubernetesObject, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ClaimTemplateSpec(Wire, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(KubernetesObject, frozen=True):
    """Template from which a controller creates claims; offline, `koordpy.simulation.claim_controllers` creates them."""

    spec: ClaimTemplateSpec = ClaimTemplateSpec()


class DeviceClassSpec(Wire, frozen=True):
    selectors: list[DeviceSelector] = []
    config: list[Raw] = []
    extended_resource_name: str = ""


class DeviceClass(KubernetesObject, frozen=True):
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceAttribute(Wire, frozen=True):
    """An attribute of a device, with one of four types. If no field is set, its type is unknown to koordpy."""

    text: str | None = msgspec.field(name="string", default=None)
    number: int | None = msgspec.field(name="int", default=None)
    truth: bool | None = msgspec.field(name="bool", default=None)
    version: str | None = None
    numbers: list[int] = msgspec.field(name="ints", default_factory=list)
    """Values of a list of integers; read only for lists of NUMA nodes."""


class CapacityRange(Wire, frozen=True):
    """Amounts that a share may have: `min` plus a multiple of `step`, at most `max`."""

    min: Quantity | None = None
    step: Quantity | None = None
    max: Quantity | None = None


class CapacityPolicy(Wire, frozen=True):
    """Amounts of a capacity that a share of a device may have."""

    default: Quantity | None = None
    valid_range: CapacityRange | None = None
    valid_values: list[Quantity] = []


class DeviceCapacity(Wire, frozen=True):
    value: Quantity = "0"
    request_policy: CapacityPolicy | None = None


class DeviceTaint(Wire, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class Counter(Wire, frozen=True):
    value: Quantity = "0"


class CounterSet(Wire, frozen=True):
    """Counters that devices of a pool share."""

    name: str = ""
    counters: dict[str, Counter] = {}


class CounterUse(Wire, frozen=True):
    """The amounts that a device uses of a counter set."""

    counter_set: str = ""
    counters: dict[str, Counter] = {}
    compatibility_groups: Any = None


class BasicDevice(Wire, frozen=True):
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: list[CounterUse] = []
    taints: list[DeviceTaint] = []
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    binds_to_node: bool | None = None
    allow_multiple_allocations: bool | None = None
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    compatibility_groups: Any = None
    node_allocatable_resources: Any = None
    node_allocatable_resource_mappings: Any = None
    """Name of `nodeAllocatableResources` in Kubernetes 1.36."""


class SliceDevice(BasicDevice, frozen=True):
    """A device of a ResourceSlice. In v1beta1 all fields except the name are below `basic`."""

    name: str = ""
    basic: BasicDevice | None = None

    @property
    def facts(self) -> BasicDevice:
        """The fields of the device, from the place that its API version uses."""
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
    shared_counters: list[CounterSet] = []


class ResourceSlice(KubernetesObject, frozen=True):
    spec: ResourceSliceSpec = ResourceSliceSpec()


class TaintTarget(Wire, frozen=True):
    """The devices that a taint rule selects. An empty field matches every value."""

    driver: str = ""
    pool: str = ""
    device: str = ""


class TaintRuleSpec(Wire, frozen=True):
    device_selector: TaintTarget = TaintTarget()
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(KubernetesObject, frozen=True):
    spec: TaintRuleSpec = TaintRuleSpec()


class TemplateReference(Wire, frozen=True):
    name: str = ""


class ComputeDomainChannel(Wire, frozen=True):
    resource_claim_template: TemplateReference = TemplateReference()


class ComputeDomainSpec(Wire, frozen=True):
    channel: ComputeDomainChannel = ComputeDomainChannel()


class ComputeDomain(KubernetesObject, frozen=True):
    """NVIDIA's ComputeDomain. Its controller creates the ResourceClaimTemplate that the spec names."""

    spec: ComputeDomainSpec = ComputeDomainSpec()
