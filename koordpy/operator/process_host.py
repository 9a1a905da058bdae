# SPDX-License-Identifier: Apache-2.0
"""Runs the process: the scheduler on the main event loop, kopf, servers, signal handlers, and an orderly shutdown.

kopf's startup handler waits until the scheduler is in sync, and its cleanup handler until the scheduler is drained.
kopf's thread starts once no Binding has been in progress for a moment: normally after the pods that were pending at the
start are bound. The reason: importing kopf takes 0.7 s of CPU, which would delay these pods (20 gangs of 100 pods: 4.2
s instead of 3.5 s).
"""

import asyncio
import gc
import logging
import signal

import msgspec
from aiohttp import web

from koordpy.config.configuration import DebugAccess, KoordpyConfiguration
from koordpy.config.configuration_file import plain
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduler import Scheduler
from koordpy.engine.scheduling_loop import Planner
from koordpy.observe.health_endpoints import Guard, HealthServer, from_loopback
from koordpy.operator.debug_access import TokenGuard
from koordpy.operator.heap import give_back
from koordpy.operator.kopf_handlers import KopfThread
from koordpy.operator.quota_hook import QuotaHook
from koordpy.operator.tenant_api import TenantApi
from koordpy.operator.topology_status import TopologyStatusWriter
from koordpy.operator.webhook import Webhook
from koordpy.view.live_documents import of_scheduler
from koordpy.view.page_server import Pages
from koordpy.view.tenant_answers import answers_of

logger = logging.getLogger(__name__)

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SETTLE_SECONDS = 0.5
"""Seconds without a Binding in progress after which kopf starts."""
MOST_SETTLE_SECONDS = 30.0
"""Seconds after the caches are in sync until kopf starts in any case."""
MOST_REST_SECONDS = 60.0
"""Maximum seconds for which the garbage collector is disabled while the caches are not in sync."""


async def _allow_all(_: web.Request) -> str:
    return ""


def _guard(access: DebugAccess, client: ApiClient) -> Guard:
    guards: dict[DebugAccess, Guard] = {"loopback": from_loopback, "token": TokenGuard(client), "open": _allow_all}
    return guards[access]


class OperatorHost:
    """The process of `koordpy run`. `run()` returns its exit status."""

    def __init__(
        self,
        client: ApiClient,
        planner: Planner,
        *,
        settings: EngineSettings,
        config: KoordpyConfiguration,
        settle_seconds: float = SETTLE_SECONDS,
        webhook: Webhook | None = None,
        tenants: TenantApi | None = None,
        view: bool = True,
    ) -> None:
        """view: True to serve /debug/view."""
        self.scheduler = Scheduler(client, planner, settings=settings)
        self.topologies = TopologyStatusWriter(self.scheduler.context, self.scheduler.leading)
        self.kopf: KopfThread | None = None
        self._client, self._config, self._settle = client, config, settle_seconds
        self._ended = asyncio.Event()
        self._webhook = webhook
        scheduler = self.scheduler
        if webhook is not None:
            webhook.quotas = QuotaHook(client, scheduler.feeds, scheduler.synced)
            webhook.on_refused = scheduler.count_refused
        self._tenants = tenants
        if tenants is not None:
            tenants.answers = answers_of(scheduler, config)
            tenants.on_question = scheduler.count_question
        pages = Pages(of_scheduler(scheduler, config, source=f"scheduler {config.scheduler_names[0]}"))
        self.health = HealthServer(
            config.bind_address,
            metrics=scheduler.metrics,
            live=scheduler.inspection.live_checks(),
            ready=scheduler.inspection.ready_checks(),
            guard=_guard(config.debug_access, client),
            configuration=lambda: plain(config),
            debug={
                "queue": scheduler.inspection.queue,
                "snapshot": scheduler.inspection.snapshot,
                "decisions": scheduler.decisions.recent,
                "unreadable": scheduler.inspection.unreadable,
            },
            handlers=pages.handlers() if view else None,
        )

    async def run(self) -> int:
        """Runs until a signal, the loss of the lease or a failure, and returns the exit status.

        Raises OSError if bindAddress, or the address or certificate of the webhook or the tenant API, is unusable.
        """
        try:
            await self.health.start()
        except OSError as fault:
            raise OSError(f"bindAddress {self._config.bind_address}: {fault}") from None
        try:
            await self._start_servers()
        except OSError:
            await self._stop_servers()
            raise
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        tasks = [
            asyncio.create_task(self._run_kopf()),
            asyncio.create_task(self.topologies.run()),
            asyncio.create_task(self._spare_the_collector()),
            asyncio.create_task(give_back(self.scheduler.forgetting.look)),
        ]
        try:
            return await self.scheduler.run()
        finally:
            self._ended.set()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.kopf is not None:
                self.kopf.stop()
                await self.kopf.join()
            await self._stop_servers()

    async def _start_servers(self) -> None:
        """Starts the webhook and the tenant API. Raises OSError."""
        servers: dict[str, Webhook | TenantApi | None] = {"webhook": self._webhook, "tenant API": self._tenants}
        for name, server in servers.items():
            try:
                if server is not None:
                    await server.start()
            except OSError as fault:
                raise OSError(f"{name}: {fault}") from None

    async def _stop_servers(self) -> None:
        for server in (self._tenants, self._webhook, self.health):
            if server is not None:
                await server.stop()

    def stop(self) -> None:
        logger.info("stopping")
        self.scheduler.stop()
        if self.kopf is not None:
            self.kopf.stop()

    async def _drained(self) -> None:
        self.scheduler.stop()
        await self._ended.wait()

    async def _spare_the_collector(self) -> None:
        """Enables the garbage collector once the caches are in sync, without the objects that exist then.

        A start creates long-lived objects and no garbage: a collection at that moment took 50 ms and found nothing.
        `cli/run_command.py` disables the collector at the start.
        """
        try:
            async with asyncio.timeout(MOST_REST_SECONDS):
                await self.scheduler.synced.wait()
        except TimeoutError:
            # the API server does not answer: garbage of repeated attempts must not accumulate
            gc.enable()
            await self.scheduler.synced.wait()
        gc.freeze()  # the caches are not scanned again
        # Collect rarely: objects of later events and rounds have few reference cycles. The defaults (700, 10, 10) would
        # collect many times a round.
        gc.set_threshold(20_000, 20, 20)
        gc.enable()

    async def _run_kopf(self) -> None:
        await self.scheduler.synced.wait()
        loop = asyncio.get_running_loop()
        until = loop.time() + MOST_SETTLE_SECONDS
        quiet_since = loop.time()
        while loop.time() < min(until, quiet_since + self._settle):
            await asyncio.sleep(self._settle / 5)
            if self.scheduler.committer.open:
                quiet_since = loop.time()
        watch = await self._may_watch_definitions()
        self.kopf = KopfThread(
            self._client.access,
            loop,
            started=self.scheduler.synced.wait,
            drained=self._drained,
            topology_seen=self.topologies.seen,
            definitions_changed=self.scheduler.definitions_changed if watch else None,
        )
        self.kopf.start()

    async def _may_watch_definitions(self) -> bool:
        """Returns True if CustomResourceDefinitions may be listed; a forbidden watch would end kopf."""
        try:
            await self._client.list_page(DEFINITIONS, type=msgspec.Raw, limit=1)
        except ApiError as error:
            logger.info("CustomResourceDefinitions are not watched: %s", error)
            return False
        except Unreachable:
            return True
        return True
