# SPDX-License-Identifier: Apache-2.0
"""Wire objects (typed records) of custom resources other than PodGroups: topology, quotas, devices (vocabulary.md 3).

Kinds of other projects are here, too: HyperNode (Volcano), NodeResourceTopology and ProvisioningRequest.
"""

# ruff: noqa: RUF012 - msgspec copies the defaults of structs

from typing import Any

import msgspec

from koordpy.api.objects import Condition, KubernetesObject, LabelSelector, Quantities, Quantity, Wire, condition_of


class HierarchyEntry(Wire, frozen=True):
    """A layer of a ClusterNetworkTopology, in either of two published spellings of its fields."""

    layer_name: str = ""
    topology_layer: str = ""
    label_key: str | list[str] | None = None
    parent_topology_layer: str = ""
    spare_nodes: Any = 0
    """Number of nodes that each domain of the layer keeps free for repairs (repair.md 6)."""

    @property
    def name(self) -> str:
        """Name of the layer."""
        return self.layer_name or self.topology_layer

    @property
    def label_keys(self) -> tuple[str, ...]:
        """Keys of node labels. The value of the first of them that a node has is the node's domain in this layer."""
        keys = [self.label_key] if isinstance(self.label_key, str) else self.label_key or []
        return tuple(key for key in keys if key)


class ClusterNetworkTopologySpec(Wire, frozen=True):
    hierarchy: list[HierarchyEntry] = []
    network_topology_spec: list[HierarchyEntry] = []

    @property
    def entries(self) -> list[HierarchyEntry]:
        """The entries in the documented spelling, or in the alias (vocabulary.md 3)."""
        return self.hierarchy or self.network_topology_spec

    @property
    def field(self) -> str:
        """Path of the list that `entries` returns, for messages."""
        return "spec.hierarchy" if self.hierarchy or not self.network_topology_spec else "spec.networkTopologySpec"


class ClusterNetworkTopology(KubernetesObject, frozen=True):
    spec: ClusterNetworkTopologySpec = ClusterNetworkTopologySpec()
    status: dict[str, Any] = {}


class ElasticQuotaSpec(Wire, frozen=True):
    min: Quantities = {}
    max: Quantities = {}


class ElasticQuotaStatus(Wire, frozen=True):
    """Status that koordpy writes: usage, demand, and the runtime (the amount that the quota may use now)."""

    used: Quantities = {}
    request: Quantities = {}
    runtime: Quantities = {}
    conditions: list[Condition] = []


class ElasticQuota(KubernetesObject, frozen=True):
    spec: ElasticQuotaSpec = ElasticQuotaSpec()
    status: ElasticQuotaStatus = ElasticQuotaStatus()


class DeviceTopology(Wire, frozen=True):
    """Location of a GPU in its machine. node_id: NUMA node. A field that is None or absent is unknown."""

    socket_id: int | None = msgspec.field(name="socketID", default=None)
    node_id: int | None = msgspec.field(name="nodeID", default=None)
    pcie_id: str | None = msgspec.field(name="pcieID", default=None)
    bus_id: str | None = msgspec.field(name="busID", default=None)


class DeviceEntry(Wire, frozen=True):
    """One device of a node. minor: number N of /dev/nvidiaN for a GPU; None if unknown."""

    type: str = ""
    id: str = ""
    minor: int | None = None
    health: bool = True
    resources: Quantities = {}
    topology: DeviceTopology | None = None


class DeviceMatrix(Wire, frozen=True):
    """Links between the GPUs of a node; `topology` has them as a JSON text."""

    name: str = ""
    topology: str = ""


class DeviceMatrices(Wire, frozen=True):
    gpu: list[DeviceMatrix] = []


class DeviceSpec(Wire, frozen=True):
    topologies: DeviceMatrices = DeviceMatrices()
    devices: list[DeviceEntry] = []


class DeviceHolder(Wire, frozen=True):
    """Devices of one pod. uuid: uid of the pod."""

    namespace: str = ""
    name: str = ""
    uuid: str = ""
    minors: list[int] = []


class DeviceAllocation(Wire, frozen=True):
    type: str = ""
    entries: list[DeviceHolder] = []


class DeviceStatus(Wire, frozen=True):
    allocations: list[DeviceAllocation] = []
    conditions: list[Condition] = []


DELIVERY_UNAVAILABLE = "DeliveryUnavailable"
"""Condition of a Device: True while the agent cannot give GPUs to containers on the node."""


class Device(KubernetesObject, frozen=True):
    """The GPUs of one node and their links, as the node's agent reports them. The name is the name of the node."""

    spec: DeviceSpec = DeviceSpec()
    status: DeviceStatus = DeviceStatus()


# HyperNode of topology.volcano.sh/v1alpha1; koordpy never writes it


class ExactMatch(Wire, frozen=True):
    name: str = ""


class RegexMatch(Wire, frozen=True):
    pattern: str = ""


class MemberSelector(Wire, frozen=True):
    """Selects members. Exactly one of the three fields is set; labelMatch is only for members of type Node."""

    exact_match: ExactMatch | None = None
    regex_match: RegexMatch | None = None
    label_match: LabelSelector | None = None


class HyperNodeMember(Wire, frozen=True):
    type: str = ""
    """`Node` or `HyperNode`."""
    selector: MemberSelector = MemberSelector()


class HyperNodeSpec(Wire, frozen=True):
    tier: int = 0
    tier_name: str = ""
    members: list[HyperNodeMember] = msgspec.field(default_factory=list)


class HyperNode(KubernetesObject, frozen=True):
    """A switch or another network domain, with its members: nodes, or HyperNodes of a lower tier.

    The smaller its tier, the closer its members are to each other.
    """

    spec: HyperNodeSpec = HyperNodeSpec()


def is_delivery_unavailable(device: Device) -> bool:
    """Returns True if the node's agent reports that it cannot give GPUs to containers now."""
    found = condition_of(device.status.conditions, DELIVERY_UNAVAILABLE)
    return found is not None and found.status == "True"


# NodeResourceTopology of topology.node.k8s.io; koordpy never writes it. v1alpha1 and v1alpha2 are read alike. The
# object has the name of its node, and its fields are not below `spec`.


class ZoneResource(Wire, frozen=True):
    """Amounts of one resource in a zone. None: the amount is not stated."""

    name: str = ""
    capacity: Quantity | None = None
    allocatable: Quantity | None = None
    available: Quantity | None = None


class TopologyZone(Wire, frozen=True):
    """A part of a machine. A zone of type Node is a NUMA node."""

    name: str = ""
    type: str = ""
    resources: list[ZoneResource] = msgspec.field(default_factory=list)


class TopologyAttribute(Wire, frozen=True):
    """A setting of the kubelet, as name and value."""

    name: str = ""
    value: str = ""


class NodeResourceTopology(KubernetesObject, frozen=True):
    """The zones of a node, with the amounts that were free at the time of the report."""

    topology_policies: list[str] = msgspec.field(default_factory=list)
    zones: list[TopologyZone] = msgspec.field(default_factory=list)
    attributes: list[TopologyAttribute] = msgspec.field(default_factory=list)


# ProvisioningRequest of autoscaling.x-k8s.io, which cluster-autoscaler serves. v1 and v1beta1 are read alike.


class PodTemplateReference(Wire, frozen=True):
    name: str = ""


class RequestedPodSet(Wire, frozen=True):
    """Pods of one kind, by the PodTemplate in the request's namespace."""

    pod_template_ref: PodTemplateReference = PodTemplateReference()
    count: int = 0


class ProvisioningRequestSpec(Wire, frozen=True):
    pod_sets: list[RequestedPodSet] = []
    provisioning_class_name: str = ""
    parameters: dict[str, str] = {}


class ProvisioningRequestStatus(Wire, frozen=True):
    conditions: list[Condition] = []


class ProvisioningRequest(KubernetesObject, frozen=True):
    """Requests nodes for certain pods from an autoscaler, all or nothing."""

    spec: ProvisioningRequestSpec = ProvisioningRequestSpec()
    status: ProvisioningRequestStatus = ProvisioningRequestStatus()
