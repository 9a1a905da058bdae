# SPDX-License-Identifier: Apache-2.0
"""Defines `Context`: what all components of the live scheduler share, such as client, caches, settings, events, clocks.

`Scheduler` creates it once. Each component stores the parts that it needs in its constructor.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from koordpy.cache.cluster_state import ClusterState
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_resources import Resource
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.status.scheduler_events import Announcer, References
from koordpy.engine.watching.feeds import Feeds
from koordpy.observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Context:
    """Access to the API server, the cluster state, settings and reporting. The record itself never changes."""

    client: ApiClient
    feeds: Feeds
    settings: EngineSettings
    metrics: Metrics
    announcer: Announcer
    references: References
    may_write: Callable[[], bool]
    """Returns True if this process may change anything in the cluster now. Called before each write."""
    absent: Callable[[Resource], frozenset[str]]
    """Returns the top-level fields of a custom resource's status that the API server drops (`ServerCheck.absent`)."""
    clock: Callable[[], float]
    """Monotonic time in seconds."""
    now: Callable[[], float]
    """Seconds since 1970. The clock never jumps, even if the machine's clock is set."""

    @property
    def state(self) -> ClusterState:
        """The cache of the cluster, which the feeds keep current."""
        return self.feeds.state

    @property
    def queue(self) -> UnitQueue:
        """The scheduling queue, which the feeds fill with pending pods."""
        return self.feeds.queue


def begin(work: Coroutine[Any, Any, None], name: str, among: set[asyncio.Task[None]]) -> None:
    """Starts a task, and stores it in the set `among` until it ends.

    The set is necessary because the event loop has only weak references to tasks.
    """
    task = asyncio.create_task(work, name=name)
    among.add(task)
    task.add_done_callback(among.discard)
