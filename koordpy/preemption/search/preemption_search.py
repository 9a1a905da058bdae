# SPDX-License-Identifier: Apache-2.0
"""State that all searches for victims of one round share, so that it is computed once and not for each pending unit.

It consists of the pool of victim units, the table of the cheapest victims per node, the entitlements of quotas and
tenants, and cached results of the plan check. `attempts/preemption_pipeline.py` runs the searches. A search leaves the
draft as it was. If its plan is carried out, `record_evictions` updates the pool.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from koordpy.devices.rule_registry import add_demands
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.placement.problem import Problem, only_ranks
from koordpy.preemption.rules.rule_protocol import RoundEntitlements, RuleInputs
from koordpy.preemption.rules.rule_steps import free_units
from koordpy.preemption.rules.victim_rules import VICTIM_RULES
from koordpy.preemption.search.candidates import Rules
from koordpy.preemption.search.device_columns import DeviceColumns, with_devices
from koordpy.preemption.search.preemption_plan import PreemptionPlan, Victim
from koordpy.preemption.search.preemption_scenario import PreemptionScenario
from koordpy.preemption.search.preemptor_sets import PreemptorSet, preemptor_sets
from koordpy.preemption.search.single_pod import SinglePod
from koordpy.preemption.search.victim_pool import Mask, Pool
from koordpy.preemption.selection.preemption_names import EVERY_WAY, NO_GUARD, Guard, Way
from koordpy.problems.problem_building import build
from koordpy.reservations.capacity_view import PREEMPTOR
from koordpy.verify.eviction_check import EvictedUnit, Round
from koordpy.verify.move_check import MovedPod, check_moved_devices
from koordpy.verify.plan_check import check_returns
from koordpy.verify.plan_fault import PlanFault
from koordpy.verify.preemption_check import VictimCheck, check_moves, check_victims


class PreemptionSearch:
    """The shared state of the searches of one round, and the inputs of each search."""

    def __init__(self, round_state: RoundState, ways: Sequence[Way] = EVERY_WAY, *, defers: bool = False) -> None:
        """round_state: counts used capacity as for a unit that starts without victims (`capacity_view.PLAIN`). ways:
        the ways of choosing victims that may be used. defers: True in an ordinary live round, which leaves units that
        need victims to a later search."""
        self.now, self.ways, self.defers = round_state, ways, defers
        """`now`: the round state that counts used capacity as for a unit that starts without victims."""
        self.config = round_state.config
        self._checked: dict[object, Any] = {}
        """Cache of the plan check for the round."""
        self.not_minimal: list[str] = []
        """Units with an accepted plan that has unnecessary victims, as far as `VictimCheck.needless` finds them."""
        self._pool: Pool | None = None
        self._alone: SinglePod | None = None

    @cached_property
    def round_state(self) -> RoundState:
        """The round state that counts used capacity as for a preemptor (`capacity_view.PREEMPTOR`): of a nominated
        pod, only the requests beyond the capacity of the terminating pods on its node, or in its quota, count."""
        return self.now.of_view(PREEMPTOR)

    @property
    def pool(self) -> Pool:
        """The victim units, computed on first use."""
        if self._pool is None:
            self._pool = Pool(self.now.groups, self.now.draft, self._useless_from)
        return self._pool

    @property
    def _useless_from(self) -> int | None:
        """The priority from which on plain pods cannot be victims; None if plain pods of any priority may be victims.

        If `priority` is the only rule that may allow a victim in this round (an open rule), it is the highest priority
        of a pending pod. Other rules, moves, and quotas that give back usage (`quota.monitorAllQuotas`) may evict pods
        of any priority.
        """
        snapshot, config = self.now.snapshot, self.config
        if config.quota.monitor_all_quotas or config.consolidation.enabled:
            return None
        if any(rule.above_priority and rule.is_open(snapshot, config) for rule in VICTIM_RULES):
            return None
        return max((pod.priority for pod in snapshot.pending), default=None)

    @property
    def has_open_rule(self) -> bool:
        """True if any rule may allow a victim in this round (an open rule), or if pods may be moved."""
        snapshot, config = self.now.snapshot, self.config
        return config.consolidation.enabled or any(rule.is_open(snapshot, config) for rule in VICTIM_RULES)

    def record_evictions(self, victims: Sequence[Victim]) -> None:
        """Updates the pool after a plan with these victims was applied to the draft."""
        if victims:
            self.pool.evicted([victim.unit for victim in victims])

    def take_apart(self) -> None:
        """Clears this object and its pool at the end of the round.

        Their objects refer to each other in cycles, which would keep them in memory.
        """
        if self._pool is not None:
            vars(self._pool).clear()
        vars(self).clear()

    def reread(self) -> None:
        """Drops the pool, because pods have been evicted from the draft without a plan of these searches."""
        self._pool = None

    def faults(self, unit: Unit, plan: PreemptionPlan) -> list[PlanFault]:
        """Returns the faults that the independent check finds in a plan.

        Expects the draft as it was before the plan.
        """
        return check_victims(unit, *self._read_plan(plan))

    def needless(self, unit: Unit, plan: PreemptionPlan) -> list[str]:
        """Returns the keys of unnecessary victims of a valid plan, as far as a cheap check finds them; for a metric."""
        taken, nodes, back, at = self._read_plan(plan)
        return VictimCheck(unit, nodes, back, at).needless(taken)

    def _read_plan(
        self, plan: PreemptionPlan
    ) -> tuple[Sequence[EvictedUnit], Mapping[str, int], Mapping[str, int], Round]:
        """Returns the inputs of a check: (victims, nodes of members, new nodes of moved pods, state of the round).

        Both mappings of nodes are pod key -> node position.
        """
        taken = [EvictedUnit(victim.unit.pods, str(victim.rule)) for victim in plan.victims]
        back = {one.pod.key: one.node for one in plan.back}
        return (
            taken,
            dict(plan.nodes),
            back,
            Round(self.round_state, self.entitlements.reclaimed, self.pool.budgets, self._checked),
        )

    def faults_of_returns(self, plan: PreemptionPlan) -> list[PlanFault]:
        """Returns the faults in the new nodes of moved pods.

        Expects the draft with members placed and victims evicted.
        """
        if not plan.back:
            return []
        round_state = self.round_state
        names = {one.pod.key: round_state.snapshot.nodes[one.node].name for one in plan.back}
        faults = check_returns([(one.pod, names[one.pod.key]) for one in plan.back], round_state)
        for gang in dict.fromkeys(one.pod.gang for one in plan.back if one.pod.gang is not None):
            faults += check_moves(round_state.groups.unit(gang), names, self.now)
        moved = [MovedPod(one.pod, one.node, one.devices) for one in plan.back]
        return faults + check_moved_devices(moved, round_state.draft, self.config)

    # --- inputs of a search -------------------------------------------------------------------------------------------

    def preemptor_sets(self, unit: Unit, placed: Mapping[str, int]) -> Iterator[PreemptorSet]:
        """Yields the sets of pending members that preempt together, in the order in which the sets are tried.

        placed: pod key -> node position of the members that this round has placed.
        """
        problem, devices = self._problem(unit, placed)
        for ranks in preemptor_sets(unit, problem, self.round_state):
            yield PreemptorSet(unit, only_ranks(problem, ranks), tuple(unit.members[rank] for rank in ranks), devices)

    def _problem(self, unit: Unit, placed: Mapping[str, int]) -> tuple[Problem, DeviceColumns]:
        """Returns (the placement problem of a unit with a column of amounts for each device family, columns of
        devices).

        placed: as for `preemptor_sets`; these members count as bound.
        """
        problem = add_demands(unit, build(unit, self.round_state, emptied=True), self.round_state)
        problem, devices = with_devices(unit, problem, self.round_state)
        if placed:
            members = tuple(
                replace(member, node=placed.get(pod.key, member.node))
                for member, pod in zip(problem.members, unit.members, strict=True)
            )
            problem = replace(problem, members=members)
        return problem, devices

    def rule_inputs(self, preemptors: PreemptorSet, waived: frozenset[Guard] = NO_GUARD) -> RuleInputs:
        """Returns the inputs of the rules for one preemptor set.

        waived: the guards that this search ignores. A guard is a limit on a plan in addition to the rules (`Guard`).
        """
        return RuleInputs(preemptors.unit, preemptors.pods, self.pool, self.round_state, self.entitlements, waived)

    def free_units(self, preemptors: PreemptorSet) -> Mask:
        """Returns a mask of the pool's units: those that the rules may choose from for one preemptor set.

        Left out are units already evicted, the preemptor's own GangGroup, and gangs with a member placed in this round.
        """
        return free_units(preemptors, self.pool, self.round_state)

    def scenario(self, preemptors: PreemptorSet, rule_inputs: RuleInputs, rules: Rules) -> PreemptionScenario:
        """Returns one scenario: a preemptor set, and the units that each rule allows (`rules`)."""
        return PreemptionScenario(preemptors, rule_inputs, rules, self._node_table)

    def _node_table(self) -> SinglePod:
        """Returns the table of the cheapest victims of each node, which all plain pods of the round share."""
        if self._alone is None or self._alone.pool is not self.pool:
            self._alone = SinglePod(self.pool, self.round_state)
        return self._alone

    @cached_property
    def entitlements(self) -> RoundEntitlements:
        """Mins of quotas and shares of tenants, shared by all preemptor sets of the round."""
        return RoundEntitlements(self.round_state)
