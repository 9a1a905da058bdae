"""Room for one beneficiary: the steps of preemption.md section 1, in order, until one gives a plan.

The planner asks where a unit found no room. A plan names its victims, each with the rule that takes it, and a node for
every member; nothing is changed here but a draft that is put back as it was.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from koordpy.cluster.pods import PodInfo
from koordpy.planning.accelerators.registry import give
from koordpy.planning.ascend.place import has_own_order
from koordpy.planning.ascend.relief import more_is_no_harm, one_each, place_chosen, regions, whole_blocks
from koordpy.planning.build import build, partitions, unit_multiples
from koordpy.planning.figures import Figures
from koordpy.planning.goals import Goals
from koordpy.planning.gpu.allocation import allocate
from koordpy.planning.joint import place_jointly
from koordpy.planning.plan import Proof, SolverRun
from koordpy.planning.problem import Problem, only_ranks
from koordpy.planning.selection import core_ranks
from koordpy.planning.units import Groups, Unit
from koordpy.planning.victims.budgets import Budget, budgets_of
from koordpy.planning.victims.check import check_victims
from koordpy.planning.victims.choice import (
    Choice,
    Choices,
    Cut,
    Limit,
    Multiple,
    Option,
    UnitFigures,
    cost_levels,
    late_levels,
    reachable,
)
from koordpy.planning.victims.ending import Awaited, await_ending, waits_on_nominated
from koordpy.planning.victims.lines import Lines, lines_of
from koordpy.planning.victims.lone import Lone
from koordpy.planning.victims.moving import MOST_PLACES, Back, bring_back, movable, returns_of
from koordpy.planning.victims.names import RuleName
from koordpy.planning.victims.necessary import Lack, lacking
from koordpy.planning.victims.overuse import GivenBack, give_back
from koordpy.planning.victims.pool import Mask, Pool
from koordpy.planning.victims.reach import Opened, opened
from koordpy.planning.victims.rules import Law
from koordpy.planning.victims.shortcut import shortcut
from koordpy.planning.victims.sparing import Enough, cheapest, counts_allow, in_vain, spared
from koordpy.planning.victims.units import VictimUnit

_OWN_ORDER_TRIES = 20
"""Choices that the Ascend planner may refuse before the greedy one is asked."""
_MOST_TRIALS = 24
"""Placements tried for each of them, to learn how many victims are still too few."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A unit that goes, and the rule that takes it. why: the numbers of a rule other than priority."""

    unit: VictimUnit
    rule: RuleName
    why: str = ""


@dataclass(frozen=True, slots=True)
class Relief:
    """What came of looking for victims. nodes: pod key -> node of every member placed; empty without a plan.

    reasons: what the text of a pod that waits says of the rules tried, after the count of nodes.
    """

    victims: tuple[Victim, ...] = ()
    nodes: tuple[tuple[str, int], ...] = ()
    proof: Proof = Proof.INFEASIBLE
    runs: tuple[SolverRun, ...] = ()
    reasons: tuple[str, ...] = ()
    bound: int | None = None
    """Pods evicted at least, where the set is not proven least."""
    back: tuple[Back, ...] = ()
    """Where moved pods return to."""
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pod key -> what its Binding says of its place in the network."""
    awaited: Awaited | None = None
    """Where it will stand once pods that are ending are gone; nobody is evicted then."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Some pending members of a unit that are to be placed together."""

    unit: Unit
    problem: Problem
    pods: tuple[PodInfo, ...]

    @cached_property
    def priority(self) -> int:
        """The lowest of the members to be placed."""
        return min(pod.priority for pod in self.pods)

    @cached_property
    def never(self) -> bool:
        """Whether one of them may not preempt."""
        return any(pod.pod.spec.preemption_policy == "Never" for pod in self.pods)


def one_by_one(unit: Unit) -> bool:
    """Whether its core is bound, or it has none, so that each further member asks for itself."""
    if unit.plain is None and not unit.is_gang:
        return True  # a group of GPUs outside any gang: victims are looked for member by member (quota-fairness.md)
    if unit.plain is not None or not unit.bound_any or any(unit.need(gang) for gang in unit.gangs):
        return False
    return all(len(gang.standing) + gang.succeeded >= gang.min_member for gang in unit.gangs)


class Search:
    """Looks for victims in one round; plans that are accepted are told with `took`."""

    def __init__(self, groups: Groups, figures: Figures) -> None:
        self.groups, self.figures = groups, figures
        self.config = figures.config
        self._pool: Pool | None = None
        self._alone: Lone | None = None
        self._notes: Mapping[str, Mapping[str, str]] = {}
        """Of the placement found last."""

    @property
    def pool(self) -> Pool:
        """The victim units, read when the first beneficiary asks."""
        if self._pool is None:
            self._pool = Pool(self.groups, self.figures.draft, self._useless_from)
        return self._pool

    @property
    def _useless_from(self) -> int | None:
        """The priority from which on nobody could be taken, where nothing but priority takes anyone."""
        snapshot, config = self.figures.snapshot, self.config
        reclaims = config.fairness.reclaim != "off" and bool(snapshot.quotas.tree.quotas)
        takes_back = reclaims or config.quota.monitor_all_quotas
        if takes_back or self._lines is not None or config.consolidation.enabled:
            return None
        return max((pod.priority for pod in snapshot.pending), default=None)

    @property
    def open(self) -> bool:
        """Whether any rule may take a pod at all."""
        config = self.config
        if config.consolidation.enabled:
            return True
        if config.preemption.enabled or (config.fairness.reclaim == "all" and config.fairness.mode != "off"):
            return True
        reclaims = config.fairness.reclaim != "off" and config.preemption.across_quotas != "any"
        return reclaims and bool(self.figures.snapshot.quotas.tree.quotas)

    def give_back(self) -> list[GivenBack]:
        """What quotas give back that are over their runtime for too long, before anybody is planned."""
        return give_back(self.pool, self.figures) if self.config.quota.monitor_all_quotas else []

    def took(self, victims: Sequence[Victim]) -> None:
        """The victims of a plan that is on the draft now."""
        if victims:
            self.pool.evicted([victim.unit for victim in victims])

    def reread(self) -> None:
        """Pods have left the draft by no plan of this search: the victim units are read anew when next asked for."""
        self._pool = None

    def faults(self, unit: Unit, relief: Relief) -> list[str]:
        """What an independent check finds wrong with a plan whose victims are off the draft."""
        victims = [(pod, str(victim.rule)) for victim in relief.victims for pod in victim.unit.pods]
        return check_victims(unit, victims, dict(relief.nodes), groups=self.groups, draft=self.figures.draft)

    def relieve(self, unit: Unit, placed: Mapping[str, int] | None = None) -> Relief:
        """The first step that makes room for all pending members, else for the core, else why there is none.

        placed: pod key -> node of members that got room just before, one by one.
        """
        if not self.figures.snapshot.nodes:
            return Relief()
        if not placed:
            awaited = await_ending(unit, self.figures)
            if awaited is not None:
                return Relief(awaited=awaited)
        if not self.open or any(waits_on_nominated(pod, self.figures) for pod in unit.pending):
            return Relief()
        with self.figures.promises.net():
            return self._search(unit, placed)

    def _search(self, unit: Unit, placed: Mapping[str, int] | None) -> Relief:
        problem = one_each(unit, build(unit, self.figures, emptied=True), self.figures)
        if placed:
            members = tuple(
                replace(member, node=placed.get(pod.key, member.node))
                for member, pod in zip(problem.members, unit.members, strict=True)
            )
            problem = replace(problem, members=members)
        last: Relief | None = None
        for ranks in self._beneficiaries(unit, problem):
            asked = Asked(unit, only_ranks(problem, ranks), tuple(unit.members[rank] for rank in ranks))
            found = self._steps(asked)
            if found.nodes:
                return found
            last = found if last is None or last.proof is Proof.INFEASIBLE else last
        return last or Relief()

    def _beneficiaries(self, unit: Unit, problem: Problem) -> Iterator[tuple[int, ...]]:
        """Who is to be placed together: all, then the core; one by one where no core is needed."""
        pending = problem.pending
        core = core_ranks(problem)
        if core is None or not pending:
            return
        if one_by_one(unit):
            for rank in pending:
                yield (rank,)
            return
        yield pending
        least = whole_blocks(unit, core or pending[:1], self.figures)
        if least is not None and least != pending:
            yield least

    def _steps(self, asked: Asked) -> Relief:
        """Steps 4, 5 and 7: each rule alone, then the open ones together."""
        law = self._law(asked)
        if not law.admissible:
            return Relief()
        free = self._free(asked)
        reasons: list[str] = []
        runs: list[SolverRun] = []
        proof = Proof.INFEASIBLE
        if self.config.consolidation.enabled:
            found = self._consolidate(asked, law, free)
            if found.nodes:
                return found
        steps: list[dict[RuleName, Mask]] = [
            {RuleName.QUOTA: law.by_quota(free, strictly=True)},
            {RuleName.PRIORITY: law.by_priority(free)},
        ]
        if law.fair is not None:
            steps.append({RuleName.FAIR_SHARE: law.by_share(free, strictly=True)})
        wide = {RuleName.QUOTA: law.by_quota(free, strictly=False), **steps[1]}
        if law.fair is not None:
            wide[RuleName.FAIR_SHARE] = law.by_share(free, strictly=False)
        wide = {name: mask for name, mask in wide.items() if mask.any()}
        for rules in [*steps, *([wide] if len(wide) > 1 else [])]:
            if not all(mask.any() for mask in rules.values()):
                continue
            found = self._take(asked, law, rules)
            runs += found.runs
            if found.nodes:
                return replace(found, runs=tuple(runs))
            reasons += [text for text in found.reasons if text not in reasons]
            if found.proof is Proof.UNKNOWN:
                proof = Proof.UNKNOWN
        if law.reclaims and law.closed:
            reasons.append(f"{law.closed}.")
        return Relief(proof=proof, runs=tuple(runs), reasons=tuple(reasons))

    def _consolidate(self, asked: Asked, law: Law, free: Mask) -> Relief:
        """Step 3: units move, nobody loses anything; a quota that has no room for the beneficiary is no reason to."""
        if self.figures.admission.core_refusal(asked.unit, self.figures.draft.quotas) is not None:
            return Relief()
        eligible = movable(self.pool, free, self.figures, priority=asked.priority)
        pods = sum(len(self.pool.units[i].pods) for i in np.nonzero(eligible)[0].tolist())
        if not pods or pods * len(self.figures.snapshot.nodes) > MOST_PLACES:
            return Relief()
        return self._take(asked, law, {RuleName.CONSOLIDATION: eligible})

    # --- rules ------------------------------------------------------------------------------------------------------

    def _law(self, asked: Asked) -> Law:
        return Law(
            asked.pods,
            pool=self.pool,
            use=self.figures.promises.use(asked.unit, self.figures.draft.quotas, netted=True),
            config=self.config,
            limit_of=lambda name: self.figures.admission.limits[name],
            lines=self._lines,
        )

    @cached_property
    def _lines(self) -> Lines | None:
        return lines_of(self.figures.snapshot, self.config.fairness) if self.config.fairness.reclaim == "all" else None

    def _free(self, asked: Asked) -> Mask:
        """[units] that live, are not the beneficiary's own and not bound in this round."""
        pool = self.pool
        out = np.array(pool.alive, dtype=bool)
        own = {asked.unit.group_id} if asked.unit.plain is None else set[str]()
        placed = {self.figures.snapshot.pods[key].gang for key in self.figures.draft.placed} - {None}
        own |= {self.groups.unit(ref).group_id for ref in placed if ref is not None}
        if own:
            for i, unit in enumerate(pool.units):
                if unit.group and unit.group in own:
                    out[i] = False
        return out

    # --- one step ---------------------------------------------------------------------------------------------------

    def _take(self, asked: Asked, law: Law, rules: dict[RuleName, Mask]) -> Relief:
        """The least harmful victims under some rules, in the order in which a victim would carry them."""
        eligible = np.logical_or.reduce(list(rules.values()))
        open_to = self._opened(asked, eligible)
        lack = lacking(open_to.problem, self.pool.relief(eligible), self._names)
        if lack is not None:
            return Relief(reasons=_sums(lack))
        if not eligible.any():
            return Relief()
        quick = self._lone(asked, rules, open_to)
        if quick is not None:
            return quick
        best: tuple[object, Relief] | None = None
        proofs = set[Proof]()
        for part in partitions(asked.unit, open_to.problem, self.figures):
            choices, units = self._choices(asked, part, law, rules, open_to)
            if not reachable(choices):
                continue
            found = self._choose(asked, choices, units, open_to, law, tuple(rules))
            proofs.add(found[1].proof)
            if found[1].nodes and (best is None or found[0] < best[0]):  # type: ignore[operator]
                best = found
        if best is not None:
            return best[1]
        return Relief(proof=Proof.UNKNOWN if Proof.UNKNOWN in proofs else Proof.INFEASIBLE)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        columns = self.figures.snapshot.columns
        return tuple(sorted(columns, key=lambda name: columns[name]))

    def _lone(self, asked: Asked, rules: dict[RuleName, Mask], open_to: Opened) -> Relief | None:
        """The answer for a plain pod where a node's cheapest victims depend on the node alone; None elsewhere."""
        snapshot = self.figures.snapshot
        plain = asked.unit.plain
        if plain is None or set(rules) != {RuleName.PRIORITY} or self._lines is not None or open_to.looked_at:
            return None
        if snapshot.quotas.tree.quotas or snapshot.budgets or snapshot.nominated or self.figures.of(plain).has_rules:
            return None
        if self._alone is None:
            self._alone = Lone(self.pool, self.figures)
        taken = self._alone.find(plain, asked.problem)
        if taken == ():
            return Relief()
        mask = rules[RuleName.PRIORITY]
        if taken is None or self._multiplied(taken) or not all(mask[i] for i in taken):
            return None
        chosen = [self.pool.units[i] for i in taken]
        nodes, _ = self._placed(asked, asked.problem, chosen, {}, None)
        if nodes is None:
            return None
        keys_ = tuple((asked.unit.members[rank].key, node) for rank, node in nodes.items())
        victims = tuple(Victim(unit, RuleName.PRIORITY) for unit in chosen)
        return Relief(victims, keys_, Proof.OPTIMAL, notes=self._notes)

    def _multiplied(self, taken: Sequence[int]) -> bool:
        """Whether a gang of a unit has a podCountMultiple."""
        groups = [self.groups.unit(unit.gang) for i in taken if (unit := self.pool.units[i]).gang is not None]
        return any(unit_multiples(unit, self.figures) for unit in groups)

    def _opened(self, asked: Asked, eligible: Mask) -> Opened:
        """The problem with every node that victims might open."""
        if not any(self.figures.of(pod).has_rules for pod in {pod.shape: pod for pod in asked.pods}.values()):
            return Opened(asked.problem, {}, frozenset())
        units = self.pool.units
        victims = {pod.key: pod for i in np.nonzero(eligible)[0].tolist() for pod in units[i].pods}
        return opened(asked.unit, asked.problem, self.figures, list(victims.values()))

    def _choices(
        self, asked: Asked, part: Problem, law: Law, rules: dict[RuleName, Mask], open_to: Opened
    ) -> tuple[Choices, list[int]]:
        """The numbers of a choice, and the pool's position of each unit of it."""
        pool, budgets = self.pool, budgets_of(self.figures.draft)
        eligible = np.logical_or.reduce(list(rules.values()))
        units = np.nonzero(eligible)[0].tolist()
        number = {i: n for n, i in enumerate(units)}
        options: list[Option] = []
        of: dict[int, list[int]] = {}
        named: dict[RuleName, dict[int, int]] = {}
        for r, (name, mask) in enumerate(rules.items()):
            for i in units:
                if mask[i]:
                    of.setdefault(i, []).append(len(options))
                    named.setdefault(name, {})[i] = len(options)
                    options.append(Option(number[i], r))
        selectors = {pod.selector for pod in asked.unit.pending if pod.selector} if part.gather else set[str]()
        figures = tuple(self._figures(i, budgets, selectors) for i in units)
        tied, multiples = self._gangs(number, of)
        covered = [
            (budget.allowed, {i: n for i in units for b, n in figures[number[i]].budgets if b == at})
            for at, budget in enumerate(budgets)
        ]
        bound = law.together(named, covered)
        covering: dict[str, list[int]] = {}
        if open_to.looked_at:
            for i in units:
                for pod in pool.units[i].pods:
                    if pod.key in open_to.looked_at:
                        covering.setdefault(pod.key, []).append(number[i])
        moves = RuleName.CONSOLIDATION in rules
        around = regions(asked.unit, self.figures)
        choices = Choices(
            problem=part,
            lots=around.lots,
            one_of=around.one_of,
            returns=tuple(returns_of(pool.units[i], self.figures) for i in units) if moves else (),
            units=figures,
            options=tuple(options),
            budgets=tuple(budget.allowed for budget in budgets),
            limits=(*tied, *bound.limits),
            crossings=tuple(bound.crossings),
            shortfalls=tuple(bound.shortfalls),
            multiples=tuple(multiples),
            blockers={place: tuple(tuple(covering[key]) for key in pods) for place, pods in open_to.blockers.items()},
            deterministic_time=self.config.preemption.time_limit,
        )
        return choices, units

    def _figures(self, i: int, budgets: Sequence[Budget], selectors: Collection[str]) -> UnitFigures:
        pool = self.pool
        known = pool.figures.get(i)
        if known is None:
            unit = pool.units[i]
            covered = ((b, sum(budget.covers(pod) for pod in unit.pods)) for b, budget in enumerate(budgets))
            known = pool.figures[i] = UnitFigures(
                frees=pool.free_of(i),
                priority=unit.priority,
                pods=len(unit.pods),
                devices=unit.devices,
                priorities=unit.priorities,
                rank=pool.ranks[i],
                breaks=unit.breaks,
                budgets=tuple((b, pods) for b, pods in covered if pods),
            )
        if not selectors:
            return known
        attracts: dict[int, int] = {}
        for pod in pool.units[i].pods:
            node = self.figures.snapshot.index.get(pod.node)
            if pod.selector in selectors and node is not None:
                attracts[node] = attracts.get(node, 0) + 1
        return replace(known, attracts=tuple(sorted(attracts.items()))) if attracts else known

    def _gangs(self, number: dict[int, int], of: dict[int, list[int]]) -> tuple[list[Limit], list[Multiple]]:
        """What ties the units of one gang: its surplus or its core, and its podCountMultiple."""
        pool = self.pool
        tied: list[Limit] = []
        multiples: list[Multiple] = []
        for lendings in pool.lendings.values():
            for one in lendings:
                core = pool.at(one.core) if one.core is not None else -1
                surplus = [pool.at(unit) for unit in one.surplus]
                terms = [(o, 1) for i in surplus for o in of.get(i, ())]
                whole = [(o, one.most) for o in of.get(core, ())]
                if terms and (whole or len(surplus) > one.most):
                    tied.append(Limit((*terms, *whole), most=one.most))
            unit = lendings[0].unit
            if any(i in number for one in lendings for i in map(pool.at, one.surplus)):
                multiples += self._multiples(unit, of)
        return tied, multiples

    def _multiples(self, unit: Unit, of: dict[int, list[int]]) -> list[Multiple]:
        """podCountMultiple of what stays of a GangGroup."""
        tree, index, pool = self.figures.snapshot.tree, self.figures.snapshot.index, self.pool
        out: list[Multiple] = []
        for level, k in unit_multiples(unit, self.figures).items():
            have: dict[int, int] = {}
            terms: dict[int, dict[int, int]] = {}
            for i in pool.group_units(unit.group_id):
                for pod in pool.units[i].pods:
                    if pod.node in index:
                        domain = int(tree.domain_of[level, index[pod.node]])
                        for o in of.get(i, ()):
                            here = terms.setdefault(domain, {})
                            here[o] = here.get(o, 0) + 1
            for member in unit.members:
                if member.bound and member.node in index and member.key not in self.figures.draft.evicted:
                    domain = int(tree.domain_of[level, index[member.node]])
                    have[domain] = have.get(domain, 0) + 1
            out += [Multiple(tuple(here.items()), have.get(d, 0), k) for d, here in terms.items()]
        return out

    # --- the choice and its check -------------------------------------------------------------------------------------

    def _choose(
        self,
        asked: Asked,
        choices: Choices,
        units: Sequence[int],
        open_to: Opened,
        law: Law,
        rules: tuple[RuleName, ...],
    ) -> tuple[object, Relief]:
        pool = self.pool
        plan: dict[int, int] = {}
        moves, back = RuleName.CONSOLIDATION in rules, list[Back]()
        own_order = has_own_order(asked.unit, self.figures)
        seen = [n for n, i in enumerate(units) if any(pod.key in open_to.looked_at for pod in pool.units[i].pods)]

        said: dict[str, Mapping[str, str]] = {}
        learns = not moves and more_is_no_harm(asked.unit, self.figures)

        def fits(taken: Iterable[int]) -> bool:
            chosen = [pool.units[units[choices.options[o].unit]] for o in taken]
            return self._placed(asked, choices.problem, chosen, {}, None)[0] is not None

        def check(taken: tuple[int, ...], places: dict[tuple[int, int], int]) -> Cut | None:
            chosen = [pool.units[units[choices.options[o].unit]] for o in taken]
            nodes, closed = self._placed(asked, choices.problem, chosen, places, back if moves else None)
            if nodes is not None:
                plan.clear()
                plan.update(nodes)
                said.clear()
                said.update(self._notes)
                return None
            if moves:
                return Cut(frozenset(taken), tuple(range(len(choices.units))))
            if learns:
                # fewer victims are no help, so one of the others has to go
                gone = {choices.options[o].unit for o in in_vain(choices, taken, fits, most_trials=_MOST_TRIALS)}
                return Cut(frozenset(taken), tuple(u for u in range(len(choices.units)) if u not in gone))
            if closed and seen:
                return Cut(frozenset(taken), tuple(seen), closed)
            return Cut(frozenset(taken), tuple(range(len(choices.units))))

        quick = shortcut(choices)
        if quick is not None and check(quick.options, {}) is None:
            choice = quick
        else:
            from koordpy.planning.solver.victims import MOST_TRIES, choose

            choice = choose(choices, check, most_tries=_OWN_ORDER_TRIES if own_order else MOST_TRIES)
            if choice.proof in (Proof.UNKNOWN, Proof.FEASIBLE) and not moves:
                options = self._unproven(choices, choice, lambda taken: check(taken, {}) is None)
                if options and check(options, {}) is None:
                    choice = replace(choice, options=options, proof=Proof.FEASIBLE)
            if own_order and not learns:
                # what was ruled out by trying might have been enough with fewer gone
                unsure = {Proof.OPTIMAL: Proof.FEASIBLE, Proof.INFEASIBLE: Proof.UNKNOWN}
                choice = replace(choice, proof=unsure.get(choice.proof, choice.proof))
        if not plan or not choice.options:
            return (), Relief(proof=choice.proof, runs=choice.runs)
        victims = []
        for o in choice.options:
            i, rule = units[choices.options[o].unit], rules[choices.options[o].rule]
            why = law.why_quota(i) if rule is RuleName.QUOTA else ""
            if rule is RuleName.CONSOLIDATION:
                keys_ = {pod.key for pod in pool.units[i].pods}
                at = sorted({self.figures.snapshot.nodes[one.node].name for one in back if one.pod.key in keys_})
                why = f"room on {', '.join(at)} was planned for it"
            if rule is RuleName.FAIR_SHARE and law.fair is not None:
                why = law.fair.why(i)
            victims.append(Victim(pool.units[i], rule, why))
        keys = tuple((asked.unit.members[rank].key, node) for rank, node in sorted(plan.items()))
        goals: tuple[object, ...] = ()
        if choices.problem.gather:
            worth = Goals(choices.problem)
            goals = (worth.layers(plan), worth.attraction(plan), worth.pipeline(plan), worth.domains(plan))
        cost = (cost_levels(choices, choice.options), goals, late_levels(choices, choice.options))
        relief = Relief(tuple(victims), keys, choice.proof, choice.runs, bound=choice.bound, back=tuple(back))
        return cost, replace(relief, notes=said)

    def _unproven(self, choices: Choices, found: Choice, works: Enough) -> tuple[int, ...]:
        """The better of what was found in time, less what can be given back, and of the greedy plan."""

        def enough(taken: tuple[int, ...]) -> bool:
            return counts_allow(choices, taken) and works(taken)

        best: tuple[object, tuple[int, ...]] | None = None
        for start in (found.options, cheapest(choices, enough)):
            options = spared(choices, enough, start) if start else ()
            if options:
                cost = cost_levels(choices, options), late_levels(choices, options)
                if best is None or cost < best[0]:  # type: ignore[operator]
                    best = cost, options
        return best[1] if best is not None else ()

    def _placed(
        self,
        asked: Asked,
        problem: Problem,
        chosen: Sequence[VictimUnit],
        places: dict[tuple[int, int], int],
        back: list[Back] | None,
    ) -> tuple[dict[int, int] | None, tuple[tuple[int, int], ...]]:
        """(rank -> node with the victims gone, all filters looked at; or None with the places that stay closed)."""
        draft, figures = self.figures.draft, self.figures
        mark = draft.mark()
        # where limits are left aside, the core of a gang and some of its surplus may be asked for together
        for pod in {pod.key: pod for unit in chosen for pod in unit.pods}.values():
            draft.evict(pod)
        whole = build(asked.unit, figures)
        ranks = set(asked.problem.pending)
        nodes: dict[int, int] | None = None
        self._notes = {}
        own = place_chosen(asked.unit, [pod.key for pod in asked.pods], figures)
        if own is not None:
            self._notes = own.notes
            nodes = {rank: own.nodes[pod.key] for rank, pod in enumerate(asked.unit.members) if pod.key in own.nodes}
        elif not has_own_order(asked.unit, figures):
            found = place_jointly(asked.unit, only_ranks(whole, ranks), figures)
            nodes = dict(found.nodes) if len(found.nodes) == len(ranks) else None
            if nodes is not None and any(pod.gpus is not None for pod in asked.pods) and figures.gpus.view.nodes:
                # numbers and links of GPUs may be enough for each of them, and not for all
                given = allocate([(asked.unit.members[rank], node) for rank, node in nodes.items()], figures.gpus)
                nodes = nodes if not given.faults else None
        if nodes is not None and back is not None:
            again = self._bring_back(asked, nodes, chosen)
            if again is None:
                nodes = None
            else:
                back[:] = again
        now = {problem.members[rank].shape: whole.members[rank].shape for rank in problem.pending}
        shut = () if nodes is not None else (p for p in places if not whole.shapes[now[p[0]]].allowed[p[1]])
        closed = tuple(shut)
        draft.undo(mark)
        return nodes, closed

    def _bring_back(self, asked: Asked, nodes: Mapping[int, int], chosen: Sequence[VictimUnit]) -> list[Back] | None:
        """Where moved units return to, beside the beneficiary (rank -> node); None where one finds no room."""
        draft, figures = self.figures.draft, self.figures
        seats = {asked.unit.members[rank].key: node for rank, node in sorted(nodes.items())}
        given = give(seats, figures)
        if given.faults:
            return None
        for key, node in seats.items():
            draft.assign(figures.snapshot.pods[key], node, chips=given.chips.get(key, ()))
        return bring_back(chosen, self.groups, figures)


def _sums(lack: Lack) -> tuple[str, ...]:
    return (f"preemption: {lack.text}.",) if lack.reclaimable else ()
