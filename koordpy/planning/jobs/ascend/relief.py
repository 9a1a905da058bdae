"""What victims have to make room for, where the beneficiary has an order of its own: switches or SuperPoDs.

Victims follow the general rules (ascend.md 5.3, preemption.md 1 to 6). The search looks at counts per node; what is
said here of blocks and leaves keeps it close to the truth, and the Ascend planner itself is asked whether a choice is
enough.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from koordpy.api.natural import natural_key
from koordpy.cluster.npus import npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.planning.ascend.job import AscendJob, Tor
from koordpy.planning.ascend.leaves import Uplinks
from koordpy.planning.ascend.switches import Switches
from koordpy.planning.figures import Figures
from koordpy.planning.jobs.ascend.blocks import BlockJob, step
from koordpy.planning.jobs.ascend.place import has_own_order, place_npus
from koordpy.planning.jobs.ascend.ranked import best_node
from koordpy.planning.jobs.ascend.standing import Placed, jobs_of
from koordpy.planning.jobs.ascend.switch_jobs import SwitchJob
from koordpy.planning.placement.problem import Ints, Problem, Shape
from koordpy.planning.units import Unit

Nodes = tuple[int, ...]


def one_each(unit: Unit, problem: Problem, figures: Figures) -> Problem:
    """The problem with a server of its own for each pod of a job with an order of its own."""
    jobs = {
        id(job): job for pod in unit.pending if isinstance(job := figures.npu_job(pod), AscendJob) and job.own_order
    }
    if not jobs:
        return problem
    columns: list[Ints] = []
    shapes = list(problem.shapes)
    index = figures.snapshot.index
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


def regions(unit: Unit, figures: Figures) -> tuple[tuple[tuple[Nodes, int], ...], tuple[Nodes, ...]]:
    """What blocks and leaves ask of the places of a unit that is one job and nothing else: (nodes, k), pods there come
    in multiples of k, beside those that stand; nodes of one of which hold all pods, empty where that is not asked."""
    jobs = jobs_of(unit, figures)
    if len(jobs) != 1 or any(npu_resource(pod.requests) is None for pod in unit.pending):
        return (), ()
    job = next(iter(jobs.values()))
    if any(pod.bound for pod in job.pods):
        return (), ()
    if job.blocks is not None and not job.blocks.soft:
        found: dict[str, list[int]] = {}
        for node, name in figures.jobs.super_pods.items():
            found.setdefault(name, []).append(node)
        return tuple((tuple(nodes), job.blocks.size) for nodes in found.values()), ()
    switches = figures.jobs.switches if job.tor is not Tor.NONE else ""
    if isinstance(switches, Switches) and (job.tor is Tor.PADDING or switches.table.single_layer):
        leaves: dict[int, list[int]] = {}
        for node, leaf in switches.leaf_of.items():
            leaves.setdefault(leaf, []).append(node)
        return (), tuple(tuple(nodes) for _, nodes in sorted(leaves.items()))
    return (), ()


def place_chosen(unit: Unit, wanted: Collection[str], figures: Figures) -> Placed | None:
    """The Ascend planner's own placement of at least some of a unit's pods, on the draft as it is; None where it has
    none, or where another planner is asked."""
    plain = unit.plain
    if plain is not None and npu_resource(plain.requests) is not None and not has_own_order(unit, figures):
        node = best_node(plain, figures)
        return Placed({plain.key: node}) if node is not None else None
    placed = place_npus(unit, figures)
    if placed is None or placed.evicted or not all(key in placed.nodes for key in wanted):
        return None
    return placed


def whole_blocks(unit: Unit, ranks: Sequence[int], figures: Figures) -> tuple[int, ...] | None:
    """A core grown by the lowest ranks to what its jobs can be planned with; None where they have too few members."""
    chosen = set(ranks)
    jobs = jobs_of(unit, figures)
    for job in jobs.values():
        if job.blocks is None:
            continue
        waiting = [rank for rank, pod in enumerate(unit.members) if pod.pending and pod.key in job.ranks]
        count = sum(rank in chosen for rank in waiting)
        count += sum(pod.bound and pod.key not in figures.draft.evicted for pod in job.pods)
        more = [rank for rank in waiting if rank not in chosen][: -count % step(job.blocks)]
        if (count + len(more)) % step(job.blocks):
            return None
        chosen.update(more)
    return tuple(sorted(chosen))


def more_is_no_harm(unit: Unit, figures: Figures) -> bool:
    """Whether more victims can never close a place: nobody leans on pods that stay, and no leaf of version 2.0 turns
    into somebody's own when others leave it."""
    if any(figures.of(pod).pulled for pod in {pod.shape: pod for pod in unit.pending}.values()):
        return False
    if figures.config.ascend.nslb_version != "2.0" or not has_own_order(unit, figures):
        return True
    switches = figures.jobs.switches
    if not isinstance(switches, Switches):
        return True
    draft, gang = figures.draft, unit.pending[0].gang
    spanning = Uplinks(figures.jobs, switches).of(draft.placed, draft.evicted, figures.notes, without=gang)
    return all(len(jobs) < 2 or not any(job.marks[leaf] == {"2"} for job in jobs) for leaf, jobs in spanning.items())


def jobs_to_return(again: Iterable[PodInfo], figures: Figures) -> Iterator[tuple[AscendJob, list[PodInfo]]]:
    """The moved pods of each job that has an order of its own, by rank; jobs in natural order. again: as they come
    back."""
    jobs: dict[str, tuple[AscendJob, list[PodInfo]]] = {}
    for pod in again:
        job = figures.npu_job(pod)
        if isinstance(job, AscendJob) and job.own_order:
            jobs.setdefault(job.name, (job, []))[1].append(pod)
    for name in sorted(jobs, key=natural_key):
        job, pods = jobs[name]
        moved = {pod.key: pod for pod in pods}
        yield job, [moved[pod.key] for pod in job.pods if pod.key in moved]


def seats_again(job: AscendJob, again: Sequence[PodInfo], figures: Figures) -> Mapping[str, int]:
    """Pod key -> node of moved members, by rank, as the job's own planner puts them back; empty where it has no place
    for them."""
    kind = BlockJob if job.blocks is not None else SwitchJob
    seated = kind(job, figures, again=again).plan(again)
    return seated.nodes if seated is not None else {}
