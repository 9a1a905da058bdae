# SPDX-License-Identifier: Apache-2.0
"""Empties caches after many pods were deleted, so that the process returns their memory to the system.

Many caches have small entries about deleted pods, and one remaining entry keeps a whole page of memory in use. Caches
are emptied only when as many pods were deleted as still exist, because cached results about existing pods must then be
computed again.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from koordpy.api.bounded_memory import forget_all
from koordpy.engine.engine_context import Context
from koordpy.engine.status.event_recorder import ObjectReference
from koordpy.engine.status.gang_census import Census
from koordpy.engine.unschedulable import UnschedulableHandler
from koordpy.engine.watching.reflector import Reflector
from koordpy.observe.decision_log import DecisionLog

LEAST_GONE = 256
"""Minimum number of deleted pods since memory was last freed. Fewer pods occupy too little memory."""
AGAIN = 6
"""Number of calls of `look`, after one that freed memory, that free memory again: until they are sent, queued events
and other data still refer to deleted objects."""


class Forgetting:
    """Counts deleted pods, and frees memory after many deletions. Owned by the event loop."""

    def __init__(
        self,
        context: Context,
        decisions: DecisionLog,
        census: Census,
        refusals: UnschedulableHandler,
        *,
        of_objects: Iterable[Callable[[Callable[[Hashable], bool]], None]],
        of_rounds: Callable[[], None],
    ) -> None:
        """of_objects: functions that drop entries of deleted objects. Each is called with a function that returns True
        if an object exists. of_rounds: requests a round, because only a round can replace the planner's caches."""
        feeds = context.feeds
        self._state, self._queue, self._reflectors = feeds.state, feeds.queue, feeds.reflectors
        self._watched: dict[tuple[str, str], list[Reflector[Any]]] = {}
        """(apiVersion, kind) -> reflectors of the kind, as of the last `look` that freed memory."""
        self._decisions, self._census, self._refusals = decisions, census, refusals
        self._of_objects, self._of_rounds = tuple(of_objects), of_rounds
        self._gone = self._again = 0
        feeds.listeners.pod_gone.append(self._pod_gone)

    def look(self) -> bool:
        """Frees memory if at least as many pods were deleted since memory was last freed as exist now.

        Called periodically.

        Returns True if memory was freed.
        """
        if self._gone >= max(LEAST_GONE, self._state.sizes["pods"]):
            self._gone, self._again = 0, AGAIN
        elif self._again:
            self._again -= 1
        else:
            return False
        forget_all()
        self._state.forget_labels()
        self._census.count()
        self._refusals.forget()
        self._decisions.forget(lambda unit: unit in self._queue.entries)
        self._watched.clear()
        for one in self._reflectors.values():
            self._watched.setdefault((one.resource.api_version, one.resource.kind), []).append(one)
        for forget in self._of_objects:
            forget(self._is_there)
        self._of_rounds()
        return True

    def _pod_gone(self, key: str) -> None:
        self._gone += 1

    def _is_there(self, about: Hashable) -> bool:
        """Returns True if an object exists, even if it cannot be read. about: the object of a message or event. Objects
        of kinds that are not deleted in masses count as existing."""
        if not isinstance(about, ObjectReference) or about.kind not in ("Pod", "PodGroup", "ElasticQuota"):
            return True
        watched = self._watched.get((about.api_version, about.kind), ())
        return any(about.uid in one.objects or about.uid in one.unreadable for one in watched)
