# SPDX-License-Identifier: Apache-2.0
"""Resources of the API server: their paths, and discovery of the versions that the server serves."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koordpy.api import claim_objects, keys, owner_objects, storage_objects
from koordpy.api.objects import Wire

if TYPE_CHECKING:
    from koordpy.engine.client.api_client import ApiClient


@dataclass(frozen=True, slots=True)
class Resource:
    """A served resource. `group` is empty for the core API; `plural` is the name in paths."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    within: str = ""
    """The only namespace that is listed and watched; empty for all namespaces."""

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core API, as in manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def name(self) -> str:
        """`pods`, `podgroups.scheduling.sigs.k8s.io`: the name in logs and metric labels."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of the collection, of one object, or of its subresource. An empty namespace means all of them."""
        parts = ["/apis/" + self.group if self.group else "/api", self.version]
        if (namespace or self.within) and self.namespaced:
            parts += ["namespaces", namespace or self.within]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


# Resources that are always watched. The suffix "_X" means the older API group scheduling.x-k8s.io.
PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", within=keys.SYSTEM_NAMESPACE)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
CLUSTER_NETWORK_TOPOLOGIES = Resource(
    keys.GROUP_KOORDINATOR, "v1alpha1", "clusternetworktopologies", "ClusterNetworkTopology", namespaced=False
)
DEVICES = Resource(keys.GROUP_KOORDINATOR, "v1alpha1", "devices", "Device", namespaced=False)
POD_GROUPS = Resource(keys.GROUP_SIGS, "v1alpha1", "podgroups", "PodGroup")
POD_GROUPS_X = Resource(keys.GROUP_X, "v1alpha1", "podgroups", "PodGroup")
ELASTIC_QUOTAS = Resource(keys.GROUP_SIGS, "v1alpha1", "elasticquotas", "ElasticQuota")
ELASTIC_QUOTAS_X = Resource(keys.GROUP_X, "v1alpha1", "elasticquotas", "ElasticQuota")
INSTALLED = (CLUSTER_NETWORK_TOPOLOGIES, DEVICES, ELASTIC_QUOTAS, POD_GROUPS)
"""Resources with a CustomResourceDefinition in crds/."""

PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
STORAGE: dict[Resource, type[Wire]] = {
    PERSISTENT_VOLUME_CLAIMS: storage_objects.PersistentVolumeClaim,
    PERSISTENT_VOLUMES: storage_objects.PersistentVolume,
    Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False): storage_objects.StorageClass,
    Resource("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False): storage_objects.CSINode,
    Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False): storage_objects.CSIDriver,
    Resource("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"): storage_objects.CSIStorageCapacity,
    Resource(
        "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False
    ): storage_objects.VolumeAttachment,
}
"""Storage resources that filters need; every API server serves them."""

OWNERS: dict[Resource, type[Wire]] = {
    Resource("", "v1", "services", "Service"): owner_objects.Service,
    Resource("", "v1", "replicationcontrollers", "ReplicationController"): owner_objects.ReplicationController,
    Resource("apps", "v1", "replicasets", "ReplicaSet"): owner_objects.ReplicaSet,
    Resource("apps", "v1", "statefulsets", "StatefulSet"): owner_objects.StatefulSet,
}
"""Owners of pods. Watched only if spread constraints apply by default, because their selectors come from the owners."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A resource that the API server may serve in one of several versions, or not at all. versions: newest first."""

    group: str
    plural: str
    versions: tuple[str, ...]


# optional resources, which may be missing
UPSTREAM_POD_GROUPS = Wanted(keys.GROUP_UPSTREAM, "podgroups", ("v1beta1", "v1alpha3", "v1alpha2"))
VOLCANO_GROUPS = Wanted("scheduling.volcano.sh", "podgroups", ("v1beta1",))
PROVISIONING_REQUESTS = Wanted(keys.GROUP_AUTOSCALING, "provisioningrequests", ("v1", "v1beta1"))
HYPERNODES = Wanted(keys.GROUP_VOLCANO_TOPOLOGY, "hypernodes", ("v1alpha1",))
NODE_TOPOLOGIES = Wanted(keys.GROUP_NODE_TOPOLOGY, "noderesourcetopologies", ("v1alpha2", "v1alpha1"))
_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
RESOURCE_CLAIMS = Wanted("resource.k8s.io", "resourceclaims", _DRA_VERSIONS)
DEVICE_TAINT_RULES = Wanted("resource.k8s.io", "devicetaintrules", ("v1", "v1beta2", "v1alpha3"))
# resource of dynamic resource allocation (DRA) -> type of its objects
DYNAMIC_RESOURCES: dict[Wanted, type[Wire]] = {
    RESOURCE_CLAIMS: claim_objects.ResourceClaim,
    Wanted("resource.k8s.io", "resourceslices", _DRA_VERSIONS): claim_objects.ResourceSlice,
    Wanted("resource.k8s.io", "deviceclasses", _DRA_VERSIONS): claim_objects.DeviceClass,
    DEVICE_TAINT_RULES: claim_objects.DeviceTaintRule,
}


async def discover(client: "ApiClient", wanted: Iterable[Wanted]) -> dict[Wanted, Resource | None]:
    """Returns the newest served version of each wanted resource; None if the server has none of them.

    Raises as the client does if the server does not answer (`ApiError` other than 404, `Unreachable`).
    """
    listings: dict[str, asyncio.Task[dict[str, Any] | None]] = {}

    async def listing(path: str) -> dict[str, Any]:
        """Returns a discovery document; empty if the path is not served. Reads each path once."""
        if path not in listings:
            listings[path] = asyncio.create_task(client.get_or_none(path, type=dict[str, Any]))
        return await listings[path] or {}

    async def find(want: Wanted) -> Resource | None:
        """Returns the newest served version of one resource; None if there is none."""
        root = f"/apis/{want.group}" if want.group else "/api"
        group = await listing(root)
        served = {v["version"] if isinstance(v, dict) else v for v in group.get("versions") or []}
        for version in want.versions:
            if version not in served:
                continue
            for entry in (await listing(f"{root}/{version}")).get("resources") or []:
                if entry.get("name") == want.plural:
                    kind, namespaced = str(entry.get("kind", "")), bool(entry.get("namespaced"))
                    return Resource(want.group, version, want.plural, kind, namespaced)
        return None

    wants = list(wanted)
    return dict(zip(wants, await asyncio.gather(*map(find, wants)), strict=True))
