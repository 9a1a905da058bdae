"""Room for one beneficiary: the steps of preemption.md 1, in order, until one gives a plan.

The planner asks where a unit found no room. A plan names its victims, each with the rule that takes it, and a node for
every member; nothing is changed here but a draft that is put back as it was.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from koordpy.cluster.snapshot import Ints
from koordpy.planning.build import build, partitions
from koordpy.planning.figures import Figures
from koordpy.planning.jobs.ascend.relief import one_each
from koordpy.planning.limits import MOVES
from koordpy.planning.patience import Patience
from koordpy.planning.placement.problem import only_ranks
from koordpy.planning.plan import Proof, RejectedPlan, SolverRun, proof_of
from koordpy.planning.units import Unit
from koordpy.planning.verify.fault import PlanFault
from koordpy.planning.verify.leaving import Round, Taken
from koordpy.planning.verify.plan import check_returns
from koordpy.planning.verify.victims import check_moves, check_victims
from koordpy.planning.victim_selection.choice import reachable
from koordpy.planning.victim_selection.lines import Lines, Mins, lines_of
from koordpy.planning.victim_selection.lower_bounds import lacking, most_freed
from koordpy.planning.victim_selection.names import EVERY_WAY, RuleName, Way
from koordpy.planning.victims.asked import Asked, beneficiaries
from koordpy.planning.victims.candidates import Rules, candidates, device_relief, eligible_under
from koordpy.planning.victims.devices import with_devices
from koordpy.planning.victims.dry_run import DryRun
from koordpy.planning.victims.overuse import GivenBack, give_back
from koordpy.planning.victims.pool import Mask, Pool
from koordpy.planning.victims.reach import Opened, opened
from koordpy.planning.victims.relief import PreemptionPlan, Victim
from koordpy.planning.victims.relocation import movable
from koordpy.planning.victims.rules import Law
from koordpy.planning.victims.single_pod import SinglePod
from koordpy.planning.victims.taking import take
from koordpy.planning.victims.terminating import await_ending, waits_on_nominated
from koordpy.planning.victims.victim_rules import BY_NAME, VICTIM_RULES, steps


class Preemptor:
    """Looks for victims in one round; plans that are accepted are told with `took`. ways: the only ways of choosing."""

    def __init__(self, figures: Figures, ways: Sequence[Way] = EVERY_WAY, *, patience: Patience | None = None) -> None:
        """patience: when a unit is deferred for which there is more to do than to wait for pods that are ending."""
        self.figures, self.ways, self.patience = figures, ways, patience
        self.config = figures.config
        self._tried_ways = ways
        self._pool: Pool | None = None
        self._alone: SinglePod | None = None

    @property
    def pool(self) -> Pool:
        """The victim units, read when the first beneficiary asks."""
        if self._pool is None:
            self._pool = Pool(self.figures.groups, self.figures.draft, self._useless_from)
        return self._pool

    @property
    def _useless_from(self) -> int | None:
        """The priority from which on nobody could be taken, where nothing but priority takes anyone."""
        snapshot, config = self.figures.snapshot, self.config
        if config.quota.monitor_all_quotas or config.consolidation.enabled:
            return None
        if any(rule.above_priority and rule.is_open(snapshot, config) for rule in VICTIM_RULES):
            return None
        return max((pod.priority for pod in snapshot.pending), default=None)

    @property
    def open(self) -> bool:
        """Whether any rule may take a pod at all."""
        snapshot, config = self.figures.snapshot, self.config
        return config.consolidation.enabled or any(rule.is_open(snapshot, config) for rule in VICTIM_RULES)

    def give_back(self, starters: Callable[[], frozenset[str]]) -> tuple[list[GivenBack], list[RejectedPlan]]:
        """What quotas give back that are over their runtime for too long, before anybody is planned.

        starters: pods that would start on the draft as it is.
        """
        if not self.config.quota.monitor_all_quotas:
            return [], []
        return give_back(self.pool, self.figures, starters)

    def took(self, victims: Sequence[Victim]) -> None:
        """The victims of a plan that is on the draft now."""
        if victims:
            self.pool.evicted([victim.unit for victim in victims])

    def take_apart(self) -> None:
        """Ends it and its units, which refer to each other in circles."""
        if self._pool is not None:
            vars(self._pool).clear()
        vars(self).clear()

    def reread(self) -> None:
        """Pods have left the draft by no plan of this search: the victim units are read anew when next asked for."""
        self._pool = None

    def faults(self, unit: Unit, relief: PreemptionPlan) -> list[PlanFault]:
        """What an independent check finds wrong with a plan, on the draft as it was before."""
        taken = [Taken(victim.unit.pods, str(victim.rule)) for victim in relief.victims]
        back = {one.pod.key: one.node for one in relief.back}
        at = Round(self.figures, self._lines, self.pool.budgets)
        with self.figures.promises.net():
            return check_victims(unit, taken, dict(relief.nodes), back, at)

    def faults_of_returns(self, relief: PreemptionPlan) -> list[PlanFault]:
        """The same of where moved pods return to; the draft has the beneficiary in place, and the victims out."""
        if not relief.back:
            return []
        figures = self.figures
        names = {one.pod.key: figures.snapshot.nodes[one.node].name for one in relief.back}
        with figures.promises.net():
            faults = check_returns([(one.pod, names[one.pod.key]) for one in relief.back], figures)
        for gang in dict.fromkeys(one.pod.gang for one in relief.back if one.pod.gang is not None):
            faults += check_moves(figures.groups.unit(gang), names, figures)
        return faults

    def relieve(self, unit: Unit, placed: Mapping[str, int] | None, ways: Sequence[Way]) -> PreemptionPlan:
        """The first step that makes room for all pending members, else for the core, else why there is none.

        placed: pod key -> node of members that got room just before, one by one. ways: of choosing.
        """
        self._tried_ways = ways
        if not self.figures.snapshot.nodes:
            return PreemptionPlan()
        if not placed:
            awaited = await_ending(unit, self.figures)
            if awaited is not None:
                return PreemptionPlan(awaited=awaited)
        if not self.open or any(waits_on_nominated(pod, self.figures) for pod in unit.pending):
            return PreemptionPlan()
        if self.patience is not None and self.patience.defers():
            return PreemptionPlan(deferred=True)
        with self.figures.promises.net():
            return self._search(unit, placed)

    def _search(self, unit: Unit, placed: Mapping[str, int] | None) -> PreemptionPlan:
        problem = one_each(unit, build(unit, self.figures, emptied=True), self.figures)
        problem, devices = with_devices(unit, problem, self.figures)
        if placed:
            members = tuple(
                replace(member, node=placed.get(pod.key, member.node))
                for member, pod in zip(problem.members, unit.members, strict=True)
            )
            problem = replace(problem, members=members)
        last: PreemptionPlan | None = None
        for ranks in beneficiaries(unit, problem, self.figures):
            pods = tuple(unit.members[rank] for rank in ranks)
            asked = Asked(unit, only_ranks(problem, ranks), pods, devices)
            found = self._steps(asked)
            if found.nodes:
                return found
            last = found if last is None or last.proof is Proof.INFEASIBLE else last
        return last or PreemptionPlan()

    def _steps(self, asked: Asked) -> PreemptionPlan:
        """Steps 4, 5 and 7: each rule alone, then the open ones together."""
        law = self._law(asked)
        if not law.admissible:
            return PreemptionPlan()
        free = self._free(asked)
        reasons: list[str] = []
        runs: list[SolverRun] = []
        proofs: list[Proof] = []
        if self.config.consolidation.enabled:
            found = self._consolidate(asked, law, free)
            runs += found.runs
            if found.nodes:
                return found
            proofs.append(found.proof)
        for rules in steps(law, free):
            found = self._take(asked, law, rules)
            runs += found.runs
            if found.nodes:
                return replace(found, runs=tuple(runs))
            reasons += [text for text in found.reasons if text not in reasons]
            proofs.append(found.proof)
        if law.mins.closed and BY_NAME[RuleName.QUOTA].is_open(self.figures.snapshot, self.config):
            reasons.append(f"{law.mins.closed}.")
        if spared := law.mins.spared or (law.fair.spared if law.fair is not None else ""):
            kind, _, name = spared.rpartition(":")
            reasons.append(f"reclaim: {kind or 'pod'} {name} has gained by its eviction, and keeps that for an hour.")
        proof = proof_of(placed=False, sure=Proof.UNKNOWN not in proofs)
        return PreemptionPlan(proof=proof, runs=tuple(runs), reasons=tuple(reasons))

    def _consolidate(self, asked: Asked, law: Law, free: Mask) -> PreemptionPlan:
        """Step 3: units move, nobody loses anything; a quota that has no room for the beneficiary is no reason to.

        Unknown where moves are too many to be looked at.
        """
        if self.figures.admission.core_refusal(asked.unit, self.figures.draft.quotas) is not None:
            return PreemptionPlan()
        eligible = movable(self.pool, free, self.figures, priority=law.priority)
        pods = sum(len(self.pool.units[i].pods) for i in np.nonzero(eligible)[0].tolist())
        if not pods or self._too_little_free(asked):
            return PreemptionPlan()
        if pods * len(self.figures.snapshot.nodes) > MOVES:
            return PreemptionPlan(proof=Proof.UNKNOWN)
        return self._take(asked, law, {RuleName.CONSOLIDATION: eligible})

    def _too_little_free(self, asked: Asked) -> bool:
        """Whether less is free on all nodes together than is asked for: moves change nothing about that."""
        free = np.maximum(self.figures.draft.free(), 0).sum(axis=0)
        return any(column < len(free) and amount > free[column] for column, amount in asked.problem.asked.items())

    # --- rules ------------------------------------------------------------------------------------------------------

    def _law(self, asked: Asked) -> Law:
        return Law(asked.unit, asked.pods, self.pool, self.figures, mins=self._mins, lines=self._lines)

    @cached_property
    def _mins(self) -> Mins:
        return Mins(self.figures.snapshot.quotas)

    @cached_property
    def _lines(self) -> Lines | None:
        return lines_of(self.figures.snapshot, self.config.fairness) if self.config.fairness.reclaim == "all" else None

    def _free(self, asked: Asked) -> Mask:
        """[units] that live, are not the beneficiary's own and not bound in this round."""
        pool = self.pool
        out = np.array(pool.alive, dtype=bool)
        own = {asked.unit.group_id} if asked.unit.plain is None else set[str]()
        placed = {self.figures.snapshot.pods[key].gang for key in self.figures.draft.placed} - {None}
        own |= {self.figures.groups.unit(ref).group_id for ref in placed if ref is not None}
        if own:
            for i, unit in enumerate(pool.units):
                if unit.group and unit.group in own:
                    out[i] = False
        return out

    # --- one step ---------------------------------------------------------------------------------------------------

    def _take(self, asked: Asked, law: Law, rules: Rules) -> PreemptionPlan:
        """The least harmful victims under some rules, in the order in which a victim would carry them."""
        eligible = eligible_under(rules)
        open_to = self._opened(asked, eligible)
        lack = lacking(open_to.problem, self._relief(asked, eligible), self._names)
        if lack is not None:
            return PreemptionPlan(reasons=(f"preemption: {lack.text}.",) if lack.reclaimable else ())
        if not eligible.any():
            return PreemptionPlan()
        trial = DryRun(asked, self.pool, self.figures)
        if Way.NODE in self._tried_ways and (least := self._cheapest_node(asked, rules, open_to)) is not None:
            if not eligible_under(least).any():
                return PreemptionPlan()
            found = candidates(asked, open_to.problem, rules=least, law=law, open_to=open_to)
            _, plan = take(found, trial, law, open_to.looked_at, (Way.COUNTING,))
            if plan.nodes:
                return plan
        best: tuple[object, PreemptionPlan] | None = None
        proofs, runs = set[Proof](), list[SolverRun]()
        reasons: list[str] = []
        for part in partitions(asked.unit, open_to.problem, self.figures):
            self.figures.interrupts.step()
            found = candidates(asked, part, rules=rules, law=law, open_to=open_to)
            if not reachable(found.choices):
                continue
            if RuleName.CONSOLIDATION not in rules and (cut := most_freed(found.choices)):
                lack = lacking(part, self._relief(asked, eligible), self._names, cut)
                if lack is not None:
                    reasons += [f"preemption: {lack.text}."] if lack.reclaimable else []
                    continue
            taken = take(found, trial, law, open_to.looked_at, self._tried_ways)
            proofs.add(taken[1].proof)
            runs += taken[1].runs
            if taken[1].nodes and (best is None or taken[0] < best[0]):  # type: ignore[operator]
                best = taken
        if best is not None:
            return replace(best[1], runs=tuple(runs))
        proof = proof_of(placed=False, sure=Proof.UNKNOWN not in proofs)
        return PreemptionPlan(proof=proof, runs=tuple(runs), reasons=tuple(reasons[:1]))

    def _relief(self, asked: Asked, eligible: Mask) -> Ints:
        """[nodes, columns] what the eligible units hold together, at most."""
        held = self.pool.relief(eligible)
        if asked.devices is None:
            return held
        out = np.zeros(asked.problem.free.shape, dtype=np.int64)
        out[:, : held.shape[1]] = held
        for i in np.nonzero(eligible)[0].tolist():
            for node, cards in device_relief(self.pool, i).items():
                out[node, asked.devices] += cards
        return out

    @cached_property
    def _names(self) -> tuple[str, ...]:
        columns = self.figures.snapshot.columns
        return tuple(sorted(columns, key=lambda name: columns[name]))

    def _cheapest_node(self, asked: Asked, rules: Rules, open_to: Opened) -> Rules | None:
        """The victims of the node that is cheapest to free for a plain pod, where that depends on the nodes alone."""
        plain, figures = asked.unit.plain, self.figures
        if plain is None or len(rules) > 1 or RuleName.CONSOLIDATION in rules or asked.devices is not None:
            return None
        if open_to.looked_at or figures.draft.keeps_room or figures.of(plain).has_rules:
            return None
        if figures.admission.core_refusal(asked.unit, figures.draft.quotas) is not None:
            return None  # room may be missing in a quota alone
        if self._alone is None or self._alone.pool is not self.pool:
            self._alone = SinglePod(self.pool, figures)
        [(name, eligible)] = rules.items()
        found = self._alone.cheapest(plain, asked.problem, name, eligible)
        return None if found is None else {name: found}

    def _opened(self, asked: Asked, eligible: Mask) -> Opened:
        """The problem with every node that victims might open."""
        if not any(self.figures.of(pod).has_rules for pod in {pod.shape: pod for pod in asked.pods}.values()):
            return Opened(asked.problem, {}, frozenset())
        units = self.pool.units
        victims = {pod.key: pod for i in np.nonzero(eligible)[0].tolist() for pod in units[i].pods}
        return opened(asked.unit, asked.problem, self.figures, list(victims.values()))
