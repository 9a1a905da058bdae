"""Whether containers of a pod that is gone may still use its GPUs.

A pod that was deleted by force, whose Node was deleted, or that the garbage collector failed is gone from the API
server, and the kubelet's list of pods leaves it out, while its containers have their grace period. The proof that they
have ended is an empty control group; where control groups do not tell, the grace period has to pass.
"""

import time
from collections.abc import Callable, Collection, Iterable

from koordpy.agent.plugin.delivery_ledger import Delivery

SETTLE_SECONDS = 10.0
"""From the moment a pod is gone until the kubelet has told its containers to end, or started none; and for the kill
behind the grace period."""


class Orphans:
    """Pods that are gone, by uid. has_processes: of a pod, None where it cannot be told; clock: seconds."""

    def __init__(
        self, has_processes: Callable[[str], bool | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._has_processes, self._clock = has_processes, clock
        self._ran: set[str] = set()
        """Of which a process was seen, so that none is a proof that all have ended."""
        self._gone: dict[str, float] = {}

    def look(self, uids: Iterable[str]) -> None:
        """Remembers which of these pods have processes."""
        self._ran.update(uid for uid in uids if uid not in self._ran and self._has_processes(uid))

    def may_run(self, delivery: Delivery, ended: bool) -> bool:
        """Whether a container of a pod that is gone may still run. ended: whether its status says that all have ended;
        that is what the kubelet says of a pod that was not deleted by force."""
        uid = delivery.slot[0]
        gone_for = self._clock() - self._gone.setdefault(uid, self._clock())
        found = self._has_processes(uid)
        if found:
            self._ran.add(uid)
            return True
        if ended or (found is False and uid in self._ran):
            return False
        return gone_for < (SETTLE_SECONDS if found is False else delivery.grace_seconds + SETTLE_SECONDS)

    def gone_for(self, uid: str) -> float:
        """Seconds since a pod was first found to be gone."""
        return self._clock() - self._gone.get(uid, self._clock())

    def keep(self, uids: Collection[str]) -> None:
        """Forgets all other pods."""
        self._ran &= set(uids)
        self._gone = {uid: since for uid, since in self._gone.items() if uid in uids}
