"""Pods of our scheduler names that another process binds: two leaders that do not know of each other.

Replicas of one release agree by their Lease. Two releases, or a second scheduler, that serve the same scheduler name do
not: each plans on its own picture, and both give away the same room. Each notices it by Bindings that it has not sent.
A Binding carries the Lease of its leader, so that those of the leader before are told apart, and the other Lease can be
named. What others write there is not trusted beyond that: no label of a metric has it, and few names are kept.
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
"""Other Leases that are told of by name; of more, that they have none."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


class ForeignBinds:
    """Counts them and tells of them. Owned by the event loop; hears of changes as a listener."""

    def __init__(self, context: Context, lease: Callable[[], ObjectReference | None]) -> None:
        """lease: of this process; None without leader election."""
        self._context, self._own = context, lease
        self._lease = lease_name(context.settings.election)
        self._told: dict[tuple[str, str], float] = {}
        """(scheduler name, other Lease) -> when it was last logged, on the clock."""
        context.feeds.listeners.bound.append(self.seen)

    def seen(self, info: PodInfo, expected: bool) -> None:
        """The watch shows a pod of ours bound that was pending. expected: on the node that this process planned."""
        if not self._context.may_write():
            return
        other = info.pod.metadata.annotations.get(BOUND_LEASE) or ""
        if other == self._lease if self._lease else expected:
            return
        name = info.pod.spec.scheduler_name
        self._context.metrics.foreign_binds.labels(name).inc()
        self._tell(name, self._named(name, other))

    def _named(self, name: str, other: str) -> str:
        """The Lease that a Binding names, empty where it names none that can be told."""
        known = (name, other) in self._told or len(self._told) < MOST_NAMED
        return other if known and _NAME.fullmatch(other) and other != self._lease else ""

    def _tell(self, name: str, other: str) -> None:
        who = f"the leader of Lease {other}" if other else "a process that is no koordpy with leader election"
        text = f"pods of scheduler {name} are also bound by {who}: serve each scheduler name by one release alone"
        now = self._context.clock()
        if now - self._told.get((name, other), float("-inf")) >= AGAIN_SECONDS:
            self._told[name, other] = now
            logger.warning(text)
        if (about := self._own()) is not None:
            self._context.announcer.tell(FOREIGN, about, text)


def lease_name(election: LeaderElection | None) -> str:
    """`namespace/name` of a Lease, as Bindings carry it; empty without leader election."""
    return f"{election.resource_namespace}/{election.resource_name}" if election is not None else ""
