"""A block that is stuck moves as a whole, where its job asks for it; where that is no way out, the whole job does.

Decided by proof on the snapshot, not by counting tries (ascend.md 5.3): the block's SuperPoD has too few usable nodes
for the members that are missing, and the new place exists in the same plan.
"""

from collections.abc import Iterator, Mapping, Sequence

from koordpy.api import keys
from koordpy.cluster.npus import chip_numbers, npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.planning.ascend.job import AscendJob
from koordpy.planning.figures import Figures
from koordpy.planning.jobs.ascend.blocks import BlockJob
from koordpy.planning.jobs.ascend.standing import Bools, Placed
from koordpy.planning.victim_selection.units import untouchable

ASKED = ("grace", "force")


def may_move_blocks(job: AscendJob) -> bool:
    """Whether a job asks for its stuck blocks to be moved."""
    asked = job.keys.labels.get(keys.FAULT_SCHEDULING) in ASKED
    return asked and job.blocks is not None and job.keys.annotations.get(keys.RECOVER_POLICY) != "pod"


def move(job: AscendJob, figures: Figures, pods: Sequence[PodInfo], *, within: Bools | None) -> Placed | None:
    """A plan for the pending pods of a job of which a block is stuck; None where it may not move, or has no way out."""
    path = job.keys.annotations.get(keys.RECOVER_POLICY)
    if not may_move_blocks(job):
        return None
    planner = BlockJob(job, figures, within=within)
    if planner.plan(pods) is not None or not planner.stuck:
        return None
    numbers = planner.numbers()
    whole = path is None or "job" in path.split(",")
    for evicted, what in _evictions(planner, numbers, whole=whole):
        if any(untouchable(pod) for pod in evicted):
            continue
        with figures.draft.trial(without=evicted):
            again = BlockJob(job, figures, within=within, numbers=numbers)
            coming = sorted((*pods, *evicted), key=lambda pod: job.ranks[pod.key])
            found = again.plan(coming)
        if found is not None:
            gone = {pod.key for pod in evicted}
            returns = {key: node for key, node in found.nodes.items() if key in gone}
            stay = {key: node for key, node in found.nodes.items() if key not in gone}
            said = {key: own for key, own in found.notes.items() if key not in gone}
            places = ", ".join(dict.fromkeys(found.notes[pod.key][keys.BOUND_SUPER_POD] for pod in coming))
            moved = f"{what} of {job.name} moves to SuperPoD {places}"
            return Placed(stay, notes=said, evicted=evicted, returns=returns, moved=moved)
    return None


def _evictions(
    planner: BlockJob, numbers: Mapping[int, int], *, whole: bool
) -> Iterator[tuple[tuple[PodInfo, ...], str]]:
    """Who would have to go: the stuck blocks, then everybody."""
    standing = planner.standing
    blocks = ", ".join(str(k) for k in planner.stuck)
    yield tuple(pod for rank, pod in sorted(standing.items()) if numbers[rank] in planner.stuck), f"block {blocks}"
    if whole:
        yield tuple(pod for _, pod in sorted(standing.items())), "the whole job"


def keep_room(move_: Mapping[str, int], figures: Figures) -> None:
    """Holds nodes on the draft for members that come back in a later round."""
    for key, node in move_.items():
        pod = figures.snapshot.pods[key]
        resource = npu_resource(pod.requests) or ""
        figures.draft.assign(pod, node, chips=chip_numbers(figures.stock.of(resource).free[node]))
