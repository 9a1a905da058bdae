"""What changes of each kind of object mean, pods and workloads apart: the state takes the object, then units are woken.

One sink does for all kinds. What a change means is a function of the object before and after it: as the watch showed
it, or, where plans read something that is made of it, as the state has it. Our own writes of a status are no news.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from koordpy.api.custom_objects import ClusterNetworkTopology, ElasticQuota, HyperNode
from koordpy.api.objects import Node, Wire
from koordpy.api.pod_groups import PodGroup, UpstreamPodGroup
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import NodeInfo
from koordpy.devices.dra.filters.claim_filter import resource_claims
from koordpy.engine.changes.change_hub import Hub
from koordpy.engine.client.api_replies import is_older
from koordpy.engine.client.api_resources import Resource
from koordpy.engine.wakeups import Wake, of_node
from koordpy.engine.watching.object_mirror import Sink
from koordpy.pods.gang_refs import GangRef, GangSource
from koordpy.pods.object_book import object_key
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.volume_book import claim_key
from koordpy.quota.quota_owners import counts_in

T = TypeVar("T", bound=Wire)
Means = Callable[[Any, Any, Any], None]
"""(object, what was there before, what is there now): None where nothing was, or is."""


class Changes(Generic[T]):
    """The sink of a kind."""

    def __init__(
        self,
        hub: Hub,
        means: Means,
        *,
        look: Callable[[ClusterState, T], Any] | None = None,
        put: Callable[[T], None] | None = None,
    ) -> None:
        """look: what of the state a change is told by; without it the objects as the watch shows them. put: takes an
        object in, in place of the state itself."""
        self._state, self._means, self._look, self._put = hub.state, means, look, put or hub.state.upsert

    def upsert(self, obj: T, old: T | None) -> None:
        if self._look is None:
            self._put(obj)
            self._means(obj, old, obj)
            return
        before = self._look(self._state, obj)
        self._put(obj)
        self._means(obj, before, self._look(self._state, obj))

    def delete(self, obj: T) -> None:
        before = self._look(self._state, obj) if self._look is not None else obj
        self._state.delete(type(obj), object_key(obj))
        self._means(obj, before, self._look(self._state, obj) if self._look is not None else None)


class ServedVersions(Generic[T]):
    """A kind that two API groups serve: of two objects with one key that of the first counts (vocabulary.md 3).

    The sink is told of the object that counts under each key, and of its end when none is left.
    """

    def __init__(self, first: Resource, second: Resource, sink: Sink[Any]) -> None:
        self.resources: dict[str, Resource] = {}
        """Key -> where the object that counts lives."""
        self._sink = sink
        self._known: dict[Resource, dict[str, T]] = {first: {}, second: {}}

    def sinks(self) -> dict[Resource, Sink[Any]]:
        """A sink for each of the two."""
        return {resource: _OneVersion(self, known) for resource, known in self._known.items()}

    def changed(self, obj: T) -> None:
        """An object of one of the two came, changed or went."""
        key = object_key(obj)
        for resource, known in self._known.items():
            if key in known:
                self.resources[key] = resource
                self._sink.upsert(known[key], None)
                return
        del self.resources[key]
        self._sink.delete(obj)


class _OneVersion(Generic[T]):
    def __init__(self, both: ServedVersions[T], known: dict[str, T]) -> None:
        self._both, self._known = both, known

    def upsert(self, obj: T, old: T | None) -> None:
        self._known[object_key(obj)] = obj
        self._both.changed(obj)

    def delete(self, obj: T) -> None:
        del self._known[object_key(obj)]
        self._both.changed(obj)


# -- nodes, and the domains that they are in --------------------------------------------------------------------------


def node_changes(hub: Hub) -> Changes[Node]:
    """The sink of nodes."""

    def means(node: Node, before: NodeInfo | None, after: NodeInfo | None) -> None:
        wake = of_node(before, after)
        event = "NodeAdd" if before is None else "NodeUpdate" if after is not None else "NodeDelete"
        hub.queue.broadcast(wake, event)
        if wake & (Wake.NODE_ADDED | Wake.NODE_GONE | Wake.NODE_LABELS):
            hub.topology_changed()

    return Changes(hub, means, look=lambda state, node: state.nodes.get(node.metadata.name))


def topology_changes(hub: Hub) -> Changes[ClusterNetworkTopology]:
    """The sink of ClusterNetworkTopologies."""

    def means(topology: ClusterNetworkTopology, before: object, after: object) -> None:
        if before != after:
            hub.layers_changed("TopologyUpdate")
        hub.topology_changed()

    def look(state: ClusterState, _: ClusterNetworkTopology) -> object:
        return state.nodes.topology is not None, state.nodes.layers, tuple(state.nodes.topology_faults)

    return Changes(hub, means, look=look)


def hypernode_changes(hub: Hub) -> Changes[HyperNode]:
    """The sink of HyperNodes, which tell the domains where no ClusterNetworkTopology does. Their owner counts nodes in
    the status, which is no news."""

    def means(obj: HyperNode, before: HyperNode | None, after: HyperNode | None) -> None:
        same = before is not None and after is not None and before.spec == after.spec
        if hub.state.nodes.topology is None and not same:
            hub.layers_changed("HyperNode")
            hub.topology_changed()

    return Changes(hub, means)


# -- settings that gangs and admissions go by -------------------------------------------------------------------------


def group_changes(hub: Hub, source: GangSource) -> Changes[Any]:
    """The sink of PodGroups, of one kind."""

    def look(state: ClusterState, group: PodGroup | UpstreamPodGroup) -> PodGroup | UpstreamPodGroup | None:
        key = object_key(group)
        return state.gangs.groups.get(key) if source is GangSource.GROUP else state.gangs.upstream.get(key)

    def said(group: Any) -> object:
        return group and (group.metadata.uid, group.spec, group.metadata.annotations)

    def means(group: Any, before: Any, after: Any) -> None:
        if said(before) == said(after):
            return
        ref = GangRef(group.metadata.namespace, group.metadata.name, source)
        hub.names.saw(ref, group.metadata)
        made = hub.state.gangs.gangs_of_made(ref.key) if source is GangSource.UPSTREAM else ()
        for one in (ref, *made):
            for unit in hub.names.concerned(one):
                hub.queue.touch(unit, "PodGroupUpdate")
        for heard in hub.listeners.gang:
            heard(ref)

    return Changes(hub, means, look=look)


_Seen = tuple[ElasticQuota | None, int]


def quota_changes(hub: Hub) -> Changes[ElasticQuota]:
    """The sink of ElasticQuotas, of whichever API group. Nobody is woken for the sake of one that does not count."""

    def said(quota: ElasticQuota | None) -> object:
        return quota and (quota.spec, quota.metadata.labels, quota.metadata.annotations)

    def means(quota: ElasticQuota, before: _Seen, after: _Seen) -> None:
        news = before[1] != after[1] and said(before[0]) != said(after[0])
        if news and counts_in(quota.metadata.namespace, hub.state.quotas.settings):
            hub.queue.broadcast(Wake.QUOTA, "ElasticQuota")

    def look(state: ClusterState, quota: ElasticQuota) -> _Seen:
        return state.quotas.objects.get(object_key(quota)), state.quotas.tree_version

    return Changes(hub, means, look=look)


# -- objects that are kept as they are; what each may help with stands in `koordpy.engine.wakeups` --------------------


def kept_changes(hub: Hub, helps: Callable[[Any, Any], Wake], event: str = "") -> Changes[Any]:
    """The sink of a resource that is only kept. helps: what a change may help with; event: its name, where it is not
    that of the kind."""

    def means(obj: Any, before: Any, after: Any) -> None:
        hub.queue.broadcast(helps(before, after), event or type(obj).__name__)

    return Changes(hub, means)


# -- what pods claim: volumes and devices -----------------------------------------------------------------------------


class ClaimUsers:
    """Which pending pods name a claim, of volumes or of devices, by `namespace/name` (kube-parity.md 4.3). One of each
    kind may share a name: a pod too many wakes then."""

    def __init__(self) -> None:
        self._users: dict[str, dict[str, None]] = {}
        self.named: dict[str, tuple[str, ...]] = {}
        """Pending pod -> the claims that it names; only pods that name some."""

    def changed(self, key: str, info: PodInfo | None) -> None:
        """A pod that waits for a place; None once it does not."""
        named = _claims(info) if info is not None else ()
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
        """Keys of the pods that name a claim."""
        return tuple(self._users.get(claim, ()))


def _claims(info: PodInfo) -> tuple[str, ...]:
    found = [claim_key(info.namespace, info.name, volume) for volume in info.ties.volumes]
    return tuple(dict.fromkeys([*(key for key in found if key), *resource_claims(info)]))


def claimed_changes(hub: Hub, claiming: ClaimUsers, helps: Callable[[Any, Any], tuple[Wake, str]]) -> Changes[Any]:
    """The sink of claims and of what they are given: they concern the pods that name a claim, and all others seldom.
    helps: what a change may help with, and the claim whose users it concerns."""

    def put(obj: Any) -> None:
        known = hub.state.get(type(obj), object_key(obj))
        # where the reply to a write of ours was first, nobody has heard of it yet
        if known is None or not is_older(obj.metadata.resource_version, known.metadata.resource_version):
            hub.state.upsert(obj)

    def means(obj: Any, before: Any, after: Any) -> None:
        (wake, claim), event = helps(before, after), type(obj).__name__
        if after is None and claiming.users(object_key(obj)):
            wake |= Wake.ASKED  # by who lacks it now
        hub.queue.broadcast(wake, event)
        for pod in claiming.users(claim):
            hub.queue.wake(pod, Wake.CLAIM, event)
        for heard in hub.listeners.claimed:
            heard(object_key(obj))

    return Changes(hub, means, put=put)
