"""What is watched, and what each change means: reflectors in, one ClusterState and the queue's wake-ups out.

Pods come from all namespaces without a selector; ours are told by schedulerName in code (kube-parity.md 4.1). Nothing
is decided before every feed is in sync. A resource that the API server does not serve is empty and not waited for; it
is looked for again every ten minutes and when a CustomResourceDefinition changes.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from koordpy.api.custom import ClusterNetworkTopology, Device, ElasticQuota
from koordpy.api.dra import ResourceClaim
from koordpy.api.groups import PodGroup, UpstreamPodGroup
from koordpy.api.hypernodes import HyperNode
from koordpy.api.objects import ConfigMap, Namespace, Node, Pod, PodDisruptionBudget, PriorityClass
from koordpy.cluster.npus import watched
from koordpy.cluster.pods import GangRef, GangSource, PodInfo
from koordpy.cluster.quotas import device_hundredths
from koordpy.cluster.state import ClusterState
from koordpy.engine.claimusers import ClaimUsers
from koordpy.engine.client import ApiClient, ApiError, Unreachable
from koordpy.engine.grouping import UnitNames
from koordpy.engine.intake import PodIntake
from koordpy.engine.queue import QueuedPod, UnitQueue
from koordpy.engine.reflector import Reflector
from koordpy.engine.resources import (
    CLUSTER_NETWORK_TOPOLOGIES,
    CONFIG_MAPS,
    DEVICES,
    DYNAMIC_RESOURCES,
    ELASTIC_QUOTAS,
    ELASTIC_QUOTAS_X,
    HYPERNODES,
    NAMESPACES,
    NODES,
    OWNERS,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    POD_GROUPS_X,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
    STORAGE,
    UPSTREAM_POD_GROUPS,
    Resource,
    Wanted,
    discover,
)
from koordpy.engine.versions import is_older
from koordpy.engine.wakeups import (
    Wake,
    changes_itself,
    of_config_map,
    of_device,
    of_devices,
    of_node,
    of_pod,
    of_storage,
)

logger = logging.getLogger(__name__)

REJECTIONS = frozenset(
    {"OutOfcpu", "OutOfmemory", "OutOfpods", "UnexpectedAdmissionError", "NodeAffinity", "NodePorts"}
)
"""Reasons with which a kubelet turns down a pod: another scheduler won a race (kube-parity.md 4.10)."""


@dataclass(slots=True)
class Listeners:
    """Who else hears of changes; called on the event loop, must not block."""

    gang: list[Callable[[GangRef], None]] = field(default_factory=list)
    """A gang's pods or its PodGroup changed."""
    topology: list[Callable[[], None]] = field(default_factory=list)
    """The ClusterNetworkTopology changed, or a node came, went or was relabelled."""
    pod_gone: list[Callable[[str], None]] = field(default_factory=list)
    confirmed: list[Callable[[PodInfo], None]] = field(default_factory=list)
    """Hear of pods that the watch shows on their node, of those that were assumed there."""
    """Key of a pod that is deleted or finished."""
    storage: list[Callable[[str], None]] = field(default_factory=list)
    """Key of a claim or volume, or of another object of storage, that came, changed or went."""
    conflict: list[Callable[[str], None]] = field(default_factory=list)
    """A kubelet turned down a pod of ours, with the reason."""


class _Sink:
    """Passes objects of one resource on; `upsert` and `delete` as the reflector calls them."""

    def __init__(self, upsert: Callable[[Any, Any], None], delete: Callable[[Any], None]) -> None:
        self._upsert, self._delete = upsert, delete

    def upsert(self, obj: Any, old: Any) -> None:
        self._upsert(obj, old)

    def delete(self, obj: Any) -> None:
        self._delete(obj)


class Feeds:
    """Keeps a ClusterState equal to the cluster and tells the queue what changed."""

    def __init__(
        self,
        client: ApiClient,
        state: ClusterState,
        queue: UnitQueue,
        names: UnitNames,
        *,
        on_applied: Callable[[str, int, float], None] | None = None,
        owners: bool = False,
        rediscovery_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state, self.queue, self.names = state, queue, names
        self.listeners = Listeners()
        self.foreign: list[PodInfo] = []
        """Pods that others bound, or that grew, since the loop last took a snapshot and cleared this."""
        self.foreign_marks: dict[str, int] = {}
        """Node -> how often that happened on it."""
        self.gated: set[str] = set()
        """Our pods that have scheduling gates."""
        self.group_resources: dict[str, Resource] = {}
        """PodGroup key -> where it lives."""
        self.quota_resources: dict[str, Resource] = {}
        """ElasticQuota key -> where it lives."""
        self._served: dict[Wanted, Resource | None] = {}
        """What is not served everywhere, and where it is here."""
        devices = _Sink(self._upsert_devices, self._delete_devices)
        self._optional: dict[Wanted, tuple[type[Any], _Sink]] = {
            UPSTREAM_POD_GROUPS: (UpstreamPodGroup, _Sink(self._upsert_upstream, self._delete_upstream)),
            HYPERNODES: (HyperNode, _Sink(self._upsert_hypernode, self._delete_hypernode)),
            **{want: (kind, devices) for want, kind in DYNAMIC_RESOURCES.items()},
        }
        self._client, self._on_applied, self._rediscovery = client, on_applied, rediscovery_seconds
        self._clock = clock
        self._intake = PodIntake()
        self._ahead: dict[str, tuple[str, str]] = {}
        """Pods that were read ahead of the watch -> uid, resource version."""
        self._reflectors: dict[str, Reflector[Any]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._groups_x: dict[str, PodGroup] = {}
        self._claiming = ClaimUsers()
        self._recheck = asyncio.Event()
        self._discovered = asyncio.Event()
        self.pods = self._feed(PODS, Pod, _Sink(self._upsert_pod, self._delete_pod), transform=self._take_in)
        self._feed(NODES, Node, _Sink(self._upsert_node, self._delete_node))
        self._feed(NAMESPACES, Namespace, self._plain(Wake.NAMESPACE))
        self._feed(PRIORITY_CLASSES, PriorityClass, self._plain(Wake.NOTHING))
        self._feed(POD_DISRUPTION_BUDGETS, PodDisruptionBudget, self._budgets())
        self._feed(POD_GROUPS, PodGroup, _Sink(self._upsert_group, self._delete_group))
        self._feed(POD_GROUPS_X, PodGroup, _Sink(self._upsert_group_x, self._delete_group_x))
        for resource in (ELASTIC_QUOTAS_X, ELASTIC_QUOTAS):
            self._feed(resource, ElasticQuota, self._quotas(resource))
        self._feed(
            CLUSTER_NETWORK_TOPOLOGIES,
            ClusterNetworkTopology,
            _Sink(self._upsert_topology, self._delete_topology),
        )
        self._feed(DEVICES, Device, _Sink(self._upsert_device, self._delete_device))
        npu_reports = _Sink(self._upsert_config_map, self._delete_config_map)
        self._feed(CONFIG_MAPS, ConfigMap, npu_reports, transform=watched)
        for resource, kind in STORAGE.items():
            self._feed(resource, kind, _Sink(self._upsert_storage, self._delete_storage))
        for resource, kind in OWNERS.items() if owners else ():
            # others count for a pod, as if they had been relabelled
            self._feed(resource, kind, self._plain(Wake.POD_LABELS))

    # -- life cycle ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watches until cancelled. The upstream group version is found first; without an answer it is asked again."""
        try:
            for name in self._reflectors:
                self._start(name)
            await self._discover_for_ever()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def synced(self) -> None:
        """Waits until every feed has listed once and the upstream groups are known to be served or not."""
        await self._discovered.wait()
        for reflector in list(self._reflectors.values()):
            await reflector.synced.wait()

    def out_of_sync(self) -> list[str]:
        """Names of the feeds that have not listed yet."""
        missing = [name for name, reflector in self._reflectors.items() if not reflector.synced.is_set()]
        return missing if self._discovered.is_set() else [*missing, "discovery"]

    def reflectors(self) -> dict[str, Reflector[Any]]:
        """Every reflector by the name of its resource."""
        return dict(self._reflectors)

    def objects(self, resource: Resource) -> list[Any]:
        """What is known of a resource."""
        return list(self._reflectors[resource.name].objects.values())

    @property
    def upstream_resource(self) -> Resource | None:
        """The upstream pod groups, where they are served."""
        return self._served.get(UPSTREAM_POD_GROUPS)

    @property
    def hypernodes(self) -> Resource | None:
        """The HyperNodes, where they are served."""
        return self._served.get(HYPERNODES)

    @property
    def resource_claims(self) -> Resource | None:
        """The resource claims, where they are served."""
        return self._served.get(RESOURCE_CLAIMS)

    def claims(self) -> list[ResourceClaim]:
        """Every resource claim as the watch last showed it."""
        resource = self.resource_claims
        return self.objects(resource) if resource is not None else []

    def dynamic_resources(self) -> list[Resource]:
        """Resource claims, slices and device classes, as far as they are served."""
        return [found for want in DYNAMIC_RESOURCES if (found := self._served.get(want)) is not None]

    def rediscover(self) -> None:
        """A CustomResourceDefinition changed: what was not served may be now."""
        self._recheck.set()

    async def _discover_for_ever(self) -> None:
        soon: list[float] = []
        while True:
            seconds = soon.pop() if soon else self._rediscovery
            try:
                await self._discover()
            except (ApiError, Unreachable) as error:
                logger.warning("discovery: %s", error)
                seconds = 2.0
            try:
                await asyncio.wait_for(self._recheck.wait(), seconds)
            except TimeoutError:
                continue
            self._recheck.clear()
            # a new definition is served a moment after it is established
            soon = [10.0, 3.0, 1.0]

    async def _discover(self) -> None:
        found = await discover(self._client, self._optional)
        for want, resource in found.items():
            before = self._served.get(want)
            if resource == before:
                continue
            kind, sink = self._optional[want]
            if before is not None:
                await self._stop(before.name, sink)
            self._served[want] = resource
            if resource is not None:
                logger.info("%s of %s are served and read", resource.plural, resource.api_version)
                self._feed(resource, kind, sink)
                self._start(resource.name)
        if self._discovered.is_set():
            for name, reflector in self._reflectors.items():
                if not reflector.served and name in self._tasks:
                    self._tasks.pop(name).cancel()
                    self._start(name)
        self._discovered.set()

    def _feed(
        self, resource: Resource, kind: type[Any], sink: _Sink, *, transform: Callable[[Any], Any] | None = None
    ) -> Reflector[Any]:
        reflector: Reflector[Any] = Reflector(
            self._client, resource, kind, sink, transform=transform, on_applied=self._on_applied, clock=self._clock
        )
        self._reflectors[resource.name] = reflector
        return reflector

    def _start(self, name: str) -> None:
        self._tasks[name] = asyncio.create_task(self._reflectors[name].run(), name=f"watch {name}")

    async def _stop(self, name: str, sink: _Sink) -> None:
        task, reflector = self._tasks.pop(name, None), self._reflectors.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if reflector is not None:
            for obj in reflector.objects.values():
                sink.delete(obj)

    # -- pods ---------------------------------------------------------------------------------------------------------

    def _take_in(self, pod: Pod) -> Pod | None:
        if pod.status.phase == "Failed" and pod.status.reason in REJECTIONS:
            self._count_rejection(pod)
        return self._intake(pod)

    def _count_rejection(self, pod: Pod) -> None:
        known = self.state.pod(pod.key)
        ours = pod.spec.scheduler_name in self.state.scheduler_names
        if ours and known is not None and known.uid == pod.metadata.uid and not known.finished:
            logger.warning("pod %s was turned down by its node: %s", pod.key, pod.status.reason)
            for heard in self.listeners.conflict:
                heard(pod.status.reason)

    def read(self, pod: Pod) -> None:
        """A pod as a GET showed it, which may be ahead of the watch: what that brings of older versions is no news."""
        self._ahead[pod.key] = pod.metadata.uid, pod.metadata.resource_version
        kept = self._take_in(pod)
        if kept is not None:
            self._apply_pod(kept)

    def _upsert_pod(self, pod: Pod, old: Pod | None) -> None:
        if self._ahead and (ahead := self._ahead.get(pod.key)) is not None:
            if ahead[0] == pod.metadata.uid and is_older(pod.metadata.resource_version, ahead[1]):
                return
            del self._ahead[pod.key]
        self._apply_pod(pod)

    def _apply_pod(self, pod: Pod) -> None:
        key = pod.key
        before = self.state.pod(key)
        assumed = self.state.assumed_node(key) is not None
        self.state.upsert(pod)
        self._pod_changed(key, before, self.state.pod(key), assumed=assumed)

    def _delete_pod(self, pod: Pod) -> None:
        key = pod.key
        self._ahead.pop(key, None)
        before = self.state.pod(key)
        if before is None or before.uid != pod.metadata.uid:
            return
        self.state.delete(Pod, key)
        self._pod_changed(key, before, None, assumed=False)

    def _pod_changed(self, key: str, before: PodInfo | None, after: PodInfo | None, *, assumed: bool) -> None:
        if after is not None and after.pending:
            # a pod under an assumed node is not pending, so this one waits for a place
            if before is None or before.uid != after.uid or not before.pending or changes_itself(before.pod, after.pod):
                new = before is None or before.uid != after.uid
                self.enqueue(after, event="PodAdd" if new else "PodUpdate")
        elif key in self.queue:
            self.queue.discard(key)
        self._claiming.changed(key, after if after is not None and after.pending else None)
        spec = after.pod.spec if after is not None else None
        if spec is not None and spec.scheduling_gates and spec.scheduler_name in self.state.scheduler_names:
            self.gated.add(key)
        else:
            self.gated.discard(key)
        wake = of_pod(before, after)
        if wake:
            self.queue.broadcast(wake, "AssignedPodDelete" if wake & Wake.ROOM else "AssignedPodUpdate")
        if after is not None and after.bound:
            grown = before is not None and before.bound and before.requests != after.requests
            elsewhere = assumed and before is not None and before.node != after.node
            if grown or elsewhere or (wake & Wake.POD_BOUND and not assumed):
                self.loaded(after)
        if assumed and after is not None and after.pod.spec.node_name:
            for heard_of in self.listeners.confirmed:
                heard_of(after)
        if after is None or after.finished:
            for gone in self.listeners.pod_gone:
                gone(key)
        for info in (before, after):
            if info is not None and info.gang is not None:
                self._gang_changed(info, before, after)
                break

    def _gang_changed(self, info: PodInfo, before: PodInfo | None, after: PodInfo | None) -> None:
        assert info.gang is not None
        if info.gang.source is GangSource.NAMED:
            self.names.saw(info.pod.metadata)
        elif before is None or after is None:
            self.names.stale = True
        counted_before = before is not None and (before.bound or before.pending or before.finished)
        counted = after is not None and (after.bound or after.pending or after.finished)
        if counted != counted_before:
            self.queue.touch(self.names.of_gang(info.gang), "PodGroupMember")
        for heard in self.listeners.gang:
            heard(info.gang)

    def loaded(self, info: PodInfo) -> None:
        """A node holds more than our plans have put there."""
        self.foreign.append(info)
        self.foreign_marks[info.node] = self.foreign_marks.get(info.node, 0) + 1

    def enqueue(self, info: PodInfo, *, event: str) -> None:
        """Puts a pending pod into the queue."""
        pod = QueuedPod(
            key=info.key,
            uid=info.uid,
            added=self.queue.clock(),
            priority=info.priority,
            created=info.created,
            light=info.gang is None and not device_hundredths(info.requests),
            profile=info.pod.spec.scheduler_name,
        )
        self.queue.add(self.names.of_pod(info), pod, event=event)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _upsert_node(self, node: Node, old: Node | None) -> None:
        before = self.state.node(node.metadata.name)
        self.state.upsert(node)
        wake = of_node(before, self.state.node(node.metadata.name))
        if wake:
            self.queue.broadcast(wake, "NodeAdd" if before is None else "NodeUpdate")
        if wake & (Wake.NODE_ADDED | Wake.NODE_LABELS):
            self._topology_changed()

    def _upsert_config_map(self, config_map: ConfigMap, old: ConfigMap | None) -> None:
        self.state.upsert(config_map)
        self._reported(of_config_map(old, config_map))

    def _delete_config_map(self, config_map: ConfigMap) -> None:
        self.state.delete(ConfigMap, _key(config_map))
        self._reported(of_config_map(config_map, None))

    def _reported(self, wake: Wake) -> None:
        if wake:
            self.queue.broadcast(wake, "NpuReport")

    def _upsert_device(self, device: Device, old: Device | None) -> None:
        self.state.upsert(device)
        if of_device(old, device):
            self.queue.broadcast(Wake.DEVICE, "Device")

    def _delete_device(self, device: Device) -> None:
        self.state.delete(Device, device.metadata.name)
        self.queue.broadcast(of_device(device, None), "Device")

    def _delete_node(self, node: Node) -> None:
        self.state.delete(Node, node.metadata.name)
        self.queue.broadcast(Wake.NODE_GONE, "NodeDelete")
        self._topology_changed()

    # -- groups and topology ------------------------------------------------------------------------------------------

    def _upsert_group(self, group: PodGroup, old: PodGroup | None) -> None:
        self._group_changed(group, POD_GROUPS)

    def _delete_group(self, group: PodGroup) -> None:
        key = _key(group)
        other = self._groups_x.get(key)
        if other is not None:
            self._group_changed(other, POD_GROUPS_X)
        else:
            self._group_gone(group)

    def _upsert_group_x(self, group: PodGroup, old: PodGroup | None) -> None:
        self._groups_x[_key(group)] = group
        if self.group_resources.get(_key(group)) != POD_GROUPS:
            self._group_changed(group, POD_GROUPS_X)

    def _delete_group_x(self, group: PodGroup) -> None:
        key = _key(group)
        self._groups_x.pop(key, None)
        if self.group_resources.get(key) == POD_GROUPS_X:
            self._group_gone(group)

    def _group_changed(self, group: PodGroup, resource: Resource) -> None:
        key = _key(group)
        old = self.state.pod_group(key)
        self.state.upsert(group)
        self.group_resources[key] = resource
        # our own writes of its status are no news
        if old is None or (old.metadata.uid, old.spec, old.metadata.annotations) != (
            group.metadata.uid,
            group.spec,
            group.metadata.annotations,
        ):
            self._settings_changed(GangRef(group.metadata.namespace, group.metadata.name), group)

    def _group_gone(self, group: PodGroup) -> None:
        self.state.delete(PodGroup, _key(group))
        self.group_resources.pop(_key(group), None)
        self._settings_changed(GangRef(group.metadata.namespace, group.metadata.name), group)

    def _upsert_upstream(self, group: UpstreamPodGroup, old: UpstreamPodGroup | None) -> None:
        self.state.upsert(group)
        if old is None or (old.spec, old.metadata.annotations) != (group.spec, group.metadata.annotations):
            self._settings_changed(_upstream_ref(group), group)

    def _delete_upstream(self, group: UpstreamPodGroup) -> None:
        self.state.delete(UpstreamPodGroup, _key(group))
        self._settings_changed(_upstream_ref(group), group)

    def _settings_changed(self, ref: GangRef, group: PodGroup | UpstreamPodGroup) -> None:
        self.names.saw(group.metadata)
        self.queue.touch(self.names.of_gang(ref), "PodGroupUpdate")
        if self.names.linked:
            self.queue.touch_gangs("PodGroupUpdate")
        for heard in self.listeners.gang:
            heard(ref)

    def _upsert_topology(self, topology: ClusterNetworkTopology, old: ClusterNetworkTopology | None) -> None:
        layers = self.state.layers
        had = self.state.topology is not None
        self.state.upsert(topology)
        if self.state.layers != layers or not had:
            self.queue.broadcast(Wake.TOPOLOGY, "TopologyUpdate")
            self.queue.touch_gangs("TopologyUpdate")
        self._topology_changed()

    def _delete_topology(self, topology: ClusterNetworkTopology) -> None:
        self.state.delete(ClusterNetworkTopology, topology.metadata.name)
        self.queue.broadcast(Wake.TOPOLOGY, "TopologyUpdate")
        self.queue.touch_gangs("TopologyUpdate")
        self._topology_changed()

    def _upsert_hypernode(self, obj: HyperNode, old: HyperNode | None) -> None:
        # its owner counts nodes in the status
        if old is None or old.spec != obj.spec:
            self.state.upsert(obj)
            self._hypernodes_changed()

    def _delete_hypernode(self, obj: HyperNode) -> None:
        self.state.delete(HyperNode, obj.metadata.name)
        self._hypernodes_changed()

    def _hypernodes_changed(self) -> None:
        if self.state.topology is None:
            self.queue.broadcast(Wake.TOPOLOGY, "HyperNode")
            self.queue.touch_gangs("HyperNode")
            self._topology_changed()

    def _topology_changed(self) -> None:
        for heard in self.listeners.topology:
            heard()

    # -- storage ------------------------------------------------------------------------------------------------------

    def _upsert_storage(self, obj: Any, old: Any) -> None:
        self.state.upsert(obj)
        self._storage_changed(obj, *of_storage(old, obj))

    def _delete_storage(self, obj: Any) -> None:
        self.state.delete(type(obj), _key(obj))
        self._storage_changed(obj, *of_storage(obj, None))

    def _storage_changed(self, obj: Any, wake: Wake, claim: str) -> None:
        self._changed_for(obj, wake, claim)
        for heard in self.listeners.storage:
            heard(_key(obj))

    # -- dynamic resources --------------------------------------------------------------------------------------------

    def _upsert_devices(self, obj: Any, old: Any) -> None:
        known: Any = self.state.get(type(obj), _key(obj))
        if known is None or not is_older(obj.metadata.resource_version, known.metadata.resource_version):
            self.state.upsert(obj)
        # where the reply to a write of ours was first, nobody has heard of it yet
        self._changed_for(obj, *of_devices(old, obj))

    def _delete_devices(self, obj: Any) -> None:
        self.state.delete(type(obj), _key(obj))
        self._changed_for(obj, *of_devices(obj, None))

    def _changed_for(self, obj: Any, wake: Wake, claim: str) -> None:
        """Wakes the pods that name a claim, and whom else the change may help."""
        self.queue.broadcast(wake, type(obj).__name__)
        for pod in self._claiming.users(claim):
            self.queue.wake(pod, Wake.CLAIM, type(obj).__name__)

    def _quotas(self, resource: Resource) -> _Sink:
        """ElasticQuotas of one of the two groups; of two with one key that of scheduling.sigs.k8s.io counts."""

        def upsert(quota: ElasticQuota, old: ElasticQuota | None) -> None:
            key = _key(quota)
            if resource != ELASTIC_QUOTAS and self.quota_resources.get(key) == ELASTIC_QUOTAS:
                return
            before = self.state.quotas.get(key)
            self.state.upsert(quota)
            self.quota_resources[key] = resource
            # our own writes of its status are no news
            if before is None or (before.spec, before.metadata.labels, before.metadata.annotations) != (
                quota.spec,
                quota.metadata.labels,
                quota.metadata.annotations,
            ):
                self.queue.broadcast(Wake.QUOTA, "ElasticQuota")

        def delete(quota: ElasticQuota) -> None:
            key = _key(quota)
            if self.quota_resources.get(key) == resource:
                del self.quota_resources[key]
                self.state.delete(ElasticQuota, key)
                self.queue.broadcast(Wake.QUOTA, "ElasticQuota")

        return _Sink(upsert, delete)

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _budgets(self) -> _Sink:
        """PodDisruptionBudgets: one that allows more may let a unit take its room from others."""

        def upsert(new: PodDisruptionBudget, old: PodDisruptionBudget | None) -> None:
            self.state.upsert(new)
            allowed = new.status.disruptions_allowed or 0
            if old is not None and (old.spec != new.spec or allowed > (old.status.disruptions_allowed or 0)):
                self.queue.broadcast(Wake.ROOM, "PodDisruptionBudget")

        def delete(gone: PodDisruptionBudget) -> None:
            self.state.delete(PodDisruptionBudget, _key(gone))
            self.queue.broadcast(Wake.ROOM, "PodDisruptionBudget")

        return _Sink(upsert, delete)

    def _plain(self, wake: Wake) -> _Sink:
        """A resource that is only kept; a change of it may help as `wake` says."""

        def upsert(obj: Any, old: Any) -> None:
            self.state.upsert(obj)
            if (
                old is None
                or old.metadata.labels != obj.metadata.labels
                or getattr(old, "spec", 0) != getattr(obj, "spec", 0)
            ):
                self.queue.broadcast(wake, type(obj).__name__)

        def delete(obj: Any) -> None:
            self.state.delete(type(obj), _key(obj))
            self.queue.broadcast(wake, type(obj).__name__)

        return _Sink(upsert, delete)


def _key(obj: Any) -> str:
    meta = obj.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else str(meta.name)


def _upstream_ref(group: UpstreamPodGroup) -> GangRef:
    return GangRef(group.metadata.namespace, group.metadata.name, GangSource.UPSTREAM)
