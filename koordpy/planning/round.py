"""One round: order the queue, plan unit by unit on one snapshot, say why the rest waits.

The one function that the live scheduler, `simulate`, `explain` and the tests call. The same Snapshot and configuration
give the same RoundPlan; nothing is remembered between calls but figures that depend on the nodes alone (PlannerCache).
Sources: gang-network.md sections 2, 6 and 8; simulate.md 2.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from msgspec.structs import replace as changed

from koordpy.api.config import KoordpyConfiguration
from koordpy.cluster.snapshot import Draft, Snapshot
from koordpy.planning.attempt import Tried, try_unit, unit_shape
from koordpy.planning.figures import Figures, PlannerCache
from koordpy.planning.limits import OFFLINE_WATCHDOG_SECONDS
from koordpy.planning.patience import NEVER, Interrupted, Interrupts, Patience, RoundShares
from koordpy.planning.plan import Proof, RoundPlan
from koordpy.planning.queue.backfill import Backfill
from koordpy.planning.queue.kept import KeptRoom, closed, leaves, taken
from koordpy.planning.queue.lending import lend
from koordpy.planning.queue.order import UnitOrder
from koordpy.planning.queue.starters import starters
from koordpy.planning.queue.starvation import StarvationGuard, starving_beside
from koordpy.planning.units import Unit
from koordpy.planning.victim_selection.names import EVERY_WAY, Way
from koordpy.planning.victims.search import Preemptor
from koordpy.planning.victims.stale import give_up
from koordpy.planning.words.report import report

__all__ = ["PlannerCache", "plan_round"]


def plan_round(
    snapshot: Snapshot,
    config: KoordpyConfiguration | None = None,
    *,
    only: frozenset[str] | None = None,
    planner_cache: PlannerCache | None = None,
    evict: bool = True,
    ways: Sequence[Way] = EVERY_WAY,
    patience: Patience | None = None,
) -> RoundPlan:
    """Plans the pending units (or those of `only`, by unit id) in queue order.

    evict: whether units that find no room may have others evicted, as far as the configuration allows.
    ways: of choosing these, the only ones that are tried. patience: how long the round may take, without a bound where
    nothing is said; units that it leaves undecided are the plan's `deferred`.

    The gangs reported are all of the snapshot's, with `only` those of the units tried.
    """
    config = config or KoordpyConfiguration()
    due = patience is None or patience.gives_back
    if patience is None:  # the same input gives the same plan, however busy the machine
        config = changed(config, solver=changed(config.solver, wall_time_watchdog=OFFLINE_WATCHDOG_SECONDS))
    figures = Figures(Draft(snapshot), config, planner_cache)
    if config.queue.backfill:
        patience = None  # who may pass the first of the queue is known only when that is decided
    search = Preemptor(figures, ways, patience=patience) if evict else None
    try:
        return _planned(figures, search, patience, only=only, due=due)
    finally:
        figures.take_apart()
        if search is not None:
            search.take_apart()


def _planned(
    figures: Figures,
    search: Preemptor | None,
    patience: Patience | None,
    *,
    only: frozenset[str] | None,
    due: bool,
) -> RoundPlan:
    """The plan of a round. due: whether quotas are looked at that are to give back."""
    config, draft, snapshot, groups = figures.config, figures.draft, figures.snapshot, figures.groups
    given, rejected = search.give_back(partial(starters, figures)) if search is not None and due else ([], [])
    backfill: Backfill | None = None
    if config.queue.backfill:
        # the room of a unit that is not due counts, too
        units = groups.units()
        backfill = Backfill(figures, due=lambda unit: only is None or unit.id in only, search=search)
    else:
        waiting = patience.waiting if patience is not None else frozenset[str]()
        units = groups.units(only | waiting if only is not None else None)
        if only is not None and config.fairness.starvation_after > 0:
            units += starving_beside(groups, only, config.fairness.starvation_after)

    def attempt(unit: Unit) -> Tried:
        if backfill is not None:
            return backfill.attempt(unit)
        return try_unit(unit, figures, search, patience)

    queue = UnitOrder(units, use=draft.quotas, pods=snapshot.pods.values(), config=config.fairness, now=snapshot.now)
    tried: list[Tried] = []
    failed: dict[Hashable, Tried] = {}
    later: list[int] = []
    guard = StarvationGuard(figures) if queue.starving else None
    beside = Beside(figures, patience, attempt, (unit for unit in units if only is None or unit.id in only))
    for unit in queue:
        if backfill is not None and not backfill.wanted(unit):
            continue
        if backfill is None and only is not None and unit.id not in only:
            if unit.id in waiting:
                beside.keep(unit)
            elif guard is not None and unit.id in queue.starving:
                guard.keep_waiting(unit)
            continue
        beside.comes(unit)
        # once the round is over few are tried, and whoever came waits for its end: only who failed before counts
        shape = unit_shape(unit, figures) if failed or not beside.over else None
        if backfill is not None and shape is not None:
            shape = backfill.key(unit, shape)
        if shape is not None and shape in failed:
            tried.append(failed[shape].like(unit))
            continue
        outcome = beside.attempt(unit)
        if guard is not None and outcome.lacks_room:
            if kept := guard.kept_from(unit):
                outcome = replace(outcome, reasons=(*outcome.reasons, f"{kept}."))
            if unit.id in queue.starving and (backfill is None or backfill.reservation is None):
                outcome = replace(outcome, hold=guard.keep(unit))
        tried.append(outcome)
        if outcome.nodes:
            queue.placed()
        elif outcome.deferred and (outcome.kept_off or outcome.passed_over or beside.over):
            continue
        elif shape is not None and outcome.gate is None and not outcome.fault and not outcome.awaits:
            if unit.plain is not None and outcome.refusal is None and figures.of(unit.plain).follows:
                later.append(len(tried) - 1)
            else:
                failed[shape] = outcome
    _again(tried, later, figures, queue, beside.attempt)
    reserved = backfill is not None and backfill.reservation is not None
    if not reserved and any(one.by_runtime for one in tried):
        # also of a round that is cut: whoever it has refused is not in the next one
        beside.by(lambda unit: try_unit(unit, figures, patience=patience))
        lend(tried, figures, beside.turn)
    decided = {one.unit.id for one in tried if not one.deferred}
    gives_up = search is not None and bool(snapshot.members)
    stale, left = give_up(figures, tried=None if only is None else decided) if gives_up else ([], [])
    rejected += left
    aside = None
    if backfill is not None:
        aside, tried = backfill.aside, [one for one in tried if only is None or one.unit.id in only]
    plan = report(
        groups, figures, tried, every=only is None, stale=stale, given=given, rejected=rejected, kept=aside,
        step=beside.between,
    )  # fmt: skip
    if backfill is None:
        return plan
    warnings = dict.fromkeys((*plan.warnings, *backfill.warnings))
    return replace(plan, reservation=backfill.reservation, warnings=tuple(warnings))


class Beside:
    """The attempts of a round that has a bound, beside room that is kept for those that it leaves undecided."""

    def __init__(
        self, figures: Figures, patience: Patience | None, attempt: Callable[[Unit], Tried], units: Iterable[Unit]
    ) -> None:
        """units: those that the round is to try."""
        self._figures, self._patience, self._attempt = figures, patience, attempt
        by_quota = figures.config.planning.share_by == "quota"
        of = figures.snapshot.quotas.tree.tenant_of if by_quota else str
        self._shares = RoundShares(units, patience, of) if patience is not None else None
        self._kept: dict[tuple[bool, int], KeptRoom] = {}
        """By whether it is kept for units of tenants that had their part, and by their priority."""
        self._begun = False
        self._decided = False
        """Whether anything of the round is to be carried out."""
        self.over = False
        """Whether the round's time is used up: those behind are not looked at."""

    def by(self, attempt: Callable[[Unit], Tried]) -> None:
        """Units are tried in another way from here on."""
        self._attempt = attempt

    def comes(self, unit: Unit) -> None:
        """A unit is the next of the queue."""
        if self._shares is not None:
            self._shares.comes(unit)

    def keep(self, unit: Unit) -> None:
        """Keeps the room that an undecided unit could use, unless that was kept for long enough. While a round searches
        it keeps none: no plan with victims is taken back."""
        patience = self._patience
        if patience is not None and patience.defers() and unit.id not in patience.lapsed:
            which = self._shares is not None and self._shares.tenant(unit) in patience.over, unit.priority
            if which not in self._kept:
                self._kept[which] = KeptRoom(self._figures)
            self._kept[which].keep(unit)

    def _kept_from(self, unit: Unit) -> list[KeptRoom]:
        """What a unit leaves to others: once it waited for that for long enough, only what is kept for more important
        ones; so do tenants that had less than their part of planning of late leave no more to those that had theirs."""
        patience, shares = self._patience, self._shares
        if patience is None or shares is None:
            return []
        waited, had_part = unit.id in patience.lapsed, shares.tenant(unit) in patience.over
        return [
            room
            for (over, priority), room in self._kept.items()
            if priority > unit.priority or not (waited or (over and not had_part))
        ]

    def attempt(self, unit: Unit) -> Tried:
        """Tries one unit, the next of the queue, unless it is others' turn."""
        patience, shares = self._patience, self._shares
        if patience is None or shares is None:
            return self._attempt(unit)
        self.between()
        # else who came has had a round beside it, that decided about all of them
        waits = self._decided or patience.pauses is None or patience.pauses.left
        if shares.passes_over(unit, patience.came() if waits else {}):
            return Tried(unit, Proof.UNKNOWN, deferred=True, passed_over=True)
        self.over |= self._begun and ((waits and patience.cut()) or (patience.stops and patience.spent()))
        # who comes late in the order of the queue has a part of a round that is cut, too
        if self.over and (patience.stops or shares.had_part(unit)):
            return Tried(unit, Proof.UNKNOWN, deferred=True)
        return self.turn(unit)

    def turn(self, unit: Unit) -> Tried:
        """Tries one unit, whose turn it is."""
        patience, shares = self._patience, self._shares
        if patience is None or shares is None:
            return self._attempt(unit)
        if not self._begun:
            self._begun = True
            patience.begins()
        clock = patience.clock or (lambda: 0.0)
        began = clock()
        outcome = self._searched(unit)
        seconds = clock() - began
        shares.took(unit, seconds)
        outcome = replace(outcome, seconds=seconds) if patience.clock is not None else outcome
        self._decided |= bool(outcome.nodes or outcome.victims)
        if patience.pauses is not None:
            patience.pauses.ended = self._decided
        if outcome.deferred and not outcome.kept_off:
            self.keep(unit)
        return outcome

    @property
    def interrupts(self) -> Interrupts:
        """What a search does for those who come: it pauses for as long as no decision waits to be carried out."""
        patience = self._patience
        if patience is None:
            return NEVER
        return patience.interrupts if self._decided or patience.pauses is None else patience.pauses

    def between(self) -> None:
        """Between two units: lets others plan, as in the middle of a search."""
        if not self._decided and self._patience is not None and self._patience.pauses is not None:
            self._patience.pauses.step()

    def _searched(self, unit: Unit) -> Tried:
        """Tries one unit, whose search is given up where somebody came meanwhile: nothing of it stays on the draft."""
        figures, patience = self._figures, self._patience
        if patience is None:
            return self._tried(unit)
        mark = figures.draft.mark()
        figures.interrupts = patience.firm.get(unit.id, self.interrupts)
        try:
            return self._tried(unit)
        except Interrupted:
            figures.draft.undo(mark)
            self.over = patience.stops or patience.cut()
            return Tried(unit, Proof.UNKNOWN, deferred=True, interrupted=True)
        finally:
            figures.interrupts = NEVER

    def _tried(self, unit: Unit) -> Tried:
        draft = self._figures.draft
        mark = draft.mark()
        outcome = self._attempt(unit)
        if not outcome.nodes or not (kept := self._kept_from(unit)):
            return outcome
        pods = self._figures.snapshot.pods
        nodes = [(pods[key], node) for key, node in outcome.nodes.items()]
        if not taken(kept, nodes):
            return outcome
        draft.undo(mark)
        if leaves(kept, unit):
            with closed(kept):
                outcome = self._attempt(unit)
            if outcome.nodes:
                return outcome
        return Tried(unit, Proof.UNKNOWN, deferred=True, kept_off=True)


def _again(
    tried: list[Tried], later: list[int], figures: Figures, queue: UnitOrder, attempt: Callable[[Unit], Tried]
) -> None:
    """Plain pods that no node took, and that a pod placed after them may have made room for (affinity, spread)."""
    moved = True
    while moved:
        moved = False
        for i in list(later):
            unit = tried[i].unit
            if unit.plain is None or not figures.of(unit.plain).slots.any():
                continue
            later.remove(i)
            outcome = attempt(unit)
            tried[i] = outcome
            if outcome.nodes:
                queue.placed()
                moved = True
