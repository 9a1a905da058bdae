"""Changes of what pods claim: volumes and devices. They concern the pods that name a claim, and all others seldom."""

from typing import Any

from koordpy.cluster.objectbook import object_key
from koordpy.engine.apiserver.versions import is_older
from koordpy.engine.changes.hub import Hub
from koordpy.engine.claimusers import ClaimUsers
from koordpy.engine.wakeups import Wake, of_devices, of_storage


class StorageChanges:
    """The sink of claims, volumes and their like."""

    def __init__(self, hub: Hub, claiming: ClaimUsers) -> None:
        self._hub, self._claiming = hub, claiming

    def upsert(self, obj: Any, old: Any) -> None:
        """An object that came or changed."""
        self._hub.state.upsert(obj)
        self._changed(obj, *of_storage(old, obj))

    def delete(self, obj: Any) -> None:
        """An object that is gone."""
        self._hub.state.delete(type(obj), object_key(obj))
        self._changed(obj, *of_storage(obj, None))

    def _changed(self, obj: Any, wake: Wake, claim: str) -> None:
        _wake_users(self._hub, self._claiming, obj, wake, claim)
        for heard in self._hub.listeners.storage:
            heard(object_key(obj))


class DynamicDeviceChanges:
    """The sink of resource claims, slices and device classes."""

    def __init__(self, hub: Hub, claiming: ClaimUsers) -> None:
        self._hub, self._claiming = hub, claiming

    def upsert(self, obj: Any, old: Any) -> None:
        """An object that came or changed."""
        known: Any = self._hub.state.get(type(obj), object_key(obj))
        if known is None or not is_older(obj.metadata.resource_version, known.metadata.resource_version):
            self._hub.state.upsert(obj)
        # where the reply to a write of ours was first, nobody has heard of it yet
        _wake_users(self._hub, self._claiming, obj, *of_devices(old, obj))

    def delete(self, obj: Any) -> None:
        """An object that is gone."""
        self._hub.state.delete(type(obj), object_key(obj))
        _wake_users(self._hub, self._claiming, obj, *of_devices(obj, None))


def _wake_users(hub: Hub, claiming: ClaimUsers, obj: Any, wake: Wake, claim: str) -> None:
    """Wakes the pods that name a claim, and whom else the change may help."""
    hub.queue.broadcast(wake, type(obj).__name__)
    for pod in claiming.users(claim):
        hub.queue.wake(pod, Wake.CLAIM, type(obj).__name__)
