"""The parts that all components of the live scheduler share, in one record."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from koordpy.cache.cluster_state import ClusterState
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.status.scheduler_events import Announcer, References
from koordpy.engine.watching.feeds import Feeds
from koordpy.observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Context:
    """Access to the API server, the cluster state, settings and reporting. Immutable."""

    client: ApiClient
    feeds: Feeds
    settings: EngineSettings
    metrics: Metrics
    announcer: Announcer
    references: References
    may_write: Callable[[], bool]
    """Returns True if this process may change anything in the cluster now. Called before each write."""
    clock: Callable[[], float]
    """Monotonic time in seconds."""
    now: Callable[[], float]
    """Seconds since the epoch, by a clock that follows no jump of the machine's clock."""

    @property
    def state(self) -> ClusterState:
        return self.feeds.state

    @property
    def queue(self) -> UnitQueue:
        return self.feeds.queue


def begin(work: Coroutine[Any, Any, None], name: str, among: set[asyncio.Task[None]]) -> None:
    """Starts a task and adds it to a set until it ends, because the event loop keeps weak references only."""
    task = asyncio.create_task(work, name=name)
    among.add(task)
    task.add_done_callback(among.discard)
