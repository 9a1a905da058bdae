# SPDX-License-Identifier: Apache-2.0
"""Places units with NPU pods (docs/rules/ascend.md 3 to 6), and rejects illegal jobs before any node is tried.

A job is ruled if it has switch affinity or SuperPoD blocks. A unit with ruled jobs is planned as a whole:

1. For every domain of the MustGather layer, plan one ruled job after the other, each at the largest size that has a
   plan.
2. Add the other pods of the unit: in rank order, or with the general planner if the unit has a gather goal.
3. Choose the domain with the most members, then with the best values of the jobs' objectives.
4. If no domain has a plan, repeat the steps with moves of stuck blocks (`block_moves`), where a job allows them.

A unit of gangs without ruled jobs and without a gather goal is placed in rank order (`rank_sequence`). All other units
are left to the general planner. The cost is O(domains x sizes) plans of a job.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from koordpy.api import keys
from koordpy.devices.ascend.family.npu_filter import chips_rule
from koordpy.devices.ascend.family.npu_round import bind_placed, npu_job
from koordpy.devices.ascend.jobs.block_moves import allows_block_moves, hold_returns, plan_move
from koordpy.devices.ascend.jobs.placed_members import Bools, legal_jobs, placed_members, with_placed
from koordpy.devices.ascend.jobs.rank_sequence import assign, place_ranked
from koordpy.devices.ascend.jobs.superpod_jobs import BlockJob, step
from koordpy.devices.ascend.jobs.switch_jobs import SwitchJob
from koordpy.devices.ascend.tables.ascend_job import AscendJob
from koordpy.devices.ascend.tables.npu_book import npu_resource
from koordpy.devices.placement_rules import JobPlan
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.gang_settings import Gang
from koordpy.gangs.gathered_parts import has_parts
from koordpy.gangs.queue_units import Unit
from koordpy.gangs.unit_gates import Gate, lacks_members
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import GangStatus, Proof
from koordpy.pods.pod_info import PodInfo
from koordpy.problems.problem_building import build, hard_level
from koordpy.problems.unit_placement import Question, place_unit

OWN, PLANNED, SHARED = 200, 100, 99
"""AscendAffinity in explanations of a job with rules: OWN for the node planned for the pod, PLANNED for other nodes of
the plan, SHARED for such nodes under a shared leaf."""


def npu_gate(unit: Unit, round_state: RoundState) -> Gate | None:
    """Returns why no pod of the unit is tried: an illegal job, or parts of a gang that its placement rules do not
    support.

    None if there is no such reason.
    """
    for pod in unit.pending:
        job = npu_job(pod, round_state.inputs)
        if isinstance(job, str):
            return Gate(f"JobValidateFailed: {job}", GangStatus.INVALID, Reason.JOB_VALIDATE_FAILED, ("AscendJob",))
    if has_parts(unit) and has_placement_rules(unit, round_state):
        text = "scope gang or replica cannot be combined with switch affinity or SuperPoDs"
        return Gate(f"gang {unit.group_id}: networkTopologyAware: {text}", GangStatus.INVALID)
    return None


def has_placement_rules(unit: Unit, round_state: RoundState) -> bool:
    """Returns whether the rules of switches or SuperPoDs decide where a job of the unit is placed."""
    return any(isinstance(job := npu_job(pod, round_state.inputs), AscendJob) and job.own_order for pod in unit.pending)


def place_npus(unit: Unit, round_state: RoundState, wanted: Collection[str] | None = None) -> JobPlan | None:
    """Returns the placement of a unit with NPU pods; None if the general planner places it.

    wanted: keys of the pending members to place; None for all.
    """
    jobs = legal_jobs(unit, round_state)
    if not jobs:
        return None
    if lacks_members(unit):
        # members that are being deleted count for no minimum, so fewer members may be pending than must start together
        return JobPlan({}, Proof.INFEASIBLE)
    unit = with_placed(unit, placed_members(unit, round_state), round_state)
    if wanted is not None and unit.plain is None:
        unit = unit.with_changes(lambda pod: pod if not pod.pending or pod.key in wanted else None)
    if any(job.own_order for job in jobs.values()):
        waiting = {pod.key for pod in unit.pending}
        asking = (job for job in jobs.values() if job.own_order and not waiting.isdisjoint(pod.key for pod in job.pods))
        own = [bind_placed(job, round_state) for job in asking]
        return _RuledUnit(unit, own, round_state).place()
    if unit.plain is not None or unit.has_goal:
        return None
    nodes, proof, runs = place_ranked(unit, build(unit, round_state), round_state)
    return JobPlan(nodes, proof, runs)


@dataclass
class _RuledUnit:
    """The placement of a unit in which some jobs have switch or SuperPoD rules. jobs: these jobs only."""

    unit: Unit
    jobs: Sequence[AscendJob]
    round_state: RoundState

    def place(self) -> JobPlan:
        """Returns the best plan over all domains; no nodes if there is none.

        Running blocks (logical SuperPoDs) are moved only if there is no plan without moves.
        """
        best: JobPlan | None = None
        for may_move in (False, True) if any(allows_block_moves(job) for job in self.jobs) else (False,):
            for within in self._domain_masks():
                with self.round_state.draft.trial():
                    found = self._plan_within(within, may_move=may_move)
                order = (-len(found.nodes), found.cost)
                if best is None or (found.nodes and (not best.nodes or order < (-len(best.nodes), best.cost))):
                    best = found
            if best is not None and best.nodes:
                break
        return best or JobPlan({}, Proof.INFEASIBLE)

    def _domain_masks(self) -> Iterator[Bools | None]:
        """Yields [nodes] allowed for the members: one mask for each domain of the lowest MustGather layer.

        Yields None, which allows all nodes, for a unit without a MustGather layer. If members are bound, only their
        domain is yielded.
        """
        tree = self.round_state.snapshot.tree
        level = hard_level(self.unit, self.round_state)
        if not level:
            yield None
            return
        index = self.round_state.snapshot.index
        held = {int(tree.domain_of[level, index[pod.node]]) for pod in self.unit.members if pod.node in index}
        for domain in range(len(tree.levels[level])):
            if not held or held == {domain}:
                yield np.asarray(tree.domain_of[level] == domain)

    def _plan_within(self, within: Bools | None, *, may_move: bool) -> JobPlan:
        """Plans all jobs, then the other pods of the unit, on the nodes in `within`; no nodes if there is no plan.

        Placements stay on the draft, because each job must see the jobs before it. The caller undoes them.
        """
        nodes: dict[str, int] = {}
        notes: dict[str, Mapping[str, str]] = {}
        worth: list[Any] = []
        remarks: list[str] = []
        moves: list[JobPlan] = []
        for job in self.jobs:
            # if no plan keeps the running members, plan again with stuck blocks (`block_moves`) evicted on the draft
            job_plan, remark = self._plan_job(job, within)
            if job_plan is None and may_move and allows_block_moves(job):
                found = plan_move(job, self.round_state, self._pending_pods(job), within=within)
                if found is not None:
                    moves.append(found)
                    job_plan = found
                    for pod in found.evicted:
                        self.round_state.draft.evict(pod)
                    hold_returns(found.returns, self.round_state)
            if job_plan is None:
                return JobPlan({}, Proof.INFEASIBLE, remark=remark)
            for key, node in job_plan.nodes.items():
                assign(self.round_state.snapshot.pods[key], node, self.round_state)
            nodes |= job_plan.nodes
            notes |= job_plan.notes
            worth.append(job_plan.cost)
            remarks += [remark] if remark else []
        placed = self._place_others(nodes, notes)
        return replace(
            placed,
            remark="; ".join(remarks),
            cost=tuple(worth),
            evicted=tuple(pod for one in moves for pod in one.evicted),
            returns={key: node for one in moves for key, node in one.returns.items()},
            moved="; ".join(one.moved for one in moves),
        )

    def _plan_job(self, job: AscendJob, within: Bools | None) -> tuple[JobPlan | None, str]:
        """Returns (plan of a job at the largest feasible size or None, why a larger size that quotas admit had no
        plan).

        The second is empty if no such size failed.
        """
        pods = self._pending_pods(job)
        kind = BlockJob if job.blocks is not None else SwitchJob
        planner = kind(job, self.round_state, within=within)
        remark = ""
        for size in self._sizes(job, pods):
            if not self._admits(pods[:size]):
                continue
            job_plan = planner.plan(pods[:size])
            if job_plan is not None:
                return job_plan, remark
            remark = remark or planner.remark()
        return None, remark

    def _pending_pods(self, job: AscendJob) -> list[PodInfo]:
        """Returns the pods of a job to be placed, by rank."""
        asked = {pod.key for pod in self.unit.pending}
        return [pod for pod in job.pods if pod.pending and pod.key in asked]

    def _sizes(self, job: AscendJob, pods: Sequence[PodInfo]) -> Iterator[int]:
        """Yields numbers of pending NPU pods to try, the largest first.

        The smallest is what the gang needs to start, less its pods without NPUs. Below the full number, only sizes are
        tried that make whole blocks together with bound and placed members.
        """
        yield len(pods)
        gang = self._gang(pods[0])
        if gang is None:
            return
        others = sum(npu_resource(pod.requests) is None for pod in gang.pending)
        least = max(1, self.unit.need(gang) - others)
        unit_step = step(job.blocks)
        live_members = sum(not pod.pending for pod in job.pods)
        for size in range(len(pods) - 1, least - 1, -1):
            if (size + live_members) % unit_step == 0:
                yield size

    @cached_property
    def _admits(self) -> Callable[[Sequence[PodInfo]], bool]:
        """Function that returns whether the quotas admit these pods of the unit together."""
        if not self.round_state.snapshot.quotas.tree.quotas:
            return lambda pods: True
        problem = build(self.unit, self.round_state)
        ranks = {pod.key: rank for rank, pod in enumerate(self.unit.members)}
        return lambda pods: problem.allowed(ranks[pod.key] for pod in pods)

    def _gang(self, pod: PodInfo) -> Gang | None:
        """Returns the gang of a pod; None for a plain pod."""
        return next((gang for gang in self.unit.gangs if gang.ref == pod.gang), None)

    def _place_others(self, nodes: dict[str, int], notes: Mapping[str, Mapping[str, str]]) -> JobPlan:
        """Returns the plan with the other pods of the unit added, such as a launcher without NPUs.

        No nodes if a gang does not reach its minimum. nodes, notes: placement of the jobs' pods, and their annotations.
        """
        own = {pod.key for job in self.jobs for pod in job.pods}
        if self.unit.plain is not None or all(pod.key in own for pod in self.unit.pending):
            return JobPlan(nodes, Proof.OPTIMAL, notes=notes)
        # placed pods of the ruled jobs count as bound, unplaced ones are left out
        unit = with_placed(self.unit, nodes, self.round_state)
        waiting = {pod.key for pod in unit.pending if pod.key in own}
        gangs = tuple(replace(g, pods=tuple(p for p in g.pods if p.key not in waiting)) for g in unit.gangs)
        rest = Unit(id=unit.id, gangs=gangs)
        # what the gangs still need to start
        needs = []
        for before in self.unit.gangs:
            placed = sum(pod.key in nodes for pod in before.pending)
            needs.append(max(0, self.unit.need(before) - placed))
        problem = replace(build(rest, self.round_state), needs=tuple(needs))
        if unit.has_goal:
            found = place_unit(rest, problem, self.round_state, Question.TRIAL)
            more, proof, runs = {rest.members[r].key: n for r, n in found.nodes.items()}, found.proof, found.runs
        else:
            more, proof, runs = place_ranked(rest, problem, self.round_state)
        if not more and any(needs):
            return JobPlan({}, proof, runs)
        proof = Proof.OPTIMAL if proof is Proof.INFEASIBLE else proof
        both = nodes | more
        ordered = {pod.key: both[pod.key] for pod in self.unit.members if pod.key in both}
        return JobPlan(ordered, proof, runs, notes)


def affinity_scores(pod: PodInfo, unit: Unit, round_state: RoundState) -> list[int]:
    """Returns [nodes] AscendAffinity of an NPU pod as `explain` shows it, with no member of its gang placed.

    Empty if the pod has no filter `AscendChips`. For a ruled job: `OWN` on the node planned for the pod, `PLANNED` or
    `SHARED` on other nodes of the plan, 0 elsewhere.
    """
    job = npu_job(pod, round_state.inputs)
    chips = chips_rule(round_state.rules(pod))
    if not isinstance(job, AscendJob) or not job.own_order or chips is None:
        return [int(value) for value in chips.affinity.tolist()] if chips is not None else []
    out = [0] * len(round_state.snapshot.nodes)
    placed = place_npus(unit, round_state)
    for key, node in placed.nodes.items() if placed is not None else ():
        if key in job.ranks:
            shared = placed is not None and placed.notes.get(key, {}).get(keys.SHARED_TOR) == "1"
            out[node] = SHARED if shared else PLANNED
    if placed is not None and pod.key in placed.nodes:
        out[placed.nodes[pod.key]] = OWN
    return out
