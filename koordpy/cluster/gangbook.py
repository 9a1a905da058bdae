"""Gangs as they change: their members, and the groups that say their settings."""

from collections.abc import Iterator

from koordpy.api import keys
from koordpy.api.groups import PodGroup, UpstreamPodGroup
from koordpy.api.objects import ObjectMeta
from koordpy.cluster.objectbook import object_key
from koordpy.cluster.pods import GangRef, GangSource, PodInfo


class GangBook:
    """Members by gang; PodGroups of both kinds by `namespace/name`."""

    def __init__(self) -> None:
        self.groups: dict[str, PodGroup] = {}
        self.upstream: dict[str, UpstreamPodGroup] = {}
        self._members: dict[GangRef, dict[str, PodInfo]] = {}
        self._views: dict[GangRef, tuple[PodInfo, ...]] = {}
        """What snapshots show of `_members`; only gangs in `_changed` are written anew."""
        self._changed: set[GangRef] = set()
        self._linkers: dict[tuple[str, str], GangRef] = {}
        """(what, key) of an object or pod with a `groups` annotation -> its gang."""

    def put_member(self, gang: GangRef, info: PodInfo) -> None:
        """Takes a pod as it is now; one that is known keeps its place."""
        self._members.setdefault(gang, {})[info.key] = info
        self._changed.add(gang)
        if gang.source is GangSource.NAMED and keys.GANG_GROUPS in info.pod.metadata.annotations:
            self._linkers["pod", info.key] = gang

    def drop_member(self, gang: GangRef, info: PodInfo) -> None:
        """Forgets a pod."""
        self._linkers.pop(("pod", info.key), None)
        self._changed.add(gang)
        members = self._members.get(gang)
        if members is not None:
            members.pop(info.key, None)
            if not members:
                del self._members[gang]

    def put_group(self, group: PodGroup) -> None:
        """Takes a coscheduling PodGroup."""
        self.groups[object_key(group)] = group
        self._link(GangSource.GROUP, group.metadata)

    def drop_group(self, key: str) -> None:
        """Forgets a coscheduling PodGroup."""
        self.groups.pop(key, None)
        self._linkers.pop((GangSource.GROUP.value, key), None)

    def put_upstream(self, group: UpstreamPodGroup) -> None:
        """Takes a PodGroup of scheduling.k8s.io."""
        self.upstream[object_key(group)] = group
        self._link(GangSource.UPSTREAM, group.metadata)

    def drop_upstream(self, key: str) -> None:
        """Forgets a PodGroup of scheduling.k8s.io."""
        self.upstream.pop(key, None)
        self._linkers.pop((GangSource.UPSTREAM.value, key), None)

    def _link(self, source: GangSource, meta: ObjectMeta) -> None:
        ref = GangRef(meta.namespace, meta.name, source)
        if keys.GANG_GROUPS in meta.annotations:
            self._linkers[source.value, ref.key] = ref
        else:
            self._linkers.pop((source.value, ref.key), None)

    def group_priority(self, ref: GangRef) -> int | None:
        """Priority that an upstream PodGroup gives its members; None where it says none."""
        group = self.upstream.get(ref.key)
        return group.spec.priority if group is not None else None

    def ranked_anew(self, key: str) -> Iterator[tuple[PodInfo, int | None]]:
        """(member, its priority by the group) of an upstream PodGroup, where that is another than the member has."""
        namespace, _, name = key.partition("/")
        ref = GangRef(namespace, name, GangSource.UPSTREAM)
        priority = self.group_priority(ref)
        for info in self.members(ref):
            if info.group_priority != priority:
                yield info, priority

    def members(self, ref: GangRef) -> tuple[PodInfo, ...]:
        """Every known pod that names the gang."""
        return tuple(self._members.get(ref, {}).values())

    def views(self) -> dict[GangRef, tuple[PodInfo, ...]]:
        """Members of every gang, as they are now."""
        for ref in self._changed:
            members = self._members.get(ref)
            if members:
                self._views[ref] = tuple(members.values())
            else:
                self._views.pop(ref, None)
        self._changed.clear()
        return self._views.copy()

    def linkers(self) -> tuple[GangRef, ...]:
        """Gangs whose object, or one of whose pods, carries a `groups` annotation."""
        return tuple(dict.fromkeys(self._linkers.values()))
