# SPDX-License-Identifier: Apache-2.0
"""Plans moves of whole blocks out of SuperPoDs that have too few usable nodes for their missing members.

A block is stuck if its SuperPoD has no node left for a failed member. A job requests moves by label `fault-scheduling`
(docs/rules/ascend.md 5.3). First the stuck blocks are evicted on a trial draft and the job is planned again. If that
fails, the same is tried with the whole job, if its recovery policy allows it. A move is planned only together with a
complete new placement, so failed attempts cannot repeat evictions. At most three plans of the job.
"""

from collections.abc import Iterator, Mapping, Sequence

from koordpy.api import keys
from koordpy.devices.ascend.family.npu_round import free_chips
from koordpy.devices.ascend.jobs.placed_members import Bools
from koordpy.devices.ascend.jobs.superpod_jobs import BlockJob
from koordpy.devices.ascend.tables.ascend_job import AscendJob
from koordpy.devices.ascend.tables.npu_book import NPUS, chip_numbers, npu_resource
from koordpy.devices.placement_rules import JobPlan
from koordpy.feasibility.round_state import RoundState
from koordpy.pods.pod_info import PodInfo
from koordpy.preemption.selection.victim_units import untouchable

MOVE_VALUES = ("grace", "force")
"""Values of label `fault-scheduling` that request moves."""


def allows_block_moves(job: AscendJob) -> bool:
    """Returns whether a job requests that its stuck blocks are moved, by its label.

    Not if its recovery policy is `pod`, which replaces single pods only.
    """
    asked = job.keys.labels.get(keys.FAULT_SCHEDULING) in MOVE_VALUES
    return asked and job.blocks is not None and job.keys.annotations.get(keys.RECOVER_POLICY) != "pod"


def plan_move(
    job: AscendJob, round_state: RoundState, pods: Sequence[PodInfo], *, within: Bools | None
) -> JobPlan | None:
    """Returns a plan that evicts blocks of a job and places all its members; None if the job may not move or fits
    nowhere.

    pods: pending pods of the job. within: [nodes] allowed for members, None for all. The result places `pods`; the
    nodes of the evicted members are in `JobPlan.returns`.
    """
    path = job.keys.annotations.get(keys.RECOVER_POLICY)
    if not allows_block_moves(job):
        return None
    planner = BlockJob(job, round_state, within=within)
    if planner.plan(pods) is not None or not planner.stuck:
        return None
    numbers = planner.numbers()
    whole = path is None or "job" in path.split(",")
    for evicted, what in _evictions(planner, numbers, whole=whole):
        if any(untouchable(pod) for pod in evicted):
            continue
        with round_state.draft.trial(without=evicted):
            again = BlockJob(job, round_state, within=within, numbers=numbers)
            members = sorted((*pods, *evicted), key=lambda pod: job.ranks[pod.key])
            found = again.plan(members)
        if found is not None:
            gone = {pod.key for pod in evicted}
            returns = {key: node for key, node in found.nodes.items() if key in gone}
            stay = {key: node for key, node in found.nodes.items() if key not in gone}
            staying_notes = {key: own for key, own in found.notes.items() if key not in gone}
            places = ", ".join(dict.fromkeys(found.notes[pod.key][keys.BOUND_SUPER_POD] for pod in members))
            moved = f"{what} of {job.name} moves to SuperPoD {places}"
            return JobPlan(stay, notes=staying_notes, evicted=evicted, returns=returns, moved=moved)
    return None


def _evictions(
    planner: BlockJob, numbers: Mapping[int, int], *, whole: bool
) -> Iterator[tuple[tuple[PodInfo, ...], str]]:
    """Yields (bound members to evict, name of the moved part): the stuck blocks, then the whole job if `whole`."""
    bound = planner.bound
    blocks = ", ".join(str(k) for k in planner.stuck)
    yield tuple(pod for rank, pod in sorted(bound.items()) if numbers[rank] in planner.stuck), f"block {blocks}"
    if whole:
        yield tuple(pod for _, pod in sorted(bound.items())), "the whole job"


def hold_returns(returns: Mapping[str, int], round_state: RoundState) -> None:
    """Puts evicted members (pod key -> node position) back on the draft, which reserves their nodes until they return.

    Each is allocated all free chips of its node, because members of such jobs use whole nodes.
    """
    for key, node in returns.items():
        pod = round_state.snapshot.pods[key]
        resource = npu_resource(pod.requests) or ""
        round_state.draft.assign(
            pod, node, devices={NPUS: chip_numbers(free_chips(round_state.inputs).of(resource).free[node])}
        )
