"""An immutable picture of the cluster at one moment: nodes, pods, objects, and the arrays of resources.

A plan's changes on top of it are a `Draft` (`plan_draft.py`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordpy.api.objects import Node, PodDisruptionBudget, Taint
from koordpy.api.pod_groups import PodGroup, UpstreamPodGroup
from koordpy.cache.gang_history import Past
from koordpy.cache.reservations import Reservation
from koordpy.pods.device_asks import AskReaders
from koordpy.pods.family_books import FamilyView
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_owners import Owners
from koordpy.pods.pod_ties import PodClass, TermClass
from koordpy.pods.resource_amounts import Amounts
from koordpy.pods.volume_book import CsiVolume, Disk, Promise, VolumeObjects
from koordpy.quota.preemption_history import Yielded
from koordpy.quota.quota_book import Quotas
from koordpy.topology.topology_tree import Tree
from koordpy.workloads.workload_gangs import Derived

Ints = NDArray[np.int64]

PODS = "pods"
"""Column 0 of every resource array: how many pods a node takes."""

NOWHERE = "~"
"""Column 1: what pods hold, or ask for, of all resources together that no node lists. No node has any of it."""


class Columns(dict[str, int]):
    """Column of each resource in the arrays: one for each that a node lists, one for all others together.

    Names that no node offers, which pods may make up by the thousand, cost nothing that way.
    """

    def __init__(self, resources: Iterable[str] = ()) -> None:
        names = dict.fromkeys((PODS, NOWHERE, *resources))
        super().__init__({name: i for i, name in enumerate(names)})

    def __missing__(self, name: str) -> int:
        return self[NOWHERE]


UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node: what filters and scores look at."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Amounts
    images: tuple[tuple[tuple[str, ...], int], ...]
    """(names, bytes) of each image on the node."""
    node: Node

    @property
    def going(self) -> bool:
        """Whether it is being deleted."""
        return self.node.metadata.deletion_timestamp is not None


@dataclass(frozen=True)
class Snapshot:
    """What is true at one moment. Node arrays are in the tree's depth-first natural order.

    allocatable, used: [nodes, resources], columns as in `columns`; score_used: [nodes, 2], milli-cores and bytes with
    the default weight of containers that ask for nothing. staying: [nodes, resources], what of `used` pods of
    DaemonSets and mirror pods hold.
    """

    now: float
    nodes: tuple[NodeInfo, ...]
    tree: Tree
    columns: Columns
    allocatable: Ints
    used: Ints
    score_used: Ints
    staying: Ints
    pods: Mapping[str, PodInfo]
    """Every known pod by `namespace/name`: pending, bound, and finished ones that name a gang."""
    pending: tuple[PodInfo, ...]
    members: Mapping[GangRef, tuple[PodInfo, ...]]
    """Every known pod that names a gang."""
    pasts: Mapping[GangRef, Past]
    """What is remembered of gangs beyond their pods, of those of which something is."""
    linkers: tuple[GangRef, ...]
    """Gangs whose object, or one of whose pods, carries a `groups` annotation."""
    selectors: Mapping[str, Mapping[str, int]]
    """network-topology-selector value -> node name -> bound pods with it."""
    pod_groups: Mapping[str, PodGroup]
    upstream_groups: Mapping[str, UpstreamPodGroup]
    made_groups: Mapping[GangRef, tuple[UpstreamPodGroup, ...]]
    """Gang -> PodGroups of scheduling.k8s.io that controllers made by default for its pods."""
    passed_groups: frozenset[str]
    """`namespace/name` of those all of whose pods are in other gangs: they are no gangs."""
    quotas: Quotas
    """ElasticQuotas and users, and what they hold."""
    classes: Mapping[PodClass, Mapping[tuple[str, bool], int]]
    """Class by namespace and labels -> (node name, whether being deleted) -> bound pods."""
    looked_for: frozenset[str]
    """Label keys that `classes` tells pods apart by."""
    terms: Mapping[TermClass, Mapping[str, int]]
    """Terms of pod affinity -> node name -> bound pods that have them."""
    ports: Mapping[tuple[str, int], Mapping[tuple[str, str], int]]
    """(protocol, host port) -> (node name, address) -> bound pods that hold it."""
    reservations: Mapping[str, Reservation]
    """Pod without a node -> what is kept for it."""
    storage: VolumeObjects
    owners: Owners
    claim_users: Mapping[str, Mapping[str, int]]
    """Claim -> node name -> bound pods that use it."""
    disks: Mapping[Disk, Mapping[tuple[str, bool], int]]
    """Inline disk -> (node name, read only) -> bound pods that hold it."""
    promised: Mapping[str, Promise]
    """Claim -> what an assumed pod takes for it."""
    namespaces: Mapping[str, Mapping[str, str]]
    """Labels of each namespace that is known."""
    live: bool = False
    """Whether the pods are those of a cluster, with the controllers that would make them again."""
    static_version: int = 0
    """Changes when a node's labels, taints or images change, or the set of nodes: what static verdicts depend on."""
    capacity_version: int = 0
    staying_version: int = 0
    """Changes when a pod of a DaemonSet or a mirror pod comes or goes."""
    scheduler_names: frozenset[str] = field(default_factory=frozenset)
    topology_warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of what is wrong with the objects that the tree is made of, as far as it is made all the same."""
    topology_fault: str = ""
    """What is wrong with the ClusterNetworkTopology; meanwhile the last good layers count that were seen."""
    node_warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of what nodes say in vain."""
    families: Mapping[str, FamilyView] = field(default_factory=dict)
    """Family of devices -> its devices."""
    readers: AskReaders = field(default_factory=AskReaders)
    """What tells which devices a pod asks for."""
    budgets: tuple[PodDisruptionBudget, ...] = ()
    """PodDisruptionBudgets in natural order."""
    derived: Mapping[GangRef, Derived] = field(default_factory=dict)
    """The gangs that follow from workloads."""
    unknown_steps: frozenset[GangRef] = frozenset()
    """Gangs of PodGroups whose pods come one step after the other, nobody knows in which steps."""
    meant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`namespace/name` of a workload -> its gangs, where these have other names."""
    yielded: Yielded = field(default_factory=dict)
    """Unit -> those that it was evicted for lately."""
    memo: dict[type, object] = field(default_factory=dict, compare=False, repr=False)
    """What the rooms above have made of its gangs, to make it once."""

    @cached_property
    def index(self) -> Mapping[str, int]:
        return self.tree.index

    @cached_property
    def offered(self) -> tuple[str, ...]:
        """Resources that some node has."""
        return tuple(name for name, column in self.columns.items() if self.allocatable[:, column].any())

    @property
    def name_rank(self) -> Ints:
        """Position of each node in the natural order of names."""
        return self.tree.name_rank

    @cached_property
    def pods_on(self) -> Mapping[str, tuple[PodInfo, ...]]:
        """Node name -> bound pods on it; made only where a check needs every single pod."""
        out: dict[str, list[PodInfo]] = {}
        for pod in self.pods.values():
            if pod.bound:
                out.setdefault(pod.node, []).append(pod)
        return {name: tuple(pods) for name, pods in out.items()}

    @cached_property
    def csi_uses(self) -> Mapping[str, Counter[CsiVolume]]:
        """Node name -> uses of each CSI volume by the bound pods."""
        out: dict[str, Counter[CsiVolume]] = {}
        for claim, places in self.claim_users.items():
            promise = self.promised.get(claim)
            volume = self.storage.csi_volume(claim, promise.volume if promise is not None else "")
            if volume is not None:
                for node, count in places.items():
                    out.setdefault(node, Counter())[volume] += count
        return out

    def vector(self, requests: Amounts) -> tuple[tuple[int, int], ...]:
        """(column, amount) of a request, one pod in column 0 first."""
        return ((0, 1), *((self.columns[name], amount) for name, amount in requests.items()))

    def asked(self, pods: Iterable[PodInfo]) -> Ints:
        """[resources] what pods ask together, their number first."""
        out = np.zeros(self.allocatable.shape[1], dtype=np.int64)
        for pod in pods:
            for column, amount in self.vector(pod.requests):
                out[column] += amount
        return out
