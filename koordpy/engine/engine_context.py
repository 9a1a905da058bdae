"""What the parts of the live scheduler share: one record of them, so that what all need is said once."""

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


def begin(work: Coroutine[Any, Any, None], name: str, among: set[asyncio.Task[None]]) -> None:
    """Starts a task, and keeps it among others until it ends: the event loop would let it go."""
    task = asyncio.create_task(work, name=name)
    among.add(task)
    task.add_done_callback(among.discard)
