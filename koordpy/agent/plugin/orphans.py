# SPDX-License-Identifier: Apache-2.0
"""Decides whether containers of a deleted pod may still use its GPUs.

Such a pod is called an orphan: neither the API server nor the kubelet lists it, but its containers may run. This
happens if the pod was force-deleted, if its Node was deleted, or if the garbage collector set its phase to Failed. If
the pod's control group has no processes, its containers have ended. If control groups cannot be read, the grace period
of the pod must have passed.
"""

import time
from collections.abc import Callable, Collection, Iterable

from koordpy.agent.plugin.delivery_ledger import Delivery

SETTLE_SECONDS = 10.0
"""Seconds that are added to a grace period, because the kill at its end takes time. Also: if no process of a pod was
ever seen, seconds until the pod counts as ended, because the kubelet may just be starting a container."""


class Orphans:
    """Deleted pods that may have running containers, by uid."""

    def __init__(
        self, has_processes: Callable[[str], bool | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """has_processes: returns whether a pod (uid) has processes; None if unknown. clock: returns seconds."""
        self._has_processes, self._clock = has_processes, clock
        self._ran: set[str] = set()
        """uids of pods for which a process was seen. If such a pod has no process now, all its containers have
        ended."""
        self._gone: dict[str, float] = {}
        """uid of a pod -> time at which it was first found to be deleted."""

    def look(self, uids: Iterable[str]) -> None:
        """Records which of these pods (uids) have processes now."""
        self._ran.update(uid for uid in uids if uid not in self._ran and self._has_processes(uid))

    def may_run(self, delivery: Delivery, ended: bool) -> bool:
        """Returns True if a container of a deleted pod may still run.

        delivery: GPUs that the pod got. ended: True if the last status of the pod says that all containers have ended.
        The kubelet reports such a status, except for force-deleted pods.
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
        """Returns the seconds since a pod (uid) was first found to be deleted; 0 for a pod that was not."""
        return self._clock() - self._gone.get(uid, self._clock())

    def keep(self, uids: Collection[str]) -> None:
        """Removes all records except those of the pods with these uids."""
        self._ran &= set(uids)
        self._gone = {uid: since for uid, since in self._gone.items() if uid in uids}
