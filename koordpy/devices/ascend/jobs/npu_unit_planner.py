"""Where an Ascend job goes: the gate of illegal jobs, and the placement of units that have an order of their own.

Jobs with switches or SuperPoDs are planned gang by gang, the largest size that has a plan; whoever else is in the unit
is placed ordinarily beside them. Units with a gather goal and neither are placed by the generic planner (ascend.md 6).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from koordpy.api import keys
from koordpy.cluster.npus import npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.planning.ascend.job import AscendJob
from koordpy.planning.build import build, hard_level
from koordpy.planning.figures import Figures
from koordpy.planning.gangs import Gang
from koordpy.planning.gates import Gate
from koordpy.planning.jobs.ascend.blocks import BlockJob, step
from koordpy.planning.jobs.ascend.moves import keep_room, may_move_blocks, move
from koordpy.planning.jobs.ascend.ranked import assign, place_ranked
from koordpy.planning.jobs.ascend.standing import Bools, Placed, after, jobs_of, placed_of, settled
from koordpy.planning.jobs.ascend.switch_jobs import SwitchJob
from koordpy.planning.joint import place_jointly
from koordpy.planning.parts import has_parts
from koordpy.planning.plan import GangStatus, Proof, Reason
from koordpy.planning.units import Unit

OWN, PLANNED, SHARED = 200, 100, 99
"""AscendAffinity of the nodes of a plan: the pod's own, another, one under a shared leaf."""


def npu_gate(unit: Unit, figures: Figures) -> Gate | None:
    """An illegal job, or one of parts that its own order would not keep: none of its unit's pods is tried."""
    for pod in unit.pending:
        job = figures.npu_job(pod)
        if isinstance(job, str):
            return Gate(f"JobValidateFailed: {job}", GangStatus.INVALID, Reason.JOB_VALIDATE_FAILED, ("AscendJob",))
    if has_parts(unit) and has_own_order(unit, figures):
        text = "scope gang or replica does not go with switch affinity or SuperPoDs"
        return Gate(f"gang {unit.group_id}: networkTopologyAware: {text}", GangStatus.INVALID)
    return None


def has_own_order(unit: Unit, figures: Figures) -> bool:
    """Whether switches or SuperPoDs decide where some job of a unit goes."""
    return any(isinstance(job := figures.npu_job(pod), AscendJob) and job.own_order for pod in unit.pending)


def place_npus(unit: Unit, figures: Figures) -> Placed | None:
    """The placement of a unit with NPU pods; None where the generic planner places it."""
    jobs = jobs_of(unit, figures)
    if not jobs:
        return None
    unit = after(unit, placed_of(unit, figures), figures)
    if any(job.own_order for job in jobs.values()):
        waiting = {pod.gang for pod in unit.pending}
        own = [settled(job, figures) for gang, job in jobs.items() if job.own_order and gang in waiting]
        return _OwnOrder(unit, own, figures).place()
    if unit.plain is not None or unit.has_goal:
        return None
    nodes, proof, runs = place_ranked(unit, build(unit, figures), figures)
    return Placed(nodes, proof, runs)


@dataclass
class _OwnOrder:
    """A unit of which some jobs ask for switches or SuperPoDs."""

    unit: Unit
    jobs: Sequence[AscendJob]
    figures: Figures

    def place(self) -> Placed:
        best: Placed | None = None
        for may_move in (False, True) if any(may_move_blocks(job) for job in self.jobs) else (False,):
            for within in self._places():
                with self.figures.draft.trial():
                    found = self._within(within, may_move=may_move)
                order = (-len(found.nodes), found.worth)
                if best is None or (found.nodes and (not best.nodes or order < (-len(best.nodes), best.worth))):
                    best = found
            if best is not None and best.nodes:
                break
        return best or Placed({}, Proof.INFEASIBLE)

    def _places(self) -> Iterator[Bools | None]:
        """Where the members may go: anywhere, or each domain of the lowest mandatory layer in natural order."""
        tree = self.figures.snapshot.tree
        level = hard_level(self.unit, self.figures)
        if not level:
            yield None
            return
        index = self.figures.snapshot.index
        held = {int(tree.domain_of[level, index[pod.node]]) for pod in self.unit.members if pod.node in index}
        for domain in range(len(tree.levels[level])):
            if not held or held == {domain}:
                yield np.asarray(tree.domain_of[level] == domain)

    def _within(self, within: Bools | None, *, may_move: bool) -> Placed:
        nodes: dict[str, int] = {}
        notes: dict[str, Mapping[str, str]] = {}
        worth: list[Any] = []
        remarks: list[str] = []
        moves: list[Placed] = []
        for job in self.jobs:
            seated, remark = self._job(job, within)
            if seated is None and may_move and may_move_blocks(job):
                pods = [pod for pod in job.pods if pod.pending]
                found = move(job, self.figures, pods, within=within)
                if found is not None:
                    moves.append(found)
                    seated = found
                    for pod in found.evicted:
                        self.figures.draft.evict(pod)
                    keep_room(found.returns, self.figures)
            if seated is None:
                return Placed({}, Proof.INFEASIBLE, remark=remark)
            for key, node in seated.nodes.items():
                assign(self.figures.snapshot.pods[key], node, self.figures)
            nodes |= seated.nodes
            notes |= seated.notes
            worth.append(seated.worth)
            remarks += [remark] if remark else []
        placed = self._others(nodes, notes)
        return replace(
            placed,
            remark="; ".join(remarks),
            worth=tuple(worth),
            evicted=tuple(pod for one in moves for pod in one.evicted),
            returns={key: node for one in moves for key, node in one.returns.items()},
            moved="; ".join(one.moved for one in moves),
        )

    def _job(self, job: AscendJob, within: Bools | None) -> tuple[Placed | None, str]:
        """(the largest size of a job that has a plan, why it is not the whole job)."""
        pods = [pod for pod in job.pods if pod.pending]
        kind = BlockJob if job.blocks is not None else SwitchJob
        planner = kind(job, self.figures, within=within)
        remark = ""
        for size in self._sizes(job, pods):
            if not self._allowed(pods[:size]):
                continue
            seated = planner.plan(pods[:size])
            if seated is not None:
                return seated, remark
            remark = remark or planner.remark()
        return None, remark

    def _sizes(self, job: AscendJob, pods: Sequence[PodInfo]) -> Iterator[int]:
        """Numbers of pending NPU pods to try, the largest first."""
        yield len(pods)
        gang = self._gang(pods[0])
        if gang is None:
            return
        others = sum(npu_resource(pod.requests) is None for pod in gang.pending)
        least = max(1, self.unit.need(gang) - others)
        unit_step = step(job.blocks)
        standing = len(job.pods) - len(pods)
        for size in range(len(pods) - 1, least - 1, -1):
            if (size + standing) % unit_step == 0:
                yield size

    @cached_property
    def _allowed(self) -> Callable[[Sequence[PodInfo]], bool]:
        """Whether quotas leave room for some of the unit's pods together."""
        if not self.figures.snapshot.quotas.tree.quotas:
            return lambda pods: True
        problem = build(self.unit, self.figures)
        ranks = {pod.key: rank for rank, pod in enumerate(self.unit.members)}
        return lambda pods: problem.allowed(ranks[pod.key] for pod in pods)

    def _gang(self, pod: PodInfo) -> Gang | None:
        return next((gang for gang in self.unit.gangs if gang.ref == pod.gang), None)

    def _others(self, nodes: dict[str, int], notes: Mapping[str, Mapping[str, str]]) -> Placed:
        """Everybody else of the unit, with the jobs above in place."""
        own = {pod.key for job in self.jobs for pod in job.pods}
        if self.unit.plain is not None or all(pod.key in own for pod in self.unit.pending):
            return Placed(nodes, Proof.OPTIMAL, notes=notes)
        unit = after(self.unit, nodes, self.figures)
        waiting = {pod.key for pod in unit.pending if pod.key in own}
        gangs = tuple(replace(g, pods=tuple(p for p in g.pods if p.key not in waiting)) for g in unit.gangs)
        rest = Unit(id=unit.id, gangs=gangs)
        needs = []
        for before in self.unit.gangs:
            placed = sum(pod.key in nodes for pod in before.pending)
            needs.append(max(0, self.unit.need(before) - placed))
        problem = replace(build(rest, self.figures), needs=tuple(needs))
        if unit.has_goal:
            found = place_jointly(rest, problem, self.figures)
            more, proof, runs = {rest.members[r].key: n for r, n in found.nodes.items()}, found.proof, found.runs
        else:
            more, proof, runs = place_ranked(rest, problem, self.figures)
        if not more and any(needs):
            return Placed({}, proof, runs)
        proof = Proof.OPTIMAL if proof is Proof.INFEASIBLE else proof
        both = nodes | more
        ordered = {pod.key: both[pod.key] for pod in self.unit.members if pod.key in both}
        return Placed(ordered, proof, runs, notes)


def affinity_scores(pod: PodInfo, unit: Unit, figures: Figures) -> list[int]:
    """[nodes] AscendAffinity of an NPU pod as `explain` shows it: on the snapshot as it is, nothing of its gang placed
    yet; of a job with switches or SuperPoDs by its plan."""
    job = figures.npu_job(pod)
    chips = figures.of(pod).chips
    if not isinstance(job, AscendJob) or not job.own_order or chips is None:
        return [int(value) for value in chips.affinity.tolist()] if chips is not None else []
    out = [0] * len(figures.snapshot.nodes)
    placed = place_npus(unit, figures)
    for key, node in placed.nodes.items() if placed is not None else ():
        if key in job.ranks:
            shared = placed is not None and placed.notes.get(key, {}).get(keys.SHARED_TOR) == "1"
            out[node] = SHARED if shared else PLANNED
    if placed is not None and pod.key in placed.nodes:
        out[placed.nodes[pod.key]] = OWN
    return out
