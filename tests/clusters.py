# SPDX-License-Identifier: Apache-2.0
"""Clusters to plan on: node manifests with network labels, and the ClusterNetworkTopology that goes with them.

Everything is deterministic: the same arguments give the same manifests, so that figures can be compared.

Labels of a node (a layer's own key; the domain's name as value, names are unique in the cluster):
    network.topology.koordpy.io/datacenter     dc-0
    network.topology.koordpy.io/spine          spine-0
    network.topology.koordpy.io/block          block-0
    network.topology.koordpy.io/accelerator    accelerator-0   nodes joined by one accelerator fabric (NVLink domain)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koordpy.api import keys

Manifest = dict[str, Any]

LABEL_PREFIX = "network.topology.koordpy.io/"
DATACENTER = LABEL_PREFIX + "datacenter"
SPINE = LABEL_PREFIX + "spine"
BLOCK = LABEL_PREFIX + "block"
ACCELERATOR = LABEL_PREFIX + "accelerator"
LAYERS = (
    ("datacenterLayer", DATACENTER),
    ("spineLayer", SPINE),
    ("blockLayer", BLOCK),
    ("acceleratorLayer", ACCELERATOR),
)
"""(layer, label key), from the top down; the node layer lies below."""

SPINES_PER_DATACENTER = 2
GPU = keys.GPU_RESOURCES[0]
_READY_SINCE = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes and the topology object `default` that describes them."""

    nodes: list[Manifest]
    topology: Manifest

    def manifests(self) -> list[Manifest]:
        """The topology, then the nodes: the order in which to create them."""
        return [self.topology, *self.nodes]


def topology(name: str = keys.TOPOLOGY_OBJECT) -> Manifest:
    """The ClusterNetworkTopology of the four layers above and the node layer."""
    parent = keys.CLUSTER_LAYER
    hierarchy: list[Manifest] = []
    for layer, key in LAYERS:
        hierarchy.append({"layerName": layer, "labelKey": key, "parentTopologyLayer": parent})
        parent = layer
    hierarchy.append({"layerName": keys.NODE_LAYER, "parentTopologyLayer": parent})
    return {
        "apiVersion": f"{keys.GROUP_KOORDINATOR}/v1alpha1",
        "kind": "ClusterNetworkTopology",
        "metadata": {"name": name},
        "spec": {"hierarchy": hierarchy},
    }


def node(
    name: str,
    *,
    gpus: int = 8,
    cpu: int = 128,
    memory_gib: int = 1024,
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """A node manifest that is Ready; `gpus` 0 leaves the accelerator resource out."""
    amounts = {"cpu": str(cpu), "memory": f"{memory_gib}Gi", "ephemeral-storage": "1Ti", "pods": "110"}
    if gpus:
        amounts[GPU] = str(gpus)
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastTransitionTime": _READY_SINCE,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **(labels or {}),
            },
        },
        "spec": {},
        "status": {
            "capacity": dict(amounts),
            "allocatable": dict(amounts),
            "conditions": [ready],
            "nodeInfo": {"kubeletVersion": "v1.36.0-sim", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }


def training_cluster(
    nodes: int = 64,
    *,
    nodes_per_accelerator: int = 2,
    accelerators_per_block: int = 4,
    blocks_per_spine: int = 4,
) -> Cluster:
    """Nodes `node-0`, `node-1`, ... filled into accelerators, blocks, spines and datacenters in that order.

    With the defaults: 64 nodes of 8 GPUs in 32 accelerators, 8 blocks, 2 spines, 1 datacenter. Raises ValueError for a
    number below 1.
    """
    if min(nodes, nodes_per_accelerator, accelerators_per_block, blocks_per_spine) < 1:
        raise ValueError("a cluster needs at least one node, and one child in every domain")
    found = []
    for at in range(nodes):
        accelerator = at // nodes_per_accelerator
        block = accelerator // accelerators_per_block
        spine = block // blocks_per_spine
        labels = {
            DATACENTER: f"dc-{spine // SPINES_PER_DATACENTER}",
            SPINE: f"spine-{spine}",
            BLOCK: f"block-{block}",
            ACCELERATOR: f"accelerator-{accelerator}",
        }
        found.append(node(f"node-{at}", labels=labels))
    return Cluster(found, topology())


def pod(
    name: str,
    *,
    namespace: str = "default",
    gpus: int = 8,
    cpu: str = "8",
    memory: str = "64Gi",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    scheduler_name: str = keys.DEFAULT_SCHEDULER_NAME,
) -> Manifest:
    """A training pod's manifest; `gpus` 0 leaves the accelerator resource out."""
    requests = {"cpu": cpu, "memory": memory, **({GPU: str(gpus)} if gpus else {})}
    container = {
        "name": "main",
        "image": "pause",
        "resources": {"requests": requests, "limits": dict(requests)},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {"schedulerName": scheduler_name, "containers": [container]},
    }


def gang(
    name: str,
    members: int,
    *,
    min_member: int | None = None,
    annotations: Mapping[str, str] | None = None,
    gpus: int = 8,
) -> list[Manifest]:
    """A PodGroup with `annotations`, and its pods `<name>-0`, `<name>-1`, ...; minMember defaults to all of them."""
    group = {
        "apiVersion": f"{keys.GROUP_SIGS}/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {"minMember": members if min_member is None else min_member},
    }
    labels = {keys.LABEL_POD_GROUP: name}
    return [group, *(pod(f"{name}-{at}", gpus=gpus, labels=labels) for at in range(members))]
