# SPDX-License-Identifier: Apache-2.0
"""Preemption for jobs under switches or in SuperPoDs: conditions for the victim model, dry runs, return of moved jobs.

Victims follow the general rules (docs/rules/ascend.md 5.3, preemption.md 1 to 6). The victim model counts pods per
node. It gets those conditions of blocks and leaves that sums over nodes can express. The planner of the job decides if
a choice of victims is enough, on a draft without the victims.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from koordpy.api.natural_order import natural_key
from koordpy.devices.ascend.family.npu_round import ascend_jobs, npu_job
from koordpy.devices.ascend.jobs.npu_unit_planner import has_placement_rules, place_npus
from koordpy.devices.ascend.jobs.placed_members import legal_jobs
from koordpy.devices.ascend.jobs.rank_sequence import best_node
from koordpy.devices.ascend.jobs.superpod_jobs import BlockJob, step
from koordpy.devices.ascend.jobs.switch_jobs import SwitchJob
from koordpy.devices.ascend.tables.ascend_job import AscendJob, Tor
from koordpy.devices.ascend.tables.leaf_switches import Uplinks
from koordpy.devices.ascend.tables.npu_book import npu_resource
from koordpy.devices.ascend.tables.switch_table import Switches
from koordpy.devices.placement_rules import JobPlan, PlaceConditions
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Unit
from koordpy.placement.problem import Ints, Problem, Shape
from koordpy.pods.pod_info import PodInfo


def add_server_demands(unit: Unit, problem: Problem, round_state: RoundState) -> Problem:
    """Returns the problem with one more resource for each job with rules: "server", with capacity 1 on each node.

    A node with a bound pod of the job has 0. Each pending pod of the job requests 1, so that its pods are on separate
    nodes.
    """
    found = [npu_job(pod, round_state.inputs) for pod in unit.pending]
    jobs = {id(job): job for job in found if isinstance(job, AscendJob) and job.own_order}
    if not jobs:
        return problem
    columns: list[Ints] = []
    shapes = list(problem.shapes)
    index = round_state.snapshot.index
    for job in jobs.values():
        column = np.ones(len(problem.free), dtype=np.int64)
        column[[index[pod.node] for pod in job.pods if pod.bound and pod.node in index]] = 0
        pairs = zip(problem.members, unit.members, strict=True)
        own = dict.fromkeys(member.shape for member, pod in pairs if pod.pending and pod.key in job.ranks)
        for number in own:
            shape = shapes[number]
            request = (*shape.request, (problem.free.shape[1] + len(columns), 1))
            shapes[number] = Shape(request, shape.allowed, shape.score)
        columns.append(column)
    free = np.concatenate([problem.free, np.stack(columns, axis=1)], axis=1)
    return replace(problem, free=free, shapes=tuple(shapes))


def conditions(unit: Unit, round_state: RoundState) -> PlaceConditions:
    """Returns the conditions of blocks and leaves on the nodes of a unit, for the victim model.

    Hard blocks: the number of pods in each SuperPoD is a multiple of the block size. One leaf: all pods are under the
    same leaf. No conditions unless the unit is one job of only pending NPU pods, because bound pods change what the
    sums mean.
    """
    jobs = legal_jobs(unit, round_state)
    if len(jobs) != 1 or any(npu_resource(pod.requests) is None for pod in unit.pending):
        return PlaceConditions()
    job = next(iter(jobs.values()))
    if any(pod.bound for pod in job.pods):
        return PlaceConditions()
    if job.blocks is not None and not job.blocks.soft:
        found: dict[str, list[int]] = {}
        for node, name in ascend_jobs(round_state.inputs).super_pods.items():
            found.setdefault(name, []).append(node)
        return PlaceConditions(lots=tuple((tuple(nodes), job.blocks.size) for nodes in found.values()))
    switches = ascend_jobs(round_state.inputs).switches if job.tor is not Tor.NONE else ""
    if isinstance(switches, Switches) and (job.tor is Tor.PADDING or switches.table.single_layer):
        leaves: dict[int, list[int]] = {}
        for node, leaf in switches.leaf_of.items():
            leaves.setdefault(leaf, []).append(node)
        return PlaceConditions(one_of=tuple(tuple(nodes) for _, nodes in sorted(leaves.items())))
    return PlaceConditions()


def place_exactly(unit: Unit, wanted: Collection[str], round_state: RoundState) -> JobPlan | None:
    """Returns the placement of exactly the wanted pods (keys) of a unit, on the current draft.

    A plan without nodes means that the rules of a job decide and find no placement. None means that the general planner
    may look for one.
    """
    plain, decides = unit.plain, has_placement_rules(unit, round_state)
    if plain is not None and npu_resource(plain.requests) is not None and not decides:
        node = best_node(plain, round_state)
        return JobPlan({plain.key: node}) if node is not None else None
    placed = place_npus(unit, round_state, wanted)
    if placed is None or placed.evicted or not all(key in placed.nodes for key in wanted):
        return JobPlan({}) if decides else None
    return placed


def complete_blocks(
    unit: Unit, ranks: Sequence[int], candidates: Collection[int], round_state: RoundState
) -> tuple[int, ...] | None:
    """Returns ranks plus the lowest candidates that complete the blocks of their jobs; None if there are too few
    candidates.

    ranks, candidates: positions of members in the unit.
    """
    chosen = set(ranks)
    draft = round_state.draft
    jobs = legal_jobs(unit, round_state)
    for job in jobs.values():
        if job.blocks is None:
            continue
        waiting = [rank for rank in sorted({*ranks, *candidates}) if unit.members[rank].key in job.ranks]
        count = sum(rank in chosen for rank in waiting)
        if not count:
            continue
        count += sum(pod.key in draft.placed or (pod.bound and pod.key not in draft.evicted) for pod in job.pods)
        more = [rank for rank in waiting if rank not in chosen][: -count % step(job.blocks)]
        if (count + len(more)) % step(job.blocks):
            return None
        chosen.update(more)
    return tuple(sorted(chosen))


def is_monotone(unit: Unit, round_state: RoundState) -> bool:
    """Returns whether evicting more pods never makes a feasible placement infeasible.

    With rule set 2.0 it may: a leaf that two jobs share becomes exclusive to one of them if the pods of the other are
    evicted, and an exclusive leaf may not be used.
    """
    if round_state.config.ascend.nslb_version != "2.0" or not has_placement_rules(unit, round_state):
        return True
    switches = ascend_jobs(round_state.inputs).switches
    if not isinstance(switches, Switches):
        return True
    draft, gang = round_state.draft, unit.pending[0].gang
    spanning = Uplinks(ascend_jobs(round_state.inputs), switches).of(
        draft.placed, draft.evicted, round_state.notes, without=gang
    )
    return all(len(jobs) < 2 or not any(job.marks[leaf] == {"2"} for job in jobs) for leaf, jobs in spanning.items())


def place_returning(
    returning: Iterable[PodInfo], round_state: RoundState
) -> Iterator[tuple[list[PodInfo], Mapping[str, int]]]:
    """Yields (moved pods of a job, pod key -> node) of each job with rules, jobs in natural order, pods by rank.

    No nodes if the planner of the job finds none. returning: moved pods, as pending pods.
    """
    jobs: dict[str, tuple[AscendJob, list[PodInfo]]] = {}
    for pod in returning:
        job = npu_job(pod, round_state.inputs)
        if isinstance(job, AscendJob) and job.own_order:
            jobs.setdefault(job.name, (job, []))[1].append(pod)
    for name in sorted(jobs, key=natural_key):
        job, pods = jobs[name]
        moved = {pod.key: pod for pod in pods}
        again = [moved[pod.key] for pod in job.pods if pod.key in moved]
        kind = BlockJob if job.blocks is not None else SwitchJob
        plan = kind(job, round_state, again=again).plan(again)
        yield again, plan.nodes if plan is not None else {}
