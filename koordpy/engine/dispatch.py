# SPDX-License-Identifier: Apache-2.0
"""Carries out the plan of a round or search, unit by unit (pod or gang), on the event loop.

Placements are passed to `binding/`, victims to `evictions/`, and refusals to `status/` as conditions. Each unit then
returns to the queue, or leaves it.

The cluster changes while a plan is made. If a change makes one unit's part of the plan stale, the unit is planned again
at once. The parts of other units are still carried out: all units of a round were planned on one draft, so their parts
do not depend on a part that is left out.
"""

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from msgspec import json

from koordpy.cache.snapshot import Snapshot
from koordpy.engine.binding.commit import Committer
from koordpy.engine.binding.unit_commit import UnitCommit
from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.eviction_orders import EvictionStarter
from koordpy.engine.queue_entry import Entry
from koordpy.engine.round_reservations import RoundReservations
from koordpy.engine.staleness import ConcurrentPlacements, find_stale_reason, group_by, units_waiting_for_victims
from koordpy.engine.status.gang_census import Census
from koordpy.engine.status.gang_writer import GangWriter
from koordpy.engine.unschedulable import UnschedulableHandler
from koordpy.engine.wakeups import Wake
from koordpy.gangs.gang_reading import read_gang
from koordpy.observe.log_lines import MOST_CHARACTERS
from koordpy.observe.message_rates import SentMessages
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import (
    Deferral,
    DeferralReason,
    Eviction,
    GangReport,
    GangStatus,
    PendingPod,
    Placement,
    RejectedPlan,
    RoundPlan,
    UnitReport,
)
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.report.setting_warnings import counted_text

logger = logging.getLogger(__name__)

WAITING_SECONDS = 600.0
"""Time limit for the Bindings of a plain pod, in seconds. Gangs have the setting `waiting-time` (gang-network.md
2.9)."""


@dataclass(frozen=True, slots=True)
class RoundInput:
    """The input of one round or search: its units, its snapshot, and what happened since the snapshot."""

    entries: Mapping[str, Entry]
    """Id of each unit that was taken from the queue -> its entry."""
    snapshot: Snapshot
    began: float
    """Clock time of the start, in seconds."""
    foreign: int
    """Length of `PodChanges.foreign` when the snapshot was taken. Later items of that list are pods that the snapshot
    does not have: bound by other schedulers, or with larger requests."""
    assumed: Sequence[PodInfo]
    """Pods that were assumed when the snapshot was taken. They cannot be victims of this round."""
    concurrent: ConcurrentPlacements = field(default_factory=ConcurrentPlacements)
    """Placements and evictions of ordinary rounds since the snapshot of a search; empty for an ordinary round."""
    searches: bool = False
    """True for a search, False for an ordinary round."""


@dataclass(frozen=True, slots=True)
class _Round:
    """A plan grouped by units, with the input of its round."""

    plan: RoundPlan
    round_input: RoundInput
    """The input of the round."""
    seconds: float
    """Planning time of the round."""
    placements: Mapping[str, list[Placement]]
    """Unit -> placements of its pods that got a node."""
    pending: Mapping[str, list[PendingPod]]
    """Unit -> verdicts on its pods that stay pending."""
    evictions: Mapping[str, list[Eviction]]
    """Preemptor unit -> its victims."""
    reports: Mapping[GangRef, GangReport]
    """Gang -> its report, of each gang that the round planned."""
    foreign: Mapping[str, list[PodInfo]]
    """Node -> pods that other schedulers bound to it since the snapshot."""
    early: frozenset[str]
    """Units with placements that use capacity of victims of the same plan, so that they cannot be bound yet."""
    pods: int
    """Number of pods of all planned units, at least 1."""
    victims: frozenset[str]
    """Pods that the plan evicts."""
    skipped: set[str] = field(default_factory=set)
    """Units with stale placements, which are not carried out. Refused units may fit into their capacity."""


class Dispatcher:
    """Carries out the plans of rounds. Owned by the event loop."""

    def __init__(
        self,
        context: Context,
        committer: Committer,
        *,
        refusals: UnschedulableHandler,
        eviction_starter: EvictionStarter,
        reservations: RoundReservations,
        gangs: Sequence[GangWriter],
        census: Census,
    ) -> None:
        """eviction_starter: starts evictions. gangs: writers of gang statuses and events; empty with `--dry-run`."""
        self._feeds, self._state, self._queue = context.feeds, context.state, context.queue
        self._committer, self._refusals, self._eviction_starter, self._reservations = (
            committer,
            refusals,
            eviction_starter,
            reservations,
        )
        self._gangs, self._census = gangs, census
        self._announcer, self._references, self._metrics = context.announcer, context.references, context.metrics
        self._clock, self._search_seconds = context.clock, context.settings.config.planning.search_seconds
        self._reasons = context.settings.config.autoscaling.reasons
        self._extra_seconds = context.settings.nomination_extra_seconds
        self.sent_messages = SentMessages(context.clock)
        """Messages that were logged or sent, by object, so that each is reported once."""
        self._warned: dict[int, tuple[str, str]] = {}
        """`id()` of a warning of the last round that was reported -> the warning. A warning that does not change is the
        same object in each round, so that comparing ids is enough even for thousands of quotas."""
        self._counted: set[str] = set()
        """Resources for which it was logged that they mean parts of devices, but are only counted by number."""

    def apply(self, plan: RoundPlan, begun: RoundInput, *, seconds: float) -> None:
        """Carries out a round's plan, and ends the attempt of each of its units in the queue.

        The component that a unit's part is passed to may end the attempt later. seconds: planning time.
        """
        entries, snapshot = begun.entries, begun.snapshot
        # 1. reservations, and search time charged to the tenants
        if plan.awaiting_nominations or self._reservations.awaiting:
            self._reservations.keep(plan, snapshot)
        if begun.searches:
            for tenant in (entry.tenant for unit in plan.units if (entry := entries.get(unit.unit)) is not None):
                self._queue.turns.took(tenant, seconds / len(plan.units))
        # 2. the decided units
        parts = _Round(
            plan,
            begun,
            seconds,
            placements=group_by(plan.placements, attrgetter("unit")),
            pending=group_by(plan.pending, attrgetter("unit")),
            evictions=group_by(plan.evictions, attrgetter("unit")),
            reports={report.ref: report for report in plan.gangs},
            foreign=group_by(self._feeds.pods.foreign[begun.foreign :], attrgetter("node")),
            early=units_waiting_for_victims(plan, snapshot),
            pods=sum(len(unit.pod_keys) for unit in plan.units) or 1,
            victims=frozenset(one.pod_key for one in plan.evictions),
        )
        refused = [
            entry
            for unit in plan.units
            if (entry := entries.get(unit.unit)) is not None and self._carry_out_unit(unit, entry, parts)
        ]
        # pods that an ordinary round has bound during a search could not be victims of the search, as assumed pods
        self._refusals.round_ended(refused, [*begun.assumed, *begun.concurrent.placed])
        if parts.skipped:
            # a refused unit may fit into the capacity of the stale parts
            for entry in refused:
                self._queue.touch(entry.unit, "PlanOvertaken")
        # 3. undecided units, and units that the planner did not find in the snapshot
        tried = {unit.unit for unit in plan.units}
        for one in plan.deferred:
            tried.add(one.unit)
            if (waits := entries.get(one.unit)) is not None:
                self._defer(waits, one, parts)
        for name, entry in entries.items():
            if name not in tried:
                # the pods of the unit are deleted, or in another unit now; the watch updates the queue
                self._queue.settle_error(entry)
        for unit_id, victims in parts.evictions.items():
            # 4. evictions without a preemptor: of stale gangs, and of quotas above their runtime
            if unit_id in tried or begun.concurrent.touches(snapshot, (), victims):
                continue
            if not find_stale_reason(self._state, snapshot, (), parts.foreign, parts.victims, victims):
                self._evict(parts, unit_id, victims, None)
        # 5. messages
        self._warn(plan.warnings)
        for about, resource in plan.parts_by_number:
            if resource not in self._counted:
                self._counted.add(resource)
                logger.warning("%s: %s", about, counted_text(resource))
        for rejected in plan.rejected:
            self._log_rejected_plan(rejected)

    def _carry_out_unit(self, unit: UnitReport, entry: Entry, parts: _Round) -> bool:
        """Carries out one unit's part of the plan.

        Returns True if the unit was refused and victims might help it: some of its pods stay pending, and the unit
        would fit an empty cluster.
        """
        name, begun = unit.unit, parts.round_input
        for text in unit.solver_faults:
            if self.sent_messages.is_new(name, text, entry.namespace):
                logger.error("%s: %s", name, text)
        placed, left = parts.placements.get(name, []), parts.pending.get(name, [])
        victims = parts.evictions.get(name, [])
        if self._has_changed(entry, placed, victims, parts) or self._has_to_wait(entry, victims, parts):
            if placed:
                parts.skipped.add(name)
            return False
        if victims:
            # nothing is bound now: the unit is planned again once the victims have ended
            for verdict in left:
                self._refusals.tell(verdict)
            self._evict(parts, name, victims, entry)
            return False
        entry.replanned_for_capacity = False
        gangs = _gangs_of(begun.snapshot, unit.pod_keys)
        waiting = min((read_gang(begun.snapshot, ref).waiting_seconds for ref in gangs), default=WAITING_SECONDS)
        reports = tuple(parts.reports[ref] for ref in gangs if ref in parts.reports)
        if placed:
            first = begun.began if entry.first_tried is None else entry.first_tried
            entry.first_tried = None
            self._committer.submit(
                name,
                placed,
                gang=bool(gangs),
                began=begun.began,
                waiting_seconds=waiting,
                on_done=partial(self._bindings_ended, reports, first) if gangs else None,
            )
        for report in reports:
            self._census.hear(report)
            if not (placed and report.status is GangStatus.SCHEDULED):
                for writer in self._gangs:
                    writer.verdict(report, waiting)
        share = parts.seconds / parts.pods
        self._refusals.count(entry, left, gang=bool(gangs), placed=bool(placed), seconds=share)
        # The core of the gang is placed now. Each surplus member may preempt alone in the next round, so it gets no
        # condition yet (preemption.md 1).
        further = bool(placed and left) and self._eviction_starter.evictor is not None
        for verdict in left if not further else ():
            self._refusals.tell(verdict)
        if left:
            waits = {(one.pod_key, one.node) for one in parts.plan.awaiting_nominations}
            self._refusals.clear_failed_nominations(name, left, begun.snapshot, waits)
        # number of members that the unit's gangs lack to their minimums
        short = sum(max(0, report.min_member - report.members) for report in reports)
        # Verdicts come from the draft at the end of the round, which does not have the round's victims any more. If a
        # pod fits there, no filter has refused it, so no filter names the change to wait for: freed capacity.
        also = Wake.CAPACITY_FREED if parts.evictions else Wake.NOTHING
        seconds = share * len(unit.pod_keys)
        needs = unit.quota_needs
        self._refusals.settle(entry, left, gang=bool(gangs), seconds=seconds, short=short, also=also, needs=needs)
        if further:
            self._queue.touch(name, "CorePlaced")
        return bool(left) and not any(verdict.never for verdict in left)

    def _evict(self, parts: _Round, unit: str, victims: Sequence[Eviction], entry: Entry | None) -> None:
        """Starts the evictions for a unit, and reserves the planned nodes of moved pods. entry: None for evictions
        without a preemptor."""
        self._eviction_starter.start(parts.plan, unit, victims, entry)
        if self._eviction_starter.evictor is not None:
            nominated = [one for one in parts.plan.nominations if one.unit == unit]
            self._reservations.keep_returns(victims, nominated, parts.round_input.snapshot, self._extra_seconds)

    def _defer(self, entry: Entry, deferral: Deferral, parts: _Round) -> None:
        """Queues a unit that the round did not decide, for the next round or for a search.

        After `planning.searchSeconds` in the queue, its pods get a condition that victims are still being searched.
        """
        if deferral.reason is not DeferralReason.SEARCH and entry.search is None:
            self._queue.settle_for_round(entry, passed_over=deferral.reason is DeferralReason.TURN)
            return
        self._queue.settle_for_search(entry)
        search = entry.search
        if search is not None and not search.reported and self._clock() - search.since >= self._search_seconds:
            search.reported = True
            text = f"0/{len(parts.round_input.snapshot.nodes)} nodes are available: still looking for victims."
            for key in entry.pods:
                info = self._state.pod(key)
                gang = info.gang.key if info is not None and info.gang is not None else None
                self._refusals.tell(PendingPod(key, entry.unit, gang, Reason.UNDETERMINED, text, mode=self._reasons))

    def _has_changed(
        self, entry: Entry, placed: Sequence[Placement], victims: Sequence[Eviction], parts: _Round
    ) -> bool:
        """Returns True if the unit's plan is stale, because the cluster changed. The unit is then queued again.

        If the plan of a search is stale, the unit is searched again. Until then the nodes of the stale plan are
        withheld from other units, except if a pod of the unit itself has changed.
        """
        unit, begun = entry.unit, parts.round_input
        going = parts.victims if victims else ()
        why = find_stale_reason(self._state, begun.snapshot, placed, parts.foreign, going, victims)
        if not why and (placed or victims) and begun.concurrent.touches(begun.snapshot, placed, victims):
            why = "beside"
        if not why:
            return False
        logger.info("%s: its plan is outdated by a change (%s); planning again", unit, why)
        self._metrics.conflicts.labels(f"overtaken_{why}").inc()
        if begun.searches and why != "pod":
            self._reservations.withhold(unit, parts.plan, placed)
            self._queue.settle_for_search(entry, stale=True)
        else:
            self._queue.settle_again(entry)
        return True

    def _has_to_wait(self, entry: Entry, victims: Sequence[Eviction], parts: _Round) -> bool:
        """Returns True if a unit's plan may not be carried out yet. The unit is then queued again for the next round.

        Two reasons: its placement may use capacity of victims of other units, or it may need no victims any more.
        """
        if entry.unit in parts.early:
            logger.debug("%s: planned again once the evicted pods of other units have ended", entry.unit)
        elif not (victims and self._eviction_starter.may_need_no_victims(entry)):
            return False
        self._queue.settle_again(entry)
        return True

    def _warn(self, warnings: Iterable[tuple[str, str]]) -> None:
        """Reports settings that are invalid or have no effect, once per object, in the log and as events.

        warnings: (object, text). A warning that is over the rate limit is tried again in the next round.
        """
        before, self._warned = self._warned, {}
        for warning in warnings:
            if id(warning) not in before:
                about, text = warning
                reference = self._references.warned(about)
                message = (
                    self._template_owner(about) or reference or about,
                    text,
                    reference.namespace if reference else "",
                )
                if self.sent_messages.is_new(*message):
                    logger.warning("%s: %s", about, text)
                    if reference is not None:
                        self._announcer.tell_wrong(reference, text)
                elif not self.sent_messages.is_said(*message):
                    continue
            self._warned[id(warning)] = warning

    def _template_owner(self, about: str) -> Hashable:
        """Returns the key that pods of one template share, because they cause the same warning: controller or gang.
        None for other objects."""
        kind, _, key = about.partition("/")
        info = self._state.pod(key) if kind == "Pod" else None
        return (info.controller or info.gang) if info is not None else None

    def _log_rejected_plan(self, rejected: RejectedPlan) -> None:
        """Logs a plan that the independent check rejected, once per fault. It is a bug of the planner, so the log has
        the whole plan."""
        if not self.sent_messages.is_new(rejected.unit, rejected.text):
            return
        logger.error("%s: %s", rejected.unit, rejected.text)
        whole = json.encode(rejected).decode()
        parts = [whole[i : i + MOST_CHARACTERS] for i in range(0, len(whole), MOST_CHARACTERS)]
        for number, part in enumerate(parts, 1):
            logger.error("%s: the rejected plan, part %d of %d: %s", rejected.unit, number, len(parts), part)

    def _bindings_ended(self, reports: Iterable[GangReport], first_tried: float, commit: UnitCommit) -> None:
        """Handles the end of all Bindings of a gang unit: counts, and reports gangs that are scheduled now.

        first_tried: clock time of the unit's first attempt.
        """
        bound = commit.total - len(commit.lost)
        self._metrics.gang_members_bound.inc(bound - commit.by_others)
        if commit.lost:
            logger.warning(
                "%s: %d of %d members bound; the other %d are planned again, next to the bound members",
                commit.unit, bound, commit.total, len(commit.lost),
            )  # fmt: skip
            # the gang's time in the queue is measured from its first attempt
            lost = {job.placement.uid for job in commit.jobs if job.placement.pod_key in commit.lost}
            entry = self._queue.entries.get(commit.unit)
            if entry is not None and any(pod.uid in lost for pod in entry.pods.values()):
                entry.first_tried = min(first_tried, entry.first_tried or first_tried)
            return
        self._metrics.gang_wait_seconds.observe(self._clock() - first_tried)
        for report in reports:
            if report.status is GangStatus.SCHEDULED:
                for writer in self._gangs:
                    writer.scheduled(report)


def _gangs_of(snapshot: Snapshot, keys: Iterable[str]) -> list[GangRef]:
    """Returns the gangs of pods, each once. keys: pods of one unit."""
    pods = (snapshot.pods.get(key) for key in keys)
    return list(dict.fromkeys(info.gang for info in pods if info is not None and info.gang is not None))
