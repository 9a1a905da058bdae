# SPDX-License-Identifier: Apache-2.0
"""Handles watch events of all kinds of objects except pods and workloads: updates the cache, then wakes pending units.

One class, `Changes`, handles every kind. For each kind a function below creates an instance, with a function
`on_change` for this kind. It compares the object before and after the event, and decides which units to wake. It gets
either the watch objects, or the objects that the cache has derived from them (such as NodeInfo). It ignores the fields
that this process writes to a status, so that our own writes wake no unit.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from koordpy.api.claim_objects import DeviceClass, ResourceClaim
from koordpy.api.custom_objects import ClusterNetworkTopology, ElasticQuota, HyperNode
from koordpy.api.objects import Node, Wire
from koordpy.api.pod_groups import PodGroup, UpstreamPodGroup
from koordpy.api.storage_objects import PersistentVolumeClaim, StorageClass
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import NodeInfo
from koordpy.decoding.wire_json import unreadable
from koordpy.engine.changes.change_hub import Hub
from koordpy.engine.client.api_replies import is_older
from koordpy.engine.client.api_resources import Resource
from koordpy.engine.wakeups import ANY, Wake, of_node
from koordpy.engine.watching.object_mirror import Sink
from koordpy.pods.claim_refs import claim_group, resource_claims
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.object_book import object_key
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import claim_key
from koordpy.quota.quota_owners import counts_in

T = TypeVar("T", bound=Wire)
OnChange = Callable[[Any, Any, Any], None]
"""Function of (watch object, object before the event, object after the event). The object before is None if it was
created, the object after is None if it was deleted. `state_of` of `Changes` says which objects are compared."""


class Changes(Generic[T]):
    """Sink of a reflector: handles the objects of one kind."""

    def __init__(
        self,
        hub: Hub,
        on_change: OnChange,
        *,
        state_of: Callable[[ClusterState, T], Any] | None = None,
        put: Callable[[T], None] | None = None,
    ) -> None:
        """on_change: called after each change. state_of: returns the object that the cache has derived from a watch
        object, to be compared; None to compare the watch objects. put: stores an object; None for
        `ClusterState.upsert`."""
        self._state, self._on_change, self._state_of, self._put = (
            hub.state,
            on_change,
            state_of,
            put or hub.state.upsert,
        )

    def upsert(self, obj: T, old: T | None) -> None:
        """Implements `Sink.upsert`: stores a new or changed object, and calls `on_change`."""
        if self._state_of is None:
            self._put(obj)
            self._on_change(obj, old, obj)
            return
        before = self._state_of(self._state, obj)
        self._put(obj)
        self._on_change(obj, before, self._state_of(self._state, obj))

    def delete(self, obj: T) -> None:
        """Implements `Sink.delete`: removes an object, and calls `on_change`."""
        before = self._state_of(self._state, obj) if self._state_of is not None else obj
        self._state.delete(type(obj), object_key(obj))
        self._on_change(obj, before, self._state_of(self._state, obj) if self._state_of is not None else None)


class ServedVersions(Generic[T]):
    """A kind that two API groups serve, such as PodGroup (vocabulary.md 3).

    If both groups have an object with the same `namespace/name`, the object of the first group takes effect. The sink
    gets only the effective object of each key, and a deletion when no group has an object with this key any more.
    """

    def __init__(self, first: Resource, second: Resource, sink: Sink[Any]) -> None:
        """first, second: the resource of each group. sink: handles the effective objects."""
        self.resources: dict[str, Resource] = {}
        """Key -> API resource of the object that takes effect."""
        self._sink = sink
        self._known: dict[Resource, dict[str, T]] = {first: {}, second: {}}
        """Resource -> key -> object. The resource with precedence is first."""

    def sinks(self) -> dict[Resource, Sink[Any]]:
        """Returns a sink for each of the two resources."""
        return {resource: _OneVersion(self, known) for resource, known in self._known.items()}

    def changed(self, obj: T) -> None:
        """Handles a change of an object of either group."""
        key = object_key(obj)
        for resource, known in self._known.items():
            if key in known:
                self.resources[key] = resource
                self._sink.upsert(known[key], None)
                return
        del self.resources[key]
        self._sink.delete(obj)


class _OneVersion(Generic[T]):
    """Sink of the objects of one of the two groups."""

    def __init__(self, both: ServedVersions[T], known: dict[str, T]) -> None:
        self._both, self._known = both, known

    def upsert(self, obj: T, old: T | None) -> None:
        """Implements `Sink.upsert`."""
        self._known[object_key(obj)] = obj
        self._both.changed(obj)

    def delete(self, obj: T) -> None:
        """Implements `Sink.delete`."""
        del self._known[object_key(obj)]
        self._both.changed(obj)


# -- nodes, and the domains that they are in --------------------------------------------------------------------------


def node_changes(hub: Hub) -> Changes[Node]:
    """Returns the sink of nodes."""

    def on_change(node: Node, before: NodeInfo | None, after: NodeInfo | None) -> None:
        wake = of_node(before, after)
        event = "NodeAdd" if before is None else "NodeUpdate" if after is not None else "NodeDelete"
        hub.queue.broadcast(wake, event)
        if wake & (Wake.NODE_ADDED | Wake.NODE_GONE | Wake.NODE_LABELS):
            hub.topology_changed()

    return Changes(hub, on_change, state_of=lambda state, node: state.nodes.get(node.metadata.name))


def topology_changes(hub: Hub) -> Changes[ClusterNetworkTopology]:
    """Returns the sink of ClusterNetworkTopologies."""

    def on_change(topology: ClusterNetworkTopology, before: object, after: object) -> None:
        if before != after:
            hub.layers_changed("TopologyUpdate")
        hub.topology_changed()

    def state_of(state: ClusterState, _: ClusterNetworkTopology) -> object:
        return state.nodes.topology is not None, state.nodes.layers, tuple(state.nodes.topology_faults)

    return Changes(hub, on_change, state_of=state_of)


def hypernode_changes(hub: Hub) -> Changes[HyperNode]:
    """Returns the sink of HyperNodes, which define the domains if there is no ClusterNetworkTopology.

    Changes of their status are ignored, because it only counts nodes.
    """

    def on_change(obj: HyperNode, before: HyperNode | None, after: HyperNode | None) -> None:
        same = before is not None and after is not None and before.spec == after.spec
        if hub.state.nodes.topology is None and not same:
            hub.layers_changed("HyperNode")
            hub.topology_changed()

    return Changes(hub, on_change)


# -- claims of pods: volumes and devices ------------------------------------------------------------------------------


class ClaimUsers:
    """Index of pending pods by the volume and resource claims that they name, by `namespace/name` (kube-parity.md 4.3).

    Claims of both kinds may have the same name; then a pod is woken needlessly.
    """

    def __init__(self, groups: Mapping[str, UpstreamPodGroup] = {}) -> None:
        """groups: upstream PodGroups by `namespace/name`, kept current by the caller."""
        self._groups = groups
        self._users: dict[str, dict[str, None]] = {}
        """Claim -> keys of the pending pods that name it."""
        self.named: dict[str, tuple[str, ...]] = {}
        """Key of a pending pod -> claims that it names; only pods with claims."""

    def changed(self, key: str, info: PodInfo | None) -> None:
        """Updates the claims of a pod. key: of the pod. info: None if the pod is not pending any more."""
        named = self._claims(info) if info is not None else ()
        if named == self.named.get(key, ()):
            return
        for claim in self.named.pop(key, ()):
            users = self._users[claim]
            del users[key]
            if not users:
                del self._users[claim]
        if named:
            self.named[key] = named
            for claim in named:
                self._users.setdefault(claim, {})[key] = None

    def users(self, claim: str) -> Iterable[str]:
        """Returns keys of the pending pods that name a claim."""
        return tuple(self._users.get(claim, ()))

    def _claims(self, info: PodInfo) -> tuple[str, ...]:
        """Returns the volume claims and resource claims that a pod names, also those of its PodGroup, each once."""
        found = [claim_key(info.namespace, info.name, volume) for volume in info.ties.volumes]
        group = claim_group(info.pod, self._groups)
        return tuple(dict.fromkeys([*(key for key in found if key), *resource_claims(info, group)]))


# -- settings of gangs and quotas -------------------------------------------------------------------------------------


def group_changes(hub: Hub, source: GangSource, claiming: ClaimUsers | None = None) -> Changes[Any]:
    """Returns the sink of one kind of PodGroups. claiming: index of the claims that pending pods name, if groups of
    this kind have claims; updated here."""

    def state_of(state: ClusterState, group: PodGroup | UpstreamPodGroup) -> PodGroup | UpstreamPodGroup | None:
        key = object_key(group)
        return state.gangs.groups.get(key) if source is GangSource.GROUP else state.gangs.upstream.get(key)

    def said(group: Any) -> object:
        """Returns the parts of a PodGroup that plans depend on; None for none."""
        claims = getattr(group.status, "resource_claim_statuses", None) if group is not None else None
        return group and (group.metadata.uid, group.spec, group.metadata.annotations, claims)

    def on_change(group: Any, before: Any, after: Any) -> None:
        if said(before) == said(after):
            return
        # wakes the units of the group's gang, of gangs that list it in `groups`, and of gangs that got it by default
        ref = GangRef(group.metadata.namespace, group.metadata.name, source)
        hub.names.saw(ref, group.metadata)
        if claiming is not None:
            for pod in hub.state.gangs.of_upstream(ref.key):
                if pod.pending and pod.pod.spec.resource_claims:
                    claiming.changed(pod.key, pod)
        made = hub.state.gangs.gangs_of_made(ref.key) if source is GangSource.UPSTREAM else ()
        for one in (ref, *made):
            for unit in hub.names.concerned(one):
                hub.queue.touch(unit, "PodGroupUpdate")
        for listener in hub.listeners.gang:
            listener(ref)

    return Changes(hub, on_change, state_of=state_of)


_Seen = tuple[ElasticQuota | None, int]
"""An ElasticQuota (None if it does not exist), and the version of the quota tree. The version changes whenever a quota
takes effect, changes or is deleted."""


def quota_changes(hub: Hub) -> Changes[ElasticQuota]:
    """Returns the sink of ElasticQuotas of any API group. A quota in a namespace that is not honoured wakes no unit."""

    def said(quota: ElasticQuota | None) -> object:
        """Returns the parts of an ElasticQuota that plans depend on; None for none."""
        return quota and (quota.spec, quota.metadata.labels, quota.metadata.annotations)

    def on_change(quota: ElasticQuota, before: _Seen, after: _Seen) -> None:
        news = before[1] != after[1] and said(before[0]) != said(after[0])
        if news and counts_in(quota.metadata.namespace, hub.state.quotas.settings):
            hub.queue.broadcast(Wake.QUOTA, "ElasticQuota")

    def state_of(state: ClusterState, quota: ElasticQuota) -> _Seen:
        return state.quotas.objects.get(object_key(quota)), state.quotas.tree_version

    return Changes(hub, on_change, state_of=state_of)


# -- objects that are stored unchanged; `koordpy.engine.wakeups` decides which units they wake -----------------------


def kept_changes(hub: Hub, helps: Callable[[Any, Any], Wake], event: str = "") -> Changes[Any]:
    """Returns the sink of a kind that the cache stores without deriving anything from its objects.

    helps: function of (object before, object after) that returns the wake-ups of the change. event: name of the event
    in metrics; empty for the name of the kind.
    """

    def on_change(obj: Any, before: Any, after: Any) -> None:
        hub.queue.broadcast(helps(before, after), event or type(obj).__name__)

    return Changes(hub, on_change)


def claimed_changes(hub: Hub, claiming: ClaimUsers, helps: Callable[[Any, Any], tuple[Wake, str]]) -> Changes[Any]:
    """Returns the sink of claims, volumes, and the other storage and device objects.

    claiming: index of the pending pods by claim. helps: function of (object before, object after). It returns the
    wake-ups for all units, and the key of a claim. Pods that name this claim are woken as well; the key is empty if the
    object concerns no claim.
    """

    def put(obj: Any) -> None:
        known = hub.state.get(type(obj), object_key(obj))
        # the reply to our own write may be newer than the object of the watch event; then the event's object is not
        # stored, but listeners are called
        if known is None or not is_older(obj.metadata.resource_version, known.metadata.resource_version):
            hub.state.upsert(obj)

    def on_change(obj: Any, before: Any, after: Any) -> None:
        (wake, claim), event = helps(before, after), type(obj).__name__
        if after is None and claiming.users(object_key(obj)):
            wake |= Wake.DEMAND_FELL  # pods that name the deleted claim cannot start now
        hub.queue.broadcast(wake, event)
        for pod in claiming.users(claim):
            hub.queue.wake(pod, Wake.CLAIM, event)
        # an object that is missing now changes the reason of the pods that need it, whatever has refused them
        if _is_missing(after) and not _is_missing(before):
            named = claiming.named if isinstance(obj, StorageClass | DeviceClass) else claiming.users(object_key(obj))
            for pod in tuple(named):
                hub.queue.wake(pod, ANY, event)
        for listener in hub.listeners.claimed:
            listener(object_key(obj))

    return Changes(hub, on_change, put=put)


def _is_missing(obj: Any) -> bool:
    """Returns True if pods that need a storage or device object must wait: it is deleted (None), or is a claim that is
    being deleted, has lost its volume, or cannot be read."""
    if obj is None or not isinstance(obj, PersistentVolumeClaim | ResourceClaim):
        return obj is None
    lost = isinstance(obj, PersistentVolumeClaim) and obj.status.phase == "Lost"
    return lost or obj.metadata.deletion_timestamp is not None or bool(unreadable(obj.metadata))
