"""Hands every unit of a plan on: to the Bindings, to the evictor, to those who say why it waits, or back to be planned.

The cluster went on while the plan was made. A unit whose part of it is overtaken is planned again at once; the parts of
the others are carried out as they are, for units of one round were planned on one draft.
"""

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import json

from koordpy.cache.snapshot import Snapshot
from koordpy.engine.binding.commit import Committer
from koordpy.engine.binding.unit_commit import UnitCommit
from koordpy.engine.engine_context import Context
from koordpy.engine.evictions.eviction_orders import RoomMaking
from koordpy.engine.queue_entry import Entry
from koordpy.engine.round_reservations import RoundReservations
from koordpy.engine.staleness import ConcurrentPlacements, grouped, leaning, overtaken
from koordpy.engine.status.gang_census import Census
from koordpy.engine.status.gang_writer import GangWriter
from koordpy.engine.unschedulable import UnschedulableHandler
from koordpy.engine.wakeups import Wake
from koordpy.gangs.gang_reading import read_gang
from koordpy.observe.log_lines import MOST_CHARACTERS
from koordpy.observe.message_rates import Told
from koordpy.plan.round_plan import (
    Deferral,
    DeferralReason,
    Eviction,
    GangReport,
    GangStatus,
    PendingPod,
    Placement,
    Reason,
    RejectedPlan,
    RoundPlan,
    UnitReport,
)
from koordpy.pods.gang_refs import GangRef
from koordpy.pods.pod_info import PodInfo
from koordpy.report.setting_warnings import counted_text

logger = logging.getLogger(__name__)

WAITING_SECONDS = 600.0
"""For the Bindings of pods without a gang, which says how long its members may take (gang-network.md 2.9)."""


@dataclass(frozen=True, slots=True)
class RoundInput:
    """What a round takes, and the moment that it plans on. began: by the clock."""

    entries: Mapping[str, Entry]
    snapshot: Snapshot
    began: float
    foreign: int
    """How many pods others had bound by then, of those that are remembered."""
    assumed: Sequence[PodInfo]
    """Pods that were assumed then, and are no victims in it."""
    concurrent: ConcurrentPlacements = field(default_factory=ConcurrentPlacements)
    """Of rounds since the snapshot; empty for a round."""
    searches: bool = False
    """True for a search, False for an ordinary round."""


@dataclass(frozen=True, slots=True)
class _Round:
    """A plan, taken apart by units, and what it was made on."""

    plan: RoundPlan
    begun: RoundInput
    seconds: float
    """What planning took."""
    placements: Mapping[str, list[Placement]]
    pending: Mapping[str, list[PendingPod]]
    evictions: Mapping[str, list[Eviction]]
    reports: Mapping[GangRef, GangReport]
    foreign: Mapping[str, list[PodInfo]]
    early: frozenset[str]
    pods: int
    victims: frozenset[str]
    """Pods that the plan evicts."""
    void: set[str] = field(default_factory=set)
    """Units with placements that are not carried out: whoever was planned with them found less room than there is."""


class Dispatcher:
    """Carries out the plans of rounds. Owned by the event loop."""

    def __init__(
        self,
        context: Context,
        committer: Committer,
        *,
        refusals: UnschedulableHandler,
        rooms: RoomMaking,
        reservations: RoundReservations,
        gangs: Sequence[GangWriter],
        census: Census,
    ) -> None:
        self._feeds, self._state, self._queue = context.feeds, context.state, context.queue
        self._committer, self._refusals, self._rooms, self._reservations = committer, refusals, rooms, reservations
        self._gangs, self._census = gangs, census
        self._announcer, self._references, self._metrics = context.announcer, context.references, context.metrics
        self._clock, self._search_seconds = context.clock, context.settings.config.planning.search_seconds
        self.told = Told(context.clock)
        """What was said of objects."""
        self._warned: dict[int, tuple[str, str]] = {}
        """Warnings of the last round that were said, by their ids: what stands, thousands of quotas say, is one object
        in each round."""
        self._counted: set[str] = set()
        """Resources of which this process has said that they are counted by number."""

    def apply(self, plan: RoundPlan, begun: RoundInput, *, seconds: float) -> None:
        """Hands a round's plan on: every unit that it was to plan is settled here, or will be by whom it is handed to.
        seconds: what planning took."""
        entries, snapshot = begun.entries, begun.snapshot
        if plan.awaiting or self._reservations.awaiting:
            self._reservations.keep(plan, snapshot)
        if begun.searches:
            for tenant in (entry.tenant for unit in plan.units if (entry := entries.get(unit.unit)) is not None):
                self._queue.turns.took(tenant, seconds / len(plan.units))
        found = _Round(
            plan,
            begun,
            seconds,
            placements=grouped(plan.placements, lambda one: one.unit),
            pending=grouped(plan.pending, lambda one: one.unit),
            evictions=grouped(plan.evictions, lambda one: one.unit),
            reports={report.ref: report for report in plan.gangs},
            foreign=grouped(self._feeds.pods.foreign[begun.foreign :], lambda pod: pod.node),
            early=leaning(plan, snapshot),
            pods=sum(len(unit.pod_keys) for unit in plan.units) or 1,
            victims=frozenset(one.pod_key for one in plan.evictions),
        )
        refused = [
            entry
            for unit in plan.units
            if (entry := entries.get(unit.unit)) is not None and self._unit(unit, entry, found)
        ]
        # who was bound meanwhile may be a victim from now on, as who was assumed
        self._refusals.round_ended(refused, [*begun.assumed, *begun.concurrent.placed])
        if found.void:
            for entry in refused:
                self._queue.touch(entry.unit, "PlanOvertaken")
        tried = {unit.unit for unit in plan.units}
        for one in plan.deferred:
            tried.add(one.unit)
            if (waits := entries.get(one.unit)) is not None:
                self._defer(waits, one, found)
        for name, entry in entries.items():
            if name not in tried:
                # its pods are gone or in another unit now; the feeds have said so, or will
                self._queue.settle_error(entry)
        for unit_id, victims in found.evictions.items():
            # what is left goes for its own gang's sake, which has nobody to be placed
            overtaken_beside = begun.concurrent.touches(snapshot, (), victims)
            if unit_id not in tried and self._rooms.all_there(victims) and not overtaken_beside:
                self._rooms.start(plan, unit_id, victims, None)
        self._warn(plan.warnings)
        for about, resource in plan.counted:
            if resource not in self._counted:
                self._counted.add(resource)
                logger.warning("%s: %s", about, counted_text(resource))
        for rejected in plan.rejected:
            self._report(rejected)

    def _unit(self, unit: UnitReport, entry: Entry, found: _Round) -> bool:
        """Hands one unit on; True where it has pods left over."""
        name, begun = unit.unit, found.begun
        for text in unit.solver_faults:
            if self.told.is_new(name, text, entry.namespace):
                logger.error("%s: %s", name, text)
        placed, left = found.placements.get(name, []), found.pending.get(name, [])
        victims = found.evictions.get(name, [])
        if self._has_changed(entry, placed, victims, found) or self._has_to_wait(entry, victims, found):
            if placed:
                found.void.add(name)
            return False
        if victims:
            for verdict in left:
                self._refusals.tell(verdict)
            self._rooms.start(found.plan, name, victims, entry)
            return False
        entry.looked_again = False
        gangs = _gangs_of(begun.snapshot, unit.pod_keys)
        waiting = min((read_gang(begun.snapshot, ref).waiting_seconds for ref in gangs), default=WAITING_SECONDS)
        reports = tuple(found.reports[ref] for ref in gangs if ref in found.reports)
        if placed:
            first = begun.began if entry.first_tried is None else entry.first_tried
            entry.first_tried = None
            self._committer.submit(
                name,
                placed,
                gang=bool(gangs),
                began=begun.began,
                waiting_seconds=waiting,
                on_done=partial(self._done, reports, first) if gangs else None,
            )
        for report in reports:
            self._census.hear(report)
            if not (placed and report.status is GangStatus.SCHEDULED):
                for writer in self._gangs:
                    writer.verdict(report, waiting)
        share = found.seconds / found.pods
        self._refusals.count(entry, left, gang=bool(gangs), placed=bool(placed), seconds=share)
        # with the core placed, each further member may ask for victims of its own (preemption.md 1)
        further = bool(placed and left) and self._rooms.evictor is not None
        for verdict in left if not further else ():
            self._refusals.tell(verdict)
        if left:
            waits = {(one.pod_key, one.node) for one in found.plan.awaiting}
            self._refusals.clear_failed_nominations(name, left, begun.snapshot, waits)
        short = sum(max(0, report.min_member - report.members) for report in reports)
        # Verdicts are worded at the end of the round, on the draft without its victims. A node that fits then refuses
        # nothing and gives no hint, so capacity is added to the hints here.
        also = Wake.ROOM if found.evictions else Wake.NOTHING
        seconds = share * len(unit.pod_keys)
        self._refusals.settle(entry, left, gang=bool(gangs), seconds=seconds, short=short, also=also)
        if further:
            self._queue.touch(name, "CorePlaced")
        return bool(left) and not any(verdict.never for verdict in left)

    def _defer(self, entry: Entry, deferral: Deferral, found: _Round) -> None:
        """Hands back a unit that was not decided. Its pods are told once its search takes long."""
        if deferral.reason is not DeferralReason.SEARCH and entry.search is None:
            self._queue.settle_for_round(entry, passed_over=deferral.reason is DeferralReason.TURN)
            return
        self._queue.settle_for_search(entry)
        search = entry.search
        if search is not None and not search.told and self._clock() - search.since >= self._search_seconds:
            search.told = True
            text = f"0/{len(found.begun.snapshot.nodes)} nodes are available: still looking for victims."
            for key in entry.pods:
                info = self._state.pod(key)
                gang = info.gang.key if info is not None and info.gang is not None else None
                self._refusals.tell(PendingPod(key, entry.unit, gang, Reason.UNSCHEDULABLE, text))

    def _has_changed(
        self, entry: Entry, placed: Sequence[Placement], victims: Sequence[Eviction], found: _Round
    ) -> bool:
        """Returns True if something that a unit's plan rests on has changed. The unit is then planned again: after a
        search in another one, with the nodes of this plan withheld from other units."""
        unit, begun = entry.unit, found.begun
        why = overtaken(self._state, begun.snapshot, placed, found.foreign, found.victims if victims else ())
        if not why and victims and not self._rooms.all_there(victims):
            why = "victim"
        if not why and (placed or victims) and begun.concurrent.touches(begun.snapshot, placed, victims):
            why = "beside"
        if not why:
            return False
        logger.info("%s: its plan was overtaken (%s); planning again", unit, why)
        self._metrics.conflicts.labels(f"overtaken_{why}").inc()
        if begun.searches and why != "pod":
            self._reservations.withhold(unit, found.plan, placed)
            self._queue.settle_for_search(entry, stale=True)
        else:
            self._queue.settle_again(entry)
        return True

    def _has_to_wait(self, entry: Entry, victims: Sequence[Eviction], found: _Round) -> bool:
        """Returns True if a unit's plan may not be carried out yet. An ordinary round then plans the unit again."""
        if entry.unit in found.early:
            logger.debug("%s: it is planned again when the victims of others are seen to end", entry.unit)
        elif not (victims and self._rooms.look_again(entry)):
            return False
        self._queue.settle_again(entry)
        return True

    def _warn(self, warnings: Iterable[tuple[str, str]]) -> None:
        """Settings that cannot be read, or do nothing: said once of each object."""
        before, self._warned = self._warned, {}
        for warning in warnings:
            if id(warning) not in before:
                about, text = warning
                reference = self._references.warned(about)
                whose = self._maker(about) or reference or about, text, reference.namespace if reference else ""
                if self.told.is_new(*whose):
                    logger.warning("%s: %s", about, text)
                    if reference is not None:
                        self._announcer.tell_wrong(reference, text)
                elif not self.told.is_said(*whose):
                    continue
            self._warned[id(warning)] = warning

    def _maker(self, about: str) -> Hashable:
        """What made a pod, or its gang: all pods of one template say the same."""
        kind, _, key = about.partition("/")
        info = self._state.pod(key) if kind == "Pod" else None
        return (info.controller or info.gang) if info is not None else None

    def _report(self, rejected: RejectedPlan) -> None:
        """A plan that its check refused, with all of it; once for as long as the same is found wrong."""
        if not self.told.is_new(rejected.unit, rejected.text):
            return
        logger.error("%s: %s", rejected.unit, rejected.text)
        whole = json.encode(rejected).decode()
        parts = [whole[i : i + MOST_CHARACTERS] for i in range(0, len(whole), MOST_CHARACTERS)]
        for number, part in enumerate(parts, 1):
            logger.error("%s: the refused plan, %d of %d: %s", rejected.unit, number, len(parts), part)

    def _done(self, reports: Iterable[GangReport], first_tried: float, commit: UnitCommit) -> None:
        """The Bindings of a unit of gangs are through."""
        bound = commit.total - len(commit.lost)
        self._metrics.gang_members_bound.inc(bound - commit.by_others)
        if commit.lost:
            logger.warning(
                "%s: %d of %d members bound; %d more are planned again beside them",
                commit.unit, bound, commit.total, len(commit.lost),
            )  # fmt: skip
            # the wait of the gang goes on from its first try
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
    pods = (snapshot.pods.get(key) for key in keys)
    return list(dict.fromkeys(info.gang for info in pods if info is not None and info.gang is not None))
