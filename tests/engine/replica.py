# SPDX-License-Identifier: Apache-2.0
"""A process that schedules: started, stopped in order, killed where it stands, cut off, and started again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace as changed

from koordpy.config.configuration import Gangs, KoordpyConfiguration
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduler import Scheduler
from tests.engine.failures import NO_SEATS
from tests.engine.live import Planner
from tests.engine.tuning import NO_LEASE, QUICK, QUICK_LEASE, tuned
from tests.engine.virtual import LATEST_SECONDS, Wire

Connect = Callable[[], ApiClient]


class Listener(Protocol):
    """Who hears of processes that start."""

    def listen(self, scheduler: Scheduler) -> None:
        """A scheduler starts."""


SETTINGS = tuned(
    QUICK,
    event_qps=0.0,
    max_binds_in_flight=8,
    group_status_seconds=0.25,
    unconfirmed_seconds=0.8,
    wobble_hold_seconds=1.0,
    sweep_seconds=0.3,
)
NAMED_GANGS = Gangs(auto="labels", volcano="off")
"""Of stories in which no workload comes: nothing is watched for their sake."""


@dataclass
class Replica:
    """One of the processes of a Deployment: when it ends, it is started again. latest_seconds: of its network."""

    connect: Connect
    wall: Callable[[], float]
    elects: bool
    watchman: Listener
    name: str = "one"
    latest_seconds: float = LATEST_SECONDS
    gangs: Gangs = NAMED_GANGS
    settings: EngineSettings = SETTINGS
    config: KoordpyConfiguration = NO_SEATS
    """Its planner's, and what the engine reads of repairs."""
    client: ApiClient | None = None
    scheduler: Scheduler | None = None
    ahead_seconds: float = 0.0
    """What its machine's time of day is ahead of everybody's: somebody has set it."""
    slept_seconds: float = 0.0
    """What its clock is ahead of everybody's: its machine was suspended, and none of its timers has noticed."""
    stopping: bool = False
    starts: int = 0
    ends: int = 0
    _task: asyncio.Task[int] | None = None

    async def run(self) -> None:
        """Until `stop`."""
        loop = asyncio.get_running_loop()
        while not self.stopping:
            self.client = self.connect()
            self.starts += 1
            settings = tuned(
                self.settings,
                gangs=self.gangs,
                repair=self.config.repair,
                lease=changed(QUICK_LEASE, retry_period=0.2) if self.elects else NO_LEASE,
                settle_seconds=2.5 * self.latest_seconds,
            )
            clock = lambda: loop.time() + self.slept_seconds  # noqa: E731
            wall = lambda: self.wall() + self.ahead_seconds  # noqa: E731
            self.scheduler = Scheduler(
                self.client, Planner(config=self.config), settings=settings, clock=clock, wall_clock=wall
            )
            if self.scheduler.elector is not None:
                self.scheduler.elector.identity = f"{self.name}-{self.starts}"
            self.watchman.listen(self.scheduler)
            self._task = asyncio.create_task(self.scheduler.run())
            await asyncio.gather(self._task, return_exceptions=True)
            self.ends += 1
            await self.client.close()
            # what it sent last has arrived when the next one begins
            await asyncio.sleep(3 * self.latest_seconds)

    @property
    def leads(self) -> bool:
        """Whether it may write now."""
        return self.scheduler is not None and self.scheduler.may_write()

    def kill(self) -> None:
        """It ends where it stands; what it has sent still arrives."""
        if isinstance(self.client, Wire):
            self.client.dead = True
        if self.scheduler is not None:
            self.scheduler.leading.clear()
        if self._task is not None:
            self._task.cancel()

    def doze(self, seconds: float) -> None:
        """Its machine is suspended so long: when it goes on, it must see that its lease may have run out."""
        self.slept_seconds += seconds
        if self.scheduler is not None and self.scheduler.elector is not None:
            # of whoever leads it has seen nothing meanwhile, and that one has renewed its lease
            self.scheduler.elector._observed_at += seconds

    def retire(self) -> None:
        """It ends in order, gives its lease back, and is started again."""
        if self.scheduler is not None:
            self.scheduler.stop()

    def stop(self) -> None:
        """It ends in order and is not started again."""
        self.stopping = True
        self.retire()
