# SPDX-License-Identifier: Apache-2.0
"""The Snapshot: the immutable state of the cluster at one moment, which a round plans on.

It has nodes, pods, other objects, counts of bound pods for filters, and resource arrays. `ClusterState.snapshot`
creates it. A round records its own placements and evictions in a `Draft`, a working copy (`plan_draft.py`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordpy.api.custom_objects import ProvisioningRequest
from koordpy.api.objects import Node, PodDisruptionBudget, PriorityClass, Taint
from koordpy.api.pod_groups import PodGroup, UpstreamPodGroup
from koordpy.cache.gang_history import GangPast
from koordpy.cache.lost_nodes import LostNode
from koordpy.cache.reservations import Reservation, ReturningPod
from koordpy.pods.device_asks import AskReaders
from koordpy.pods.family_books import FamilyView
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_owners import Owners
from koordpy.pods.pod_ties import PodClass, TermClass
from koordpy.pods.resource_amounts import Amounts
from koordpy.pods.volume_book import ClaimVolume, CsiVolume, Disk, VolumeObjects
from koordpy.quota.preemption_history import EvictedFor
from koordpy.quota.quota_book import Quotas
from koordpy.rejections.closed_nodes import NOTHING_CLOSED, ClosedNodes
from koordpy.topology.topology_tree import Tree
from koordpy.workloads.workload_gangs import WorkloadGang

Ints = NDArray[np.int64]

PODS = "pods"
"""Column 0 of every resource array: the number of pods."""

NOWHERE = "~"
"""Column 1, for all resources that no node lists: a request's amounts of these are added up. Every node has 0 of it."""


class Columns(dict[str, int]):
    """Resource -> column in the resource arrays.

    Each resource that a node lists has a column. All other resources share the column `NOWHERE`, so that pods which
    request thousands of unknown resources do not enlarge the arrays.
    """

    def __init__(self, resources: Iterable[str] = ()) -> None:
        """resources: the resources that nodes list."""
        names = dict.fromkeys((PODS, NOWHERE, *resources))
        super().__init__({name: i for i, name in enumerate(names)})

    def __missing__(self, name: str) -> int:
        return self[NOWHERE]


UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""Taint that every cordoned node has in a Snapshot, whether or not the node controller has added it."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as filters and scores read it."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    """Taints of the node; for a cordoned node also `UNSCHEDULABLE_TAINT`."""
    unschedulable: bool
    """True if the node is cordoned."""
    allocatable: Amounts
    """Resource -> allocatable amount, after corrections by device families."""
    images: tuple[tuple[tuple[str, ...], int], ...]
    """(names, bytes) of each image on the node."""
    node: Node

    @property
    def going(self) -> bool:
        """True if the node is being deleted."""
        return self.node.metadata.deletion_timestamp is not None


@dataclass(frozen=True)
class Snapshot:
    """The state of the cluster at one moment.

    All arrays with a node axis have the order of `nodes`: depth-first in the topology tree, siblings in natural order.
    In the fields below, "bound" pods include assumed pods.
    """

    now: float
    """Time of the snapshot, in seconds since the epoch."""
    nodes: tuple[NodeInfo, ...]
    tree: Tree
    """The network topology, with the nodes as leaves."""
    columns: Columns
    """Resource -> column of `allocatable`, `used` and `unevictable_used`."""
    allocatable: Ints
    """[nodes, resources] allocatable amounts; column 0 is the maximum number of pods."""
    used: Ints
    """[nodes, resources] requests of bound pods; column 0 is their number."""
    score_used: Ints
    """[nodes, 2] milli-cores and bytes for scores: as `used`, with kube-scheduler's defaults for missing requests."""
    unevictable_used: Ints
    """[nodes, resources] the part of `used` that belongs to pods which are never evicted (DaemonSet and mirror
    pods)."""
    pods: Mapping[str, PodInfo]
    """All known pods by `namespace/name`: pending pods, bound pods, and finished pods that name a gang."""
    pending: tuple[PodInfo, ...]
    """Pods that koordpy is to place (`PodInfo.pending`)."""
    members: Mapping[GangRef, tuple[PodInfo, ...]]
    """Gang -> all known pods that name it."""
    pasts: Mapping[GangRef, GangPast]
    """Gang -> facts about it that its existing pods do not show; only gangs with such facts."""
    linkers: tuple[GangRef, ...]
    """Gangs with a `groups` annotation on their object or on one of their pods."""
    selectors: Mapping[str, Mapping[str, int]]
    """Value of the annotation network-topology-selector -> node name -> number of bound pods with the value."""
    pod_groups: Mapping[str, PodGroup]
    """`namespace/name` -> PodGroup of coscheduling, without PodGroups that are ignored."""
    upstream_groups: Mapping[str, UpstreamPodGroup]
    """`namespace/name` -> PodGroup of scheduling.k8s.io."""
    made_groups: Mapping[GangRef, tuple[UpstreamPodGroup, ...]]
    """Gang -> PodGroups of scheduling.k8s.io that controllers created by default for its pods."""
    passed_groups: frozenset[str]
    """`namespace/name` of upstream PodGroups with all pods in other gangs; they are not gangs themselves."""
    quotas: Quotas
    """ElasticQuotas and users, and their used amounts."""
    classes: Mapping[PodClass, Mapping[tuple[str, bool], int]]
    """Class of pods with equal namespace and labels -> (node name, True if being deleted) -> number of bound pods."""
    looked_for: frozenset[str]
    """Label keys by which `classes` distinguishes pods."""
    terms: Mapping[TermClass, Mapping[str, int]]
    """Pod affinity terms -> node name -> number of bound pods with these terms."""
    ports: Mapping[tuple[str, int], Mapping[tuple[str, str], int]]
    """(protocol, host port) -> (node name, address) -> number of bound pods that use it."""
    reservations: Mapping[str, Reservation]
    """Key of a pod that waits for capacity on its node -> its reservation."""
    storage: VolumeObjects
    """Volumes, volume claims, and the other storage objects."""
    owners: Owners
    """Services and controllers; empty unless default spread constraints need them."""
    claim_users: Mapping[str, Mapping[str, int]]
    """Volume claim (`namespace/name`) -> node name -> number of bound pods that use the claim."""
    disks: Mapping[Disk, Mapping[tuple[str, bool], int]]
    """Disk that is named in pod specs -> (node name, True if read-only) -> number of bound pods that use the disk."""
    claim_volumes: Mapping[str, ClaimVolume]
    """Volume claim -> the volume and node that an assumed pod binds the claim to."""
    namespaces: Mapping[str, Mapping[str, str]]
    """Namespace -> its labels; only of known namespaces."""
    live: bool = False
    """True for the pods of a real cluster, which controllers recreate after an eviction."""
    static_version: int = 0
    """Changes if labels, taints or images of a node, or the set of nodes change. Verdicts that depend on nothing else
    are cached by this number."""
    capacity_version: int = 0
    """Changes if allocatable amounts, or the set of nodes change."""
    staying_version: int = 0
    """Changes if a DaemonSet or mirror pod is added to a node or removed from it."""
    scheduler_names: frozenset[str] = field(default_factory=frozenset)
    """Values of schedulerName that koordpy schedules."""
    topology_warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of faults of the objects that define the tree; the faulty parts are ignored."""
    topology_fault: str = ""
    """Text on the faults of the ClusterNetworkTopology; empty for none. With faults, its last valid layers are used."""
    node_warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of labels and annotations of nodes that have no effect."""
    families: Mapping[str, FamilyView] = field(default_factory=dict)
    """Device family -> its view of the devices at this moment."""
    readers: AskReaders = field(default_factory=AskReaders)
    """Functions that read the device requests of a pod, by family."""
    lost_nodes: Mapping[str, LostNode] = field(default_factory=dict)
    """Name of a lost node -> its taints and condition that mark it as lost (repair.md 4.1)."""
    broken_since: Mapping[GangRef, float] = field(default_factory=dict)
    """Broken gang -> when this process first found it broken, in seconds since the epoch. Empty offline."""
    returning: tuple[ReturningPod, ...] = ()
    """Moved pods for which capacity is reserved until their successors start. Empty offline."""
    keeps_spares: bool = False
    """True if a layer or the label of a node asks for spare nodes (`plugins/spare_nodes.py`)."""
    closed_nodes: ClosedNodes = NOTHING_CLOSED
    """Nodes that lately rejected pods of a request shape, and that take no pods of it for a time (numa.md 8)."""
    budgets: tuple[PodDisruptionBudget, ...] = ()
    """PodDisruptionBudgets in natural order."""
    provisioning_requests: tuple[ProvisioningRequest, ...] = ()
    """ProvisioningRequests in natural order, including those that koordpy did not create."""
    serves_provisioning: bool = True
    """False if the API server does not serve ProvisioningRequests, so that no unit requests nodes by them."""
    priority_classes: tuple[PriorityClass, ...] = ()
    """PriorityClasses in natural order; read only to suggest a higher priority."""
    workload_gangs: Mapping[GangRef, WorkloadGang] = field(default_factory=dict)
    """Gangs that are derived from workloads."""
    unknown_steps: frozenset[GangRef] = frozenset()
    """Gangs of PodGroups of TrainJobs with unknown steps: the operator creates their pods in steps that koordpy cannot
    read."""
    meant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`namespace/name` of a workload -> names of its gangs, only if these differ from the workload's name. A `groups`
    annotation that names the workload means these gangs."""
    evicted_for: EvictedFor = field(default_factory=dict)
    """Id of a unit -> ids of the units for which it was evicted in the last hour (preemption.md 3.6)."""
    memo: dict[type, object] = field(default_factory=dict, compare=False, repr=False)
    """Values that other packages derive from the snapshot, cached by type."""

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Node name -> position in the node arrays."""
        return self.tree.index

    @property
    def closes_nodes(self) -> bool:
        """True if the filter NodeRepair may refuse a node. False in most rounds, so that the filter is skipped."""
        return bool(self.lost_nodes) or self.keeps_spares or self.closed_nodes is not NOTHING_CLOSED

    @cached_property
    def offered_resources(self) -> tuple[str, ...]:
        """Resources with an allocatable amount above 0 on at least one node."""
        return tuple(name for name, column in self.columns.items() if self.allocatable[:, column].any())

    @property
    def name_rank(self) -> Ints:
        """Position of each node in the natural order of names."""
        return self.tree.name_rank

    @cached_property
    def pods_on(self) -> Mapping[str, tuple[PodInfo, ...]]:
        """Node name -> bound pods on it; computed at the first request, for checks that need each pod."""
        out: dict[str, list[PodInfo]] = {}
        for pod in self.pods.values():
            if pod.bound:
                out.setdefault(pod.node, []).append(pod)
        return {name: tuple(pods) for name, pods in out.items()}

    @cached_property
    def csi_uses(self) -> Mapping[str, Counter[CsiVolume]]:
        """Node name -> CSI volume -> number of bound pods on the node that use it."""
        out: dict[str, Counter[CsiVolume]] = {}
        for claim, places in self.claim_users.items():
            promise = self.claim_volumes.get(claim)
            volume = self.storage.csi_volume(claim, promise.volume if promise is not None else "")
            if volume is not None:
                for node, count in places.items():
                    out.setdefault(node, Counter())[volume] += count
        return out

    def vector(self, requests: Amounts) -> tuple[tuple[int, int], ...]:
        """Returns (column, amount) of each resource of a pod's request. The first pair is (0, 1), because column 0
        counts pods."""
        return ((0, 1), *((self.columns[name], amount) for name, amount in requests.items()))

    def requests_of(self, pods: Iterable[PodInfo]) -> Ints:
        """Returns [resources], the sum of the requests of pods; column 0 is the number of pods."""
        out = np.zeros(self.allocatable.shape[1], dtype=np.int64)
        for pod in pods:
            for column, amount in self.vector(pod.requests):
                out[column] += amount
        return out
