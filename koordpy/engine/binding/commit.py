# SPDX-License-Identifier: Apache-2.0
"""Binds the placed pods of a plan while the next round is planned, as kube-scheduler's binding cycles.

All pods of a unit are assumed in the cache at once. Their Bindings are added to one queue in the order of the plan;
the members of a gang are in rank order. A fixed number of workers sends the Bindings, to a node with NUMA data one at a
time (`NodeOrder`). Each Binding is checked right before it is sent (`unit_commit.py`). If the watch does not show a
Binding in time, the pod is read (`binding_confirmation.py`). After a definite failure the pod is no longer assumed.
While the outcome is unknown, it stays assumed.

Before the first Binding of a gang all its pods are checked; if one check fails, no member is bound. After the first
Binding a member that fails is planned again alone, next to the bound members (gang-network.md 2.7, 2.8). The Bindings
of a unit with unbound claims are queued after its claims are bound, so that no worker waits for claims.
Sources: kube-parity.md 4.2 and 4.4.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

from koordpy.api.counted_nouns import count_noun
from koordpy.api.keys import BOUND_EPOCH, BOUND_LEASE
from koordpy.api.objects import Pod
from koordpy.devices.family_registry import moment_annotations
from koordpy.engine.binding.binder import Binder, Binding, BindOutcome, BindResult
from koordpy.engine.binding.binding_confirmation import Confirmations
from koordpy.engine.binding.claim_needs import has_resource_claims
from koordpy.engine.binding.claim_releases import DeviceReleaser
from koordpy.engine.binding.claim_writes import DeviceReserver
from koordpy.engine.binding.foreign_bindings import lease_name
from koordpy.engine.binding.unit_commit import (
    EXPECTED,
    STALE_CAUSES,
    NodeOrder,
    Obstacles,
    PendingBinding,
    SendPermission,
    UnitCommit,
)
from koordpy.engine.binding.volume_writes import ClaimBinder, ClaimsFailed, PodClaims, unbound_claims
from koordpy.engine.engine_context import Context, begin
from koordpy.engine.queue_entry import queued_pod
from koordpy.engine.status.scheduler_events import SCHEDULED
from koordpy.engine.wakeups import Wake
from koordpy.plan.round_plan import Placement
from koordpy.pods.claim_refs import CLAIMS
from koordpy.pods.pod_info import PodInfo

logger = logging.getLogger(__name__)


class Committer:
    """Binds planned pods. Owned by the event loop; `run` works until cancelled."""

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
        """claims, devices: bind volume claims and resource claims. releaser: releases resource claims of failed pods.
        epoch: returns the number of the leader's term. failed: called with (pod, unit, reason) if the API server
        refuses a Binding, or a claim cannot be bound."""
        self._claims, self._devices, self._releaser, self._failed = claims, devices, releaser, failed
        self.waiting_for_claims: set[asyncio.Task[None]] = set()
        """Tasks of units that wait for their claims."""
        self._releasing: set[asyncio.Task[None]] = set()
        """Tasks that release resource claims of pods that were not bound."""
        self._binder, self._epoch, self._lease = binder, epoch, lease_name(context.settings.election)
        self._feeds, self._state, self._queue = context.feeds, context.state, context.queue
        self._announcer, self._metrics, self._may_write = context.announcer, context.metrics, context.may_write
        self._may_send = SendPermission(context.may_write)
        self._workers = context.settings.config.client_connection.max_binds_in_flight
        self._dry_run = context.settings.dry_run
        self._clock, self._now = context.clock, context.now
        self._obstacles = Obstacles(context, may_send=self._may_send)
        self._confirmations = Confirmations(context)
        self._jobs: asyncio.Queue[PendingBinding] = asyncio.Queue()
        self._order = NodeOrder(context)
        self._commits: dict[str, UnitCommit] = {}
        """Key of a pod -> its unit, for gangs with Bindings that have no known outcome yet."""
        context.feeds.listeners.rejected.append(self._rejected)
        self.open = 0
        """Number of queued and sent Bindings without a known outcome, without units that wait for their claims."""

    # -- submission ---------------------------------------------------------------------------------------------------

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
        """Assumes every pod of a unit, removes its pods from the scheduling queue, and queues Bindings in the given
        order. With `--dry-run` it only assumes the pods.

        The caller must have checked that the plan is not stale. began: clock time at which the round began.
        waiting_seconds: time limit for the Bindings. on_done: called once, when the outcomes of all Bindings are known.
        """
        now = self._clock()
        claims: list[PodClaims] = []
        commit = UnitCommit(unit, gang, began, now + waiting_seconds, on_done, len(placements), len(placements))
        for placement in placements:
            key = placement.pod_key
            info = self._state.pod(key)
            assert info is not None
            queued = self._queue.discard(key) or queued_pod(info, now)
            if info.nominated_node not in ("", placement.node):
                # the capacity that was reserved on the nominated node is free for other pods
                self._queue.broadcast(Wake.CAPACITY_FREED, "NominationEnd")
            self._state.assume(key, placement.node, placement.claims, placement.devices, placement.annotations)
            if not self._dry_run:
                unbound = unbound_claims(self._state, info, placement) if _may_claim(info) else None
                if unbound is not None:
                    claims.append(unbound)
                mark = self._feeds.pods.foreign_marks.get(placement.node, 0)
                node = self._state.nodes.get(placement.node)
                commit.jobs.append(PendingBinding(commit, info, placement, queued, mark, node, unbound))
        if gang:
            self._commits |= dict.fromkeys((job.placement.pod_key for job in commit.jobs), commit)
        self._queue.broadcast(Wake.POD_BOUND, "AssignedPodAdd")
        if self._dry_run:
            for placement in placements:
                if (info := self._state.pod(placement.pod_key)) is not None:
                    self._metrics.attempts.labels("scheduled", info.pod.spec.scheduler_name).inc()
            return
        if claims:
            # the time limit starts when the claims are bound
            commit.deadline = math.inf
            begin(self._bind_claims(commit, claims, waiting_seconds), f"claims of {unit}", self.waiting_for_claims)
        else:
            self._line_up(commit)

    def _line_up(self, commit: UnitCommit) -> None:
        """Adds the Bindings of a unit to the workers' queue."""
        for job in commit.jobs:
            self._jobs.put_nowait(job)
        self.open += len(commit.jobs)

    async def run(self) -> None:
        """Sends Bindings and checks unconfirmed ones, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
                group.create_task(self._confirmations.run())
        finally:
            # claims stay as they are; the next leader continues from there
            for task in (*self.waiting_for_claims, *self._releasing):
                task.cancel()

    async def drain(self, seconds: float) -> None:
        """Waits at most `seconds` for the queued Bindings. No Binding is sent after that."""
        try:
            async with asyncio.timeout(seconds):
                await self._jobs.join()
                await asyncio.gather(*self._releasing, return_exceptions=True)
        except TimeoutError:
            logger.warning("%s not finished in time", count_noun(self.open, "Binding"))
        finally:
            self._may_send.stopping = True

    # -- claims -------------------------------------------------------------------------------------------------------

    async def _bind_claims(self, commit: UnitCommit, claims: Sequence[PodClaims], waiting_seconds: float) -> None:
        """Binds the claims of a unit, then queues its Bindings. If a claim fails, the unit is withdrawn."""
        try:
            await self._claims.bind(claims, obstacle=lambda: self._obstacles.of_unit(commit))
            commit.reserving = True
            await self._devices.reserve(claims, obstacle=lambda: self._obstacles.of_unit(commit))
        except ClaimsFailed as error:
            logger.warning("%s: its claims were not bound (%s): %s", commit.unit, error.cause, error)
            if error.cause == "conflict":
                self._metrics.conflicts.labels("claim").inc()
            # with a back-off, because the change that voided the plan may not be in the cache yet
            errors = 0 if error.cause in STALE_CAUSES else 1
            self._withdraw(commit, errors=errors, after=partial(self._tell, claims, commit, error))
        except Exception:
            logger.exception("%s: its claims were not bound", commit.unit)
            self._withdraw(commit, errors=1)
        else:
            commit.deadline = self._clock() + waiting_seconds
            self._line_up(commit)

    def _withdraw(self, commit: UnitCommit, *, errors: int, after: Callable[[], None] = lambda: None) -> None:
        """Stops assuming a unit's pods for which no Binding was sent yet. Arguments as in `_give_back`."""
        commit.withdrawn = True
        for job in commit.jobs:
            self._metrics.attempts.labels("error", job.queued.profile).inc()
        self._give_back(*commit.jobs, errors=errors, after=after)

    def _tell(self, claims: Sequence[PodClaims], commit: UnitCommit, error: ClaimsFailed) -> None:
        """Reports pods with claims that could not be bound. Reports nothing if the cause is a change of the cluster."""
        for pod in claims:
            now = self._state.pod(pod.info.key)
            if error.cause not in STALE_CAUSES and now is not None and now.uid == pod.info.uid and now.pending:
                self._failed(now, commit.unit, f"claims: {error}")

    def _rejected(self, pod: Pod) -> None:
        """Withdraws the unsent Bindings of a gang, because a kubelet has rejected one of its pods: kubelets may also
        reject the remaining pods of the plan (numa.md 8.8)."""
        commit = self._commits.get(pod.key)
        planned = any(job.placement.uid == pod.metadata.uid for job in commit.jobs) if commit is not None else False
        if commit is not None and planned:
            commit.withdrawn = True

    # -- a Binding ----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Sends Bindings of the queue, one at a time, until cancelled."""
        while True:
            job: PendingBinding | None = self._order.of(await self._jobs.get())
            while job is not None:
                await self._complete(job)
                job = self._order.next_to(job.placement.node)

    async def _complete(self, job: PendingBinding) -> None:
        """Sends a Binding. An unexpected error fails only this Binding, because later ones need the worker."""
        try:
            await self._bind(job)
        except Exception:
            logger.exception("pod %s: its Binding failed", job.placement.pod_key)
            self._give_back(job, errors=1)
        finally:
            self.open -= 1
            self._jobs.task_done()

    async def _bind(self, job: PendingBinding) -> None:
        """Checks one Binding, sends it, and handles its outcome."""
        commit, placement = job.commit, job.placement
        why = self._obstacles.of_next(job)
        if not why and await self._binder.take_turn():
            # the cluster may have changed while the rate limit held the Binding back
            why = self._obstacles.of_next(job)
        if why:
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
        """Handles the outcome of one Binding: counts it, and queues the pod again if it is still pending."""
        key, node, result = job.placement.pod_key, job.placement.node, outcome.result
        if result in (BindResult.BOUND, BindResult.ALREADY):
            self._bound(job, outcome)
            return
        self._metrics.binds.labels(result.value).inc()
        if result is BindResult.UNKNOWN:
            # leadership has ended: the pod stays assumed, and this process exits
            self._count(job, lost=True)
            return
        self._metrics.attempts.labels("error", job.queued.profile).inc()
        if result is not BindResult.NOT_SENT:
            logger.warning("pod %s was not bound to %s: %s: %s", key, node, result, outcome.message)
        if result is BindResult.CONFLICT:
            self._metrics.conflicts.labels("bound_elsewhere").inc()
        if outcome.pod is not None:
            # the cache takes the state of the pod as read, including devices that another scheduler chose; the watch
            # delivers it later
            self._feeds.pods.read(outcome.pod)
        # a first failure that is mostly temporary gets no condition, because the next try is likely to succeed
        errors, again = 0 if result is BindResult.NOT_SENT else 1, job.queued.failures > 0
        is_told = result is BindResult.REFUSED and (again or not outcome.passing)

        def tell() -> None:
            now = self._state.pod(key)
            if is_told and now is not None and now.pending:
                self._failed(now, job.commit.unit, f"to {node}: {outcome.message}")

        pause, gone = outcome.retry_after or 0.0, result is BindResult.GONE
        self._give_back(job, errors=errors, at_least_seconds=pause, gone=gone, after=tell)

    def _bound(self, job: PendingBinding, outcome: BindOutcome) -> None:
        """Handles a Binding that has taken effect on the planned node."""
        placement = job.placement
        try:
            self._confirmations.bound(placement.pod_key, placement.uid, placement.node)
            self._report_bound(job, outcome)
        except Exception:
            # the pod is bound in any case, and uses its capacity
            logger.exception("pod %s is bound, but reporting it failed", placement.pod_key)
        self._count(job, lost=False)

    def _report_bound(self, job: PendingBinding, outcome: BindOutcome) -> None:
        """Counts a bound pod, and emits its event, unless another process has bound the pod."""
        if outcome.result is BindResult.ALREADY:
            # the process that sent the Binding has counted and reported the pod, with its own choice of devices
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

    def _give_back(
        self,
        *jobs: PendingBinding,
        errors: int,
        at_least_seconds: float = 0.0,
        gone: bool = False,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Releases the resource claims of pods that are not bound, then stops assuming the pods and queues them again.

        errors: 1 if the pods wait for their back-off, 0 if they are planned again at once. at_least_seconds: pause that
        the API server asks for. gone: True if the API server says that the pods do not exist any more. after: called
        when the pods are no longer assumed.
        """
        reserved = [job.claims for job in jobs if job.claims is not None and job.commit.reserving]
        if not has_resource_claims(reserved) or not self._may_write():
            for job in jobs:
                self._take_back(job, errors=errors, at_least_seconds=at_least_seconds, gone=gone)
            after()
            return

        async def release() -> None:
            # until the claims are released, their devices count as reserved and the pods are not planned again
            try:
                await self._releaser.release(reserved)
            except Exception:
                logger.exception("%s: its resource claims were not released", jobs[0].commit.unit)
            for job in jobs:
                self._take_back(job, errors=errors, at_least_seconds=at_least_seconds, gone=gone)
            after()

        begin(release(), f"release of {jobs[0].commit.unit}", self._releasing)

    def _take_back(self, job: PendingBinding, *, errors: int, at_least_seconds: float, gone: bool) -> None:
        """Stops assuming one pod. A pod that is still pending returns to the queue. Arguments as in `_give_back`."""
        key = job.placement.pod_key
        now = self._state.pod(key)
        if gone:
            # the pod is removed from the cache at once: with a late watch it would be planned again and again
            self._feeds.pods.ended(key, job.placement.uid)
        elif now is not None and now.uid == job.placement.uid and self._state.assumed_node(key) is not None:
            self._state.forget(key)
            self._queue.broadcast(Wake.CAPACITY_FREED, "BindFailure")
            now = self._state.pod(key)
            if now is not None and now.pending:
                unit = self._feeds.names.of_pod(now)
                self._queue.put_back(unit, job.queued, errors=errors, at_least_seconds=at_least_seconds)
        self._count(job, lost=True)

    def _count(self, job: PendingBinding, *, lost: bool) -> None:
        """Records that the outcome of a Binding is known. After the last Binding of the unit, calls `on_done`.

        lost: True if the pod was not bound.
        """
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
                # the outcome of its pods is already recorded, so no Binding counts as failed
                logger.exception("%s: handling the end of its Bindings failed", commit.unit)
        for job in commit.jobs:
            if self._commits.get(job.placement.pod_key) is commit:
                del self._commits[job.placement.pod_key]
        commit.jobs = []  # breaks the reference cycle


def _may_claim(info: PodInfo) -> bool:
    """Returns whether volume or resource claims may have to be written for a pod before its Binding."""
    pod = info.pod
    named = info.ties or pod.spec.resource_claims or pod.status.extended_resource_claim_status
    return bool(named or CLAIMS in info.asks)
