"""Changes of PodGroups, of both kinds, and of ElasticQuotas: settings that gangs and admissions go by.

Our own writes of their status are no news.
"""

from koordpy.api.custom import ElasticQuota
from koordpy.api.groups import PodGroup, UpstreamPodGroup
from koordpy.cluster.objectbook import object_key
from koordpy.cluster.pods import GangRef, GangSource
from koordpy.cluster.quota_owners import counts_in
from koordpy.engine.changes.hub import Hub
from koordpy.engine.wakeups import Wake


class GroupChanges:
    """PodGroups as gangs know them, of whichever API group."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._state = hub, hub.state

    def put(self, group: PodGroup) -> None:
        """A PodGroup that came or changed."""
        old = self._state.pod_group(object_key(group))
        self._state.upsert(group)
        if old is None or (old.metadata.uid, old.spec, old.metadata.annotations) != (
            group.metadata.uid,
            group.spec,
            group.metadata.annotations,
        ):
            self._hub.gang_settings_changed(GangRef(group.metadata.namespace, group.metadata.name), group)

    def drop(self, group: PodGroup) -> None:
        """A PodGroup that is gone."""
        self._state.delete(PodGroup, object_key(group))
        self._hub.gang_settings_changed(GangRef(group.metadata.namespace, group.metadata.name), group)


class UpstreamGroupChanges:
    """The sink of upstream's PodGroups."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._state = hub, hub.state

    def upsert(self, group: UpstreamPodGroup, old: UpstreamPodGroup | None) -> None:
        """A PodGroup that came or changed."""
        self._state.upsert(group)
        if old is None or (old.spec, old.metadata.annotations) != (group.spec, group.metadata.annotations):
            self._hub.gang_settings_changed(_upstream_ref(group), group)

    def delete(self, group: UpstreamPodGroup) -> None:
        """A PodGroup that is gone."""
        self._state.delete(UpstreamPodGroup, object_key(group))
        self._hub.gang_settings_changed(_upstream_ref(group), group)


class QuotaChanges:
    """ElasticQuotas, of whichever API group."""

    def __init__(self, hub: Hub) -> None:
        self._state, self._queue = hub.state, hub.queue

    def put(self, quota: ElasticQuota) -> None:
        """A quota that came or changed."""
        book = self._state.quotas
        before, seen = book.get(object_key(quota)), book.tree_version
        self._state.upsert(quota)
        said = quota.spec, quota.metadata.labels, quota.metadata.annotations
        if book.tree_version != seen and (
            before is None or (before.spec, before.metadata.labels, before.metadata.annotations) != said
        ):
            self._changed(quota)

    def drop(self, quota: ElasticQuota) -> None:
        """A quota that is gone."""
        self._state.delete(ElasticQuota, object_key(quota))
        self._changed(quota)

    def _changed(self, quota: ElasticQuota) -> None:
        """Wakes nobody for the sake of one that does not count."""
        if counts_in(quota.metadata.namespace, self._state.quotas.settings):
            self._queue.broadcast(Wake.QUOTA, "ElasticQuota")


def _upstream_ref(group: UpstreamPodGroup) -> GangRef:
    return GangRef(group.metadata.namespace, group.metadata.name, GangSource.UPSTREAM)
