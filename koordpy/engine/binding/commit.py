"""From a plan to Bindings: assumed units go out while the next round is planned (kube-parity.md 4.2 and 4.4).

One line of jobs in the order of the plan, a gang's in rank order, and as many workers as Bindings may be in flight.
Each is checked right before it is sent (`unit_commit.py`). Pods whose Binding the watch does not show in time are read
(`binding_confirmation.py`). A definite failure takes the assumption back; an unknown outcome keeps it until the API
server answers.
Before the first Binding of a gang all its pods are asked, and one that fails takes the whole unit back; one that fails
after others were sent leaves those where they are and is planned again beside them (gang-network.md 2.7, 2.8). A unit
with claims to bind stands aside until they are, and then joins the line: it keeps no worker from others.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

from koordpy.api.keys import BOUND_EPOCH, BOUND_LEASE
from koordpy.devices.family_registry import moment_annotations
from koordpy.engine.binding.binder import Binder, Binding, BindOutcome, BindResult
from koordpy.engine.binding.binding_confirmation import Confirmations
from koordpy.engine.binding.claim_writes import DeviceReleaser, DeviceReserver
from koordpy.engine.binding.foreign_bindings import lease_name
from koordpy.engine.binding.unit_commit import EXPECTED, OVERTAKEN, Obstacles, PendingBinding, UnitCommit
from koordpy.engine.binding.volume_writes import ClaimBinder, ClaimsFailed, PodClaims, unbound_claims
from koordpy.engine.engine_context import Context, begin
from koordpy.engine.queue_entry import QueuedPod
from koordpy.engine.status.scheduler_events import SCHEDULED
from koordpy.engine.wakeups import Wake
from koordpy.plan.round_plan import Placement
from koordpy.pods.pod_info import PodInfo

logger = logging.getLogger(__name__)


class Committer:
    """Binds what was planned. Owned by the event loop; `run` works until cancelled."""

    def __init__(
        self,
        context: Context,
        binder: Binder,
        *,
        claims: ClaimBinder,
        devices: DeviceReserver,
        releaser: DeviceReleaser,
        epoch: Callable[[], int],
        failed: Callable[[PodInfo, str, str], None],
    ) -> None:
        """`failed` hears (pod, unit, why) of pods that the API server does not bind, or whose claims."""
        self._claims, self._devices, self._releaser, self._failed = claims, devices, releaser, failed
        self.aside: set[asyncio.Task[None]] = set()
        """Units that wait for their claims."""
        self._releasing: set[asyncio.Task[None]] = set()
        self._binder, self._epoch, self._lease = binder, epoch, lease_name(context.settings.election)
        self._feeds, self._state, self._queue = context.feeds, context.state, context.queue
        self._announcer, self._metrics, self._may_write = context.announcer, context.metrics, context.may_write
        self._workers = context.settings.config.client_connection.max_binds_in_flight
        self._dry_run = context.settings.dry_run
        self._clock, self._now = context.clock, context.now
        self._obstacles = Obstacles(context, may_send=self._may_send)
        self._confirmations = Confirmations(context)
        self._jobs: asyncio.Queue[PendingBinding] = asyncio.Queue()
        self.open = 0
        """Bindings planned whose outcome is not known yet; not those that wait for claims."""
        self._stopping = False

    # -- in -----------------------------------------------------------------------------------------------------------

    def submit(
        self,
        unit: str,
        placements: Sequence[Placement],
        *,
        gang: bool,
        began: float,
        waiting_seconds: float,
        on_done: Callable[[UnitCommit], None] | None = None,
    ) -> None:
        """Assumes every pod of a unit, takes them out of the queue, and lines up their Bindings in the order given.

        The caller has made sure that the plan still holds.
        """
        now = self._clock()
        claims: list[PodClaims] = []
        commit = UnitCommit(unit, gang, began, now + waiting_seconds, on_done, len(placements), len(placements))
        for placement in placements:
            key = placement.pod_key
            info = self._state.pod(key)
            assert info is not None
            queued = self._queue.discard(key)
            if queued is None:
                queued = QueuedPod(key, info.uid, now, info.priority, info.created, light=False)
            if info.nominated_node not in ("", placement.node):
                self._queue.broadcast(Wake.ROOM, "NominationEnd")
            self._state.assume(key, placement.node, placement.claims, placement.given, placement.annotations)
            if not self._dry_run:
                claiming = info.ties or info.pod.spec.resource_claims
                unbound = unbound_claims(self._state, info, placement) if claiming else None
                if unbound is not None:
                    claims.append(unbound)
                mark = self._feeds.pods.foreign_marks.get(placement.node, 0)
                node = self._state.nodes.get(placement.node)
                commit.jobs.append(PendingBinding(commit, info, placement, queued, mark, node, unbound))
        self._queue.broadcast(Wake.POD_BOUND, "AssignedPodAdd")
        if self._dry_run:
            for placement in placements:
                if (info := self._state.pod(placement.pod_key)) is not None:
                    self._metrics.attempts.labels("scheduled", info.pod.spec.scheduler_name).inc()
            return
        if claims:
            # the waiting time is the Bindings'
            commit.deadline = math.inf
            begin(self._bind_claims(commit, claims, waiting_seconds), f"claims of {unit}", self.aside)
        else:
            self._line_up(commit)

    def _line_up(self, commit: UnitCommit) -> None:
        for job in commit.jobs:
            self._jobs.put_nowait(job)
        self.open += len(commit.jobs)

    async def run(self) -> None:
        """Sends Bindings and looks after those that stay unconfirmed, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
                group.create_task(self._confirmations.run())
        finally:
            # claims stay as they are; whoever leads next goes on from there
            for task in (*self.aside, *self._releasing):
                task.cancel()

    async def drain(self, seconds: float) -> None:
        """Waits for the Bindings lined up; after `seconds`, or once all are done, nothing more is sent."""
        try:
            async with asyncio.timeout(seconds):
                await self._jobs.join()
                await asyncio.gather(*self._releasing, return_exceptions=True)
        except TimeoutError:
            logger.warning("%d Bindings were not finished in time", self.open)
        finally:
            self._stopping = True

    # -- claims -------------------------------------------------------------------------------------------------------

    async def _bind_claims(self, commit: UnitCommit, claims: Sequence[PodClaims], waiting_seconds: float) -> None:
        try:
            await self._claims.bind(claims, obstacle=lambda: self._obstacles.of_unit(commit))
            commit.reserving = True
            await self._devices.reserve(claims, obstacle=lambda: self._obstacles.of_unit(commit))
        except ClaimsFailed as error:
            logger.warning("%s: its claims were not bound (%s): %s", commit.unit, error.cause, error)
            if error.cause == "conflict":
                self._metrics.conflicts.labels("claim").inc()
            # after a back-off: what voided the plan may not have reached the cache yet
            self._withdraw(commit, errors=0 if error.cause in OVERTAKEN else 1)
            self._tell(claims, commit, error)
        except Exception:
            logger.exception("%s: its claims were not bound", commit.unit)
            self._withdraw(commit, errors=1)
        else:
            commit.deadline = self._clock() + waiting_seconds
            self._line_up(commit)

    def _withdraw(self, commit: UnitCommit, *, errors: int) -> None:
        """None of the unit is bound: its assumptions are taken back."""
        commit.withdrawn = True
        for job in commit.jobs:
            self._metrics.attempts.labels("error", job.queued.profile).inc()
        self._give_back(*commit.jobs, errors=errors)

    def _tell(self, claims: Sequence[PodClaims], commit: UnitCommit, error: ClaimsFailed) -> None:
        for pod in claims:
            now = self._state.pod(pod.info.key)
            if error.cause not in OVERTAKEN and now is not None and now.uid == pod.info.uid and now.pending:
                self._failed(now, commit.unit, f"claims: {error}")

    # -- a Binding ----------------------------------------------------------------------------------------------------

    def _may_send(self) -> bool:
        return not self._stopping and self._may_write()

    async def _work(self) -> None:
        while True:
            job = await self._jobs.get()
            try:
                await self._bind(job)
            except Exception:
                # a worker that dies would take its share of all later Bindings with it
                logger.exception("pod %s: its Binding failed", job.placement.pod_key)
                self._give_back(job, errors=1)
            finally:
                self.open -= 1
                self._jobs.task_done()
                del job  # else its pod stays until the worker has another one

    async def _bind(self, job: PendingBinding) -> None:
        commit, placement = job.commit, job.placement
        if commit.gang and not commit.sent and not commit.withdrawn:
            commit.withdrawn = bool(self._obstacles.of_unit(commit))
        if why := self._obstacles.of(job):
            if why not in EXPECTED:
                self._metrics.conflicts.labels(why).inc()
            self._give_back(job, errors=0)
            return
        commit.sent += 1
        annotations = {**placement.annotations, BOUND_EPOCH: str(self._epoch())}
        if self._lease:
            annotations[BOUND_LEASE] = self._lease
        for key in moment_annotations(job.info) if job.info.asks else ():
            annotations[key] = str(int(self._now() * 1e9))
        binding = Binding(job.info.namespace, job.info.name, placement.uid, placement.node, annotations)
        outcome = await self._binder.bind(binding, may_send=self._may_send)
        self._settle(job, outcome)

    def _settle(self, job: PendingBinding, outcome: BindOutcome) -> None:
        key, node, result = job.placement.pod_key, job.placement.node, outcome.result
        if result in (BindResult.BOUND, BindResult.ALREADY):
            self._bound(job, outcome)
            return
        self._metrics.binds.labels(result.value).inc()
        if result is BindResult.UNKNOWN:
            # leadership is over; the assumption stays, this process ends
            self._count(job, lost=True)
            return
        self._metrics.attempts.labels("error", job.queued.profile).inc()
        if result is not BindResult.NOT_SENT:
            logger.warning("pod %s was not bound to %s: %s: %s", key, node, result, outcome.message)
        if result is BindResult.CONFLICT:
            self._metrics.conflicts.labels("bound_elsewhere").inc()
        if outcome.pod is not None:
            # what it is now counts at once, as another's choice with the devices it says; the watch confirms it
            self._feeds.pods.read(outcome.pod)
        errors, again = 0 if result is BindResult.NOT_SENT else 1, job.queued.failures > 0
        self._give_back(job, errors=errors, at_least_seconds=outcome.retry_after or 0.0, gone=result is BindResult.GONE)
        now = self._state.pod(key)
        if result is BindResult.REFUSED and (again or not outcome.passing) and now is not None and now.pending:
            self._failed(now, job.commit.unit, f"to {node}: {outcome.message}")

    def _bound(self, job: PendingBinding, outcome: BindOutcome) -> None:
        placement = job.placement
        try:
            self._confirmations.bound(placement.pod_key, placement.uid, placement.node)
            self._say_bound(job, outcome)
        except Exception:
            # its room is taken all the same
            logger.exception("pod %s is bound, and what is told of it failed", placement.pod_key)
        self._count(job, lost=False)

    def _say_bound(self, job: PendingBinding, outcome: BindOutcome) -> None:
        if outcome.result is BindResult.ALREADY:
            # who has bound it has counted and told of it: what that gave the pod counts, not what we would have given
            self._metrics.binds.labels(outcome.result.value).inc()
            job.commit.by_others += 1
            if outcome.pod is not None:
                self._feeds.pods.read(outcome.pod)
            return
        now = self._clock()
        self._metrics.pod_bound(
            job.queued.profile,
            attempts=job.queued.attempts,
            sent=outcome.seconds,
            attempt=now - job.commit.began,
            waited=now - job.queued.added,
        )
        note = f"Successfully assigned {job.info.key} to {job.placement.node}"
        self._announcer.tell(SCHEDULED, job.info, note)

    def _give_back(self, *jobs: PendingBinding, errors: int, at_least_seconds: float = 0.0, gone: bool = False) -> None:
        """Takes assumptions back, and before that the resource claims that were written for the pods. gone: the API
        server has no such pods any more."""
        reserved = [job.claims for job in jobs if job.claims is not None and job.commit.reserving]
        if not any(claims.info.pod.spec.resource_claims for claims in reserved) or not self._may_write():
            for job in jobs:
                self._take_back(job, errors=errors, at_least_seconds=at_least_seconds, gone=gone)
            return

        async def release() -> None:
            # until then the devices count as promised, and the pods are not planned anew
            try:
                await self._releaser.release(reserved)
            except Exception:
                logger.exception("%s: its resource claims were not released", jobs[0].commit.unit)
            for job in jobs:
                self._take_back(job, errors=errors, at_least_seconds=at_least_seconds, gone=gone)

        begin(release(), f"release of {jobs[0].commit.unit}", self._releasing)

    def _take_back(self, job: PendingBinding, *, errors: int, at_least_seconds: float, gone: bool) -> None:
        """Takes the assumption back; the pod, if it still waits for a place, returns to the queue."""
        key = job.placement.pod_key
        now = self._state.pod(key)
        if gone:
            # forgotten: the watch, which may be late, would have it planned again and again until it tells
            self._feeds.pods.ended(key, job.placement.uid)
        elif now is not None and now.uid == job.placement.uid and self._state.assumed_node(key) is not None:
            self._state.forget(key)
            self._queue.broadcast(Wake.ROOM, "BindFailure")
            now = self._state.pod(key)
            if now is not None and now.pending:
                unit = self._feeds.names.of_pod(now)
                self._queue.put_back(unit, job.queued, errors=errors, at_least_seconds=at_least_seconds)
        self._count(job, lost=True)

    def _count(self, job: PendingBinding, *, lost: bool) -> None:
        commit = job.commit
        commit.left -= 1
        if lost:
            commit.lost.append(job.placement.pod_key)
        if commit.left:
            return
        if commit.on_done is not None:
            try:
                commit.on_done(commit)
            except Exception:
                # what has become of its pods is settled, and no Binding failed
                logger.exception("%s: what follows its Bindings failed", commit.unit)
        commit.jobs = []  # which refer to it
