# SPDX-License-Identifier: Apache-2.0
"""Places a gang with NPUs and without a gather goal in rank order: each pod on its best node that leaves later pods
feasible.

The result is the placement with the lexicographically greatest sequence of scores (docs/rules/ascend.md 3).

1. Every pod is placed on its best node. If all pods fit, no sequence is greater.
2. Otherwise a witness is solved: a placement of all pods that proves that they can be placed.
3. In rank order each pod tries its nodes, best first. A node may be used if the witness, changed so that the pod is on
   this node, still places all later pods. The change is a swap of two pods, or the use of free capacity on the node.
   If neither works, the witness is solved again.

O(pods x nodes) checks, and one solve for each node that neither change allows.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from koordpy.devices.ascend.family.chip_dealing import Chips, deal_node, demand_of, pick
from koordpy.devices.ascend.family.npu_filter import chips_rule
from koordpy.devices.ascend.jobs.placed_members import with_placed
from koordpy.devices.ascend.tables.chip_division import options
from koordpy.devices.ascend.tables.npu_book import NPUS, chip_numbers, npu_resource
from koordpy.devices.dra.family.claim_family import claimed_of
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.placement.member_interactions import faults
from koordpy.placement.problem import Problem, Solution
from koordpy.plan.round_plan import Proof, SolverRun
from koordpy.plugins.node_scores import first_node
from koordpy.pods.claim_refs import CLAIMS
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import build
from koordpy.problems.unit_placement import Question, place_unit


def node_order(pod: PodInfo, round_state: RoundState) -> list[int]:
    """Returns the positions of nodes that take an NPU pod, best first.

    Compared are AscendAffinity, total score, health (sub-healthy nodes last), and natural name.
    """
    own = round_state.of(pod)
    chips = chips_rule(own.rules)
    if chips is None:  # the pod is refused on all nodes
        return []
    able = np.nonzero(own.slots > 0)[0]
    names = round_state.snapshot.name_rank[able]
    order = np.lexsort((names, chips.sub_healthy[able], -own.total[able], -chips.affinity[able]))
    return [int(node) for node in able[order]]


def best_node(pod: PodInfo, round_state: RoundState) -> int | None:
    """Returns the first node of `node_order`, without sorting; None for none."""
    own = round_state.of(pod)
    chips = chips_rule(own.rules)
    if chips is None:
        return None
    names = round_state.snapshot.name_rank
    return first_node(np.nonzero(own.slots > 0)[0], -chips.affinity, -own.total, chips.sub_healthy, names)


def assign(pod: PodInfo, node: int, round_state: RoundState, chips: tuple[int, ...] | None = None) -> None:
    """Places a pod on the draft with its NPUs and resource claims. chips: chosen NPUs; None for the choice of the
    tables."""
    own = pick(pod, node, round_state) if chips is None else chips
    claimed = claimed_of(pod, node, round_state)
    given = {**({NPUS: own} if own else {}), **({CLAIMS: claimed} if claimed else {})}
    round_state.draft.assign(pod, node, round_state.claims_at(pod, node), given)


@dataclass
class _RankOrder:
    """State of step 3: the pods placed so far, and the witness."""

    whole: Unit
    round_state: RoundState
    witness: dict[str, int]
    """Pod key -> node position of each pod that is not placed yet: a proof that they can be placed."""
    placed: dict[str, int] = field(default_factory=dict)
    """Pod key -> node position of the pods placed so far; they are on the draft."""

    @property
    def unit(self) -> Unit:
        """The unit with the placed pods as bound pods."""
        return with_placed(self.whole, self.placed, self.round_state)

    def choose(self, pod: PodInfo) -> tuple[int, Chips] | None:
        """Returns (best node for a pod that leaves later pods feasible, its chips there); updates the witness.

        The chips are the choice of the tables unless that leaves a later pod without chips. None if no node takes the
        pod yet. An example is a pod with a spread constraint that needs other members to be placed first.
        """
        for node in node_order(pod, self.round_state):
            if (chips := self._feasible_chips(pod, node)) is not None:
                return node, chips
        return None

    def _feasible_chips(self, pod: PodInfo, node: int) -> Chips | None:
        """Returns the chips with which a pod can use a node so that all later pods still fit; None if there are
        none."""
        asked = demand_of(pod, node, self.round_state)
        if asked is None:
            return None
        later = self._later_pods_on(pod, node)
        demand, free = asked
        rest = [own[0] for one in later if (own := demand_of(one, node, self.round_state)) is not None]
        for mask in options(demand, free, rest):
            chips = chip_numbers(mask)
            if self._repair_witness(pod, node, chips, later) or self._solve_witness(pod, node, chips):
                return chips
        return None

    def _later_pods_on(self, pod: PodInfo, node: int) -> list[PodInfo]:
        """Returns the later pods that the witness places on a node."""
        pods = self.round_state.snapshot.pods
        return [pods[key] for key, at in self.witness.items() if at == node and key != pod.key]

    def _repair_witness(self, pod: PodInfo, node: int, chips: Chips, later: list[PodInfo]) -> bool:
        """Returns whether the witness proves that a pod may use a node with these chips, possibly after one change.

        Three cases: the witness has the pod on this node already; a later pod of the same shape on this node changes
        places with it; or the pod fits next to the later pods on this node. False means that no simple change was
        found. later: later pods that the witness places on the node.
        """
        planned = self.witness[pod.key]
        if planned == node:
            return self._serves_rest(pod, node, chips, later)
        for other in later:
            if other.shape == pod.shape and other.gang == pod.gang:
                if self._serves_rest(pod, node, chips, [one for one in later if one is not other]):
                    self.witness[other.key], self.witness[pod.key] = planned, node
                    return True
                break
        if any(self.round_state.concerned(one) for one in (pod, *later)):
            return False
        if not self._fits_together(pod, node, chips, later):
            return False
        self.witness[pod.key] = node
        return True

    def _serves_rest(self, pod: PodInfo, node: int, chips: Chips, later: Sequence[PodInfo]) -> bool:
        """Returns whether the chips that a pod leaves free on a node are enough for the later pods there."""
        if not later:
            return True
        with self.round_state.draft.trial():
            assign(pod, node, self.round_state, chips)
            return deal_node(later, node, self.round_state) is not None

    def _fits_together(self, pod: PodInfo, node: int, chips: Chips, later: Sequence[PodInfo]) -> bool:
        """Returns whether a pod fits on a node together with the later pods that the witness places there, by all
        filters."""
        with self.round_state.draft.trial():
            if not self.round_state.of(pod).slots[node]:
                return False
            assign(pod, node, self.round_state, chips)
            dealt = deal_node(later, node, self.round_state)
            if dealt is None:
                return False
            for one in later:
                if not self.round_state.of(one).slots[node]:
                    return False
                assign(one, node, self.round_state, dealt.get(one.key, ()))
            return True

    def _solve_witness(self, pod: PodInfo, node: int, chips: Chips) -> bool:
        """Returns whether the solver places all later pods if this pod is on the node; the result becomes the
        witness."""
        round_state = self.round_state
        with round_state.draft.trial():
            assign(pod, node, round_state, chips)
            unit = with_placed(self.unit, {pod.key: node}, round_state)
            found = place_all(unit, self.witness.keys() - {pod.key}, round_state)
        if not found.placed and len(self.witness) > 1:
            return False
        self.witness = {pod.key: node, **{unit.members[rank].key: at for rank, at in found.nodes.items()}}
        return True


def place_all(unit: Unit, wanted: Collection[str], round_state: RoundState) -> Solution:
    """Returns any placement of all wanted pending pods of a unit (by key), by rank; no nodes if there is none."""
    if not wanted:
        return Solution({}, Proof.OPTIMAL)
    gangs = tuple(replace(g, pods=tuple(p for p in g.pods if not p.pending or p.key in wanted)) for g in unit.gangs)
    cut = Unit(id=unit.id, gangs=gangs)
    problem = replace(build(cut, round_state), needs=tuple(len(gang.pending) for gang in gangs))
    found = place_unit(cut, problem, round_state, Question.TRIAL)
    ranks = {pod.key: rank for rank, pod in enumerate(unit.members)}
    nodes = {ranks[cut.members[rank].key]: node for rank, node in found.nodes.items()}
    return Solution(nodes, found.proof, found.runs)


def _place_on_best(unit: Unit, problem: Problem, round_state: RoundState) -> dict[str, int] | None:
    """Step 1: returns pod key -> node with every pod on its best node; None if some pod does not fit then."""
    if not problem.allowed(problem.pending) or not _enough_copies(problem):
        return None
    nodes: dict[str, int] = {}
    with round_state.draft.trial():
        for pod in unit.pending:
            if npu_resource(pod.requests) is None:
                continue
            node = best_node(pod, round_state)
            if node is None:
                return None
            assign(pod, node, round_state)
            nodes[pod.key] = node
        others = [pod.key for pod in unit.pending if pod.key not in nodes]
        if others:
            rest = place_all(with_placed(unit, nodes, round_state), others, round_state)
            if not rest.placed:
                return None
            nodes |= {unit.members[rank].key: node for rank, node in rest.nodes.items()}
    return {pod.key: nodes[pod.key] for pod in unit.pending}


def _enough_copies(problem: Problem) -> bool:
    """Returns whether, for each shape alone, the nodes have enough slots for its pods.

    False proves that not all pods can be placed, so that step 1 can be skipped.
    """
    return all(int(problem.slots_of[shape].sum()) >= number for shape, number in problem.pending_counts.items())


def place_ranked(
    unit: Unit, problem: Problem, round_state: RoundState
) -> tuple[dict[str, int], Proof, tuple[SolverRun, ...]]:
    """Returns (pod key -> node, proof, solver runs) of a gang without a gather goal; no nodes if there is no plan.

    The plan is the first witness, with proof FEASIBLE, if step 3 finds no node for a pod or breaks an inter-pod rule.
    """
    # step 1: every pod on its best node
    straight = _place_on_best(unit, problem, round_state)
    if straight is not None and _meets_interpod_rules(unit, problem, straight):
        return straight, Proof.OPTIMAL, ()
    # step 2: the witness
    first = place_unit(unit, problem, round_state, Question.TRIAL)
    if not first.placed:
        return {}, first.proof, first.runs
    members = unit.members
    walk = _RankOrder(unit, round_state, {members[rank].key: node for rank, node in sorted(first.nodes.items())})
    nodes: dict[str, int] = {}
    jointly = {members[rank].key: node for rank, node in first.nodes.items()}
    # step 3: rank by rank; pods without NPUs are placed last, because they need no chips
    with round_state.draft.trial():
        for rank in sorted(first.nodes):
            pod = members[rank]
            if npu_resource(pod.requests) is None:
                continue
            found = walk.choose(pod)
            if found is None:
                return jointly, Proof.FEASIBLE, first.runs
            node, chips = found
            nodes[pod.key] = walk.placed[pod.key] = node
            assign(pod, node, round_state, chips)
            del walk.witness[pod.key]
        if walk.witness:
            rest = place_all(walk.unit, walk.witness, round_state)
            nodes |= {members[rank].key: node for rank, node in rest.nodes.items()} or walk.witness
    if not _meets_interpod_rules(unit, problem, nodes):
        return jointly, Proof.FEASIBLE, first.runs
    return nodes, first.proof, first.runs


def _meets_interpod_rules(unit: Unit, problem: Problem, nodes: Mapping[str, int]) -> bool:
    """Returns whether the placement as a whole meets the inter-pod rules of its members.

    A later pod may break the spread constraint of an earlier pod, which is not checked when the later pod is placed.
    """
    shapes = {pod.key: member.shape for pod, member in zip(unit.members, problem.members, strict=True)}
    return not faults(problem.interactions, Counter((shapes[key], node) for key, node in nodes.items()))
