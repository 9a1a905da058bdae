# SPDX-License-Identifier: Apache-2.0
"""Kinds of objects that the offline commands read, and warnings about objects of other kinds."""

from collections import Counter
from dataclasses import dataclass

from koordpy.api import keys
from koordpy.api.claim_objects import (
    ComputeDomain,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from koordpy.api.custom_objects import (
    ClusterNetworkTopology,
    Device,
    ElasticQuota,
    HyperNode,
    NodeResourceTopology,
    ProvisioningRequest,
)
from koordpy.api.objects import ConfigMap, KubernetesObject, Namespace, Node, Pod, PodDisruptionBudget, PriorityClass
from koordpy.api.owner_objects import ReplicaSet, ReplicationController, Service, StatefulSet
from koordpy.api.pod_groups import PodGroup, UpstreamPodGroup
from koordpy.api.spelling import meant
from koordpy.api.storage_objects import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from koordpy.workloads.kinds.kind_registry import KINDS


class NamedObject(KubernetesObject, frozen=True):
    """An object of a known kind; koordpy reads only its metadata."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that is read."""

    name: str
    """Unique name. Both API groups of a custom resource have the same name, because they are one kind."""
    type: type[KubernetesObject]
    namespaced: bool = True


_KINDS: dict[tuple[str, str], Kind] = {
    ("", "Node"): Kind("Node", Node, namespaced=False),
    ("", "Pod"): Kind("Pod", Pod),
    ("", "Namespace"): Kind("Namespace", Namespace, namespaced=False),
    ("", "ConfigMap"): Kind("ConfigMap", ConfigMap),
    ("", "Service"): Kind("Service", Service),
    ("", "ReplicationController"): Kind("ReplicationController", ReplicationController),
    ("apps", "ReplicaSet"): Kind("ReplicaSet", ReplicaSet),
    ("apps", "StatefulSet"): Kind("StatefulSet", StatefulSet),
    ("", "PersistentVolume"): Kind("PersistentVolume", PersistentVolume, namespaced=False),
    ("", "PersistentVolumeClaim"): Kind("PersistentVolumeClaim", PersistentVolumeClaim),
    (keys.GROUP_SIGS, "PodGroup"): Kind("PodGroup", PodGroup),
    (keys.GROUP_X, "PodGroup"): Kind("PodGroup", PodGroup),
    (keys.GROUP_UPSTREAM, "PodGroup"): Kind("PodGroup of scheduling.k8s.io", UpstreamPodGroup),
    (keys.GROUP_UPSTREAM, "Workload"): Kind("Workload", NamedObject),
    (keys.GROUP_UPSTREAM, "PriorityClass"): Kind("PriorityClass", PriorityClass, namespaced=False),
    (keys.GROUP_SIGS, "ElasticQuota"): Kind("ElasticQuota", ElasticQuota),
    (keys.GROUP_X, "ElasticQuota"): Kind("ElasticQuota", ElasticQuota),
    (keys.GROUP_KOORDINATOR, "ClusterNetworkTopology"): Kind(
        "ClusterNetworkTopology", ClusterNetworkTopology, namespaced=False
    ),
    (keys.GROUP_KOORDINATOR, "Device"): Kind("Device", Device, namespaced=False),
    ("policy", "PodDisruptionBudget"): Kind("PodDisruptionBudget", PodDisruptionBudget),
    ("storage.k8s.io", "StorageClass"): Kind("StorageClass", StorageClass, namespaced=False),
    ("storage.k8s.io", "CSINode"): Kind("CSINode", CSINode, namespaced=False),
    ("storage.k8s.io", "CSIDriver"): Kind("CSIDriver", CSIDriver, namespaced=False),
    ("storage.k8s.io", "CSIStorageCapacity"): Kind("CSIStorageCapacity", CSIStorageCapacity),
    ("storage.k8s.io", "VolumeAttachment"): Kind("VolumeAttachment", VolumeAttachment, namespaced=False),
    ("resource.k8s.io", "ResourceSlice"): Kind("ResourceSlice", ResourceSlice, namespaced=False),
    ("resource.k8s.io", "ResourceClaim"): Kind("ResourceClaim", ResourceClaim),
    ("resource.k8s.io", "ResourceClaimTemplate"): Kind("ResourceClaimTemplate", ResourceClaimTemplate),
    ("resource.k8s.io", "DeviceClass"): Kind("DeviceClass", DeviceClass, namespaced=False),
    ("resource.k8s.io", "DeviceTaintRule"): Kind("DeviceTaintRule", DeviceTaintRule, namespaced=False),
    ("resource.nvidia.com", "ComputeDomain"): Kind("ComputeDomain", ComputeDomain),
    (keys.GROUP_NODE_TOPOLOGY, "NodeResourceTopology"): Kind(
        "NodeResourceTopology", NodeResourceTopology, namespaced=False
    ),
    (keys.GROUP_AUTOSCALING, "ProvisioningRequest"): Kind("ProvisioningRequest", ProvisioningRequest),
    (keys.GROUP_VOLCANO_TOPOLOGY, "HyperNode"): Kind("HyperNode", HyperNode, namespaced=False),
}
_WITHOUT_GROUP: dict[str, Kind] = {}
for (_, _name), _kind in _KINDS.items():
    _WITHOUT_GROUP.setdefault(_name, _kind)

SEVERAL_GROUPS = frozenset(name for name, times in Counter(name for _, name in _KINDS).items() if times > 1)
"""Names of kinds that exist in several API groups, so that an object without an apiVersion is ambiguous."""
SILENTLY_IGNORED = {("", "ResourceQuota")}
"""(API group, kind) that is ignored without a warning, because placement does not depend on it (simulate.md 1.2)."""


def find_kind(api_version: str, kind: str) -> Kind | None:
    """Returns the kind of an object; None if the kind is not read. Versions are ignored; apiVersion may be empty."""
    if not api_version:
        return _WITHOUT_GROUP.get(kind)
    return _KINDS.get((group_of(api_version), kind))


MAKERS_UNREAD = (("batch.volcano.sh", "Job"), ("sparkoperator.k8s.io", "SparkApplication"))
"""(API group, kind) of objects that create pods and are not read."""
UNSERVED = {
    (keys.GROUP_UPSTREAM, "CompositePodGroup"): "is not supported yet: the pods of the groups below it stay pending",
}
"""(API group, kind) that is known and not read yet -> text of the warning."""
CLUSTER_SCOPED = ("ClusterTrainingRuntime",)
"""Kinds of workloads' objects that are cluster-scoped."""
UNMADE = "koordpy does not create its pods (add them to the input)"


def not_read(api_version: str, kind: str) -> str:
    """Returns the warning about an object of a kind that is not read, with a similar kind if there is one."""
    group = group_of(api_version)
    if (group, kind) in UNSERVED:
        return f"{kind} of {api_version} {UNSERVED[group, kind]}"
    told = f"{kind} of {api_version or 'no apiVersion'} is not read: ignored"
    right = meant(
        kind,
        (known for its_group, known in {**_KINDS, **dict.fromkeys(KINDS)} if its_group == group or not api_version),
    )
    if right:
        return f"{told}, did you mean {right}?"
    groups = [its_group for its_group, known in _KINDS if known == kind]
    near = meant(group, groups) or (groups[0] if groups and not group else "")
    return f"{told}, did you mean a version of {near}?" if near else told


def group_of(api_version: str) -> str:
    """Returns the group of an apiVersion: `apps` for `apps/v1`, empty for `v1`."""
    return api_version.rpartition("/")[0]
