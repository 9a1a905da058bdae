"""What whoever writes a status needs: calls, leave to write, the times of the settings, and its own last writes.

One `Writing` serves all writers (of pods, PodGroups, quotas, Devices), so that what they all need is said once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from koordpy.cluster.state import ClusterState
from koordpy.engine.apiserver.client import ApiClient
from koordpy.engine.settings import EngineSettings
from koordpy.engine.status.announce import Announcer
from koordpy.engine.status.references import References
from koordpy.engine.watching.feeds import Feeds

Said = TypeVar("Said")

TRUSTED_SECONDS = 10.0
"""How long a write of ours counts for more than what the watch says."""
MOST_AT_A_TIME = 16
"""Statuses that one writer sends at a time: Bindings are more urgent."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Everything that writers share. `clock` counts seconds and never goes back, `now` tells the time of conditions."""

    client: ApiClient
    feeds: Feeds
    announcer: Announcer
    references: References
    settings: EngineSettings
    may_write: Callable[[], bool]
    clock: Callable[[], float]
    now: Callable[[], datetime]

    @property
    def state(self) -> ClusterState:
        return self.feeds.state


class LastWrites(Generic[Said]):
    """What was written last of each object, by key and uid: the watch may not have brought it yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, tuple[str, Said, float]] = {}

    def note(self, key: str, uid: str, said: Said) -> None:
        """A write was accepted."""
        self._known[key] = uid, said, self._clock()

    def last(self, key: str, uid: str) -> Said | None:
        """What was written last, however long ago; None where nothing was."""
        known = self._known.get(key)
        return known[1] if known is not None and known[0] == uid else None

    def trusted(self, key: str, uid: str) -> Said | None:
        """The same, as long as the watch may not have brought it: then it stands whatever the watch says."""
        return self.last(key, uid) if self.age(key, uid) < TRUSTED_SECONDS else None

    def age(self, key: str, uid: str) -> float:
        """Seconds since the last write; endless where nothing was written."""
        known = self._known.get(key)
        return self._clock() - known[2] if known is not None and known[0] == uid else float("inf")

    def forget(self, key: str) -> None:
        """The object is gone."""
        self._known.pop(key, None)
