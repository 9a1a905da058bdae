# SPDX-License-Identifier: Apache-2.0
"""All watches of the scheduler: one reflector (list and watch) per resource, as the informers of kube-scheduler.

Each reflector passes changes to the handler of its kind (`engine/changes`). No round starts before every reflector has
listed its resource once. If the API server does not serve a resource, it counts as empty. Discovery of such resources
is repeated every ten minutes, and when a CustomResourceDefinition changes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from koordpy.api import custom_objects as custom
from koordpy.api.objects import ConfigMap, Namespace, Node, Pod, PodDisruptionBudget, PriorityClass, Wire
from koordpy.api.owner_objects import WorkloadObject
from koordpy.api.pod_groups import PodGroup, UpstreamPodGroup
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.family_registry import device_report_of
from koordpy.engine.changes.change_hub import Hub
from koordpy.engine.changes.numa_report_wakeups import of_node_topology
from koordpy.engine.changes.object_changes import (
    ClaimUsers,
    ServedVersions,
    claimed_changes,
    group_changes,
    hypernode_changes,
    kept_changes,
    node_changes,
    quota_changes,
    topology_changes,
)
from koordpy.engine.changes.pod_changes_live import PodChanges
from koordpy.engine.changes.workload_changes import (
    NOT_SERVED,
    VolcanoChanges,
    WatchedKinds,
    WorkloadChanges,
)
from koordpy.engine.client import api_resources
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_resources import Resource, Wanted, discover
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.wakeups import Wake, of_budget, of_config_map, of_device, of_devices, of_kept, of_storage
from koordpy.engine.watching.object_mirror import Sink
from koordpy.engine.watching.optional_access import access_handler
from koordpy.engine.watching.reflector import Reflector
from koordpy.engine.watching.unreadable_objects import Unreadable
from koordpy.pods.gang_refs import GangSource
from koordpy.pods.object_book import object_key
from koordpy.workloads.kinds.kind_registry import watched as watched_kinds

logger = logging.getLogger(__name__)


class Feeds:
    """Keeps a ClusterState equal to the cluster, and notifies the queue of changes."""

    def __init__(
        self,
        client: ApiClient,
        state: ClusterState,
        queue: UnitQueue,
        *,
        on_applied: Callable[[str, float], None] = lambda name, seconds: None,
        on_unreadable: Callable[[Unreadable], None] = lambda found: None,
        owners: bool = False,
        workloads: Iterable[str] = (),
        provisioning: bool = False,
        wake: Callable[[], None] = lambda: None,
        rediscovery_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """on_applied, on_unreadable: see `Reflector`. owners: True to watch owners of pods for default spread
        constraints. workloads: kinds of workloads with pods that may be gangs. provisioning: True to watch
        ProvisioningRequests. wake: called when a workload changed."""
        hub, claiming = Hub(state, queue), ClaimUsers(state.gangs.upstream)
        self.state, self.queue, self.names, self.listeners = state, queue, hub.names, hub.listeners
        self.pods = PodChanges(hub, claiming)
        # PodGroups and ElasticQuotas may be served by two API groups
        self.groups: ServedVersions[PodGroup] = ServedVersions(
            api_resources.POD_GROUPS, api_resources.POD_GROUPS_X, group_changes(hub, GangSource.GROUP)
        )
        self.quotas: ServedVersions[custom.ElasticQuota] = ServedVersions(
            api_resources.ELASTIC_QUOTAS, api_resources.ELASTIC_QUOTAS_X, quota_changes(hub)
        )
        self.served: dict[Wanted, Resource | None] = {}
        """Optional resource -> the served version; None if it is not served. No entry before the first discovery."""
        devices = claimed_changes(hub, claiming, of_devices)
        # optional resource -> (kind of its objects, their handler); a reflector exists only while it is served
        self._optional: dict[Wanted, tuple[type[Any], Sink[Any]]] = {
            api_resources.UPSTREAM_POD_GROUPS: (UpstreamPodGroup, group_changes(hub, GangSource.UPSTREAM, claiming)),
            api_resources.HYPERNODES: (custom.HyperNode, hypernode_changes(hub)),
            api_resources.NODE_TOPOLOGIES: (custom.NodeResourceTopology, kept_changes(hub, of_node_topology)),
            **{want: (kind, devices) for want, kind in api_resources.DYNAMIC_RESOURCES.items()},
        }
        if provisioning:
            self._optional[api_resources.PROVISIONING_REQUESTS] = (
                custom.ProvisioningRequest,
                kept_changes(hub, lambda before, after: Wake.NODE_OPENED, "ProvisioningRequest"),
            )
            state.serves_provisioning = False  # until it is known
        self.volcano = VolcanoChanges(hub, wake)
        """Handler of Volcano PodGroups; without any PodGroup if they are not watched."""
        if state.workloads.volcano:
            state.read_volcano(False)  # until it is known to be served
            self._optional[api_resources.VOLCANO_GROUPS] = WorkloadObject, self.volcano
        self.kinds: WatchedKinds | None = None
        """Watched kinds of workloads; None if no workload is watched."""
        if kinds := watched_kinds(workloads):
            self.kinds = WatchedKinds(state.workloads, wake)
            for one in kinds:
                self._optional[Wanted(one.group, one.plural, one.versions)] = (
                    WorkloadObject,
                    WorkloadChanges(one, self.kinds),
                )
        self._client, self._rediscovery, self._clock = client, rediscovery_seconds, clock
        self._on_applied, self._on_unreadable = on_applied, on_unreadable
        self.reflectors: dict[str, Reflector[Any]] = {}
        """Name (`_name_of`) -> reflector."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Name -> running task of the reflector."""
        self._recheck = asyncio.Event()
        """Set to ask for a discovery."""
        self._discovered = asyncio.Event()
        """Set after the first discovery."""
        self._undiscovered = ""
        """Error of the last failed discovery; empty if none failed."""
        self._watches = False
        """True once `run` was called."""
        # resources that every API server has, or that koordpy installs
        self._feed(
            api_resources.PODS,
            Pod,
            self.pods,
            transform=self.pods.take_in,
            knows=lambda key: state.pod(key) is not None,
        )
        self._feed(api_resources.NODES, Node, node_changes(hub))
        self._feed(api_resources.NAMESPACES, Namespace, kept_changes(hub, of_kept(Wake.NAMESPACE)))
        self._feed(api_resources.PRIORITY_CLASSES, PriorityClass, kept_changes(hub, of_kept(Wake.NOTHING)))
        self._feed(api_resources.POD_DISRUPTION_BUDGETS, PodDisruptionBudget, kept_changes(hub, of_budget))
        for resource, group_sink in self.groups.sinks().items():
            self._feed(resource, PodGroup, group_sink)
        for resource, quota_sink in self.quotas.sinks().items():
            self._feed(resource, custom.ElasticQuota, quota_sink)
        self._feed(api_resources.CLUSTER_NETWORK_TOPOLOGIES, custom.ClusterNetworkTopology, topology_changes(hub))
        self._feed(api_resources.DEVICES, custom.Device, kept_changes(hub, of_device))
        self._feed(
            api_resources.CONFIG_MAPS,
            ConfigMap,
            kept_changes(hub, of_config_map, "NpuReport"),
            transform=device_report_of,
        )
        storage = claimed_changes(hub, claiming, of_storage)
        for resource, kind in api_resources.STORAGE.items():
            self._feed(resource, kind, storage)
        for resource, kind in api_resources.OWNERS.items() if owners else ():
            # a changed owner may change the spread selectors of its pods, as if pods had been relabelled
            self._feed(resource, kind, kept_changes(hub, of_kept(Wake.POD_LABELS)))

    # -- life cycle ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Starts the required reflectors, then discovers optional resources now and periodically, until cancelled."""
        self._watches = True
        try:
            for name in self.reflectors:
                self._start(name)
            await self._discover_for_ever()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def list_once(self) -> dict[str, str]:
        """Lists everything once, page by page, without a watch.

        Returns the names of resources that may not be listed, or that have no CustomResourceDefinition, with the
        reason; these count as empty. Raises ApiError or Unreachable if the server does not answer, or if pods or nodes
        may not be listed.
        """
        await self._discover()
        without: dict[str, str] = {}

        async def look(name: str, reflector: Reflector[Any]) -> None:
            try:
                await reflector.list_once()
            except ApiError as error:
                if error.status != 403 or reflector.resource in (api_resources.PODS, api_resources.NODES):
                    raise
                without[name] = error.message

        looks = (look(name, reflector) for name, reflector in self.reflectors.items())
        for failure in await asyncio.gather(*looks, return_exceptions=True):
            if failure is not None:
                raise failure
        missing = (one.name for one in api_resources.INSTALLED if not self.reflectors[one.name].served)
        return {**without, **dict.fromkeys(missing, "its CustomResourceDefinition is not installed")}

    async def synced(self) -> None:
        """Waits until every reflector has listed once, and the versions of optional resources are discovered."""
        await self._discovered.wait()
        for reflector in list(self.reflectors.values()):
            await reflector.synced.wait()
        missing = [
            f"{one.kind} ({one.group})" for one in api_resources.INSTALLED if not self.reflectors[one.name].served
        ]
        if missing:
            are = "is" if len(missing) == 1 else "are"
            logger.warning("%s %s not installed: kubectl apply -f crds/", ", ".join(missing), are)

    def out_of_sync(self) -> str:
        """Returns the names of resources that are not listed yet, with the last error of one of them; empty if all
        are."""
        late = {name: one.trouble for name, one in self.reflectors.items() if not one.synced.is_set()}
        if not self._discovered.is_set():
            late["discovery"] = self._undiscovered
        why = next((f"; {name}: {trouble}" for name, trouble in late.items() if trouble), "")
        return ", ".join(late) + why

    def objects(self, resource: Resource) -> list[Any]:
        """Returns the known objects of a resource."""
        return list(self.reflectors[resource.name].objects.values())

    def unreadable(self) -> list[Unreadable]:
        """Returns a record of every object with a current state that cannot be read."""
        return [one for reflector in self.reflectors.values() for one in reflector.unreadable.values()]

    def version(self, resource: Resource) -> str:
        """Returns the last known version of a resource; empty before the first list."""
        return self.reflectors[resource.name].resource_version

    def take_new(self, resource: Resource, obj: Wire) -> None:
        """Stores an object from the reply to a write, unless the watch has already delivered it or its deletion."""
        if (reflector := self.reflectors.get(resource.name)) is not None:
            reflector.take_new(obj)

    def everything(self) -> Iterator[tuple[Resource, Wire]]:
        """Yields every known object of every watched kind, once.

        If two API groups have objects with the same key, only the object in effect is yielded. Pods come from the
        cache, because it may be newer than the watch.
        """
        twins: dict[Resource, ServedVersions[Any]] = {
            one: both for both in (self.groups, self.quotas) for one in both.sinks()
        }
        for name, reflector in self.reflectors.items():
            resource = reflector.resource
            if name != resource.name and resource.name in self.reflectors:
                continue  # the resource is watched twice
            if resource == api_resources.PODS:
                yield from ((api_resources.PODS, pod) for pod in self.pods.known())
                continue
            both = twins.get(resource)
            for obj in reflector.objects.values():
                if both is None or both.resources.get(object_key(obj)) == resource:
                    yield resource, obj

    def is_regroup_due(self, now: float) -> bool:
        """Returns True if gangs may have to be derived again from workloads and pods. now: seconds since 1970."""
        book = self.state.workloads
        if book is None:
            return False
        due = book.due()
        found = bool(self.state.moved or book.altered or self.state.gangs.recorded)
        return found or book.is_due or (due is not None and due <= now)

    def regroup_due(self) -> float | None:
        """Returns the next time at which gangs change without an event, in seconds since 1970; None for none."""
        return self.state.workloads.due()

    def regroup(self, now: float) -> None:
        """Derives gangs from workloads and pods, and moves pending pods to their new units."""
        book = self.state.workloads
        if book is None:
            return
        self.state.regroup(now)
        moved, altered = self.state.moved.copy(), book.take_altered()
        self.state.moved.clear()
        if moved or altered:
            self.names.follow(book.derived.values())
        recorded = [*self.state.gangs.recorded]
        self.state.gangs.recorded.clear()
        self.pods.regrouped(moved, dict.fromkeys((*altered, *recorded)))

    def rediscover(self) -> None:
        """Called when a CustomResourceDefinition changed: looks for resources that were not served."""
        self._recheck.set()

    async def _discover_for_ever(self) -> None:
        """Discovers optional resources periodically, and several times within seconds after a `rediscover`."""
        soon: list[float] = []
        while True:
            seconds = soon.pop() if soon else self._rediscovery
            try:
                await self._discover()
            except (ApiError, Unreachable) as error:
                self._undiscovered = str(error)
                if not self._client.complained(error, "get", "/apis"):
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
        """Finds the served versions of optional resources; starts, replaces and stops their reflectors accordingly.

        Also restarts the reflectors of required resources that were not served, so that they try again at once.
        """
        # 1. changed versions
        found = await discover(self._client, self._optional)
        for want, resource in found.items():
            before = self.served.get(want)
            if resource == before:
                continue
            kind, sink = self._optional[want]
            if before is not None:
                await self._stop(_name_of(before, sink), sink)
            self.served[want] = resource
            if resource is not None:
                logger.info("%s of %s are served and read", resource.plural, resource.api_version)
                self._feed(resource, kind, sink)
                self._start(_name_of(resource, sink))
        if (want := api_resources.PROVISIONING_REQUESTS) in self._optional:
            self.state.serves_provisioning = self.served.get(want) is not None
        # 2. workloads that are not served, so that their pods are grouped by labels
        for want, (_, sink) in self._optional.items():
            if isinstance(sink, (WorkloadChanges, VolcanoChanges)) and self.served.get(want) is None:
                sink.set_watch_state(NOT_SERVED)
        # 3. required resources that are missing
        if self._discovered.is_set():
            for name, reflector in self.reflectors.items():
                if not reflector.served and name in self._tasks:
                    self._tasks.pop(name).cancel()
                    self._start(name)
        self._discovered.set()

    def _feed(
        self,
        resource: Resource,
        kind: type[Any],
        sink: Sink[Any],
        *,
        transform: Callable[[Any], Any] | None = None,
        knows: Callable[[str], bool] | None = None,
    ) -> None:
        """Creates the reflector of a resource. transform, knows: see `Reflector`."""
        self.reflectors[_name_of(resource, sink)] = Reflector(
            self._client,
            resource,
            kind,
            sink,
            transform=transform,
            knows=knows,
            on_applied=self._on_applied,
            on_unreadable=self._on_unreadable,
            on_access=access_handler(resource, sink),
            clock=self._clock,
        )

    def _start(self, name: str) -> None:
        """Starts the task of a reflector, unless everything is only listed once (`list_once`)."""
        if not self._watches:
            return
        self._tasks[name] = asyncio.create_task(self.reflectors[name].run(), name=f"watch {name}")

    async def _stop(self, name: str, sink: Sink[Any]) -> None:
        """Stops and removes a reflector. All its objects are deleted from the sink."""
        task, reflector = self._tasks.pop(name, None), self.reflectors.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if reflector is not None:
            for obj in reflector.objects.values():
                sink.delete(obj)


def _name_of(resource: Resource, sink: Sink[Any]) -> str:
    """Returns the name of a reflector. A kind may have two reflectors: as workload, and as owner of pods."""
    return f"workloads of {resource.name}" if isinstance(sink, WorkloadChanges) else resource.name
