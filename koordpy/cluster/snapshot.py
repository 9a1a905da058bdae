"""An immutable picture of the cluster, and a Draft on it: a plan's changes, each with its undo."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from koordpy.api.groups import PodGroup, UpstreamPodGroup
from koordpy.api.objects import Node, PodDisruptionBudget, Taint
from koordpy.api.quantity import MAX_SUM
from koordpy.cluster.devices import DeviceId, DeviceObjects, Grant
from koordpy.cluster.ganghistory import Past
from koordpy.cluster.gpu_book import NO_GPUS, GpuView
from koordpy.cluster.npus import Npus
from koordpy.cluster.owners import Owners
from koordpy.cluster.pods import GangRef, PodInfo
from koordpy.cluster.quotas import Quotas, QuotaUse
from koordpy.cluster.reservations import Purpose, Reservation
from koordpy.cluster.resources import Amounts
from koordpy.cluster.ties import PodClass, TermClass
from koordpy.cluster.tree import Tree
from koordpy.cluster.volumes import CsiVolume, Disk, Promise, VolumeObjects
from koordpy.cluster.yields import Yielded
from koordpy.workloads.gangs import Derived

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
    the default weight of containers that ask for nothing.
    """

    now: float
    nodes: tuple[NodeInfo, ...]
    tree: Tree
    columns: Columns
    allocatable: Ints
    used: Ints
    score_used: Ints
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
    devices: DeviceObjects
    owners: Owners
    claim_users: Mapping[str, Mapping[str, int]]
    """Claim -> node name -> bound pods that use it."""
    disks: Mapping[Disk, Mapping[tuple[str, bool], int]]
    """Inline disk -> (node name, read only) -> bound pods that hold it."""
    promised: Mapping[str, Promise]
    """Claim -> what an assumed pod takes for it."""
    namespaces: Mapping[str, Mapping[str, str]]
    """Labels of each namespace that is known."""
    static_version: int = 0
    """Changes when a node's labels, taints or images change, or the set of nodes: what static verdicts depend on."""
    capacity_version: int = 0
    scheduler_names: frozenset[str] = field(default_factory=frozenset)
    promised_devices: Mapping[str, Grant] = field(default_factory=dict)
    """Resource claim -> (request, device) that it is allocated with an assumed pod."""
    topology_warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of what is wrong with the objects that the tree is made of, as far as it is made all the same."""
    topology_fault: str = ""
    """What is wrong with the ClusterNetworkTopology; meanwhile the last good layers count that were seen."""
    node_warnings: tuple[tuple[str, str], ...] = ()
    """(object, text) of what nodes say in vain."""
    npus: Npus = field(default_factory=Npus)
    budgets: tuple[PodDisruptionBudget, ...] = ()
    """PodDisruptionBudgets in natural order."""
    gpus: GpuView = NO_GPUS
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


@dataclass(frozen=True, slots=True)
class KeptClaims:
    """What claims of nominated pods count on. volumes: volume -> claim; devices: device -> resource claim."""

    volumes: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[DeviceId, str] = field(default_factory=dict)


NOTHING_KEPT = KeptClaims()


class Draft:
    """The snapshot with a plan's placements and evictions on top; every change can be undone to a mark."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.used = snapshot.used.copy()
        self.score_used = snapshot.score_used.copy()
        self._cut = frozenset(np.nonzero((snapshot.used >= MAX_SUM).any(axis=1))[0].tolist())
        """Nodes of which only a part of what they hold is counted: nobody's leaving shows there is room."""
        self.placed: dict[str, int] = {}
        """Pod key -> node position, of the pods this draft has placed."""
        self.placed_on: dict[int, dict[str, PodInfo]] = {}
        """Node position -> pods by key, of the pods this draft has placed."""
        self.shunning: dict[str, PodInfo] = {}
        """Of the pods this draft has placed those with required anti-affinity, by key."""
        self.later: dict[str, None] = {}
        """Pods that others were evicted for: those of them that are placed start when these are gone."""
        self.evicted: dict[str, PodInfo] = {}
        self.promised: dict[str, Promise] = dict(snapshot.promised)
        """Claim -> what it takes, of assumed pods and of those this draft has placed."""
        self.taken: dict[str, str] = {p.volume: claim for claim, p in snapshot.promised.items() if p.volume}
        """Volume -> claim that takes it."""
        self.devices: dict[str, Grant] = dict(snapshot.promised_devices)
        """Resource claim -> (request, device) that it is allocated, with assumed pods or by this draft."""
        self.kept: Callable[[PodInfo], KeptClaims] = lambda pod: NOTHING_KEPT
        """What nominated pods keep from the claims of a pod."""
        self.chips: dict[str, tuple[int, ...]] = {}
        """Pod key -> GPUs (minors) or NPUs (numbers) of its node that a pod placed by this draft is given by name."""
        self.quotas = QuotaUse(snapshot.quotas)
        """What quotas and users hold with this draft's changes."""
        self._claims: dict[str, tuple[str, ...]] = {}
        self._allocated: dict[str, tuple[str, ...]] = {}
        self.reservations: Mapping[str, Reservation] = snapshot.reservations
        """Pod without a node -> what is kept for it, before the round and in it: replaced, never changed."""
        self.aside: dict[Purpose, Ints] = {}
        """Purpose -> [nodes, resources] that count as used beside what pods hold."""
        self.version = 0
        """Grows with every change, also with an undo."""
        self._journal: list[Callable[[], None]] = []
        """What takes each change back."""
        self._touched = np.zeros(len(snapshot.nodes), dtype=np.int64)
        """[nodes] the version at which each was changed last."""
        self._last: tuple[int, int] = (-1, -1)
        """(version, node) of the last change of one node."""
        self.changes: list[tuple[PodInfo, int, int]] = []
        """(pod, node position, 1 or -1) in the order that pods came and went."""

    @property
    def keeps_room(self) -> bool:
        """Whether room is promised to any pod."""
        return bool(self.reservations)

    def free(self) -> Ints:
        """[nodes, resources]: allocatable minus used; negative where a node is overcommitted."""
        return np.asarray(self.snapshot.allocatable - self.used)

    def touched_since(self, version: int) -> list[int]:
        """Positions of the nodes that were changed after a version; lets a cache of node figures catch up."""
        if self._last[0] == self.version == version + 1:
            return [self._last[1]]
        found: list[int] = np.nonzero(self._touched > version)[0].tolist()
        return found

    def assign(
        self,
        info: PodInfo,
        node: int,
        claims: Mapping[str, str] | None = None,
        devices: Mapping[str, Grant] | None = None,
        chips: tuple[int, ...] = (),
    ) -> None:
        """Places a pending pod on a node.

        claims: claim -> volume it takes, empty for one to be made; devices: resource claim -> what it is allocated;
        chips: accelerators of the node that it is given by name.
        """
        if info.key in self.placed:
            raise ValueError(f"{info.key} is placed already")
        for claim, volume in (claims or {}).items():
            self.promised[claim] = Promise(volume, self.snapshot.nodes[node].name)
            if volume:
                self.taken[volume] = claim
        if claims:
            self._claims[info.key] = tuple(claims)
        if devices:
            self.devices.update(devices)
            self._allocated[info.key] = tuple(devices)
        if chips:
            self.chips[info.key] = chips
        self._change(info, node, 1)
        self.placed[info.key] = node
        self.placed_on.setdefault(node, {})[info.key] = info
        if info.ties.anti:
            self.shunning[info.key] = info
        self._journal.append(partial(self._unassign, info, node))

    def evict(self, info: PodInfo) -> None:
        if info.key in self.evicted:
            raise ValueError(f"{info.key} is evicted already")
        node = self.snapshot.index.get(info.node, -1)
        self._change(info, node, -1)
        self.evicted[info.key] = info
        self._journal.append(partial(self._unevict, info, node))

    def await_room(self, nodes: Mapping[str, int], behind: frozenset[str] = frozenset()) -> None:
        """Keeps room for pods (key -> node position) that wait until it has come free, or until others have started."""
        self._journal.append(partial(self._reserve, self.reservations))
        names = self.snapshot.nodes
        awaited = {key: Reservation(names[node].name, awaited=True, behind=behind) for key, node in nodes.items()}
        self._reserve({**self.reservations, **awaited})

    def set_aside(self, purpose: Purpose, amounts: Ints) -> None:
        """Counts amounts ([nodes, resources]) as used, in place of what was set aside for that purpose before."""
        self._journal.append(partial(self._set_aside, purpose, self.aside.get(purpose)))
        self._set_aside(purpose, amounts)

    @contextmanager
    def beside(self, purpose: Purpose, amounts: Ints) -> Iterator[None]:
        """Sets amounts aside for as long as this lasts. What is placed meanwhile stays."""
        self._set_aside(purpose, amounts)
        try:
            yield
        finally:
            self._set_aside(purpose, None)

    def by_pods(self, node: int, column: int) -> int:
        """What pods hold of a resource on a node, without what is set aside there."""
        return int(self.used[node, column]) - sum(int(amounts[node, column]) for amounts in self.aside.values())

    def claims(self, key: str) -> dict[str, str]:
        """Claim -> volume that a placed pod takes, empty for one to be made."""
        return {claim: self.promised[claim].volume for claim in self._claims.get(key, ())}

    def allocations(self, key: str) -> dict[str, Grant]:
        """Resource claim -> devices that are allocated with a placed pod."""
        return {claim: self.devices[claim] for claim in self._allocated.get(key, ())}

    def mark(self) -> int:
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Takes back every change since the mark, the latest first."""
        while len(self._journal) > mark:
            self._journal.pop()()

    @contextmanager
    def trial(self, without: Iterable[PodInfo] = ()) -> Iterator[None]:
        """What is done meanwhile is taken back at the end. without: bound pods that are off their nodes till then."""
        mark = self.mark()
        try:
            self.evict_all(without)
            yield
        finally:
            self.undo(mark)

    def evict_all(self, infos: Iterable[PodInfo]) -> None:
        """Takes pods off their nodes, those left out that are off them already."""
        for info in infos:
            if info.key not in self.evicted:
                self.evict(info)

    @contextmanager
    def lifted(self, keys: Iterable[str]) -> Iterator[None]:
        """Pods that this draft has placed are off their nodes till the end."""
        order, pods = tuple(self.placed), self.snapshot.pods
        known = [
            (key, self.placed[key], self.claims(key), self.allocations(key), self.chips.get(key, ())) for key in keys
        ]
        for key, node, *_ in known:
            self._unassign(pods[key], node)
        try:
            yield
        finally:
            for key, node, claims, devices, chips in known:
                self.assign(pods[key], node, claims, devices, chips)
                self._journal.pop()  # it stands there already
            self.placed = {key: self.placed[key] for key in order}

    def _unassign(self, info: PodInfo, node: int) -> None:
        self._change(info, node, -1)
        for claim in self._allocated.pop(info.key, ()):
            del self.devices[claim]
        for claim in self._claims.pop(info.key, ()):
            self.taken.pop(self.promised.pop(claim).volume, None)
        self.chips.pop(info.key, None)
        del self.placed[info.key]
        del self.placed_on[node][info.key]
        self.shunning.pop(info.key, None)

    def _unevict(self, info: PodInfo, node: int) -> None:
        self._change(info, node, 1)
        del self.evicted[info.key]

    def _reserve(self, reservations: Mapping[str, Reservation]) -> None:
        self.version += 1
        self.reservations = reservations

    def _set_aside(self, purpose: Purpose, amounts: Ints | None) -> None:
        self.version += 1
        more = np.zeros_like(self.used)
        if (before := self.aside.pop(purpose, None)) is not None:
            more -= before
        if amounts is not None:
            self.aside[purpose] = amounts
            more += amounts
        self.used += more
        self._touched[more.any(axis=1)] = self.version

    def _change(self, info: PodInfo, node: int, sign: int) -> None:
        self.version += 1
        self.quotas.change(info, sign)
        if node < 0:
            return
        row = self.used[node]
        row[0] += sign
        columns = self.snapshot.columns
        for name, amount in info.requests.items():
            if node not in self._cut or self.snapshot.used[node, columns[name]] < MAX_SUM:
                row[columns[name]] += sign * amount
        cpu, memory = info.score_requests
        self.score_used[node, 0] += sign * cpu
        self.score_used[node, 1] += sign * memory
        self._touched[node] = self.version
        self._last = self.version, node
        self.changes.append((info, node, sign))
