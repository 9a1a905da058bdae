"""Changes of what pods claim: volumes and devices. They concern the pods that name a claim, and all others seldom."""

from collections.abc import Callable
from typing import Any

from koordpy.cluster.objectbook import object_key
from koordpy.engine.apiserver.versions import is_older
from koordpy.engine.changes.hub import Hub
from koordpy.engine.changes.kept import KeptChanges
from koordpy.engine.claimusers import ClaimUsers
from koordpy.engine.wakeups import Wake


class ClaimedChanges(KeptChanges):
    """The sink of claims and of what they are given."""

    def __init__(
        self, hub: Hub, claiming: ClaimUsers, helps: Callable[[Any, Any], tuple[Wake, str]], *, storage: bool = False
    ) -> None:
        """helps: what a change may help with, and the claim whose users it concerns. storage: whether those who wait
        for volumes hear of it."""
        super().__init__(hub, lambda before, after: helps(before, after)[0])
        self._claim_of, self._claiming, self._storage = helps, claiming, storage

    def upsert(self, obj: Any, old: Any) -> None:
        """An object that came or changed."""
        known: Any = self._hub.state.get(type(obj), object_key(obj))
        late = known is not None and is_older(obj.metadata.resource_version, known.metadata.resource_version)
        if self._storage or not late:
            self._hub.state.upsert(obj)
        # where the reply to a write of ours was first, nobody has heard of it yet
        self._changed(obj, old, obj)

    def _changed(self, obj: Any, before: Any, after: Any) -> None:
        super()._changed(obj, before, after)
        for pod in self._claiming.users(self._claim_of(before, after)[1]):
            self._hub.queue.wake(pod, Wake.CLAIM, type(obj).__name__)
        for heard in self._hub.listeners.storage if self._storage else ():
            heard(object_key(obj))
