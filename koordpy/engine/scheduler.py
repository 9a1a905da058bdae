# SPDX-License-Identifier: Apache-2.0
"""The live scheduler, one replica of koordpy's Deployment: creates all components, and starts and stops them in order.

At the start `Feeds` (list and watch of all resources) fills the caches. A standby does no more than that. The leader
starts the scheduling loop. A process that loses its lease exits with status 1, and the kubelet restarts it. On SIGTERM
no new round begins, the writes in flight are finished, and the lease is released. Source: kube-parity.md 4.8, 4.9.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from koordpy.api.counted_nouns import count_noun
from koordpy.api.times import SteadyTime
from koordpy.engine.binding.binder import Binder, BindResult
from koordpy.engine.binding.claim_calls import ClaimCalls
from koordpy.engine.binding.claim_releases import DeviceReleaser
from koordpy.engine.binding.claim_writes import DeviceReserver
from koordpy.engine.binding.commit import Committer
from koordpy.engine.binding.field_gates import FieldGates
from koordpy.engine.binding.foreign_bindings import ForeignBinds
from koordpy.engine.binding.volume_writes import ClaimBinder
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_resources import LEASES
from koordpy.engine.client.leader_lease import LeaderElector, boot_clock
from koordpy.engine.dispatch import Dispatcher
from koordpy.engine.engine_context import Context
from koordpy.engine.engine_settings import EngineSettings, empty_state
from koordpy.engine.evictions.eviction_orders import EvictionStarter
from koordpy.engine.evictions.evictor import Evictor
from koordpy.engine.evictions.timed_rounds import Watches
from koordpy.engine.forgetting import Forgetting
from koordpy.engine.inspection import Inspection
from koordpy.engine.provisioning.request_keeper import RequestKeeper
from koordpy.engine.rejection_watch import RejectionWatch
from koordpy.engine.round_reservations import RoundReservations
from koordpy.engine.scheduling_loop import Planner, SchedulingLoop
from koordpy.engine.scheduling_queue import UnitQueue
from koordpy.engine.status.event_recorder import EventRecorder, ObjectReference, of_object
from koordpy.engine.status.gang_census import Census
from koordpy.engine.status.scheduler_events import LEADS, UNREADABLE, Announcer, References
from koordpy.engine.status.status_writers import Writers
from koordpy.engine.takeover import Takeover
from koordpy.engine.unschedulable import UnschedulableHandler
from koordpy.engine.watching.feeds import Feeds
from koordpy.engine.watching.server_check import ServerCheck
from koordpy.engine.watching.unreadable_objects import Unreadable
from koordpy.observe.decision_log import DecisionLog
from koordpy.observe.metrics import Metrics

logger = logging.getLogger(__name__)

Run = Callable[[], Coroutine[Any, Any, None]]
"""A component's `run` method: works until cancelled."""


class Scheduler:
    """The scheduler of one process on one API server. `run()` returns the exit status; `stop()` ends `run` in order."""

    def __init__(
        self,
        client: ApiClient,
        planner: Planner,
        *,
        settings: EngineSettings,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Creates all components; starts none.

        clock: monotonic seconds. wall_clock: seconds since 1970, which may jump. The lease is timed by `boot_clock`,
        which also runs while the machine is suspended, unless another `clock` is passed.
        """
        # the clock of the lease
        awake = boot_clock if clock is time.monotonic else clock
        time_of_day = SteadyTime(wall_clock, awake)
        config = settings.config
        self.settings, self.metrics = settings, Metrics(config.scheduler_names, BindResult)
        self.decisions = DecisionLog(hold_seconds=settings.decision_hold_seconds, dry_run=settings.dry_run)
        self.synced, self.leading = asyncio.Event(), asyncio.Event()
        self._stop, due = asyncio.Event(), asyncio.Event()

        # cluster state, queue and leader election
        self.state = empty_state(config, live=True)
        child, incoming = self.metrics.child, self.metrics.incoming
        by_quota = config.planning.share_by == "quota"
        self.queue = UnitQueue(
            config,
            clock=clock,
            tenant_of=(lambda namespace: self.state.quotas.tree.tenant_of(namespace)) if by_quota else str,
            on_ready=due.set,
            on_incoming=lambda state, event, pods: child(incoming, state.value, event).inc(pods),
        )
        lag, conflicts = self.metrics.watch_lag, self.metrics.conflicts
        self.feeds = Feeds(
            client,
            self.state,
            self.queue,
            on_applied=lambda resource, seconds: lag.labels(resource).observe(seconds),
            on_unreadable=self._announce_unreadable,
            owners=config.filters.pod_topology_spread.reads_owners,
            workloads=config.gangs.watched,
            provisioning=config.autoscaling.provisioning.mode != "off",
            wake=due.set,
            rediscovery_seconds=settings.rediscovery_seconds,
            clock=clock,
        )
        self.feeds.listeners.conflict.append(lambda reason: conflicts.labels(f"kubelet_{reason}").inc())
        self.elector: LeaderElector | None = None
        """Leader election; None without it, so that this process leads at once."""
        if settings.election is not None:
            self.elector = LeaderElector(client, settings.election, clock=awake, now=time_of_day)
        client.may_repeat = self._may_repeat
        client.on_answer = functools.partial(self.metrics.requested, client.access.host)

        # events and status
        self._recorders: Mapping[str, EventRecorder] = {}
        if not settings.dry_run:
            self._recorders = {
                name: EventRecorder(
                    client,
                    controller=name,
                    qps=settings.event_qps,
                    burst=settings.event_burst,
                    busy=self._writing,
                    clock=clock,
                    now=time_of_day,
                    on_lost=lambda reason: self.metrics.events_dropped.labels(reason).inc(),
                )
                for name in config.scheduler_names
            }
        self.server_check = ServerCheck(client, self.synced, period_seconds=settings.rediscovery_seconds)
        self.announcer = Announcer(self._recorders, self.count_refused)
        self.context = context = Context(
            client,
            self.feeds,
            settings,
            self.metrics,
            self.announcer,
            References(self.feeds),
            self.may_write,
            self.server_check.absent,
            clock=clock,
            now=time_of_day,
        )
        self._takeover = Takeover(context, self.elector)
        self.requests = RequestKeeper(context) if config.autoscaling.provisioning.mode != "off" else None
        """Keeper of ProvisioningRequests; None if none is created."""
        self._watches, self._rejections = Watches(context, wake=due.set), RejectionWatch(context)
        self.writers = Writers(context, self._watches.stale) if self._watches.stale is not None else None

        # writes to the API server
        self.binder = Binder(client, clock=clock, settle_seconds=settings.settle_seconds)
        self.claims, claim_calls = ClaimBinder(context), ClaimCalls(context)
        gates = FieldGates(context)
        self.releaser = DeviceReleaser(context, claim_calls, gates)
        self.reserver = DeviceReserver(context, claim_calls, self.releaser, gates)
        self.evictor = None
        if (writers := self.writers) is not None:
            self.evictor = Evictor(context, writers.evicted, writers.repairs.victim_evicted)
        refusals = UnschedulableHandler(
            context,
            pod_status=self.writers.pods if self.writers is not None else None,
            evictor=self.evictor,
            stuck=self.releaser.unstick,
        )
        self.committer = Committer(
            context,
            self.binder,
            claims=self.claims,
            devices=self.reserver,
            releaser=self.releaser,
            epoch=lambda: max(0, self.elector.epoch) if self.elector is not None else 0,
            failed=refusals.not_bound,
        )

        self.foreign_binds = ForeignBinds(context, self._own_lease)

        # rounds
        census = Census(self.state)
        reservations = RoundReservations(self.feeds)
        dispatcher = Dispatcher(
            context,
            self.committer,
            refusals=refusals,
            eviction_starter=EvictionStarter(context, self.evictor, self.decisions),
            reservations=reservations,
            gangs=self.writers.gangs if self.writers is not None else (),
            census=census,
        )
        # functions that drop the records of messages and events about deleted objects, for `Forgetting`
        told = [dispatcher.sent_messages.forget, *(recorder.forget for recorder in self._recorders.values())]
        if self.writers is not None:
            told.append(self.writers.pods.forget)
        self._loop = SchedulingLoop(
            context,
            planner,
            dispatcher,
            refusals=refusals,
            reservations=reservations,
            watches=self._watches,
            due=due,
            busy=lambda: bool(self.committer.open),
            decisions=self.decisions,
            on_planned=self.requests.planned if self.requests is not None else None,
        )
        self.forgetting = Forgetting(
            context, self.decisions, census, refusals, of_objects=told, of_rounds=self._loop.forget
        )
        self.inspection = Inspection(
            context,
            self._loop,
            self.elector,
            census=census,
            leading=self.leading.is_set,
            stopping=self._stop.is_set,
        )

    def may_write(self) -> bool:
        """Returns True if this process may write to the cluster: it leads, its renew deadline has not passed, and it
        runs without `--dry-run`."""
        if self.settings.dry_run:
            return False
        return self.leading.is_set() and (self.elector is None or self.elector.may_write())

    def _announce_unreadable(self, found: Unreadable) -> None:
        """Emits an event for an object that cannot be read. Before this process leads, no event is emitted."""
        if self.leading.is_set():
            note = f"{found.meaning}, as it cannot be read: {found.why}"
            self.announcer.tell(UNREADABLE, of_object(found.resource, found.names), note)

    def count_refused(self, kind: str, reason: str) -> None:
        """Counts an invalid setting of an object, which is ignored."""
        self.metrics.refused_inputs.labels(kind, reason).inc()

    def count_question(self, view: str, status: int) -> None:
        """Counts a tenant's request for a page of the web UI, by its HTTP status."""
        self.metrics.tenant_questions.labels(view, str(status)).inc()

    def _may_repeat(self) -> bool:
        """Returns True if the client may repeat a write that the API server delayed (429).

        Always True before leadership, because the only writes then are those of the Lease itself.
        """
        return not self.leading.is_set() or self.elector is None or self.elector.may_write()

    def _writing(self) -> bool:
        """Returns True if Bindings, evictions or pod conditions are being written."""
        evicting = self.evictor is not None and self.evictor.open
        telling = self.writers is not None and (self.writers.pods.under_way or self.writers.pods.news.is_set())
        return bool(self.committer.open or evicting or telling)

    def definitions_changed(self) -> None:
        """Called when a CustomResourceDefinition changed."""
        self.feeds.rediscover()
        self.server_check.recheck()

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends `run` in order: no new round, the writes in flight are finished, the lease is released."""
        self._stop.set()

    async def run(self) -> int:
        """Schedules until `stop` (returns 0), or until the lease is lost or a component fails (returns 1)."""
        background: list[asyncio.Task[Any]] = []
        planning: list[asyncio.Task[Any]] = []

        def start(tasks: list[asyncio.Task[Any]], job: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
            task = asyncio.create_task(job, name=name)
            tasks.append(task)
            return task

        # Stages: election and feeds; wait until in sync and leading; the leader's tasks; end. Every task works until
        # it is cancelled. So if one ends, either `stop` was called, or the lease is lost, or the task has failed.
        stopping = start(background, self._stop.wait(), "stop")
        electing = start(background, self.elector.run(), "election") if self.elector is not None else None
        try:
            await self._takeover.soon()
            start(background, self.feeds.run(), "feeds")
            start(background, self.server_check.run(), "server check")
            for name, recorder in self._recorders.items():
                start(background, recorder.run(), f"events of {name}")
            ready = start(planning, self._get_ready(), "sync and election")
            await asyncio.wait([ready, *background], return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not stopping.done():
                ready.result()
                planning.remove(ready)
                for name, run in self._leader_tasks().items():
                    start(planning, run(), name)
                await asyncio.wait([*planning, *background], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                await self._drain(planning)
                return 0
            if electing is not None and electing.done():
                logger.error("lost leadership: exiting, so that no two replicas bind pods at the same time")
            for task in (*planning, *background):
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    logger.error("%s failed", task.get_name(), exc_info=error)
            return 1
        finally:
            self.leading.clear()
            await _cancel([*planning, *background])
            if self.elector is not None:
                await self.elector.release()

    async def _get_ready(self) -> None:
        """Waits until the caches are in sync and this process leads; then reports both."""
        await self._takeover.synced()
        self.synced.set()
        await self._takeover.led()
        if self.writers is not None:
            self.writers.take_over()
        self.leading.set()
        for found in self.feeds.unreadable():
            self._announce_unreadable(found)
        if self.elector is not None and (about := self._own_lease()) is not None:
            self.announcer.tell(LEADS, about, f"{self.elector.identity} became leader")

    def _own_lease(self) -> ObjectReference | None:
        """Returns the Lease of this process; None without leader election."""
        election = self.settings.election
        if self.elector is None or election is None:
            return None
        name, namespace = election.resource_name, election.resource_namespace
        return ObjectReference(LEASES.api_version, LEASES.kind, name, namespace, self.elector.uid)

    def _leader_tasks(self) -> dict[str, Run]:
        """Returns the tasks that run while this process leads, by name. With `--dry-run` it only plans."""
        jobs: dict[str, Run] = {"binds": self.committer.run}
        if self.writers is not None and self.evictor is not None:
            jobs |= {
                "claims of deleted pods": self.releaser.run,
                "statuses": self.writers.run,
                "evictions": self.evictor.run,
                "timed checks": self._watches.run,
            }
            if self.requests is not None:
                jobs["provisioning requests"] = self.requests.run
        return jobs | {"rejections": self._rejections.run, "rounds": self._loop.run}

    async def _drain(self, planning: list[asyncio.Task[Any]]) -> None:
        """Stops planning, and finishes the writes in flight.

        Bindings get `drain_seconds`. Evictions, statuses of gangs and events get up to a second each.
        """
        await _cancel([task for task in planning if task.get_name() in ("rounds", "sync and election")])
        if self.leading.is_set():
            if self.committer.open:
                logger.info("finishing %s", count_noun(self.committer.open, "Binding"))
            await self.committer.drain(self.settings.drain_seconds)
            if self.evictor is not None:
                await self.evictor.drain(1.0)
            if self.writers is not None:
                await self.writers.drain(1.0)
            for recorder in self._recorders.values():
                await recorder.drain(0.5)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancels tasks, and waits until they have ended. Errors of the tasks are ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
