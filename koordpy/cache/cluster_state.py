# SPDX-License-Identifier: Apache-2.0
"""The cache of the cluster: stores objects as watch events change them, and creates Snapshots for the planner.

It corresponds to kube-scheduler's cache. Each subject (nodes, pods, gangs, quotas, devices) has a class with its
indexes, called book. `ClusterState` passes each object to its book, and combines all books into a Snapshot. Cost: an
event costs O(1) in most books; a Snapshot copies references, and rewrites only the array rows of changed nodes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, cast

from msgspec.structs import replace as changed

from koordpy.api import keys
from koordpy.api.custom_objects import ClusterNetworkTopology, ElasticQuota, HyperNode, ProvisioningRequest
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Namespace, Node, OwnerReference, Pod, PodDisruptionBudget, PriorityClass, Wire
from koordpy.api.pod_groups import PodGroup, UpstreamPodGroup
from koordpy.api.storage_objects import PersistentVolume, PersistentVolumeClaim, bind_static, select_node
from koordpy.cache.expected_pods import annotated
from koordpy.cache.lost_pods import LostPods
from koordpy.cache.node_book import NodeBook
from koordpy.cache.pod_book import PodBook
from koordpy.cache.rejection_book import RejectionBook
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import Gangs, Quota
from koordpy.config.node_failures import Repair
from koordpy.decoding.wire_json import unreadable
from koordpy.pods.family_books import NO_DEVICES, AllocatedDevices, DeviceFamilies, FamilyBook
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.object_book import ObjectBook, W, object_key
from koordpy.pods.pod_info import in_group
from koordpy.pods.pod_owners import label_keys
from koordpy.pods.resource_amounts import NOTHING_CLAIMED, ClaimedAmounts, add_amounts
from koordpy.pods.volume_book import VolumeBook
from koordpy.quota.preemption_history import PreemptionHistory
from koordpy.quota.quota_book import Quotas, card_hundredths
from koordpy.rejections.closed_nodes import NOTHING_CLOSED, ClosedNodes


class ClusterState(PodBook):
    """The cache. Input: Kubernetes objects (`upsert`, `delete`). Output: `snapshot`. Not thread-safe: only one thread
    may use it."""

    def __init__(
        self,
        families: DeviceFamilies,
        *,
        scheduler_names: Collection[str] = (keys.DEFAULT_SCHEDULER_NAME,),
        owners: bool = False,
        quota: Quota | None = None,
        gangs: Gangs | None = None,
        repair: Repair | None = None,
        live: bool = False,
    ) -> None:
        """families: books of the device families (`devices.family_registry`). owners: True if services and controllers
        are stored, because default spread constraints apply to their pods. quota, gangs, repair: sections of the
        configuration; None for the defaults. live: True for the pods of a real cluster, which controllers recreate.
        """
        super().__init__(
            families,
            scheduler_names=frozenset(scheduler_names),
            owned=owners,
            quota=quota or Quota(),
            gangs=gangs or Gangs(),
        )
        self.live = live
        for book in self.families.values():
            book.live = live
        self.nodes = NodeBook(repair)
        self._charged: tuple[str, ...] = ()
        """Keys of the pods with resource claims for devices that quotas count."""
        self.lost_pods = LostPods()
        """Members of gangs on lost nodes, as of the last snapshot or the last update by a caller."""
        self.broken_since: dict[GangRef, float] = {}
        """Broken gang -> when it was first found broken, in seconds since the epoch. The live scheduler fills it."""
        self._storage = VolumeBook()
        self._repair = repair or Repair()
        self.serves_provisioning = True
        """True if the API server serves ProvisioningRequests; the live scheduler sets it to False until that is
        known."""
        self.rejections: RejectionBook | None = None
        """Rejections by kubelets, and the nodes that they close; None before the first."""
        self.preemption_history = PreemptionHistory()
        """Which units were evicted for which other units."""
        # namespace -> labels; (kind, key) -> object of a kind without a book; kind -> book of storage or owners
        self._namespaces: dict[str, dict[str, str]] = {}
        self._others: dict[tuple[type[Wire], str], Wire] = {}
        self._books: dict[type[Wire], ObjectBook[Any]] = {}
        self._handlers: dict[type[Wire], tuple[Callable[[Any], None], Callable[[str], object]]] = {
            Node: (self._put_node, self._drop_node),
            Pod: (self.put_pod if live else self._put_whole_pod, self.drop_pod),
            ClusterNetworkTopology: (self.nodes.put_topology, self.nodes.drop_topology),
            HyperNode: (self.nodes.put_hypernode, self.nodes.drop_hypernode),
            PodGroup: (self.gangs.put_group, partial(self.gangs.drop_group, GangSource.GROUP)),
            UpstreamPodGroup: (self._put_upstream_group, self._drop_upstream_group),
            ElasticQuota: (self.quotas.put, self.quotas.drop),
            Namespace: (self._put_namespace, lambda name: self._namespaces.pop(name, None)),
        }
        """Kind -> (function that stores an object, function that removes an object by its key). Objects of other kinds
        are stored in `_others` without an index."""
        self._family_books = {kind: book for book in self.families.values() for kind in book.kinds}
        for kind, book in self._family_books.items():
            self._handlers[kind] = book.put, partial(book.drop, kind)
        self._shelve(self._storage, self._storage.put)
        if owners:
            self._shelve(self.owners, self._put_owner)

    def _shelve(self, book: ObjectBook[Any], put: Callable[[Any], None]) -> None:
        """Registers a book for all its kinds. put: function that stores an object of one of these kinds."""
        for kind in book.kinds:
            self._books[kind] = book
            self._handlers[kind] = put, partial(book.drop, kind)

    # -- objects in ---------------------------------------------------------------------------------------------------

    def upsert(self, obj: Wire) -> None:
        """Stores the current state of an object. Raises `UnreadableError` if it cannot be read; then nothing
        changes."""
        kind = type(obj)
        handler = self._handlers.get(kind)
        if handler is not None:
            handler[0](obj)
        else:
            self._others[kind, object_key(obj)] = obj

    def delete(self, kind: type[Wire], key: str) -> None:
        """Removes an object; an unknown key is ignored. key: `namespace/name`, or the name of a cluster-scoped
        object."""
        handler = self._handlers.get(kind)
        if handler is not None:
            handler[1](key)
        else:
            self._others.pop((kind, key), None)

    def get(self, kind: type[W], key: str) -> W | None:
        """Returns an object; None if unknown. kind: storage, resource claims, owners, devices, or any kind without a
        book. Pods, nodes, gangs and quotas are found in their books instead."""
        book = self._books.get(kind) or self._family_books.get(kind)
        return book.get(kind, key) if book is not None else cast(W | None, self._others.get((kind, key)))

    def objects_of(self, kind: type[W]) -> Mapping[str, W]:
        """Returns the objects of a kind that a device family stores, by key. Must not be changed."""
        return self._family_books[kind].objects_of(kind)

    def _put_whole_pod(self, pod: Pod) -> None:
        """Stores a pod with all its fields. Offline only: the live watch strips pods, and records failed ones
        itself."""
        if pod.status.phase == "Failed":
            self.record_failed_pod(pod)
        self.put_pod(pod)

    def record_failed_pod(self, pod: Pod) -> bool:
        """Records a Failed pod (with all its fields) if its kubelet rejected it, and returns True then (numa.md 8)."""
        if self.rejections is None:
            self.rejections = RejectionBook(
                self._repair.rejections,
                self.nodes,
                self.usage,
                pod_of=self.pod,
                get=self.get,
                scheduler_names=self.scheduler_names,
                live=self.live,
            )
        return self.rejections.saw(pod)

    def closed_nodes(self, now: float) -> ClosedNodes:
        """Returns the nodes that are closed because their kubelets rejected pods. now: seconds since the epoch."""
        return (self.rejections.update(now) or NOTHING_CLOSED) if self.rejections is not None else NOTHING_CLOSED

    def _put_node(self, node: Node) -> None:
        self.nodes.put(node)
        for book in self.families.values():
            book.put_node(node)

    def _drop_node(self, name: str) -> None:
        self.nodes.drop(name)
        for book in self.families.values():
            book.drop_node(name)

    def _put_namespace(self, namespace: Namespace) -> None:
        self._namespaces[namespace.metadata.name] = namespace.metadata.labels

    def _put_owner(self, obj: Wire) -> None:
        """Stores a service or controller. Its selector may name further label keys of pods."""
        self.owners.put(obj)
        self._look_for(label_keys(obj))

    def _put_upstream_group(self, group: UpstreamPodGroup) -> None:
        """Stores a PodGroup of scheduling.k8s.io, even if a controller created it by default."""
        self.gangs.put_group(group)
        for book in self.families.values():
            book.put_group(group)
        self.workloads.put_made(object_key(group), _owners_by_default(group))
        self._rank_members(object_key(group))

    def _drop_upstream_group(self, key: str) -> None:
        self.gangs.drop_group(GangSource.UPSTREAM, key)
        for book in self.families.values():
            book.drop_group(key)
        self.workloads.put_made(key, ())
        self._rank_members(key)

    def _rank_members(self, key: str) -> None:
        """Applies priority and preemptionPolicy of an upstream PodGroup to its pods, after a change of the group."""
        for info in self.gangs.of_upstream(key):
            if (ranked := in_group(info, *self.gangs.rank_of(info))) is not info:
                self._file(ranked)

    def bind(
        self,
        key: str,
        node: str,
        annotations: dict[str, str] | None = None,
        claims: Mapping[str, str] | None = None,
        devices: AllocatedDevices = NO_DEVICES,
    ) -> None:
        """Changes a pod as a confirmed Binding does, for offline runs: sets nodeName and annotations in one step.

        The pod's volume claims are bound to their volumes; a claim with an empty volume gets the selected node. The
        planned devices are allocated to its resource claims, which are reserved for the pod. devices: device family ->
        allocation.
        """
        for family, book in self.families.items():
            book.bind(self._pods[key].pod, node, devices.get(family))
        for claim_name, volume_name in (claims or {}).items():
            claim = self.get(PersistentVolumeClaim, claim_name)
            volume = self.get(PersistentVolume, volume_name) if volume_name else None
            if claim is None:
                continue
            if volume is not None:
                bound, taken = bind_static(claim, volume)
                self.upsert(bound)
                self.upsert(taken)
            else:
                self.upsert(select_node(claim, node))
        pod = self.expected.bare(self._pods[key].pod)
        spec = changed(pod.spec, node_name=node)
        self.placed(annotated(changed(pod, spec=spec), annotations or {}), node)

    # -- out ----------------------------------------------------------------------------------------------------------

    def ground(self, nodes: Collection[str]) -> list[object]:
        """Returns the objects that determine what fits the given nodes, to find out later whether any of them changed.
        These are the NodeInfos (None for an unknown node) and the objects of devices. A changed object is a new object,
        so two results are compared by identity."""
        found: list[object] = [*map(self.nodes.get, nodes)]
        for book in self.families.values():
            found += book.ground(nodes)
        return found

    @property
    def sizes(self) -> dict[str, int]:
        """Kind (`nodes`, `pods`, `assumed_pods`) -> number of them in the cache (metric scheduler_cache_size)."""
        return {"nodes": len(self.nodes), "pods": len(self._pods), "assumed_pods": len(self.assumed_pods())}

    def snapshot(self, now: float) -> Snapshot:
        """Returns a snapshot of the current state. now: seconds since the epoch."""
        nodes, neighbours = self.nodes, self.neighbours
        if self.readers.dormant:
            self._wake_readers()
        self.regroup(now)
        lost_nodes = self.lost_pods.update(self, nodes, now)
        # device families correct the amounts that nodes state, before the arrays are built; families in no use are left
        # out
        books = {family: devices for family, devices in self.families.items() if not devices.is_idle}
        for family, devices in books.items():
            for name in devices.amended:
                nodes.amend(name, family, devices.amendment(name))
        self._charge_devices(books.values())
        book = self.workloads
        # ignored PodGroups, because not all their pods can exist at the same time (`WorkloadBook.pass_over`)
        over = {ref.key: why for ref, why in book.passed_over.items()}
        tree = nodes.tree
        allocatable, used, score_used, staying = self.usage.arrays(nodes)
        return Snapshot(
            now=now,
            nodes=nodes.in_order(tree),
            tree=tree,
            columns=self.usage.columns,
            allocatable=allocatable,
            used=used.copy(),
            score_used=score_used.copy(),
            unevictable_used=staying.copy(),
            pods=self._pods.copy(),
            pending=tuple(self._pending.values()),
            members=self.gangs.views(),
            pasts=self.gangs.pasts(),
            linkers=self.gangs.linkers(),
            selectors=neighbours.selectors.frozen(),
            pod_groups={key: group for key, group in self.gangs.groups.items() if key not in over},
            upstream_groups=self.gangs.upstream.copy(),
            made_groups=self.gangs.made_groups(),
            passed_groups=self.gangs.passed(),
            quotas=self.quota_view(),
            classes=neighbours.classes.frozen(),
            looked_for=neighbours.looked_for,
            terms=neighbours.terms.frozen(),
            ports=neighbours.ports.frozen(),
            reservations=self.reservations(),
            storage=self._storage.view(),
            owners=self.owners.view(),
            claim_users=neighbours.claim_users.frozen(),
            disks=neighbours.disks.frozen(),
            claim_volumes=self.expected.promises(),
            families={family: devices.view() for family, devices in books.items()},
            readers=self.readers,
            namespaces=dict(self._namespaces),
            live=self.live,
            static_version=nodes.static_version,
            capacity_version=nodes.capacity_version,
            staying_version=self.usage.staying_version,
            evicted_for=self.preemption_history.view(now) if self.preemption_history.times else {},
            scheduler_names=self.scheduler_names,
            lost_nodes=lost_nodes,
            broken_since=self.broken_since.copy(),
            keeps_spares=nodes.keeps_spares,
            closed_nodes=self.closed_nodes(now),
            topology_warnings=nodes.hypernode_faults,
            topology_fault="; ".join(map(str, nodes.topology_faults)),
            node_warnings=(
                *nodes.warnings,
                *((f"PodGroup {key}", why) for key, why in {**book.unused, **over}.items()),
            ),
            budgets=self.disruption_budgets(),
            priority_classes=self._all_of(PriorityClass),
            provisioning_requests=self.provisioning_requests(),
            serves_provisioning=self.serves_provisioning,
            workload_gangs=book.derived,
            unknown_steps=book.unknown_steps,
            meant=book.meant,
        )

    def _charge_devices(self, books: Iterable[FamilyBook]) -> None:
        """Charges the devices that pods use or request by resource claims to the pods' quotas."""
        charges: dict[str, ClaimedAmounts] = {}
        for book in books:
            charges.update(book.charges(pod for pod in self._pods.values() if pod.pod.spec.resource_claims))
        for key in dict.fromkeys((*self._charged, *charges)):
            old, now = self._pods.get(key), charges.get(key, NOTHING_CLAIMED)
            if old is None or old.claimed == now:
                continue
            info = changed(old, claimed=now)
            if old.bound or old.pending:
                account = self.quotas.account if old.bound else self.quotas.wait
                account(old, -1)
                account(info, 1)
            self._file(info)
        self._charged = tuple(charges)

    def _wake_readers(self) -> None:
        """Reads the device requests of all pods again if a family got its first objects and only then reads requests.
        Its book knows no pod yet, also not those with an annotation, which were read before."""
        awake = [family for family in self.readers.dormant if not self.families[family].is_idle]
        if not awake:
            return
        self.readers = self.readers.with_late(awake)
        found = ((one, self.readers.read(one.pod, one.requests, pending=one.pending)) for one in self._pods.values())
        self._put_again([one.key for one, asks in found if asks != one.asks or not asks.keys().isdisjoint(awake)])

    def quota_view(self) -> Quotas:
        """Returns the quotas with the current total of all nodes and devices."""
        total, cards = self.nodes.total(), self.nodes.cards()
        for book in self.families.values():
            if not book.is_idle and (more := book.added_total()):
                total = total.copy()
                add_amounts(total, more)
                cards += card_hundredths({name: n for name, n in more.items() if n > 0})
                cards -= card_hundredths({name: -n for name, n in more.items() if n < 0})
        return self.quotas.view(total, cards)

    @property
    def quota_marks(self) -> object:
        """Changes whenever something changes that the amounts of quotas depend on. Compare by equality."""
        return self.quotas.version, self.nodes.total_version

    def disruption_budgets(self) -> tuple[PodDisruptionBudget, ...]:
        """Returns all PodDisruptionBudgets in natural order."""
        return self._all_of(PodDisruptionBudget)

    def provisioning_requests(self) -> tuple[ProvisioningRequest, ...]:
        """Returns all ProvisioningRequests in natural order."""
        return self._all_of(ProvisioningRequest)

    def _all_of(self, kind: type[W]) -> tuple[W, ...]:
        """Returns all objects of a kind without a book, in natural order."""
        found = [obj for obj in self._others.values() if isinstance(obj, kind)] if self._others else []
        return tuple(sorted(found, key=lambda obj: natural_key(object_key(obj))))


def _owners_by_default(group: UpstreamPodGroup) -> tuple[OwnerReference, ...]:
    """Returns the owners of a PodGroup that one of these owners may have created by default (workloads.md 2). Empty for
    other PodGroups."""
    spec = group.spec
    is_basic = spec.scheduling_policy.gang is None and spec.scheduling_policy.basic is not None
    if not is_basic or spec.parent_composite_pod_group_name or unreadable(group.metadata):
        return ()
    return tuple(group.metadata.owner_references)
