"""Which pending pods name a claim, of volumes or of devices: its changes concern them alone (kube-parity.md 4.3)."""

from collections.abc import Iterable

from koordpy.cluster.pods import PodInfo
from koordpy.cluster.volumes import claim_key
from koordpy.planning.filters.dra import resource_claims


class ClaimUsers:
    """Claims by `namespace/name`, which one of volumes and one of devices may share: a pod too many wakes then."""

    def __init__(self) -> None:
        self._users: dict[str, dict[str, None]] = {}
        self._named: dict[str, tuple[str, ...]] = {}

    def changed(self, key: str, info: PodInfo | None) -> None:
        """A pod that waits for a place; None once it does not."""
        named = _claims(info) if info is not None else ()
        if named == self._named.get(key, ()):
            return
        for claim in self._named.pop(key, ()):
            users = self._users[claim]
            del users[key]
            if not users:
                del self._users[claim]
        if named:
            self._named[key] = named
            for claim in named:
                self._users.setdefault(claim, {})[key] = None

    def users(self, claim: str) -> Iterable[str]:
        """Keys of the pods that name a claim."""
        return tuple(self._users.get(claim, ()))


def _claims(info: PodInfo) -> tuple[str, ...]:
    volumes = info.ties.volumes if info.ties is not None else ()
    if not volumes and not info.pod.spec.resource_claims:
        return ()
    found = [claim_key(info.namespace, info.name, volume) for volume in volumes]
    return tuple(dict.fromkeys([*(key for key in found if key), *resource_claims(info)]))
