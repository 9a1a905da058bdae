"""What the parts of the live scheduler share: one record of them, so that what all need is said once."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from koordpy.cluster.state import ClusterState
from koordpy.engine.apiserver.client import ApiClient
from koordpy.engine.queue import UnitQueue
from koordpy.engine.settings import EngineSettings
from koordpy.engine.status.announce import Announcer, References
from koordpy.engine.watching.feeds import Feeds
from koordpy.observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Context:
    """How a part reads, writes and tells. Nothing in it changes."""

    client: ApiClient
    feeds: Feeds
    settings: EngineSettings
    metrics: Metrics
    announcer: Announcer
    references: References
    may_write: Callable[[], bool]
    """Whether this process may change anything in the cluster now: asked before each write."""
    clock: Callable[[], float]
    """Seconds, which never go back."""
    now: Callable[[], float]
    """Seconds since the epoch, by a clock that no jump of the machine's moves."""

    @property
    def state(self) -> ClusterState:
        return self.feeds.state

    @property
    def queue(self) -> UnitQueue:
        return self.feeds.queue

    def moment(self) -> datetime:
        """`now`, as conditions tell it."""
        return datetime.fromtimestamp(self.now(), UTC)
