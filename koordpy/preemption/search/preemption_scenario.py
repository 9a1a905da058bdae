# SPDX-License-Identifier: Apache-2.0
"""One scenario of preemption: some pending members of a unit, and the victim units that each rule allows for them.

A scenario answers three questions. Do sums already show that even all victims together free too little (`bound`)? Which
numbers describe the choice of victims on a part of the nodes (`candidates`)? Do the members fit once certain victims
are evicted (`dry_run`)?
"""

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.placement.problem import Problem
from koordpy.plan.limits import MOVES
from koordpy.preemption.rules.rule_protocol import RuleInputs
from koordpy.preemption.search.candidates import OfferedChoice, Rules, candidates, eligible_under
from koordpy.preemption.search.device_columns import device_relief
from koordpy.preemption.search.dry_run import DryRun
from koordpy.preemption.search.preemption_plan import SearchEnd
from koordpy.preemption.search.preemptor_sets import PreemptorSet
from koordpy.preemption.search.reachable_nodes import ReachableNodes, find_reachable_nodes
from koordpy.preemption.search.single_pod import SinglePod
from koordpy.preemption.selection.lower_bounds import lacking, most_freed
from koordpy.preemption.selection.preemption_names import RuleName
from koordpy.preemption.selection.victim_choice import reachable
from koordpy.problems.problem_building import partitions

Bound = tuple[SearchEnd, str]
"""(reason why no set of victims helps, sentence for the pending pod's message; empty for no sentence)."""


class PreemptionScenario:
    """The search for victims for one preemptor set under some rules.

    A unit that several rules allow is evicted under the first of them.
    """

    def __init__(
        self,
        preemptors: PreemptorSet,
        rule_inputs: RuleInputs,
        rules: Rules,
        node_table: Callable[[], SinglePod] | None = None,
    ) -> None:
        """node_table: returns the cheapest victims of each node for a plain pod, which all units of the round share;
        None: not used."""
        self.preemptors, self.rule_inputs, self.rules, self._node_table = preemptors, rule_inputs, rules, node_table
        self.round_state, self.pool = rule_inputs.round_state, rule_inputs.pool
        self.eligible = eligible_under(rules)
        self.dry_run = DryRun(preemptors, rule_inputs.pool, rule_inputs.round_state)

    @property
    def moves(self) -> bool:
        """True if the victims are moved and placed again, instead of evicted."""
        return RuleName.CONSOLIDATION in self.rules

    @cached_property
    def reachable(self) -> ReachableNodes:
        """The placement problem that includes every node which evictions might open for the members."""
        preemptors, round_state = self.preemptors, self.round_state
        if not any(round_state.of(pod).has_rules for pod in {pod.shape: pod for pod in preemptors.pods}.values()):
            return ReachableNodes(preemptors.problem, {}, frozenset())
        units = self.pool.units
        victims = {pod.key: pod for i in np.nonzero(self.eligible)[0].tolist() for pod in units[i].pods}
        return find_reachable_nodes(preemptors.unit, preemptors.problem, round_state, list(victims.values()))

    # --- bounds -------------------------------------------------------------------------------------------------------

    def bound(self) -> Bound | None:
        """Returns why no set of the eligible units helps, by sums alone; None if the sums do not exclude success.

        O(number of units x nodes of each unit).
        """
        if self.moves and (bound := self._bound_of_moves()) is not None:
            return bound
        lack = lacking(self.reachable.problem, self._freed, self._columns)
        if lack is not None:
            return SearchEnd.BOUNDED, f"preemption: {lack.text}." if lack.reclaimable else ""
        return None if self.eligible.any() else (SearchEnd.NO_CANDIDATES, "")

    def bound_of(self, found: OfferedChoice) -> Bound | None:
        """Returns why no set of units helps on one part of the nodes; None if the sums do not exclude success.

        Tighter than `bound`, because it respects the limits of rules and quotas on evictions.
        """
        if not reachable(found.choices):
            return SearchEnd.BOUNDED, ""
        if self.moves or not (most := most_freed(found.choices)):
            return None
        lack = lacking(found.choices.problem, self._freed, self._columns, most)
        if lack is None:
            return None
        return SearchEnd.BOUNDED, f"preemption: {lack.text}." if lack.reclaimable else ""

    def _bound_of_moves(self) -> Bound | None:
        """Returns why no moves help; None if moves may help.

        Moves free nothing in total, so all nodes together must have enough free capacity. If movable pods times nodes
        exceed `MOVES`, nothing is searched, and the reason is BUDGET_USED.
        """
        pods = sum(len(self.pool.units[i].pods) for i in np.nonzero(self.eligible)[0].tolist())
        free = np.maximum(self.round_state.draft.free(), 0).sum(axis=0)
        asked = self.preemptors.problem.total_demand.items()
        if not pods or any(column < len(free) and amount > free[column] for column, amount in asked):
            return SearchEnd.NO_CANDIDATES, ""
        return (SearchEnd.BUDGET_USED, "") if pods * len(self.round_state.snapshot.nodes) > MOVES else None

    @cached_property
    def _freed(self) -> Ints:
        """[nodes, columns] upper bound of the amounts that evicting all eligible units frees, with columns for
        devices."""
        held, devices = self.pool.freed_by(self.eligible), self.preemptors.devices
        if not devices:
            return held
        out = np.zeros(self.preemptors.problem.free.shape, dtype=np.int64)
        out[:, : held.shape[1]] = held
        for i in np.nonzero(self.eligible)[0].tolist():
            for node, column, number in device_relief(self.pool, i, devices, self.round_state):
                out[node, column] += number
        return out

    @property
    def _columns(self) -> tuple[str, ...]:
        """Resource of each column of the snapshot.

        Columns of devices follow them in the problem, and have no name here.
        """
        columns = self.round_state.snapshot.columns
        return tuple(sorted(columns, key=lambda name: columns[name]))

    # --- candidates ---------------------------------------------------------------------------------------------------

    def parts(self) -> Iterator[OfferedChoice]:
        """Yields the candidates of each part of the nodes.

        If topology keys require that all members are on nodes with the same values of node labels, a part is the nodes
        with one combination of values. Without such keys, the only part is all nodes.
        """
        for part in partitions(self.preemptors.unit, self.reachable.problem, self.round_state):
            yield self.candidates(part, self.rules)

    def candidates(self, part: Problem, rules: Rules) -> OfferedChoice:
        """Returns the candidates on a part of the nodes. rules: the scenario's rules, each with all units that it
        allows or a part of them."""
        return candidates(self.preemptors, part, rules=rules, rule_inputs=self.rule_inputs, open_to=self.reachable)

    def cheapest_node(self) -> Rules | None:
        """Returns the victims of the node that is cheapest to free for a plain pod, as rule -> [units].

        A mask without units is a proof that no node can be freed. None means "not decided here": not only the capacity
        of a node decides, so the general search must run.
        """
        plain, round_state = self.preemptors.unit.plain, self.round_state
        if self._node_table is None or plain is None or len(self.rules) > 1 or self.moves:
            return None
        if self.preemptors.devices or self.reachable.looked_at:
            return None
        if round_state.draft.has_nominations or round_state.of(plain).has_rules:
            return None
        if round_state.admission.core_refusal(self.preemptors.unit, round_state.draft.quotas) is not None:
            return None  # the pod may lack capacity in a quota only
        [(name, eligible)] = self.rules.items()
        found = self._node_table().cheapest(plain, self.preemptors.problem, name, eligible)
        return None if found is None else {name: found}
