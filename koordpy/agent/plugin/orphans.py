"""Decides whether containers of a deleted pod may still use its GPUs.

A pod may be missing at the API server and in the kubelet's list while its containers are in their grace period: if it
was force-deleted, if its Node was deleted, or if the garbage collector failed it. An empty control group proves that
the containers have ended. If control groups do not show it, the grace period must pass.
"""

import time
from collections.abc import Callable, Collection, Iterable

from koordpy.agent.plugin.delivery_ledger import Delivery

SETTLE_SECONDS = 10.0
"""Seconds for the kubelet to signal the containers of a deleted pod, or to start none; also for the kill after the
grace period."""


class Orphans:
    """Deleted pods that may have running containers, by uid."""

    def __init__(
        self, has_processes: Callable[[str], bool | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """has_processes: returns whether a pod has processes, None if unknown. clock: returns seconds."""
        self._has_processes, self._clock = has_processes, clock
        self._ran: set[str] = set()
        """Pods of which a process was seen, so that no process proves that all have ended."""
        self._gone: dict[str, float] = {}
        """Pod -> time at which it was first found to be deleted."""

    def look(self, uids: Iterable[str]) -> None:
        """Records which of these pods have processes."""
        self._ran.update(uid for uid in uids if uid not in self._ran and self._has_processes(uid))

    def may_run(self, delivery: Delivery, ended: bool) -> bool:
        """Returns True if a container of a deleted pod may still run.

        ended: True if the pod's status says that all containers have ended, as the kubelet reports unless the pod was
        force-deleted.
        """
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
        """Returns the seconds since a pod was first found to be deleted."""
        return self._clock() - self._gone.get(uid, self._clock())

    def keep(self, uids: Collection[str]) -> None:
        """Drops all pods but these."""
        self._ran &= set(uids)
        self._gone = {uid: since for uid, since in self._gone.items() if uid in uids}
