"""Changes of what pods claim: volumes and devices. They concern the pods that name a claim, and all others seldom."""

from collections.abc import Callable, Iterable
from typing import Any

from koordpy.cluster.objectbook import object_key
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.volumes import claim_key
from koordpy.engine.apiserver.versions import is_older
from koordpy.engine.changes.hub import Hub
from koordpy.engine.changes.kept import KeptChanges
from koordpy.engine.wakeups import Wake
from koordpy.planning.filters.dra import resource_claims


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


def _claims(info: PodInfo) -> tuple[str, ...]:
    volumes = info.ties.volumes if info.ties is not None else ()
    found = [claim_key(info.namespace, info.name, volume) for volume in volumes]
    return tuple(dict.fromkeys([*(key for key in found if key), *resource_claims(info)]))
