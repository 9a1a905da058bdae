"""The live scheduler as a whole: who talks to whom, and the order of starting and stopping (kube-parity.md 4.8, 4.9).

Feeds sync first, a standby keeps them warm; leading starts the loop; losing the lease ends the process with a status
other than 0. SIGTERM: no new plans, the batch in flight is finished, the lease is given back.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from koordpy.api.objects import Wire
from koordpy.cluster.pods import GangRef, GangSource, PodInfo
from koordpy.cluster.state import ClusterState
from koordpy.engine.announce import Announcer
from koordpy.engine.binder import Binder
from koordpy.engine.claims import ClaimBinder
from koordpy.engine.client import ApiClient, ApiError, Unreachable
from koordpy.engine.commit import Committer
from koordpy.engine.evictor import Evictor
from koordpy.engine.feeds import Feeds
from koordpy.engine.grouping import UnitNames
from koordpy.engine.lease import LeaderElector, boot_clock
from koordpy.engine.loop import Planner, SchedulingLoop
from koordpy.engine.overuse import OveruseWatch
from koordpy.engine.queue import State, UnitQueue
from koordpy.engine.recorder import EventRecorder
from koordpy.engine.references import References
from koordpy.engine.releases import DeviceReleaser
from koordpy.engine.reservations import DeviceReserver
from koordpy.engine.resources import CLUSTER_NETWORK_TOPOLOGIES, NODES, OWNERS, PODS, STORAGE, Resource
from koordpy.engine.settings import EngineSettings
from koordpy.engine.stalegangs import StaleWatch
from koordpy.engine.versions import reached
from koordpy.engine.wakeups import Wake
from koordpy.engine.writers import Writers
from koordpy.engine.writing import Writing
from koordpy.observe.decisions import DecisionLog
from koordpy.observe.health import Check
from koordpy.observe.metrics import Metrics
from koordpy.observe.quotas import quota_gauges, share_gauges
from koordpy.planning.plan import PendingPod, Reason

logger = logging.getLogger(__name__)

CATCH_UP_SECONDS = 1.0
"""What a new leader gives its watch to bring the last Bindings of the leader before it."""
FREE_LEASE_SECONDS = 0.25
"""What a start waits for a free lease before it fills its caches as a standby."""
STUCK_SECONDS = 120.0


class Scheduler:
    """One process's scheduler on one API server. `run()` returns the exit status; `stop()` ends it in order."""

    def __init__(
        self,
        client: ApiClient,
        planner: Planner,
        *,
        settings: EngineSettings | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` counts seconds and never goes back, `wall_clock` gives epoch seconds. A clock of its own (a test's)
        is the lease's, too, which else counts the time that a machine sleeps."""
        settings = settings or EngineSettings()
        now = functools.partial(_at, wall_clock)
        self.settings, self.metrics = settings, metrics or Metrics()
        self.decisions = DecisionLog()
        self.synced, self.leading = asyncio.Event(), asyncio.Event()
        self._client, self._clock = client, clock
        self._stop = asyncio.Event()
        self.state = ClusterState(
            scheduler_names=settings.scheduler_names,
            storage=True,
            devices=True,
            owners=settings.reads_owners,
            gpu=settings.gpu,
        )
        self.state.look_for(settings.looked_for)
        self.queue = UnitQueue(
            clock=clock,
            initial_backoff_seconds=settings.initial_backoff_seconds,
            max_backoff_seconds=settings.max_backoff_seconds,
            max_unschedulable_seconds=settings.max_unschedulable_seconds,
            on_ready=self._wake,
            on_incoming=self._incoming,
        )
        self._incoming_children: dict[tuple[State, str], Any] = {}
        lag = self.metrics.watch_lag
        self.feeds = Feeds(
            client,
            self.state,
            self.queue,
            UnitNames(),
            on_applied=lambda resource, events, seconds: lag.labels(resource).observe(seconds),
            owners=settings.reads_owners,
            rediscovery_seconds=settings.rediscovery_seconds,
            clock=clock,
        )
        self.elector: LeaderElector | None = None
        if settings.lease is not None:
            self.elector = LeaderElector(
                client,
                namespace=settings.lease.namespace,
                name=settings.lease.name,
                lease_seconds=settings.lease.lease_seconds,
                renew_seconds=settings.lease.renew_seconds,
                retry_seconds=settings.lease.retry_seconds,
                clock=boot_clock if clock is time.monotonic else clock,
                now=now,
            )
        self.recorders: Mapping[str, EventRecorder] = {}
        if not settings.dry_run:
            self.recorders = {
                name: EventRecorder(
                    client,
                    controller=name,
                    qps=settings.event_qps,
                    burst=settings.event_burst,
                    busy=self._writing,
                    clock=clock,
                    now=now,
                )
                for name in settings.scheduler_names
            }
        self.announcer = Announcer(self.recorders)
        self.binder = Binder(client, max_in_flight=settings.max_binds_in_flight, clock=clock)
        self.claims = ClaimBinder(
            client, self.state, may_write=self.may_write, bind_seconds=settings.volume_bind_seconds
        )
        self.reserver = DeviceReserver(
            client,
            self.state,
            resource=lambda: self.feeds.resource_claims,
            may_write=self.may_write,
            timeout_seconds=settings.volume_bind_seconds,
            freed=lambda: self.queue.broadcast(Wake.DYNAMIC_DEVICE, "ClaimRead"),
        )
        self.releaser = DeviceReleaser(
            client,
            self.state,
            resource=lambda: self.feeds.resource_claims,
            claims=self.feeds.claims,
            may_write=self.may_write,
        )
        for heard in (self.feeds.listeners.storage, self.feeds.listeners.pod_gone):
            heard.append(self.claims.changed)
        self.committer = Committer(
            client,
            self.binder,
            self.feeds,
            claims=self.claims,
            devices=self.reserver,
            releaser=self.releaser,
            announcer=self.announcer,
            metrics=self.metrics,
            may_write=self.may_write,
            epoch=lambda: max(0, self.elector.epoch) if self.elector is not None else 0,
            settings=settings,
            clock=clock,
            wall_clock_ns=lambda: int(wall_clock() * 1e9),
            failed=self._claims_failed,
        )
        self.references = References(self.feeds)
        self.writers: Writers | None = None
        self.stale: StaleWatch | None = None
        self.overuse: OveruseWatch | None = None
        if not settings.dry_run:
            seconds = settings.group_status_seconds
            self.stale = StaleWatch(
                self.feeds, settings.stale_gangs, wake=self._wake, interval_seconds=seconds, now=wall_clock
            )
            if settings.quota.monitor_all_quotas and settings.quota.enable_runtime_quota:
                self.overuse = OveruseWatch(
                    self.state, settings.quota, wake=self._wake, interval_seconds=seconds, now=wall_clock
                )
            writing = Writing(
                client, self.feeds, self.announcer, self.references, settings, self.may_write, clock=clock, now=now
            )
            self.writers = Writers(writing, self.stale)
        self.evictor: Evictor | None = None
        if not settings.dry_run:
            self.evictor = Evictor(
                client,
                self.state,
                self.announcer,
                metrics=self.metrics,
                may_write=self.may_write,
                wake=self.queue.touch,
                freed=lambda: self.queue.broadcast(Wake.ROOM, "NominationEnd"),
                returned=lambda info: self.feeds.pods.enqueue(info, event="BindFailure"),
                unit_of=self.queue.unit_of,
                clock=clock,
                now=now,
                extra_seconds=settings.nomination_extra_seconds,
            )
        conflicts = self.metrics.conflicts
        self.feeds.listeners.conflict.append(lambda reason: conflicts.labels(f"kubelet_{reason}").inc())
        self.loop = SchedulingLoop(
            self.feeds,
            self.committer,
            planner,
            pod_status=self.writers.pods if self.writers is not None else None,
            group_status=self.writers.gangs if self.writers is not None else (),
            metrics=self.metrics,
            decisions=self.decisions,
            settings=settings,
            clock=clock,
            now=wall_clock,
            stuck=self.releaser.unstick,
            warned=self._warned,
            evictor=self.evictor,
            stale=self.stale,
            overuse=self.overuse,
        )
        self.metrics.on_scrape(self._set_gauges)

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def may_write(self) -> bool:
        """Whether this process may change anything in the cluster now."""
        if self.settings.dry_run:
            return False
        return self.leading.is_set() and (self.elector is None or self.elector.may_write())

    def _writing(self) -> bool:
        """Whether Bindings or conditions of pods are under way."""
        return bool(self.committer.open) or (self.writers is not None and self.writers.pods.lined_up > 0)

    def stop(self) -> None:
        """Ends `run` in order: no new plans, the batch in flight, the lease."""
        self._stop.set()

    async def run(self) -> int:
        """Schedules until `stop` (0), or until the lease is lost or a part of the scheduler fails (1)."""
        background: list[asyncio.Task[Any]] = []
        planning: list[asyncio.Task[Any]] = []

        def start(tasks: list[asyncio.Task[Any]], job: Coroutine[Any, Any, None], name: str) -> asyncio.Task[Any]:
            task = asyncio.create_task(job, name=name)
            tasks.append(task)
            return task

        stopping = start(background, _wait(self._stop), "stop")
        electing = start(background, self.elector.run(), "election") if self.elector is not None else None
        try:
            listed_while_leading = await self._lead_soon()
            start(background, self.feeds.run(), "feeds")
            for name, recorder in self.recorders.items():
                start(background, recorder.run(), f"events of {name}")
            ready = start(planning, self._get_ready(listed_while_leading), "sync and election")
            await asyncio.wait([ready, *background], return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not stopping.done():
                ready.result()
                start(planning, self.committer.run(), "binds")
                if not self.settings.dry_run:
                    start(planning, self.releaser.run(), "claims of pods that are gone")
                if self.writers is not None:
                    start(planning, self.writers.run(), "statuses")
                if self.evictor is not None:
                    start(planning, self.evictor.run(), "evictions")
                if self.stale is not None:
                    start(planning, self.stale.run(), "stale gangs")
                if self.overuse is not None:
                    start(planning, self.overuse.run(), "quotas above their runtime")
                start(planning, self.loop.run(), "rounds")
                planning.remove(ready)
                await asyncio.wait([*planning, *background], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                await self._drain(planning)
                return 0
            if electing is not None and electing.done():
                logger.error("the lease is lost: ending, so that two never bind at once")
            for task in (*planning, *background):
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    logger.error("%s failed", task.get_name(), exc_info=error)
            return 1
        finally:
            self.leading.clear()
            await _cancel([*planning, *background])
            if self.elector is not None:
                await self.elector.release()

    async def _lead_soon(self) -> bool:
        """True when the lease is free and ours at once: lists that are read after that miss no Binding of others."""
        if self.elector is None:
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.elector.acquired.wait(), FREE_LEASE_SECONDS)
        return self.elector.acquired.is_set()

    async def _get_ready(self, listed_while_leading: bool) -> None:
        began = self._clock()
        await self.feeds.synced()
        sizes = self.state.sizes
        logger.info("in sync: %d nodes, %d pods, %.2f s", sizes["nodes"], sizes["pods"], self._clock() - began)
        self.synced.set()
        if self.elector is not None:
            await self.elector.acquired.wait()
            if not listed_while_leading:
                await self._catch_up()
        self.leading.set()
        self._report_half_bound()

    async def _catch_up(self) -> None:
        """The leader before us may have bound pods a moment ago: waits until the watch is past that moment."""
        try:
            page = await self._client.list_page(PODS.path(), type=msgspec.Raw, limit=1)
        except (ApiError, Unreachable) as error:
            logger.warning("how far the cluster is could not be read: %s", error)
            await asyncio.sleep(CATCH_UP_SECONDS)
            return
        wanted = page.metadata.resource_version
        if not page.items:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while not reached(self.feeds.version(PODS), wanted):  # noqa: ASYNC110 - not an event
                    await asyncio.sleep(0.02)

    def _report_half_bound(self) -> None:
        needs = [(key, GangSource.GROUP, group.spec.min_member) for key, group in self.state.pod_groups().items()]
        for key, upstream in self.state.upstream_groups().items():
            if (gang := upstream.spec.scheduling_policy.gang) is not None:
                needs.append((key, GangSource.UPSTREAM, gang.min_count))
        for key, source, need in needs:
            namespace, _, name = key.partition("/")
            bound = sum(pod.bound for pod in self.state.members(GangRef(namespace, name, source)))
            if 0 < bound < need:
                logger.warning("gang %s is half bound, %d of %d: it is tried first", key, bound, need)

    async def _drain(self, planning: list[asyncio.Task[Any]]) -> None:
        rounds = [task for task in planning if task.get_name() in ("rounds", "sync and election")]
        await _cancel(rounds)
        if self.leading.is_set():
            if self.committer.open:
                logger.info("finishing %d Bindings", self.committer.open)
            await self.committer.drain(self.settings.drain_seconds)
            if self.evictor is not None:
                await self.evictor.drain(1.0)
            if self.writers is not None:
                await self.writers.drain(1.0)
            for recorder in self.recorders.values():
                await recorder.drain(0.5)

    # -- looking in ---------------------------------------------------------------------------------------------------

    def live_checks(self) -> Mapping[str, Check]:
        """For /livez."""
        return {"rounds": self._check_rounds, "lease": self._check_lease}

    def ready_checks(self) -> Mapping[str, Check]:
        """For /readyz: a warm standby is ready, too."""
        return {
            "caches": lambda: "" if not (missing := self.feeds.out_of_sync()) else "not in sync: " + ", ".join(missing),
            "shutdown": lambda: "shutting down" if self._stop.is_set() else "",
        }

    def _check_rounds(self) -> str:
        if not self.leading.is_set():
            return ""
        age = self._clock() - self.loop.last_turn
        return "" if age < STUCK_SECONDS else f"no round has ended for {age:.0f} s"

    def _check_lease(self) -> str:
        if self.elector is None or not self.leading.is_set() or self.elector.time_left() > 0:
            return ""
        return "the lease has run out"

    def debug_queue(self) -> list[dict[str, Any]]:
        """Every unit of the queue, the active ones first."""
        now = self._clock()
        return [
            {
                "unit": entry.unit,
                "state": entry.state.value,
                "pods": sorted(entry.pods),
                "priority": entry.priority,
                "attempts": entry.attempts,
                "errors": entry.errors,
                "inStateSeconds": round(now - entry.since, 3),
                "dueInSeconds": round(max(0.0, entry.due - now), 3),
                "wakes": str(entry.wakes),
                "plugins": entry.plugins,
            }
            for entry in sorted(self.queue.entries(), key=lambda entry: (list(State).index(entry.state), entry.unit))
        ]

    def debug_snapshot(self) -> Callable[[], bytes]:
        """The cluster as it is known now, as a List that `koordpy simulate -f` reads. Encodes when called."""
        items: list[tuple[Resource, Wire]] = []
        if self.state.topology is not None:
            items.append((CLUSTER_NETWORK_TOPOLOGIES, self.state.topology))
        if (hypernodes := self.feeds.hypernodes) is not None:
            items += [(hypernodes, obj) for obj in self.state.hypernodes()]
        items += [(NODES, node.node) for node in self.state.nodes()]
        items += [(self.feeds.groups.resources[key], group) for key, group in self.state.pod_groups().items()]
        quotas = self.state.quotas.objects
        items += [(resource, quotas[key]) for key, resource in self.feeds.quotas.resources.items() if key in quotas]
        items += [(PODS, info.pod) for info in self.state.pods()]
        owners = OWNERS if self.settings.reads_owners else ()
        kinds = (*STORAGE, *self.feeds.dynamic_resources(), *owners)
        items += [(resource, obj) for resource in kinds for obj in self.feeds.objects(resource)]
        return lambda: _encode_list(items)

    def _set_gauges(self) -> None:
        metrics = self.metrics
        counts = self.queue.counts()
        counts[State.GATED] += len(self.feeds.pods.gated)
        for state, count in counts.items():
            metrics.pending.labels(state.value).set(count)
        by_plugin: dict[tuple[str, ...], float] = {}
        for entry in self.queue.entries():
            if entry.state in (State.UNSCHEDULABLE, State.GATED):
                for plugin in entry.plugins or ("Gang",):
                    for pod in entry.pods.values():
                        by_plugin[plugin, pod.profile] = by_plugin.get((plugin, pod.profile), 0) + 1
        metrics.set_gauge(metrics.unschedulable, by_plugin)
        for kind, size in self.state.sizes.items():
            metrics.cache_size.labels(kind).set(size)
        metrics.set_gauge(metrics.quota, quota_gauges(self.state.quota_view(), self.settings.quota))
        metrics.set_gauge(metrics.share, share_gauges(self.state.quota_view(), self.settings.fairness))
        metrics.leader.set(1 if self.leading.is_set() else 0)
        metrics.events_dropped.set(sum(recorder.dropped for recorder in self.recorders.values()))

    def _wake(self) -> None:
        # the queue is made before the loop that it wakes
        if hasattr(self, "loop"):
            self.loop.wake()

    def _incoming(self, state: State, event: str, pods: int) -> None:
        child = self._incoming_children.get((state, event))
        if child is None:
            child = self._incoming_children[state, event] = self.metrics.incoming.labels(state.value, event)
        child.inc(pods)

    def _claims_failed(self, info: PodInfo, unit: str, text: str) -> None:
        if self.writers is not None:
            message = f"binding claims: {text}"
            self.writers.pods.tell(PendingPod(info.key, unit, None, Reason.SCHEDULER_ERROR, message), info)

    def _warned(self, obj: str, text: str) -> None:
        logger.warning("%s: %s", obj, text)
        if (about := self.references.warned(obj)) is not None:
            self.announcer.invalid(about, text)


def _at(wall_clock: Callable[[], float]) -> datetime:
    return datetime.fromtimestamp(wall_clock(), UTC)


def _encode_list(items: list[tuple[Resource, Wire]]) -> bytes:
    manifests = [
        {"apiVersion": resource.api_version, "kind": resource.kind, **msgspec.to_builtins(obj)}
        for resource, obj in items
    ]
    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": manifests})


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
