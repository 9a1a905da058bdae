"""Where an Ascend job goes: the gate of illegal jobs, and the placement of units that have an order of their own.

Units with a gather goal and neither switches nor SuperPoDs are placed by the generic planner (ascend.md 3, 6).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordpy.cluster.npus import npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.planning.ascend.job import Job
from koordpy.planning.ascend.ranked import place_ranked
from koordpy.planning.figures import Figures
from koordpy.planning.plan import GangStatus, Proof, Reason, SolverRun
from koordpy.planning.units import Gate, Unit


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of a unit. nodes: pod key -> node, empty where there is no plan; notes: pod key -> annotations
    beside those of its chips; remark: what the pods that wait are told."""

    nodes: Mapping[str, int]
    proof: Proof
    runs: tuple[SolverRun, ...] = ()
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    remark: str = ""


def npu_gate(unit: Unit, figures: Figures) -> Gate | None:
    """An illegal job: none of its unit's pods is tried."""
    for pod in unit.pending:
        job = figures.npu_job(pod)
        if isinstance(job, str):
            return Gate(f"JobValidateFailed: {job}", GangStatus.INVALID, Reason.JOB_VALIDATE_FAILED)
    return None


def place_npus(unit: Unit, figures: Figures) -> Placed | None:
    """The placement of a unit with NPU pods; None where the generic planner places it."""
    jobs = [job for pod in unit.pending if isinstance(job := figures.npu_job(pod), Job)]
    if not jobs:
        return None
    if unit.has_goal or all(npu_resource(pod.requests) is None for pod in unit.pending):
        return None
    nodes, proof, runs = place_ranked(unit, figures)
    return Placed(nodes, proof, runs)


def affinity_scores(pod: PodInfo, figures: Figures) -> list[int]:
    """[nodes] AscendAffinity of an NPU pod as `explain` shows it: on the snapshot as it is."""
    chips = figures.of(pod).chips
    assert chips is not None
    return [int(value) for value in chips.affinity.tolist()]
