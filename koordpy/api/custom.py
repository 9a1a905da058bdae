"""The custom resources in crds/ that are no groups of pods: topology, quotas, devices (vocabulary.md 3)."""

# ruff: noqa: RUF012 - msgspec copies the defaults of structs

from typing import Any

import msgspec

from koordpy.api.objects import Condition, ObjectMeta, Quantities, Wire


class HierarchyEntry(Wire, frozen=True):
    """One entry of a ClusterNetworkTopology, in either published spelling."""

    layer_name: str = ""
    topology_layer: str = ""
    label_key: str | list[str] | None = None
    parent_topology_layer: str = ""

    @property
    def name(self) -> str:
        return self.layer_name or self.topology_layer

    @property
    def label_keys(self) -> tuple[str, ...]:
        keys = [self.label_key] if isinstance(self.label_key, str) else self.label_key or []
        return tuple(key for key in keys if key)


class ClusterNetworkTopologySpec(Wire, frozen=True):
    hierarchy: list[HierarchyEntry] = []
    network_topology_spec: list[HierarchyEntry] = []

    @property
    def entries(self) -> list[HierarchyEntry]:
        """The documented spelling first, else the alias (vocabulary.md 3)."""
        return self.hierarchy or self.network_topology_spec

    @property
    def field(self) -> str:
        return "spec.hierarchy" if self.hierarchy or not self.network_topology_spec else "spec.networkTopologySpec"


class ClusterNetworkTopology(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ClusterNetworkTopologySpec = ClusterNetworkTopologySpec()
    status: dict[str, Any] = {}


class ElasticQuotaSpec(Wire, frozen=True):
    min: Quantities = {}
    max: Quantities = {}


class ElasticQuotaStatus(Wire, frozen=True):
    used: Quantities = {}
    request: Quantities = {}
    runtime: Quantities = {}
    conditions: list[Condition] = []


class ElasticQuota(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ElasticQuotaSpec = ElasticQuotaSpec()
    status: ElasticQuotaStatus = ElasticQuotaStatus()


class DeviceTopology(Wire, frozen=True):
    socket_id: int | None = msgspec.field(name="socketID", default=None)
    node_id: int | None = msgspec.field(name="nodeID", default=None)
    pcie_id: str | None = msgspec.field(name="pcieID", default=None)
    bus_id: str | None = msgspec.field(name="busID", default=None)


class DeviceEntry(Wire, frozen=True):
    type: str = ""
    id: str = ""
    minor: int | None = None
    health: bool = True
    resources: Quantities = {}
    topology: DeviceTopology | None = None


class DeviceMatrix(Wire, frozen=True):
    name: str = ""
    topology: str = ""


class DeviceMatrices(Wire, frozen=True):
    gpu: list[DeviceMatrix] = []


class DeviceSpec(Wire, frozen=True):
    topologies: DeviceMatrices = DeviceMatrices()
    devices: list[DeviceEntry] = []


class DeviceHolder(Wire, frozen=True):
    """Devices of one pod; uuid: uid of the pod."""

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


class Device(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceSpec = DeviceSpec()
    status: DeviceStatus = DeviceStatus()
