# SPDX-License-Identifier: Apache-2.0
"""Detects a second scheduler that binds pods of the scheduler names that this process serves.

Of several replicas with one Lease only the leader binds pods. But two Helm releases with different Leases, or another
scheduler, may serve the same scheduler name. Then both schedulers assign the same capacity. Each detects the other by
Bindings that it has not sent itself.

koordpy writes the name of its Lease into every Binding, as an annotation. The annotation tells Bindings of an earlier
leader of the same Lease from foreign ones, and the warning names the other Lease. Any user may write the annotation,
so no metric label contains it, and the number of names in warnings is limited.
"""

import logging
import re
from collections.abc import Callable

from koordpy.api.keys import BOUND_LEASE
from koordpy.config.configuration import LeaderElection
from koordpy.engine.client.complaints import AGAIN_SECONDS
from koordpy.engine.engine_context import Context
from koordpy.engine.status.event_recorder import ObjectReference
from koordpy.engine.status.scheduler_events import FOREIGN
from koordpy.pods.pod_info import PodInfo

logger = logging.getLogger(__name__)

MOST_NAMED = 8
"""Maximum number of other Leases that warnings name; Bindings of further Leases are reported without a name."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


class ForeignBinds:
    """Counts and reports foreign Bindings. Owned by the event loop; registered as a listener of the feeds."""

    def __init__(self, context: Context, lease: Callable[[], ObjectReference | None]) -> None:
        """lease: returns the Lease of this process; None without leader election."""
        self._context, self._own = context, lease
        self._lease = lease_name(context.settings.election)
        self._told: dict[tuple[str, str], float] = {}
        """(scheduler name, other Lease) -> clock time of its last log line."""
        context.feeds.listeners.bound.append(self.seen)

    def seen(self, info: PodInfo, expected: bool) -> None:
        """Called when the watch shows that a pending pod was bound. expected: True if it is on the planned node."""
        if not self._context.may_write():
            return
        other = info.pod.metadata.annotations.get(BOUND_LEASE) or ""
        # with leader election a Binding with our Lease is ours; without it, a Binding to the planned node
        if other == self._lease if self._lease else expected:
            return
        name = info.pod.spec.scheduler_name
        self._context.metrics.foreign_binds.labels(name).inc()
        self._tell(name, self._named(name, other))

    def _named(self, name: str, other: str) -> str:
        """Returns the Lease that a Binding names; empty if it names none, this process's Lease, an invalid name, or one
        name too many (`MOST_NAMED`)."""
        known = (name, other) in self._told or len(self._told) < MOST_NAMED
        return other if known and _NAME.fullmatch(other) and other != self._lease else ""

    def _tell(self, name: str, other: str) -> None:
        """Reports a foreign Binding by an event, and in the log every `AGAIN_SECONDS`. name: scheduler name; other: the
        other Lease, empty if unknown."""
        binder = f"the leader of Lease {other}" if other else "a process that is not koordpy with leader election"
        text = f"pods of scheduler {name} are also bound by {binder}: only one release may serve a scheduler name"
        now = self._context.clock()
        if now - self._told.get((name, other), float("-inf")) >= AGAIN_SECONDS:
            self._told[name, other] = now
            logger.warning(text)
        if (about := self._own()) is not None:
            self._context.announcer.tell(FOREIGN, about, text)


def lease_name(election: LeaderElection | None) -> str:
    """Returns `namespace/name` of a Lease, as Bindings contain it; empty without leader election."""
    return f"{election.resource_namespace}/{election.resource_name}" if election is not None else ""
