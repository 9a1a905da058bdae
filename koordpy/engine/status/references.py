"""Which object an event is about: from a pod, a gang or a name to kind, name and uid as the API server knows them."""

from koordpy.api.natural import natural_key
from koordpy.cluster.pods import GangRef, GangSource, PodInfo
from koordpy.engine.apiserver.resources import DEVICES, HYPERNODES, NODES, UPSTREAM_POD_GROUPS
from koordpy.engine.status.recorder import ObjectReference, of_object, of_pod
from koordpy.engine.watching.feeds import Feeds
from koordpy.workloads.known import Title


class References:
    """Objects by their names, as far as they are there now."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds, self._state = feeds, feeds.state
        self._titled: tuple[object, dict[tuple[str, str], Title]] = None, {}
        """The gangs that follow from workloads, and these by kind and `namespace/name`."""

    def pod_group(self, key: str) -> ObjectReference | None:
        """A PodGroup of coscheduling, by `namespace/name`."""
        group, resource = self._state.gangs.groups.get(key), self._feeds.groups.resources.get(key)
        return of_object(resource, group.metadata) if group is not None and resource is not None else None

    def upstream_group(self, key: str) -> ObjectReference | None:
        """A PodGroup of scheduling.k8s.io, by `namespace/name`."""
        group, resource = self._state.gangs.upstream.get(key), self._feeds.served.get(UPSTREAM_POD_GROUPS)
        return of_object(resource, group.metadata) if group is not None and resource is not None else None

    def named_gang(self, key: str, source: GangSource) -> ObjectReference | None:
        """The topmost workload of a gang without an object, by `namespace/name`, else the controller of its pods; its
        oldest pod where they have none."""
        namespace, _, name = key.partition("/")
        ref = GangRef(namespace, name, source)
        book = self._state.workloads
        derived = book.derived.get(ref) if book is not None and source is GangSource.WORKLOAD else None
        if derived is not None and (title := derived.title) is not None and title.uid:
            return ObjectReference(title.api_version, title.kind, title.name, title.namespace, title.uid)
        return self.owner(ref) or next((of_pod(pod) for pod in self._oldest_first(ref)), None)

    def owner(self, ref: GangRef) -> ObjectReference | None:
        """The controller of a gang's pods, such as a Job: of the oldest that has one."""
        owners = (one for pod in self._oldest_first(ref) for one in pod.pod.metadata.owner_references if one.controller)
        found = next(owners, None)
        if found is None:
            return None
        return ObjectReference(found.api_version, found.kind, found.name, ref.namespace, found.uid)

    def _oldest_first(self, ref: GangRef) -> list[PodInfo]:
        """The pods of a gang, those of an earlier Job only where there are no others."""
        gang = self._state.gangs.gang(ref)
        return sorted(gang.members or gang.pods, key=lambda pod: (pod.created, natural_key(pod.name)))

    def elastic_quota(self, key: str) -> ObjectReference | None:
        """An ElasticQuota, by `namespace/name`."""
        quota, resource = self._state.quotas.get(key), self._feeds.quotas.resources.get(key)
        return of_object(resource, quota.metadata) if quota is not None and resource is not None else None

    def hypernode(self, name: str) -> ObjectReference | None:
        """A HyperNode by its name."""
        resource, found = self._feeds.served.get(HYPERNODES), self._state.nodes.hypernode(name)
        return of_object(resource, found.metadata) if resource is not None and found is not None else None

    def beneficiary(self, name: str) -> ObjectReference | None:
        """Who gains by an eviction: a plain pod, a gang's PodGroup, else the workload or oldest pod of a gang."""
        info = self._state.pod(name)
        if info is not None:
            return of_pod(info)
        found = self.pod_group(name) or self.upstream_group(name)
        return found or self.named_gang(name, GangSource.WORKLOAD) or self.named_gang(name, GangSource.NAMED)

    def warned(self, name: str) -> ObjectReference | None:
        """Whom a warning of a plan is about: `Pod/namespace/name`, PodGroup, ElasticQuota or workload alike, or
        `Device/name`, `HyperNode/name`, `Node/name`."""
        kind, _, key = name.replace(" ", "/", 1).partition("/")
        if kind == "PodGroup":
            return self.pod_group(key) or self.upstream_group(key)
        if kind == "ElasticQuota":
            return self.elastic_quota(key)
        if kind == "Device":
            device = self._state.gpus.device(key)
            return of_object(DEVICES, device.metadata) if device is not None else None
        if kind == "HyperNode":
            return self.hypernode(key)
        if kind == "Node":
            node = self._state.node(key)
            return of_object(NODES, node.node.metadata) if node is not None else None
        if kind == "Pod":
            pod = self._state.pod(key)
            return of_pod(pod) if pod is not None else None
        return self.workload(kind, key)

    def workload(self, kind: str, key: str) -> ObjectReference | None:
        """A workload of which pods are a gang, by its kind and `namespace/name`."""
        book = self._state.workloads
        if book is None:
            return None
        if self._titled[0] is not book.derived:  # many warnings are told of one round
            titles = [gang.title for gang in book.derived.values() if gang.title is not None]
            self._titled = book.derived, {(one.kind, f"{one.namespace}/{one.name}"): one for one in titles}
        found = self._titled[1].get((kind, key))
        if found is None or not found.uid:
            return None
        return ObjectReference(found.api_version, found.kind, found.name, found.namespace, found.uid)
