"""The cluster as it changes: objects come in, Snapshots go out.

The one place that accounts pods to nodes, whoever scheduled them, and our own assumed pods before their Bindings are
confirmed (kube-parity.md 2.2, 4.2). Cheap per event: one pod's figures are taken off and put on; arrays are made for a
snapshot, and only rows of nodes that changed are written anew.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from koordpy.api import keys
from koordpy.api.config import Gpu
from koordpy.api.dra import DEVICE_KINDS, Allocation, ResourceClaim
from koordpy.api.hypernodes import HyperNode
from koordpy.api.natural import natural_key
from koordpy.api.objects import (
    ClusterNetworkTopology,
    ConfigMap,
    Device,
    ElasticQuota,
    Namespace,
    Node,
    ObjectMeta,
    Pod,
    PodDisruptionBudget,
    PodGroup,
    UpstreamPodGroup,
    Wire,
)
from koordpy.api.owners import OWNER_KINDS
from koordpy.api.quantity import MAX_SUM
from koordpy.api.storage import (
    STORAGE_KINDS,
    PersistentVolume,
    PersistentVolumeClaim,
    bind_static,
    select_node,
)
from koordpy.cluster.devices import DeviceBook, DeviceId
from koordpy.cluster.foreseen import Foreseen
from koordpy.cluster.gpu_book import GpuBook
from koordpy.cluster.hypernodes import HyperNodeFault, read_hypernodes
from koordpy.cluster.npus import NpuBook, npu_resource
from koordpy.cluster.owners import OwnerBook
from koordpy.cluster.pods import GangRef, GangSource, PodInfo, in_group, pod_info, shape_of
from koordpy.cluster.quotas import QuotaBook, Quotas
from koordpy.cluster.resources import Amounts, node_allocatable
from koordpy.cluster.snapshot import PODS, UNSCHEDULABLE_TAINT, Ints, NodeInfo, Snapshot
from koordpy.cluster.tally import Tally
from koordpy.cluster.ties import PodClass, TermClass, pod_class, selected_keys
from koordpy.cluster.topology import FLAT, Layers, TopologyFault, read_layers
from koordpy.cluster.tree import Tree, build_tree
from koordpy.cluster.volumes import Disk, Promise, VolumeBook, claim_key, disks_of


class _Use:
    """What the pods of one node hold."""

    __slots__ = ("cpu", "memory", "pods", "used")

    def __init__(self) -> None:
        self.used: Amounts = {}
        self.pods: set[str] = set()
        self.cpu = 0
        self.memory = 0


class ClusterState:
    """Typed wire objects in (`upsert`, `delete`), `snapshot` out. Not thread-safe: one owner."""

    def __init__(
        self,
        *,
        scheduler_names: Collection[str] = (keys.DEFAULT_SCHEDULER_NAME,),
        storage: bool = False,
        devices: bool = False,
        owners: bool = False,
        gpu: Gpu | None = None,
    ) -> None:
        """storage, devices: whether claims, volumes and their like, and resource claims and slices, are given.

        Without them pods that need them are refused. owners: whether services and controllers are, by which default
        constraints spread pods. gpu: how GPUs are counted and their links are read.
        """
        self._gpus = GpuBook(gpu or Gpu())
        self._chips: dict[str, tuple[int, ...]] = {}
        """Assumed pod -> GPUs (minors) or NPUs of its node that it is given."""
        self._noted: dict[str, tuple[Pod, Mapping[str, str]]] = {}
        """Assumed NPU pod -> as the cluster knows it, and what its Binding says beside."""
        self.scheduler_names = frozenset(scheduler_names)
        self.layers: Layers = FLAT
        self.topology: ClusterNetworkTopology | None = None
        self.topology_faults: list[TopologyFault] = []
        self.hypernode_faults: tuple[HyperNodeFault, ...] = ()
        """Of the HyperNodes, as far as the tree is made of them."""
        self._hypernodes: dict[str, HyperNode] = {}
        self._nodes: dict[str, NodeInfo] = {}
        self._pods: dict[str, PodInfo] = {}
        self._pending: dict[str, PodInfo] = {}
        self._assumed: dict[str, str] = {}
        self._use: dict[str, _Use] = {}
        self._members: dict[GangRef, dict[str, PodInfo]] = {}
        self._views: dict[GangRef, tuple[PodInfo, ...]] = {}
        """What snapshots show of `_members`; only gangs in `_changed_gangs` are written anew."""
        self._changed_gangs: set[GangRef] = set()
        self._selectors: dict[str, dict[str, int]] = {}
        self._classes: Tally[PodClass, tuple[str, bool]] = Tally()
        self._terms: Tally[TermClass, str] = Tally()
        self._ports: Tally[tuple[str, int], tuple[str, str]] = Tally()
        self._claim_users: Tally[str, str] = Tally()
        self._disks: Tally[Disk, tuple[str, bool]] = Tally()
        self._storage = VolumeBook() if storage else None
        self._devices = DeviceBook() if devices else None
        self._owners = OwnerBook() if owners else None
        self._npus = NpuBook()
        self._promised: dict[str, Mapping[str, Promise]] = {}
        """Assumed pod -> claim -> what it takes."""
        self._promised_devices: dict[str, Mapping[str, tuple[tuple[str, DeviceId], ...]]] = {}
        """Assumed pod -> resource claim -> (request, device) that it is allocated."""
        self._nominated: dict[str, PodInfo] = {}
        self._foreseen = Foreseen()
        self._looked_for: set[str] = set()
        self._groups: dict[str, PodGroup] = {}
        self._upstream: dict[str, UpstreamPodGroup] = {}
        self.quotas = QuotaBook()
        self._capacity_marks = 0
        self._total: Amounts | None = None
        """Allocatable of all nodes that are not being deleted; None while it has to be summed anew."""
        self._linkers: dict[tuple[str, str], GangRef] = {}
        """(what, key) of an object or pod with a `groups` annotation -> its gang."""
        self._namespaces: dict[str, dict[str, str]] = {}
        self._others: dict[tuple[type[Wire], str], Wire] = {}
        self._columns: dict[str, int] = {PODS: 0}
        self._static_version = 0
        self._capacity_version = 0
        self._tree: Tree | None = None
        self._rows: tuple[Ints, Ints, Ints] | None = None
        self._touched: set[str] = set()

    # -- objects in ---------------------------------------------------------------------------------------------------

    def upsert(self, obj: Wire) -> None:
        """Takes an object as it is now. Raises ValueError where a quantity cannot be read; nothing changes then."""
        handler = self._UPSERT.get(type(obj))
        if handler is not None:
            handler(self, obj)
        elif self._storage is not None and type(obj) in STORAGE_KINDS:
            self._storage.put(_object_key(obj), obj)
        elif self._devices is not None and type(obj) in DEVICE_KINDS:
            self._devices.put(_object_key(obj), obj)
        elif self._owners is not None and type(obj) in OWNER_KINDS:
            self.look_for(self._owners.put(_object_key(obj), obj))
        else:
            self._others[type(obj), _object_key(obj)] = obj

    def delete(self, kind: type[Wire], key: str) -> None:
        """Forgets an object; key is `namespace/name`, or a cluster-scoped name. An unknown one is no fault."""
        handler = self._DELETE.get(kind)
        if handler is not None:
            handler(self, key)
        elif self._storage is not None and kind in STORAGE_KINDS:
            self._storage.drop(kind, key)
        elif self._devices is not None and kind in DEVICE_KINDS:
            self._devices.drop(kind, key)
        elif self._owners is not None and kind in OWNER_KINDS:
            self._owners.drop(kind, key)
        else:
            self._others.pop((kind, key), None)

    def get(self, kind: type[Wire], key: str) -> Wire | None:
        """An object of a kind that no index is kept of, or one of storage."""
        if self._storage is not None and kind in STORAGE_KINDS:
            return self._storage.get(kind, key)
        if self._devices is not None and kind in DEVICE_KINDS:
            return self._devices.get(kind, key)
        if self._owners is not None and kind in OWNER_KINDS:
            return self._owners.get(kind, key)
        return self._others.get((kind, key))

    def _upsert_node(self, node: Node) -> None:
        info = NodeInfo(
            name=node.metadata.name,
            labels=node.metadata.labels,
            taints=tuple(node.spec.taints) + ((UNSCHEDULABLE_TAINT,) if node.spec.unschedulable else ()),
            unschedulable=node.spec.unschedulable,
            allocatable=node_allocatable(node),
            images=tuple((tuple(image.names), image.size_bytes) for image in node.status.images),
            node=node,
        )
        old = self._nodes.get(info.name)
        self._nodes[info.name] = info
        if old is None or old.allocatable != info.allocatable or old.going != info.going:
            self._total = None
            self._capacity_marks += 1
        self._npus.put_node(node)
        self._gpus.put_node(node)
        if old is None or old.labels != info.labels:
            self._tree = None
        if old is None or old.allocatable != info.allocatable:
            self._rows = None
            self._capacity_version += 1
        if old is None or (old.labels, old.taints, old.images) != (info.labels, info.taints, info.images):
            self._rows = None
            self._static_version += 1

    def _delete_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._total = None
            self._capacity_marks += 1
            self._npus.drop_node(name)
            self._gpus.drop_node(name)
            self._tree = None
            self._rows = None
            self._static_version += 1
            self._capacity_version += 1

    def _upsert_pod(self, pod: Pod, *, seen: bool = True) -> None:
        """seen: at the API server; else the pod is as it is foreseen already."""
        if seen and self._foreseen:
            pod = self._foreseen.applied(pod)
        key = pod.key
        old = self._pods.get(key)
        same = old is not None and old.uid == pod.metadata.uid
        assumed = self._assumed.get(key, "") if same and not pod.spec.node_name else ""
        if pod.spec.affinity is not None or pod.spec.topology_spread_constraints:
            self.look_for(selected_keys(pod))
        if not assumed:
            self._noted.pop(key, None)
        elif key in self._noted:
            self._noted[key] = pod, self._noted[key][1]
            pod = annotated(pod, self._noted[key][1])
        info = pod_info(
            pod,
            scheduler_names=self.scheduler_names,
            assumed_node=assumed,
            looked_for=self._looked_for,
            owned=self._owners is not None,
            gpu_resources=self._gpus.config.resources,
        )
        if info.gang is not None and info.gang.source is GangSource.UPSTREAM:
            info = in_group(info, self._group_priority(info.gang))
        if not assumed:
            self._assumed.pop(key, None)
            self._chips.pop(key, None)
        if old is not None:
            self._remove(old)
        if info.finished:
            self._assumed.pop(key, None)
            if info.gang is None:
                self._pods.pop(key, None)
                return
        self._add(info)

    def look_for(self, label_keys: Iterable[str]) -> None:
        """Takes in label keys that selectors look at pods by: pods that differ in one are told apart from now on.

        Pods' own selectors are read as they come; those of the configuration must be given. Grows only, and seldom.
        """
        new = set(label_keys) - self._looked_for
        if not new:
            return
        self._looked_for |= new
        self._classes = Tally()
        for info in self._pods.values():
            if info.bound:
                self._classify(info, 1)
        for info in list(self._pending.values()):
            if not new.isdisjoint(info.pod.metadata.labels):
                owned = self._owners is not None
                shape = shape_of(info.pod, info.requests, self._looked_for, owned=owned, gpus=info.gpus)
                self._file(in_group(replace(info, shape=shape, group_priority=None), info.group_priority))

    def _delete_pod(self, key: str) -> None:
        old = self._pods.pop(key, None)
        self._assumed.pop(key, None)
        if old is not None:
            self._foreseen.forget(old.uid)
            self._remove(old)
        self._chips.pop(key, None)

    def _add(self, info: PodInfo) -> None:
        self._file(info)
        if info.bound:
            self._account(info, 1)
        elif info.pending:
            self.quotas.wait(info, 1)

    def _file(self, info: PodInfo) -> None:
        """Puts a pod into the indexes; one that is known keeps its place in every order."""
        self._pods[info.key] = info
        if info.gang is not None:
            self._members.setdefault(info.gang, {})[info.key] = info
            self._changed_gangs.add(info.gang)
            if info.gang.source is GangSource.NAMED and keys.GANG_GROUPS in info.pod.metadata.annotations:
                self._linkers["pod", info.key] = info.gang
        if info.pending:
            self._pending[info.key] = info
        if info.pod.status.nominated_node_name and info.nominated_node:
            self._nominated[info.key] = info

    def _remove(self, info: PodInfo) -> None:
        self._pending.pop(info.key, None)
        if self._nominated:
            self._nominated.pop(info.key, None)
        if info.gang is not None:
            self._linkers.pop(("pod", info.key), None)
            self._changed_gangs.add(info.gang)
            members = self._members.get(info.gang)
            if members is not None:
                members.pop(info.key, None)
                if not members:
                    del self._members[info.gang]
        if info.bound:
            self._account(info, -1)
        elif info.pending:
            self.quotas.wait(info, -1)

    def _classify(self, info: PodInfo, sign: int) -> None:
        deleting = info.pod.metadata.deletion_timestamp is not None
        self._classes.add(pod_class(info.pod, self._looked_for), (info.node, deleting), sign)

    def _account(self, info: PodInfo, sign: int) -> None:
        use = self._use.get(info.node)
        if use is None:
            use = self._use[info.node] = _Use()
        used = use.used
        for name, amount in info.requests.items():
            used[name] = used.get(name, 0) + sign * amount
        use.cpu += sign * info.score_requests[0]
        use.memory += sign * info.score_requests[1]
        if sign > 0:
            use.pods.add(info.key)
        else:
            use.pods.discard(info.key)
            if not use.pods:
                del self._use[info.node]
        self._touched.add(info.node)
        self._npus.account(info, sign)
        selector = info.selector
        if selector:
            counts = self._selectors.setdefault(selector, {})
            counts[info.node] = counts.get(info.node, 0) + sign
            if not counts[info.node]:
                del counts[info.node]
        self._classify(info, sign)
        if sign > 0:
            self._gpus.hold(info.pod, info.key, info.node, self._chips.get(info.key))
        else:
            self._gpus.release(info.pod, info.key, info.node)
        ties = info.ties
        if ties is not None:
            if ties.affinity:
                self._terms.add(TermClass(info.namespace, ties.affinity), info.node, sign)
            for volume in ties.volumes:
                key = claim_key(info.namespace, info.name, volume)
                if key:
                    self._claim_users.add(key, info.node, sign)
                for disk, read_only in disks_of(volume):
                    self._disks.add(disk, (info.node, read_only), sign)
            for port in ties.ports:
                self._ports.add((port.protocol, port.port), (info.node, port.address), sign)
        self.quotas.account(info, sign)

    def _upsert_topology(self, obj: ClusterNetworkTopology) -> None:
        if obj.metadata.name != keys.TOPOLOGY_OBJECT:
            return
        layers, faults = read_layers(obj)
        self.topology, self.topology_faults = obj, faults
        if layers is not None and layers != self.layers:
            self.layers = layers
            self._tree = None
        elif layers is not None and self._tree is not None and not self._tree.has_object:
            self._tree = None

    def _delete_topology(self, name: str) -> None:
        if name == keys.TOPOLOGY_OBJECT:
            self.topology, self.topology_faults, self.layers, self._tree = None, [], FLAT, None

    def _upsert_hypernode(self, obj: HyperNode) -> None:
        self._hypernodes[obj.metadata.name] = obj
        self._hypernodes_changed()

    def _delete_hypernode(self, name: str) -> None:
        self._hypernodes.pop(name, None)
        self._hypernodes_changed()

    def _hypernodes_changed(self) -> None:
        if self.topology is None:
            self._tree = None

    def _upsert_group(self, group: PodGroup) -> None:
        self._groups[_object_key(group)] = group
        self._link(GangSource.GROUP, group.metadata)

    def _delete_group(self, key: str) -> None:
        self._groups.pop(key, None)
        self._linkers.pop((GangSource.GROUP.value, key), None)

    def _upsert_upstream(self, group: UpstreamPodGroup) -> None:
        self._upstream[_object_key(group)] = group
        self._link(GangSource.UPSTREAM, group.metadata)
        self._rank_members(_object_key(group))

    def _delete_upstream(self, key: str) -> None:
        self._upstream.pop(key, None)
        self._linkers.pop((GangSource.UPSTREAM.value, key), None)
        self._rank_members(key)

    def _group_priority(self, ref: GangRef) -> int | None:
        group = self._upstream.get(ref.key)
        return group.spec.priority if group is not None else None

    def _rank_members(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        ref = GangRef(namespace, name, GangSource.UPSTREAM)
        priority = self._group_priority(ref)
        for info in list(self._members.get(ref, {}).values()):
            if info.group_priority != priority:
                self._file(in_group(info, priority))

    def _link(self, source: GangSource, meta: ObjectMeta) -> None:
        ref = GangRef(meta.namespace, meta.name, source)
        if keys.GANG_GROUPS in meta.annotations:
            self._linkers[source.value, ref.key] = ref
        else:
            self._linkers.pop((source.value, ref.key), None)

    def _upsert_quota(self, quota: ElasticQuota) -> None:
        self.quotas.put(_object_key(quota), quota)

    def _delete_quota(self, key: str) -> None:
        self.quotas.drop(key)

    def _upsert_config_map(self, config_map: ConfigMap) -> None:
        self._npus.put_config_map(config_map)

    def _delete_config_map(self, key: str) -> None:
        self._npus.drop_config_map(key)

    def _upsert_device(self, device: Device) -> None:
        self._gpus.put_device(device)

    def _delete_device(self, name: str) -> None:
        self._gpus.drop_device(name)

    def _upsert_namespace(self, namespace: Namespace) -> None:
        self._namespaces[namespace.metadata.name] = namespace.metadata.labels

    def _delete_namespace(self, name: str) -> None:
        self._namespaces.pop(name, None)

    _UPSERT: ClassVar[dict[type[Wire], Callable[["ClusterState", Any], None]]] = {
        Node: _upsert_node,
        Pod: _upsert_pod,
        ClusterNetworkTopology: _upsert_topology,
        HyperNode: _upsert_hypernode,
        PodGroup: _upsert_group,
        UpstreamPodGroup: _upsert_upstream,
        ElasticQuota: _upsert_quota,
        Namespace: _upsert_namespace,
        ConfigMap: _upsert_config_map,
        Device: _upsert_device,
    }
    _DELETE: ClassVar[dict[type[Wire], Callable[["ClusterState", str], None]]] = {
        Node: _delete_node,
        Pod: _delete_pod,
        ClusterNetworkTopology: _delete_topology,
        HyperNode: _delete_hypernode,
        PodGroup: _delete_group,
        UpstreamPodGroup: _delete_upstream,
        ElasticQuota: _delete_quota,
        Namespace: _delete_namespace,
        ConfigMap: _delete_config_map,
        Device: _delete_device,
    }

    # -- assumed pods -------------------------------------------------------------------------------------------------

    def assume(
        self,
        key: str,
        node: str,
        claims: Mapping[str, str] | None = None,
        devices: Mapping[str, tuple[tuple[str, DeviceId], ...]] | None = None,
        chips: tuple[int, ...] = (),
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Counts a pending pod as bound to a node until the watch confirms it or `forget` takes it back.

        claims: claim -> volume that it takes, empty for one that is to be provisioned on the node; devices: resource
        claim -> what it is allocated; chips: GPUs (minors) or NPUs of the node that it is given; annotations: what its
        Binding says, which later plans read of NPU pods.

        Raises KeyError for an unknown pod and ValueError for one that has a node already.
        """
        info = self._pods[key]
        if info.node:
            raise ValueError(f"{key} has node {info.node} already")
        self._remove(info)
        self._assumed[key] = node
        if claims:
            self._promised[key] = {claim: Promise(volume, node) for claim, volume in claims.items()}
        if devices:
            self._promised_devices[key] = devices
        if chips:
            self._chips[key] = chips
        if annotations and npu_resource(info.requests) is not None:
            self._noted[key] = info.pod, annotations
            info = replace(info, pod=annotated(info.pod, annotations))
        self._add(replace(info, node=node, pending=False))

    def foresee_nomination(self, key: str, node: str) -> None:
        """A pending pod is being nominated to a node (to none: empty): its room is kept from now on."""
        if key in self._pods:
            self._upsert_pod(self._foreseen.nominate(self._bare(key), node), seen=False)

    def foresee_end(self, key: str, timestamp: str) -> None:
        """A bound pod is being evicted and will be gone about then (RFC 3339)."""
        if key in self._pods:
            self._upsert_pod(self._foreseen.end(self._bare(key), timestamp), seen=False)

    def unforesee(self, key: str, uid: str) -> None:
        """What was foreseen of a pod did not happen."""
        pod, info = self._foreseen.forget(uid), self._pods.get(key)
        if pod is not None and info is not None and info.uid == uid:
            self._upsert_pod(pod, seen=False)

    def _bare(self, key: str) -> Pod:
        """A pod without what its Binding will say."""
        noted = self._noted.get(key)
        return noted[0] if noted is not None else self._pods[key].pod

    def someone_leaves(self, node: str) -> bool:
        """Whether a pod on a node is being deleted."""
        use = self._use.get(node)
        return use is not None and any(self._pods[key].pod.metadata.deletion_timestamp for key in use.pods)

    def nominated(self) -> list[PodInfo]:
        """Pods that room is kept for."""
        return list(self._nominated.values())

    def forget(self, key: str) -> None:
        """Takes an assumption back; a pod that is gone or confirmed is left as it is."""
        self._promised.pop(key, None)
        self._promised_devices.pop(key, None)
        if self._assumed.pop(key, None) is None:
            return
        pod = self._bare(key)
        self._noted.pop(key, None)
        # it shows already what is foreseen of it
        self._upsert_pod(pod, seen=False)

    def is_promised(self, claim: str) -> bool:
        """Whether an assumed pod has the say over what a claim takes."""
        return any(claim in taken for key, taken in self._promised.items() if key in self._assumed)

    def allocation(self, claim: ResourceClaim, node: str, taken: tuple[tuple[str, DeviceId], ...]) -> Allocation:
        """What a resource claim that takes devices for a node is allocated."""
        assert self._devices is not None
        return self._devices.allocation(claim, node, taken)

    @property
    def allocated_devices(self) -> frozenset[DeviceId]:
        """Devices that resource claims hold."""
        return self._devices.view().allocated if self._devices is not None else frozenset()

    def is_device_promised(self, claim: str) -> bool:
        """Whether an assumed pod has the say over what a resource claim is allocated."""
        return any(claim in taken for key, taken in self._promised_devices.items() if key in self._assumed)

    def device(self, name: str) -> Device | None:
        """The Device of a node."""
        return self._gpus.device(name)

    def gpus_taken(self, node: str, chips: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether GPUs (minors) that pods are given on a node are others' by now, sick or gone."""
        return self._gpus.taken(node, chips)

    def npus_taken(self, node: str, resource: str, chips: Mapping[str, tuple[int, ...]], *, several: bool) -> bool:
        """The same of NPUs; several: the pods are members of a job of several NPU pods."""
        return self._npus.taken(node, resource, chips, several=several)

    def assumed_node(self, key: str) -> str | None:
        """Node an unconfirmed pod is assumed on."""
        return self._assumed.get(key)

    def least_assumed(self) -> int | None:
        """The lowest priority of the pods that are assumed; None without any."""
        return min((self._pods[key].priority for key in self._assumed), default=None)

    def bind(
        self,
        key: str,
        node: str,
        annotations: dict[str, str] | None = None,
        claims: Mapping[str, str] | None = None,
        devices: Mapping[str, tuple[tuple[str, DeviceId], ...]] | None = None,
    ) -> None:
        """What a confirmed Binding does to the pod: nodeName and annotations in one step (offline runs).

        Its claims are bound to the volumes they take; one that is to be provisioned keeps the node it is made for.
        Its resource claims are allocated the devices, and reserved for it.
        """
        if self._devices is not None:
            self._devices.allocate(self._pods[key].pod, node, devices or {})
        for claim_name, volume_name in (claims or {}).items():
            claim = self.get(PersistentVolumeClaim, claim_name)
            volume = self.get(PersistentVolume, volume_name) if volume_name else None
            if not isinstance(claim, PersistentVolumeClaim):
                continue
            if isinstance(volume, PersistentVolume):
                bound, taken = bind_static(claim, volume)
                self.upsert(bound)
                self.upsert(taken)
            else:
                self.upsert(select_node(claim, node))
        pod = self._foreseen.shown(self._pods[key].pod)
        spec = _replace(pod.spec, node_name=node)
        self._upsert_pod(annotated(_replace(pod, spec=spec), annotations or {}))

    # -- out ----------------------------------------------------------------------------------------------------------

    def pod(self, key: str) -> PodInfo | None:
        """A known pod by `namespace/name`."""
        return self._pods.get(key)

    def pods(self) -> Iterator[PodInfo]:
        """Every known pod."""
        return iter(self._pods.values())

    def node(self, name: str) -> NodeInfo | None:
        """A known node."""
        return self._nodes.get(name)

    def nodes(self) -> Iterator[NodeInfo]:
        """Every known node."""
        return iter(self._nodes.values())

    def used(self, node: str) -> tuple[int, Amounts]:
        """(pods, amounts) that the pods on a node hold, assumed ones included. Not a copy."""
        use = self._use.get(node)
        return (len(use.pods), use.used) if use is not None else (0, {})

    def hypernodes(self) -> Iterator[HyperNode]:
        """Every HyperNode, whether or not the tree is made of them."""
        return iter(self._hypernodes.values())

    def pod_group(self, key: str) -> PodGroup | None:
        """A PodGroup by `namespace/name`."""
        return self._groups.get(key)

    def upstream_group(self, key: str) -> UpstreamPodGroup | None:
        """A scheduling.k8s.io PodGroup by `namespace/name`."""
        return self._upstream.get(key)

    def upstream_groups(self) -> dict[str, UpstreamPodGroup]:
        """Every scheduling.k8s.io PodGroup by `namespace/name`."""
        return dict(self._upstream)

    def pod_groups(self) -> dict[str, PodGroup]:
        """Every PodGroup by `namespace/name`."""
        return dict(self._groups)

    def members(self, ref: GangRef) -> tuple[PodInfo, ...]:
        """Every known pod that names the gang."""
        return tuple(self._members.get(ref, {}).values())

    @property
    def sizes(self) -> dict[str, int]:
        """Number of nodes, pods and assumed pods held (scheduler_cache_size)."""
        return {"nodes": len(self._nodes), "pods": len(self._pods), "assumed_pods": len(self._assumed)}

    @property
    def tree(self) -> Tree:
        """The topology tree of the nodes as they are now."""
        if self._tree is None:
            labels = {name: info.labels for name, info in self._nodes.items()}
            self.hypernode_faults = ()
            if self.topology is None:
                self.layers = FLAT
                if self._hypernodes:
                    self.layers, self.hypernode_faults = read_hypernodes(self._hypernodes, labels)
            has_object = self.topology is not None or bool(self._hypernodes)
            self._tree = build_tree(self.layers, labels, has_object=has_object)
            if has_object:
                self._tree.graph()  # checks it
            self._rows = None
            self._static_version += 1
        return self._tree

    def snapshot(self, now: float) -> Snapshot:
        """The picture of this moment; `now` in seconds since the epoch."""
        tree = self.tree
        for info in (*self._pending.values(), *self._nominated.values()):
            for name in info.requests:
                self._columns.setdefault(name, len(self._columns))
        allocatable, used, score_used = self._arrays(tree)
        return Snapshot(
            now=now,
            nodes=tuple(self._nodes[name] for name in tree.node_names),
            tree=tree,
            columns=dict(self._columns),
            allocatable=allocatable,
            used=used.copy(),
            score_used=score_used.copy(),
            pods=self._pods.copy(),
            pending=tuple(self._pending.values()),
            members=self._member_views(),
            linkers=tuple(dict.fromkeys(self._linkers.values())),
            selectors={value: dict(counts) for value, counts in self._selectors.items() if counts},
            pod_groups=dict(self._groups),
            upstream_groups=dict(self._upstream),
            quotas=self.quota_view(),
            classes=self._classes.frozen(),
            looked_for=frozenset(self._looked_for),
            terms=self._terms.frozen(),
            ports=self._ports.frozen(),
            nominated=tuple(self._nominated.values()),
            storage=self._storage.view() if self._storage is not None else None,
            devices=self._devices.view() if self._devices is not None else None,
            owners=self._owners.view() if self._owners is not None else None,
            claim_users=self._claim_users.frozen(),
            disks=self._disks.frozen(),
            promised=self._promises(),
            promised_devices=self._device_promises(),
            gpus=self._gpus.view(),
            namespaces=dict(self._namespaces),
            npus=self._npus.view(),
            static_version=self._static_version,
            capacity_version=self._capacity_version,
            scheduler_names=self.scheduler_names,
            topology_warnings=tuple(
                (f"HyperNode/{fault.name}", f"{fault.field}: {fault.text}") for fault in self.hypernode_faults
            ),
            budgets=self.disruption_budgets(),
        )

    def quota_view(self) -> Quotas:
        """Quotas and users as they are now."""
        return self.quotas.view(self._capacity())

    @property
    def quota_marks(self) -> object:
        """Equal for as long as nothing changed that figures of quotas depend on."""
        return self.quotas.version, self._capacity_marks

    def _capacity(self) -> Amounts:
        """Allocatable of all nodes that are not being deleted, cordoned ones too (quota-fairness.md 4)."""
        if self._total is None:
            self._total = {}
            for node in self._nodes.values():
                if not node.going:
                    for name, amount in node.allocatable.items():
                        self._total[name] = self._total.get(name, 0) + amount
        return self._total

    def disruption_budgets(self) -> tuple[PodDisruptionBudget, ...]:
        """Every PodDisruptionBudget in natural order."""
        found = [obj for obj in self._others.values() if isinstance(obj, PodDisruptionBudget)] if self._others else []
        return tuple(sorted(found, key=lambda obj: natural_key(_object_key(obj))))

    def _promises(self) -> dict[str, Promise]:
        """Claim -> what it takes with a pod that is still assumed."""
        if self._promised:
            self._promised = {key: taken for key, taken in self._promised.items() if key in self._assumed}
        return {claim: promise for taken in self._promised.values() for claim, promise in taken.items()}

    def _device_promises(self) -> dict[str, tuple[tuple[str, DeviceId], ...]]:
        """Resource claim -> (request, device) that it is allocated with a pod that is still assumed."""
        if self._promised_devices:
            held = {key: taken for key, taken in self._promised_devices.items() if key in self._assumed}
            self._promised_devices = held
        return {claim: devices for taken in self._promised_devices.values() for claim, devices in taken.items()}

    def _member_views(self) -> dict[GangRef, tuple[PodInfo, ...]]:
        for ref in self._changed_gangs:
            members = self._members.get(ref)
            if members:
                self._views[ref] = tuple(members.values())
            else:
                self._views.pop(ref, None)
        self._changed_gangs.clear()
        return self._views.copy()

    def _arrays(self, tree: Tree) -> tuple[Ints, Ints, Ints]:
        """(allocatable, used, score_used) in the tree's order; only touched rows are written where the nodes stand."""
        rows = self._rows
        index = tree.index
        todo = [name for name in self._touched if name in index]
        if rows is not None:
            known = len(self._columns)
            for name in todo:
                if name in self._use:
                    for resource in self._use[name].used:
                        self._columns.setdefault(resource, len(self._columns))
            if len(self._columns) != known or rows[0].shape[1] != known:
                rows = None
        if rows is None:
            for info in self._nodes.values():
                for resource in info.allocatable:
                    self._columns.setdefault(resource, len(self._columns))
            for use in self._use.values():
                for resource in use.used:
                    self._columns.setdefault(resource, len(self._columns))
            shape = (len(tree.node_names), len(self._columns))
            rows = (np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64), np.zeros((shape[0], 2), np.int64))
            for i, name in enumerate(tree.node_names):
                for resource, amount in self._nodes[name].allocatable.items():
                    rows[0][i, self._columns[resource]] = amount
            todo = [name for name in self._use if name in index]
            self._rows = rows
        _, used, score_used = rows
        for name in todo:
            i = index[name]
            used[i] = 0
            score_used[i] = 0
            holder = self._use.get(name)
            if holder is None:
                continue
            used[i, 0] = len(holder.pods)
            for resource, amount in holder.used.items():
                used[i, self._columns[resource]] = min(amount, MAX_SUM)
            score_used[i] = min(holder.cpu, MAX_SUM), min(holder.memory, MAX_SUM)
        self._touched.clear()
        return rows


def _object_key(obj: Any) -> str:
    meta = obj.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else str(meta.name)


def annotated(pod: Pod, annotations: Mapping[str, str]) -> Pod:
    """A pod with further annotations."""
    notes = {**pod.metadata.annotations, **annotations}
    changed: Pod = _replace(pod, metadata=_replace(pod.metadata, annotations=notes))
    return changed


def _replace(struct: Any, **changes: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(struct, **changes)
