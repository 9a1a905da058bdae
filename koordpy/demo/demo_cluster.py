# SPDX-License-Identifier: Apache-2.0
"""The cluster of the demo: an embedded API server, a simulated kubelet and the live scheduler, in this process.

The scheduler is the one of `koordpy run`, without kopf. It reads and writes only over HTTP on 127.0.0.1, as on a real
cluster. Everything ends with the process.
"""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from koordpy.apiserver.embedded_server import ApiServer
from koordpy.apiserver.fake_kubelet import FakeKubelet
from koordpy.apiserver.workload_controllers import WorkloadControllers
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.demo.demo_objects import Manifest
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.credentials import ClusterAccess
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduler import Scheduler
from koordpy.operator.topology_status import TopologyStatusWriter
from koordpy.plan.planning_budget import PlanningBudget
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import PlannerCache, plan_round
from koordpy.view.live_documents import of_scheduler
from koordpy.view.page_server import page_of

_START_SECONDS, _STOP_SECONDS = 30.0, 5.0
"""Maximum seconds until the scheduler leads, and until it has stopped."""


class StageError(Exception):
    """The cluster cannot be started, or its scheduler has ended; the message contains the end of its log."""


class Stage:
    """The cluster, used as `async with Stage() as stage: ...`."""

    def __init__(self, *, start_seconds: float = 0.3) -> None:
        """start_seconds: seconds from a pod's Binding until it runs. Raises StageError if no file can be written."""
        self.server = ApiServer()
        self._start_seconds = start_seconds
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="koordpy-demo-")
        except OSError as error:
            raise StageError(f"no temporary folder: {error}; set TMPDIR to a writable folder") from error
        self._open = contextlib.AsyncExitStack()
        self._running: asyncio.Task[int] | None = None
        self.page = ""
        """URL of the web UI; empty until the scheduler has started."""

    @property
    def kubeconfig(self) -> Path:
        """Path of a kubeconfig for the cluster."""
        return Path(self._folder.name) / "kubeconfig"

    @property
    def log(self) -> Path:
        """Path of the scheduler's log."""
        return Path(self._folder.name) / "scheduler.log"

    async def __aenter__(self) -> Self:
        """Starts everything except the scheduler."""
        self._open.callback(self._folder.cleanup)
        try:
            self._write_log()
            await self.server.start()
            self._open.push_async_callback(self.server.stop)
            self._open.callback(WorkloadControllers(self.server.store).close)
            self.kubeconfig.write_text(self.server.kubeconfig(), encoding="utf-8")
            kubelet = FakeKubelet(self.server.store, start_seconds=self._start_seconds, end_seconds=self._start_seconds)
            self._open.callback(kubelet.close)
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._open.aclose()

    async def create(self, objects: Iterable[Manifest], *, pause_seconds: float = 0.0) -> None:
        """Creates objects in the API server, with a pause after each."""
        store = self.server.store
        kinds = {(resource.api_version, resource.kind): resource for resource in store.registry}
        for obj in objects:
            store.create(kinds[obj["apiVersion"], obj["kind"]], obj)
            await asyncio.sleep(pause_seconds)

    def pods(self) -> list[Manifest]:
        """Returns all pods, sorted by namespace and name."""
        return self.server.store.list("pods")

    async def start_scheduler(self) -> None:
        """Starts the live scheduler, and waits until it is the leader. Raises StageError."""
        # one cache for rounds, one for searches, because both run at the same time
        config, caches = KoordpyConfiguration(), {searches: PlannerCache() for searches in (False, True)}

        def plan(snapshot: Snapshot, units: frozenset[str], budget: PlanningBudget) -> RoundPlan:
            cache = caches[budget.searches]
            return plan_round(snapshot, config, only=units, planner_cache=cache, budget=budget)

        client = await self._open.enter_async_context(ApiClient(ClusterAccess(server=self.server.url)))
        scheduler = Scheduler(client, plan, settings=EngineSettings(config))
        running = self._running = asyncio.create_task(scheduler.run(), name="scheduler")

        async def stop() -> None:
            scheduler.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), _STOP_SECONDS)

        self._open.push_async_callback(stop)
        statuses = TopologyStatusWriter(scheduler.context, scheduler.leading)
        topologies = asyncio.create_task(statuses.run(), name="topology status")
        self._open.callback(topologies.cancel)
        leading = asyncio.create_task(scheduler.leading.wait())
        done, _ = await asyncio.wait([leading, running], timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        leading.cancel()
        self.check()
        if not done:
            raise StageError(f"the scheduler is not the leader after {_START_SECONDS:g} s{self._last_words()}")
        page = page_of(of_scheduler(scheduler, config, source="the demo"))
        self.page = await self._open.enter_async_context(page)

    def check(self) -> None:
        """Raises StageError if the scheduler has ended."""
        if self._running is None or not self._running.done():
            return
        error = None if self._running.cancelled() else self._running.exception()
        raise StageError(f"the scheduler has ended{f': {error}' if error else ''}{self._last_words()}") from error

    def _write_log(self) -> None:
        """Sends log lines to a file, because the terminal shows the picture."""
        handler = logging.FileHandler(self.log)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger("koordpy")
        before = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False

        def restore() -> None:
            logger.removeHandler(handler)
            handler.close()
            logger.setLevel(before[0])
            logger.propagate = before[1]

        self._open.callback(restore)

    def _last_words(self) -> str:
        """Returns the last 12 lines of the scheduler's log, for an error message."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "".join(f"\n    {line}" for line in lines[-12:])
