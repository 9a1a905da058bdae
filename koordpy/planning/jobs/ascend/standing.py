"""Members of a job that a plan has placed already, seen as those that stand: with their node and what they are told.

A unit whose core is there is planned member by member where victims make the room; each sees those before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec.structs import replace as changed
from numpy.typing import NDArray

from koordpy.cluster.pods import GangRef, PodInfo
from koordpy.planning.ascend.filter import AscendChips
from koordpy.planning.ascend.job import AscendJob
from koordpy.planning.figures import Figures
from koordpy.planning.plan import Proof, SolverRun
from koordpy.planning.units import Unit

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of a unit, or of a job in it. nodes: pod key -> node, empty where there is no plan; notes: pod key ->
    annotations beside those of its devices; remark: what the pods that wait are told."""

    nodes: Mapping[str, int]
    proof: Proof = Proof.OPTIMAL
    runs: tuple[SolverRun, ...] = ()
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    remark: str = ""
    evicted: tuple[PodInfo, ...] = ()
    """Bound members of the unit that have to go first: a block that moves."""
    returns: Mapping[str, int] = field(default_factory=dict)
    """Evicted member -> node that is kept for it."""
    moved: str = ""
    """The event on each of these."""
    worth: tuple[Any, ...] = ()
    """Smaller is better, among places that a mandatory layer allows."""


def jobs_of(unit: Unit, figures: Figures) -> dict[GangRef | None, AscendJob]:
    """The legal jobs of a unit's pending pods."""
    return {pod.gang: job for pod in unit.pending if isinstance(job := figures.npu_job(pod), AscendJob)}


def after(unit: Unit, nodes: Mapping[str, int], figures: Figures) -> Unit:
    """The unit with some pods where a plan puts them."""
    return unit.after({key: figures.snapshot.nodes[node].name for key, node in nodes.items()})


def usable_nodes(
    job: AscendJob, figures: Figures, again: Sequence[PodInfo], within: Bools | None
) -> tuple[Bools, AscendChips | None]:
    """([nodes] with room for any of a job's pods that wait and none of its own, the chips as these see them).

    again: evicted members as they come back; within: [nodes] where members may go at all.
    """
    draft, snapshot = figures.draft, figures.snapshot
    able, chips = np.ones(len(snapshot.nodes), dtype=bool) if within is None else within.copy(), None
    waiting = [*again, *(pod for pod in job.pods if pod.pending and pod.key not in draft.placed)]
    for pod in {pod.shape: pod for pod in waiting}.values():
        able &= figures.of(pod).slots > 0
        chips = figures.of(pod).chips
    for pod in job.pods:
        if pod.bound and pod.node in snapshot.index and pod.key not in draft.evicted:
            able[snapshot.index[pod.node]] = False
    return able, chips


def placed_of(unit: Unit, figures: Figures) -> dict[str, int]:
    """Pending members that are on the draft: pod key -> node."""
    draft = figures.draft
    return {pod.key: draft.placed[pod.key] for pod in unit.pending if pod.key in draft.placed}


def settled(job: AscendJob, figures: Figures) -> AscendJob:
    """The job with its members on the draft as if they were bound; itself where there are none."""
    placed, nodes = figures.draft.placed, figures.snapshot.nodes
    if not any(pod.pending and pod.key in placed for pod in job.pods):
        return job

    def there(pod: PodInfo) -> PodInfo:
        if not pod.pending or pod.key not in placed:
            return pod
        meta = pod.pod.metadata
        notes = {**meta.annotations, **figures.notes.get(pod.key, {})}
        wire = changed(pod.pod, metadata=changed(meta, annotations=notes))
        return changed(pod, pod=wire, node=nodes[placed[pod.key]].name, pending=False)

    return replace(job, pods=tuple(map(there, job.pods)))
