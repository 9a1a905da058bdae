"""A gang with NPUs and without a gather goal: pods in rank order, each on the best node from which the rest can still
be placed (ascend.md 3).

The sequence of scores is the lexicographically greatest one. What can still be placed is known by a witness: a whole
placement of the pods to come, which is repaired by a swap or by room beside it, and found anew where neither will do.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from koordpy.cluster.npus import chip_numbers, npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.planning.accelerators.npus_dealing import Chips, deal_node, demand_of, pick
from koordpy.planning.ascend.division import options
from koordpy.planning.build import build
from koordpy.planning.figures import Figures
from koordpy.planning.jobs.ascend.standing import after
from koordpy.planning.joint import place_jointly
from koordpy.planning.placement.problem import Problem, Solution
from koordpy.planning.placement.ties import faults
from koordpy.planning.plan import Proof, SolverRun
from koordpy.planning.scores.nodes import first_node
from koordpy.planning.units import Unit


def node_order(pod: PodInfo, figures: Figures) -> list[int]:
    """Nodes that take an NPU pod now, the best first: AscendAffinity, the total, healthy ones, natural name."""
    own = figures.of(pod)
    chips = own.chips
    assert chips is not None
    able = np.nonzero(own.slots > 0)[0]
    names = figures.snapshot.name_rank[able]
    order = np.lexsort((names, chips.sub_healthy[able], -own.total[able], -chips.affinity[able]))
    return [int(node) for node in able[order]]


def best_node(pod: PodInfo, figures: Figures) -> int | None:
    """The first of `node_order`, found without ordering the others."""
    own = figures.of(pod)
    chips = own.chips
    assert chips is not None
    names = figures.snapshot.name_rank
    return first_node(np.nonzero(own.slots > 0)[0], -chips.affinity, -own.total, chips.sub_healthy, names)


def assign(pod: PodInfo, node: int, figures: Figures, chips: tuple[int, ...] | None = None) -> None:
    """Puts a pod on the draft with all that it is given there. chips: minors of its GPUs, or its NPUs, where they have
    been chosen; else the NPUs are those of the table."""
    own = pick(pod, node, figures) if chips is None else chips
    figures.draft.assign(pod, node, figures.claims_at(pod, node), figures.devices_at(pod, node), own)


@dataclass
class _Walk:
    """The pods so far, `placed`, are on the draft; `coming` holds a place for each of the others."""

    whole: Unit
    figures: Figures
    coming: dict[str, int]
    placed: dict[str, int] = field(default_factory=dict)

    @property
    def unit(self) -> Unit:
        """The unit with the pods so far in place."""
        return after(self.whole, self.placed, self.figures)

    def choose(self, pod: PodInfo) -> tuple[int, Chips] | None:
        """The best node for a pod from which the rest can still be placed, and its chips there, those of the table
        unless they strand somebody; the witness is kept right. None where a pod may stand nowhere before others have
        come, as one that is spread."""
        for node in node_order(pod, self.figures):
            if (chips := self._can(pod, node)) is not None:
                return node, chips
        return None

    def _can(self, pod: PodInfo, node: int) -> Chips | None:
        """The chips with which a pod can go to a node, the rest somewhere."""
        asked = demand_of(pod, node, self.figures)
        if asked is None:
            return None
        there = self._there(pod, node)
        demand, free = asked
        rest = [own[0] for one in there if (own := demand_of(one, node, self.figures)) is not None]
        for mask in options(demand, free, rest):
            chips = chip_numbers(mask)
            if self._keeps(pod, node, chips, there) or self._anew(pod, node, chips):
                return chips
        return None

    def _there(self, pod: PodInfo, node: int) -> list[PodInfo]:
        """Who else comes to a node by the witness."""
        pods = self.figures.snapshot.pods
        return [pods[key] for key, at in self.coming.items() if at == node and key != pod.key]

    def _keeps(self, pod: PodInfo, node: int, chips: Chips, there: list[PodInfo]) -> bool:
        """Whether the witness still holds with a pod and its chips on a node, or with a small change."""
        planned = self.coming[pod.key]
        if planned == node:
            return self._serves(pod, node, chips, there)
        for other in there:
            if other.shape == pod.shape and other.gang == pod.gang:
                if self._serves(pod, node, chips, [one for one in there if one is not other]):
                    self.coming[other.key], self.coming[pod.key] = planned, node
                    return True
                break
        if any(self.figures.concerned(one) for one in (pod, *there)):
            return False
        if not self._room_beside(pod, node, chips, there):
            return False
        self.coming[pod.key] = node
        return True

    def _serves(self, pod: PodInfo, node: int, chips: Chips, there: Sequence[PodInfo]) -> bool:
        """Whether the chips that a pod leaves on a node serve others."""
        if not there:
            return True
        with self.figures.draft.trial():
            assign(pod, node, self.figures, chips)
            return deal_node(there, node, self.figures) is not None

    def _room_beside(self, pod: PodInfo, node: int, chips: Chips, there: Sequence[PodInfo]) -> bool:
        """Whether a pod fits on a node together with those that the witness has there."""
        with self.figures.draft.trial():
            if not self.figures.of(pod).slots[node]:
                return False
            assign(pod, node, self.figures, chips)
            dealt = deal_node(there, node, self.figures)
            if dealt is None:
                return False
            for one in there:
                if not self.figures.of(one).slots[node]:
                    return False
                assign(one, node, self.figures, dealt.get(one.key, ()))
            return True

    def _anew(self, pod: PodInfo, node: int, chips: Chips) -> bool:
        """Whether all others can be placed with the pod on a node, by any placement."""
        figures = self.figures
        with figures.draft.trial():
            assign(pod, node, figures, chips)
            unit = after(self.unit, {pod.key: node}, figures)
            found = place_all(unit, self.coming.keys() - {pod.key}, figures)
        if not found.placed and len(self.coming) > 1:
            return False
        self.coming = {pod.key: node, **{unit.members[rank].key: at for rank, at in found.nodes.items()}}
        return True


def place_all(unit: Unit, wanted: Collection[str], figures: Figures) -> Solution:
    """Any placement of all the chosen pending pods of a unit."""
    if not wanted:
        return Solution({}, Proof.OPTIMAL)
    gangs = tuple(replace(g, pods=tuple(p for p in g.pods if not p.pending or p.key in wanted)) for g in unit.gangs)
    cut = Unit(id=unit.id, gangs=gangs)
    problem = replace(build(cut, figures), needs=tuple(len(gang.pending) for gang in gangs))
    found = place_jointly(cut, problem, figures)
    ranks = {pod.key: rank for rank, pod in enumerate(unit.members)}
    nodes = {ranks[cut.members[rank].key]: node for rank, node in found.nodes.items()}
    return Solution(nodes, found.proof, found.runs)


def _straight(unit: Unit, problem: Problem, figures: Figures) -> dict[str, int] | None:
    """Every pod on its best node, where that strands nobody: then no sequence is greater."""
    if not problem.allowed(problem.pending) or not _enough_copies(problem):
        return None
    nodes: dict[str, int] = {}
    with figures.draft.trial():
        for pod in unit.pending:
            if npu_resource(pod.requests) is None:
                continue
            node = best_node(pod, figures)
            if node is None:
                return None
            assign(pod, node, figures)
            nodes[pod.key] = node
        others = [pod.key for pod in unit.pending if pod.key not in nodes]
        if others:
            rest = place_all(after(unit, nodes, figures), others, figures)
            if not rest.placed:
                return None
            nodes |= {unit.members[rank].key: node for rank, node in rest.nodes.items()}
    return {pod.key: nodes[pod.key] for pod in unit.pending}


def _enough_copies(problem: Problem) -> bool:
    """Whether the nodes serve as many pods of each shape as there are, the others left out."""
    return all(int(problem.slots_of[shape].sum()) >= number for shape, number in problem.wanted.items())


def place_ranked(unit: Unit, problem: Problem, figures: Figures) -> tuple[dict[str, int], Proof, tuple[SolverRun, ...]]:
    """(pod key -> node, proof, solver runs) of a gang without a gather goal; no nodes where there is no plan."""
    straight = _straight(unit, problem, figures)
    if straight is not None and _lawful(unit, problem, straight):
        return straight, Proof.OPTIMAL, ()
    first = place_jointly(unit, problem, figures)
    if not first.placed:
        return {}, first.proof, first.runs
    members = unit.members
    walk = _Walk(unit, figures, {members[rank].key: node for rank, node in sorted(first.nodes.items())})
    nodes: dict[str, int] = {}
    jointly = {members[rank].key: node for rank, node in first.nodes.items()}
    with figures.draft.trial():
        for rank in sorted(first.nodes):
            pod = members[rank]
            if npu_resource(pod.requests) is None:
                continue
            found = walk.choose(pod)
            if found is None:
                return jointly, Proof.FEASIBLE, first.runs
            node, chips = found
            nodes[pod.key] = walk.placed[pod.key] = node
            assign(pod, node, figures, chips)
            del walk.coming[pod.key]
        if walk.coming:
            rest = place_all(walk.unit, walk.coming, figures)
            nodes |= {members[rank].key: node for rank, node in rest.nodes.items()} or walk.coming
    if not _lawful(unit, problem, nodes):
        return jointly, Proof.FEASIBLE, first.runs
    return nodes, first.proof, first.runs


def _lawful(unit: Unit, problem: Problem, nodes: Mapping[str, int]) -> bool:
    """Whether the members may stand so in the end: one that has its place hears no more of those behind it, who may
    break its spread."""
    shapes = {pod.key: member.shape for pod, member in zip(unit.members, problem.members, strict=True)}
    return not faults(problem.interactions, Counter((shapes[key], node) for key, node in nodes.items()))
