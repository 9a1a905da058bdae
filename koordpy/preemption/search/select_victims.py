"""The least harmful choice that stands its trial: by counting, else by the exact model, else the best that was found.

Source: preemption.md 6. What a trial refuses comes back to the model as what else would have to go.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from koordpy.planning.jobs.ascend.place import has_own_order
from koordpy.planning.jobs.ascend.relief import more_is_no_harm
from koordpy.planning.limits import (
    ASCEND_VICTIM_TRIES,
    BEST_PLACES_SHARE,
    REFITS,
    REPRIEVE_PODS,
    REPRIEVE_SHARE,
    REPRIEVES,
    VICTIM_TRIALS,
    VICTIM_TRIES,
)
from koordpy.planning.placement.goals import Goals, violations
from koordpy.planning.placement.problem import Ints, Problem
from koordpy.planning.plan import Proof
from koordpy.planning.victim_selection.choice import (
    Choice,
    Choices,
    Cut,
    Layout,
    Need,
    cost_levels,
    fewest_pods,
    late_levels,
)
from koordpy.planning.victim_selection.lower_bounds import freed_by, sums_allow
from koordpy.planning.victim_selection.names import EVERY_WAY, Way
from koordpy.planning.victim_selection.reprieve import cheapest, in_vain, reprieved
from koordpy.planning.victim_selection.shortcut import shortcut
from koordpy.planning.victims.candidates import OfferedChoice
from koordpy.planning.victims.dry_run import DryRun, DryRunResult
from koordpy.planning.victims.relief import PreemptionPlan, Victim
from koordpy.planning.victims.rules import Law
from koordpy.planning.victims.victim_rules import BY_NAME


class Taking:
    """One choice on its way. `looked_at`: keys of pods that some filter of the members looks at."""

    def __init__(
        self, found: OfferedChoice, trial: DryRun, looked_at: frozenset[str], ways: Collection[Way] = EVERY_WAY
    ) -> None:
        self.found, self.choices, self.trial, self.ways = found, found.choices, trial, ways
        self.way = Way.COUNTING
        """Which gave the choice."""
        self.stand = DryRunResult()
        """Of the choice tried last that holds."""
        unit, figures = trial.asked.unit, trial.figures
        self.own_order = has_own_order(unit, figures)
        self.eased = not found.moves and more_is_no_harm(unit, figures)
        """Whether more victims never close a place, so that what fails, fails with fewer."""
        pool = trial.pool
        units = enumerate(found.units if looked_at else ())
        self.seen = tuple(n for n, i in units if any(p.key in looked_at for p in pool.units[i].pods))
        self._apart = not looked_at and not self.own_order
        """Whether nothing but what is free on its node keeps a member from it."""
        self._unsure = False
        self._layout = Layout()
        """Of the choice that the model gave last."""

    # --- trials -------------------------------------------------------------------------------------------------------

    def works(self, taken: Sequence[int], layout: Layout | None = None, *, share: float = 1.0) -> bool:
        """Whether the members stand with the units of some options gone; how is kept. layout: where they may stand, so
        that not all places need be tried; share: of the time that a placement has."""
        units = self.found.of(taken)
        if self.found.moves:
            stand = self.trial.stand_and_return(units, layout or Layout())
        elif layout is not None and not self.own_order:
            stand = self.trial.stand(units, layout.places)
            if not stand.nodes:
                stand = self.trial.stand(units)
        else:
            stand = self.trial.stand(units, share=share)
        self._unsure |= not stand.sure
        if stand.nodes:
            self.stand = stand
        return bool(stand.nodes)

    def refuse(self, taken: tuple[int, ...], layout: Layout) -> Sequence[Cut | Need]:
        """Nothing where a choice holds, else what is wrong with it."""
        self._layout = layout
        if self._apart and not self.found.moves and self.trial.serves(self.found.of(taken), layout.places):
            return ()
        if self.works(taken, layout):
            return ()
        every = tuple(range(len(self.choices.units)))
        if self.found.moves:
            return [Cut(frozenset(taken), every)]
        if not self.eased:
            closed = self.trial.closed(self.found.of(taken), layout.places)
            return [Cut(frozenset(taken), self._near(place[1]), (place,)) for place in closed] or [
                Cut(frozenset(taken), every)
            ]
        if not self.own_order:
            number = {i: n for n, i in enumerate(self.found.units)}
            full = self.trial.overfull(self.found.of(taken), layout.places, self.found.units)
            if full:
                return [Need(tuple(number[i] for i in units), load) for load, units in full]
        # fewer victims are no help, so one of the others has to go
        gone = {
            self.choices.options[o].unit for o in in_vain(self.choices, taken, self._fits, most_trials=VICTIM_TRIALS)
        }
        return [Need(tuple(u for u in every if u not in gone))]

    def _near(self, node: int) -> tuple[int, ...]:
        """Units that may close a node or open it: those on it, and those that filters look at."""
        seen = set(self.seen)
        units = enumerate(self.choices.units)
        return tuple(u for u, one in units if u in seen or any(at == node for at, _ in one.frees))

    def _fits(self, taken: Sequence[int], *, share: float = 1.0) -> bool:
        """share: of the time that a placement has."""
        return self.trial.fits(self.found.of(taken), share)

    # --- the choice ---------------------------------------------------------------------------------------------------

    def choose(self) -> Choice:
        """The least harmful choice that stands its trial; `stand` is how. No options where there is none."""
        quick = shortcut(self.choices) if Way.COUNTING in self.ways else None
        if quick is not None and self.works(quick.options):
            return quick
        choice = self._by_model() if Way.MODEL in self.ways else Choice((), Proof.UNKNOWN)
        if choice.proof is Proof.OPTIMAL and not self.found.moves and not self.own_order:
            before = self._unsure
            # the best places of all with just these gone; that there are some is known, and how good they are no proof
            self.works(choice.options, share=BEST_PLACES_SHARE)
            self._unsure = before
        if choice.proof in (Proof.UNKNOWN, Proof.FEASIBLE) and not self.found.moves:
            options, stand = self._unproven(choice)
            if options and self.works(options, stand.layout if stand is not None else None):
                choice = replace(choice, options=options, proof=Proof.FEASIBLE)
        opens = set(self.seen) & {self.choices.options[o].unit for o in choice.options} and self._opens(choice.options)
        # of units that move fewer may have been refused for where they were to return alone
        if opens or (self.found.moves and self._unsure):
            tries = iter(range(self._most_tries))
            layout = self._layout if self.found.moves else None

            def enough(fewer: tuple[int, ...]) -> bool:
                if next(tries, None) is None:
                    return False
                return self.works(fewer, layout) if self.found.moves else self._fits(fewer)

            options = reprieved(self.choices, enough, choice.options)
            if options != choice.options and self.works(options, layout):
                choice = replace(choice, options=options, proof=Proof.FEASIBLE)
        if choice.options and not self.stand.nodes:  # no better places were found in time than the model's
            self.works(choice.options, self._layout)
        if self._unsure or (self.own_order and not self.eased):
            # what was ruled out by trying might have been enough, or enough with fewer gone
            unsure = {Proof.OPTIMAL: Proof.FEASIBLE, Proof.INFEASIBLE: Proof.UNKNOWN}
            choice = replace(choice, proof=unsure.get(choice.proof, choice.proof))
        return choice

    def _opens(self, taken: Sequence[int]) -> bool:
        """Whether the members may stand, with some options taken, where the model does not look: where a running pod
        alone keeps them from nodes that are never emptied for them, as one that the first of its kind would stand
        beside."""
        if self.found.moves or self.own_order:
            return False
        return self.trial.opens(self.found.of(taken), self.choices.problem)

    @property
    def _most_tries(self) -> int:
        """Tries to give victims back."""
        problem = self.choices.problem
        return max(1, min(REPRIEVES, REPRIEVE_PODS // (len(problem.wanted) * len(problem.free))))

    def _by_model(self) -> Choice:
        from koordpy.planning.solver.victims import choose

        self.way = Way.MODEL
        return choose(self.choices, self.refuse, most_tries=ASCEND_VICTIM_TRIES if self.own_order else VICTIM_TRIES)

    def _unproven(self, found: Choice) -> "tuple[tuple[int, ...], _Stand | None]":
        """The better of what was found in time, less what can be given back, and of the greedy plan. Where the members
        stand then, if others might stay were they elsewhere: not all of that was tried."""
        tries, most = 0, self._most_tries
        stand: _Stand | None = None
        """Where the members are known to stand."""

        def enough(taken: tuple[int, ...]) -> bool:
            nonlocal tries, stand
            if stand is not None and stand.holds(taken):
                return True
            if not sums_allow(self.choices, (self.choices.options[o].unit for o in taken)):
                return False
            tries += 1
            if tries > most:
                return False  # whoever was not given back so far goes
            fits = self._fits(taken, share=1.0 if tries == 1 and not found.options else REPRIEVE_SHARE)
            if fits and stand is not None:
                stand = self._stand(taken)  # elsewhere now
            return fits

        best: tuple[object, tuple[int, ...], _Stand | None] | None = None
        for way in (Way.MODEL, Way.GREEDY):
            if way not in self.ways:
                continue
            tries, stand = 0, None
            start = found.options if way is Way.MODEL else cheapest(self.choices, enough)
            stand = self._stand(start)
            options = reprieved(self.choices, enough, start) if start else ()
            if options:
                cost = cost_levels(self.choices, options), late_levels(self.choices, options)
                if best is None or cost < best[0]:  # type: ignore[operator]
                    best = cost, options, stand if tries > most else None
                    self.way = way
        return best[1:] if best is not None else ((), None)

    def _stand(self, taken: Sequence[int]) -> "_Stand | None":
        """Where the members stand with all of these gone; None where that is not known, or where others count as
        well."""
        units, share = self.found.of(taken), BEST_PLACES_SHARE
        stand = self.trial.stand(units, share=share) if taken and self._apart else DryRunResult()
        if not stand.nodes:
            return None
        choices, problem = self.choices, self.choices.problem
        more = choices.ties or choices.lots or choices.one_of or problem.allowances
        by_room = not (more or any(pod.gpus for pod in self.trial.asked.pods))
        return _Stand(choices, taken, stand.nodes, by_room=by_room)


class _Stand:
    """Where the members stand with some options taken, and whether they do with fewer."""

    def __init__(self, choices: Choices, taken: Iterable[int], seats: Mapping[int, int], *, by_room: bool) -> None:
        """seats: rank -> node. by_room: whether what is free on nodes decides alone who may stand there."""
        self.seats = dict(seats)
        self._choices, self._by_room = choices, by_room
        self._looks = REFITS // (len(seats) + len(choices.units))
        self._near = self._nearby(self._units(taken))

    @property
    def layout(self) -> Layout:
        """The places."""
        members = self._choices.problem.members
        return Layout(places=Counter((members[rank].shape, node) for rank, node in self.seats.items()))

    def holds(self, taken: Iterable[int]) -> bool:
        """Whether they stand with these options alone, where they are or, some of them, where there is room beside:
        told by sums, or because nobody on their nodes comes back."""
        units = self._units(taken)
        if self._near <= units:
            return True
        self._looks -= 1
        if not self._by_room or self._looks < 0:
            return False
        problem = replace(self._choices.problem, free=freed_by(self._choices, units))
        seats = self._reseated(problem, units)
        if seats is None or violations(problem, seats):
            return False
        self.seats, self._near = seats, self._nearby(units)
        return True

    def _units(self, taken: Iterable[int]) -> set[int]:
        return {self._choices.options[o].unit for o in taken}

    def _nearby(self, units: Iterable[int]) -> set[int]:
        """Those of the units that are on the members' nodes."""
        nodes = set(self.seats.values())
        return {u for u in units if any(n in nodes for n, _ in self._choices.units[u].frees)}

    def _reseated(self, problem: Problem, units: set[int]) -> dict[int, int] | None:
        """The members where they are, those for whom there is no room any more on the first nodes that have some."""
        free, seats, homeless = problem.free.copy(), dict(self.seats), []
        on: dict[int, list[int]] = {}
        for rank, node in sorted(seats.items()):
            self._put(problem, free, rank, node, 1)
            on.setdefault(node, []).append(rank)
        for node, ranks in on.items():
            columns = sorted(
                {column for rank in ranks for column, _ in problem.shapes[problem.members[rank].shape].request}
            )
            while ranks and (free[node, columns] < 0).any():
                homeless.append(ranks.pop())
                self._put(problem, free, homeless[-1], node, -1)
            homeless += [rank for rank in ranks if not self._open(problem, rank, node, units)]
        for rank in homeless:
            shape = problem.shapes[problem.members[rank].shape]
            able = shape.allowed > 0
            for column, amount in shape.request:
                able &= free[:, column] >= amount
            nodes = (node for node in np.nonzero(able)[0].tolist() if self._open(problem, rank, node, units))
            node = next(nodes, -1)
            if node < 0:
                return None
            seats[rank] = node
            self._put(problem, free, rank, node, 1)
        return seats

    def _open(self, problem: Problem, rank: int, node: int, units: set[int]) -> bool:
        blockers = self._choices.blockers.get((problem.members[rank].shape, node), ())
        return not any(units.isdisjoint(some) for some in blockers)

    @staticmethod
    def _put(problem: Problem, free: Ints, rank: int, node: int, sign: int) -> None:
        for column, amount in problem.shapes[problem.members[rank].shape].request:
            free[node, column] -= sign * amount


def take(
    found: OfferedChoice, trial: DryRun, law: Law, looked_at: frozenset[str], ways: Collection[Way] = EVERY_WAY
) -> tuple[object, PreemptionPlan]:
    """(what it costs by all levels, the plan) of the least harmful choice; no nodes where there is none."""
    taking = Taking(found, trial, looked_at, ways)
    choice = taking.choose()
    stand = taking.stand
    if not stand.nodes or not choice.options:
        return (), PreemptionPlan(proof=choice.proof, runs=choice.runs)
    members = trial.asked.unit.members
    relief = PreemptionPlan(
        victims=tuple(_victim(found, o, law, stand, trial) for o in choice.options),
        nodes=tuple((members[rank].key, node) for rank, node in sorted(stand.nodes.items())),
        proof=choice.proof,
        runs=choice.runs,
        bound=None if choice.proof is Proof.OPTIMAL else fewest_pods(found.choices),
        back=stand.back,
        notes=stand.notes,
        way=taking.way,
    )
    return _cost(found.choices, choice, stand), relief


def _cost(choices: Choices, choice: Choice, stand: DryRunResult) -> tuple[object, ...]:
    goals: tuple[object, ...] = ()
    if choices.problem.gather:
        worth, nodes = Goals(choices.problem), dict(stand.nodes)
        goals = (worth.layers(nodes), worth.attraction(nodes), worth.pipeline(nodes), worth.domains(nodes))
    return cost_levels(choices, choice.options), goals, late_levels(choices, choice.options)


def _victim(found: OfferedChoice, option: int, law: Law, stand: DryRunResult, trial: DryRun) -> Victim:
    """One option's unit with its rule, and the numbers that the rule goes by."""
    [i] = found.of([option])
    unit, rule = trial.pool.units[i], found.rules[found.choices.options[option].rule]
    if rule in BY_NAME:
        why = BY_NAME[rule].why(law, i)
    else:
        keys, nodes = {pod.key for pod in unit.pods}, trial.figures.snapshot.nodes
        at = sorted({nodes[one.node].name for one in stand.back if one.pod.key in keys})
        why = f"room on {', '.join(at)} was planned for it"
    return Victim(unit, rule, why)
