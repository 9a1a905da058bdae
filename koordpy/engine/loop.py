"""The scheduling loop: wake, gather, snapshot, plan in a worker thread, check, commit, tell (kube-parity.md section 4).

One round at a time; its Bindings are under way while the next is planned. Everything but the planner runs on the event
loop's thread, which owns the ClusterState.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from koordpy.cluster.pods import GangRef, PodInfo
from koordpy.cluster.quotas import Queue
from koordpy.cluster.snapshot import Snapshot
from koordpy.engine.commit import Committer
from koordpy.engine.evictor import OUTDATED, EvictionPlan, Evictor
from koordpy.engine.feeds import Feeds
from koordpy.engine.gangwriter import GangStatusWriter
from koordpy.engine.overtaken import by_node, leaning, overtaken
from koordpy.engine.overuse import OveruseWatch
from koordpy.engine.queue import Entry
from koordpy.engine.references import References
from koordpy.engine.settings import EngineSettings
from koordpy.engine.shields import Shields
from koordpy.engine.stalegangs import StaleWatch
from koordpy.engine.status import PodStatusWriter
from koordpy.engine.unitcommit import UnitCommit
from koordpy.engine.wakeups import ROOM_CAME, Wake, helpful
from koordpy.observe.decisions import DecisionLog
from koordpy.observe.metrics import Metrics
from koordpy.planning.gangs import read_gang
from koordpy.planning.plan import (
    Eviction,
    GangReport,
    GangStatus,
    Nomination,
    PendingPod,
    Placement,
    Reason,
    Reservation,
    RoundPlan,
)
from koordpy.planning.promised import party_of
from koordpy.planning.victims.names import RuleName

logger = logging.getLogger(__name__)

Planner = Callable[[Snapshot, frozenset[str]], RoundPlan]
"""Plans the units of these ids on a snapshot; called in a worker thread, one call at a time."""

IDLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Gangs:
    """What a commit must know of the gangs in its unit when its Bindings are through."""

    reports: tuple[GangReport, ...]
    first_tried: float


class SchedulingLoop:
    """Runs rounds until cancelled."""

    def __init__(
        self,
        feeds: Feeds,
        committer: Committer,
        planner: Planner,
        *,
        pod_status: PodStatusWriter | None,
        group_status: Sequence[GangStatusWriter] = (),
        metrics: Metrics,
        decisions: DecisionLog,
        settings: EngineSettings,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        stuck: Callable[[list[PodInfo]], None] = lambda pods: None,
        warned: Callable[[str, str], None] = lambda obj, text: None,
        evictor: Evictor | None = None,
        stale: StaleWatch | None = None,
        overuse: OveruseWatch | None = None,
    ) -> None:
        """Without writers (dry run) verdicts are only counted and logged. `stuck` hears of pods of one unit that fit
        nowhere for the sake of their resource claims, `warned` of settings that do nothing. Without an evictor victims
        are counted and logged, too, and their room is nobody's."""
        self.rounds = 0
        self.last_turn = clock()
        self._feeds, self._state, self._queue = feeds, feeds.state, feeds.queue
        self._committer, self._planner = committer, planner
        self._references = References(feeds)
        self._pod_status, self._group_status = pod_status, group_status
        self._metrics, self._decisions, self._settings = metrics, decisions, settings
        self._clock, self._now, self._stuck, self._warned = clock, now, stuck, warned
        self._evictor, self._stale, self._overuse = evictor, stale, overuse
        self._wake = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="planner")
        self._first_tried: dict[str, float] = {}
        self._alone = 0
        """Rounds that take one unit each: after the planner has failed, so that one bad unit holds up no other."""
        reclaim = settings.fairness.reclaim
        self._shields: Shields | None = None
        if evictor is not None:
            self._shields = Shields(
                feeds.state,
                feeds.queue,
                owners_matter=lambda: reclaim == "all" or (reclaim == "quotas" and bool(feeds.state.quotas.objects)),
            )
            feeds.listeners.confirmed.append(self._shields.confirmed)
        self._looked_again: set[str] = set()
        """Units that were planned once more, because room came while victims were chosen for them."""
        self._awaiting: dict[str, list[Nomination]] = {}
        """Unit -> room that it waits for, as its last attempt has found."""
        self._said: set[tuple[str, str]] = set()
        self._reservation: Reservation | None = None
        feeds.listeners.pod_gone.append(self._pod_gone)

    def wake(self) -> None:
        """Something may have become due."""
        self._wake.set()

    async def run(self) -> None:
        """Runs rounds until cancelled; a round that fails is logged and its units back off."""
        try:
            while True:
                self.last_turn = self._clock()
                self._queue.poll()
                if self._queue.ready() or self._somebody_is_due():
                    await self._gather()
                    await self.round()
                else:
                    await self._wait()
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _wait(self) -> None:
        self._wake.clear()
        due = self._queue.next_due()
        pause = IDLE_SECONDS if due is None else min(IDLE_SECONDS, max(0.001, due - self._clock()))
        if (told := self._due_beside()) is not None:
            pause = min(pause, max(0.001, told - self._now()))
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _due_beside(self) -> float | None:
        """When a round is to be held though no unit is due: for a stale gang, or a quota above its runtime."""
        watches = [watch for watch in (self._stale, self._overuse) if watch is not None]
        return min((due for watch in watches if (due := watch.next_due()) is not None), default=None)

    def _somebody_is_due(self) -> bool:
        due = self._due_beside()
        return due is not None and due <= self._now()

    async def _gather(self) -> None:
        """Waits a moment while pods pour in, so that a gang is not planned once for each member."""
        quiet, began = self._settings.quiet_seconds, self._clock()
        until = began + self._settings.max_gather_seconds
        while (now := self._clock()) < until and now - self._queue.last_added < quiet:  # noqa: ASYNC110 - not an event
            await asyncio.sleep(quiet)

    def _pod_gone(self, key: str) -> None:
        """Room that was kept for a pod is free for others when it will not come."""
        if self._reservation is not None and key in self._reservation.nodes:
            self._reserved(None)

    def _reserved(self, now: Reservation | None) -> None:
        before, self._reservation = self._reservation, now
        if before is not None and (now is None or now.unit != before.unit):
            self._queue.broadcast(Wake.ROOM, "ReservationGone")

    # -- a round ------------------------------------------------------------------------------------------------------

    async def round(self) -> None:
        """Plans what is due and hands it on."""
        self._queue.poll()
        taken_at = self._clock()
        snapshot = self._state.snapshot(self._now())
        self._feeds.pods.foreign.clear()
        if self._shields is not None:
            self._shields.snapshot_taken()
        if self._feeds.names.refresh(snapshot):
            self._queue.regroup(self._unit_now)
        few = not self._committer.open
        light = self._settings.first_light_pods if few else self._settings.most_light_pods
        # gangs that are to be given up unless they find room now: tried again if they have somebody to place
        stale = self._stale.take() if self._stale is not None else []
        for unit in stale:
            self._queue.hurry(unit, "StaleGang")
        over = self._overuse.take() if self._overuse is not None else False
        entries = self._queue.take(light_pods=light, alone=self._alone > 0)
        if not entries and not stale and not over:
            return
        self._alone = max(0, self._alone - 1)
        self.rounds += 1
        for entry in entries:
            self._first_tried.setdefault(entry.unit, taken_at)
        ids = frozenset((*(entry.unit for entry in entries), *stale))
        snapshot = self._with_promises(snapshot, ids)
        began = self._clock()
        try:
            plan = await asyncio.get_running_loop().run_in_executor(self._executor, self._planner, snapshot, ids)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("planning failed for %d units", len(entries))
            self._planner_failed(entries, error)
            return
        seconds = self._clock() - began
        self._metrics.planned(plan, seconds=seconds)
        self._metrics.snapshot_age.observe(self._clock() - taken_at)
        self._decisions.record(plan, number=self.rounds, at=self._now())
        self._apply(plan, snapshot, {entry.unit: entry for entry in entries}, began=taken_at, seconds=seconds)
        self._reserved(plan.reservation)

    def _with_promises(self, snapshot: Snapshot, ids: frozenset[str]) -> Snapshot:
        """A snapshot that knows what is promised to units that are not tried in this round, and what is closed to
        whom; what those that are tried wait for is found anew."""
        for unit, known in list(self._awaiting.items()):
            there = [snapshot.pods.get(one.pod_key) for one in known]
            if any(info is None or not info.pending for info in there):
                del self._awaiting[unit]
        awaiting = {one.pod_key: one.node for unit, known in self._awaiting.items() if unit not in ids for one in known}
        closed = self._evictor.closed() if self._evictor is not None else {}
        return replace(snapshot, awaiting=awaiting, closed=closed) if awaiting or closed else snapshot

    def _unit_now(self, key: str) -> str | None:
        info = self._state.pod(key)
        return self._feeds.names.of_pod(info) if info is not None and info.pending else None

    def _planner_failed(self, entries: list[Entry], error: Exception) -> None:
        if len(entries) > 1:
            self._alone = len(entries)
            for entry in entries:
                self._queue.settle_again(entry)
            return
        for entry in entries:
            for key in list(entry.pods):
                text = f"planning failed: {type(error).__name__}: {error}"
                self._tell(PendingPod(key, entry.unit, None, Reason.SCHEDULER_ERROR, text))
            self._queue.settle_error(entry)

    def _apply(
        self, plan: RoundPlan, snapshot: Snapshot, entries: Mapping[str, Entry], *, began: float, seconds: float
    ) -> None:
        placements: dict[str, list[Placement]] = {}
        for placement in plan.placements:
            placements.setdefault(placement.unit, []).append(placement)
        pending: dict[str, list[PendingPod]] = {}
        for verdict in plan.pending:
            pending.setdefault(verdict.unit, []).append(verdict)
        reports = {report.ref: report for report in plan.gangs}
        evictions: dict[str, list[Eviction]] = {}
        for eviction in plan.evictions:
            evictions.setdefault(eviction.unit, []).append(eviction)
        pods_tried = sum(len(unit.pod_keys) for unit in plan.units) or 1
        foreign = by_node(self._feeds.pods.foreign)
        early = leaning(plan, snapshot)
        for tried_unit in plan.units:
            self._awaiting.pop(tried_unit.unit, None)
        for one in plan.awaiting:
            self._awaiting.setdefault(one.unit, []).append(one)
        refused: list[Entry] = []
        for unit in plan.units:
            entry = entries.get(unit.unit)
            victims = evictions.pop(unit.unit, [])
            if entry is None:
                continue
            gangs = self._gangs_of(snapshot, unit.pod_keys)
            placed, left = placements.get(unit.unit, ()), pending.get(unit.unit, ())
            if placed and (why := overtaken(self._state, snapshot, placed, foreign, by_name=not victims)):
                logger.info("%s: its plan was overtaken (%s); planning again", unit.unit, why)
                self._metrics.conflicts.labels(f"overtaken_{why}").inc()
                self._queue.settle_again(entry)
                continue
            if unit.unit in early:
                logger.debug("%s: it is planned again when the victims of others are seen to end", unit.unit)
                self._queue.settle_again(entry)
                continue
            if victims and not self._all_there(victims):
                logger.info("%s: its victims have changed; planning again", unit.unit)
                self._metrics.conflicts.labels("overtaken_victim").inc()
                self._queue.settle_again(entry)
                continue
            if victims and unit.unit not in self._looked_again and self._queue.missed(ROOM_CAME):
                # once only: in a busy cluster room comes all the time
                self._looked_again.add(unit.unit)
                self._queue.settle_again(entry)
                continue
            if victims:
                for verdict in left:
                    self._tell(verdict)
                self._evict(plan, unit.unit, victims, entry)
                continue
            self._looked_again.discard(unit.unit)
            waiting = min((read_gang(snapshot, ref).waiting_seconds for ref in gangs), default=600.0)
            mine = tuple(reports[ref] for ref in gangs if ref in reports)
            if placed:
                first = self._first_tried.pop(unit.unit, began)
                self._committer.submit(
                    unit.unit,
                    placed,
                    gang=bool(gangs),
                    began=began,
                    waiting_seconds=waiting,
                    on_done=self._done(_Gangs(mine, first)) if gangs else None,
                )
            for report in mine:
                if not (placed and report.status is GangStatus.SCHEDULED):
                    for writer in self._group_status:
                        writer.verdict(report, waiting)
            self._count_attempts(entry, left, gang=bool(gangs), placed=bool(placed), seconds=seconds / pods_tried)
            for verdict in left:
                self._tell(verdict)
            if left and self._evictor is not None:
                kept = [info for verdict in left if (info := self._state.pod(verdict.pod_key)) and info.nominated_node]
                if not _leaving_from({info.nominated_node for info in kept}, snapshot):
                    self._evictor.nominations.refused(unit.unit, kept)
            self._settle(entry, left, gang=bool(gangs), seconds=seconds * len(unit.pod_keys) / pods_tried)
            if left:
                refused.append(entry)
            if placed and left and self._evictor is not None:
                # with the core placed, each further member may ask for victims of its own (preemption.md 1)
                self._queue.touch(unit.unit, "CorePlaced")
        if self._shields is not None:
            self._shields.refused(refused)
        tried = {unit.unit for unit in plan.units}
        for name, entry in entries.items():
            if name not in tried:
                # its pods are gone or in another unit now; the feeds have said so, or will
                self._queue.settle_error(entry)
        for unit_id, victims in evictions.items():
            # what is left goes for its own gang's sake, which has nobody to be placed
            if self._all_there(victims):
                self._evict(plan, unit_id, victims, None)
        for obj, text in plan.warnings:
            if (obj, text) not in self._said:
                self._said.add((obj, text))
                self._warned(obj, text)

    # -- victims ------------------------------------------------------------------------------------------------------

    def _all_there(self, victims: Iterable[Eviction]) -> bool:
        """Whether the victims are still what they were when they were chosen."""
        for victim in victims:
            info = self._state.pod(victim.pod_key)
            if info is None or info.uid != victim.uid or info.node != victim.node or info.finished:
                return False
            if info.pod.metadata.deletion_timestamp:
                return False
        return True

    def _evict(self, plan: RoundPlan, unit: str, victims: Sequence[Eviction], entry: Entry | None) -> None:
        """Starts what makes a unit's room. It is planned again when its victims are going: then it waits for them."""
        if self._evictor is None:
            self._would_evict(unit, victims)
            if entry is not None:
                self._queue.settle_error(entry)
            return
        benefit = next((one for one in plan.benefits if one.unit == unit), None)
        # a gang that gives up goes for its own sake
        gains = benefit.beneficiary if benefit is not None else next((v.beneficiary for v in victims), None)
        chosen = EvictionPlan(
            unit,
            tuple(victims),
            tuple(one for one in plan.nominations if one.unit == unit),
            benefit,
            self._references.beneficiary(gains) if gains else None,
            # once only: in a busy cluster room comes all the time
            rooms=(lambda: 0) if entry is None or unit in self._looked_again else (lambda: self._queue.rooms),
            losers=self._losers(victims),
        )

        def done(ended: EvictionPlan, why: str) -> None:
            if entry is None:
                return
            if why == OUTDATED:
                self._looked_again.add(unit)
                self._queue.settle_again(entry)
            elif why:
                self._queue.settle_error(entry)
            else:
                self._looked_again.discard(unit)
                self._queue.settle_again(entry)

        self._evictor.submit(chosen, done)

    def _losers(self, victims: Iterable[Eviction]) -> frozenset[Queue]:
        """The quotas and users that victims are reclaimed from."""
        quotas, mode = self._state.quota_view(), self._settings.fairness.mode
        out: set[Queue] = set()
        for victim in victims:
            info = self._state.pod(victim.pod_key)
            if info is not None and victim.rule == RuleName.QUOTA:
                out.add(Queue(quotas.quota_of(info), ""))
            elif info is not None and victim.rule == RuleName.FAIR_SHARE:
                out.add(party_of(info, quotas, mode))
        return frozenset(out)

    def _would_evict(self, unit: str, victims: Sequence[Eviction]) -> None:
        """A dry run counts and logs the victims of a unit's plan, once as long as they are the same."""
        names = ", ".join(f"{victim.pod_key} ({victim.rule})" for victim in victims)
        if (unit, names) not in self._said:
            self._said.add((unit, names))
            logger.info("%s: would evict %s", unit, names)
            for victim in victims:
                self._metrics.victims.labels(victim.rule).inc()

    def _settle(self, entry: Entry, left: Iterable[PendingPod], *, gang: bool, seconds: float) -> None:
        left = list(left)
        if not left:
            self._queue.settle_placed(entry)
        elif any(verdict.reason is Reason.SCHEDULER_ERROR and not verdict.gated for verdict in left):
            self._queue.settle_error(entry)
        else:
            plugins = dict.fromkeys(plugin for verdict in left for plugin in verdict.plugins)
            if "DynamicResources" in plugins:
                infos = (self._state.pod(verdict.pod_key) for verdict in left)
                self._stuck([info for info in infos if info is not None and info.pending])
            gated = all(verdict.gated for verdict in left)
            self._queue.settle_unschedulable(
                entry, wakes=helpful(plugins, gang=gang), plugins=plugins, gated=gated, seconds=seconds
            )

    def _gangs_of(self, snapshot: Snapshot, keys: Iterable[str]) -> list[GangRef]:
        found: dict[GangRef, None] = {}
        for key in keys:
            info = snapshot.pods.get(key)
            if info is not None and info.gang is not None:
                found[info.gang] = None
        return list(found)

    def _tell(self, verdict: PendingPod) -> None:
        if self._pod_status is None:
            logger.debug("pod %s: %s: %s", verdict.pod_key, verdict.reason.value, verdict.message)
            return
        info = self._state.pod(verdict.pod_key)
        if info is not None and info.pending:
            self._pod_status.tell(verdict, info)

    def _count_attempts(
        self, entry: Entry, left: Iterable[PendingPod], *, gang: bool, placed: bool, seconds: float
    ) -> None:
        profile = ""
        for verdict in left:
            info: PodInfo | None = self._state.pod(verdict.pod_key)
            if info is None:
                continue
            profile = info.pod.spec.scheduler_name
            result = "error" if verdict.reason is Reason.SCHEDULER_ERROR else "unschedulable"
            self._metrics.attempts.labels(result, profile).inc()
            self._metrics.attempt_seconds.labels(result, profile).observe(seconds)
        if gang:
            result = "scheduled" if placed else "unschedulable"
            profile = profile or next((pod.profile for pod in entry.pods.values()), self._settings.scheduler_names[0])
            self._metrics.podgroup_attempts.labels(result, profile).inc()

    # -- after the Bindings -------------------------------------------------------------------------------------------

    def _done(self, gangs: _Gangs) -> Callable[[UnitCommit], None]:
        def done(commit: UnitCommit) -> None:
            self._metrics.gang_members_bound.inc(commit.bound)
            if commit.lost:
                logger.warning(
                    "%s: %d of %d members bound; %d more are planned again beside them",
                    commit.unit, commit.bound, commit.total, len(commit.lost),
                )  # fmt: skip
                # the wait of the gang goes on from its first try
                self._first_tried.setdefault(commit.unit, gangs.first_tried)
            else:
                self._metrics.gang_wait_seconds.observe(self._clock() - gangs.first_tried)
            if commit.lost:
                return
            for report in gangs.reports:
                if report.status is GangStatus.SCHEDULED:
                    for writer in self._group_status:
                        writer.scheduled(report)

        return done


def _leaving_from(nodes: set[str], snapshot: Snapshot) -> bool:
    """Whether the plan was made while pods were still leaving these nodes: their room may have come meanwhile."""
    return bool(nodes) and any(
        info.node in nodes and info.pod.metadata.deletion_timestamp for info in snapshot.pods.values()
    )
