"""Members of a job that a plan has placed already, seen as those that stand: with their node and what they are told.

A unit whose core is there is planned member by member where victims make the room; each sees those before it.
"""

from collections.abc import Mapping
from dataclasses import replace

from msgspec.structs import replace as changed

from koordpy.cluster.pods import PodInfo
from koordpy.planning.ascend.job import AscendJob
from koordpy.planning.figures import Figures
from koordpy.planning.units import Unit


def after(unit: Unit, nodes: Mapping[str, int], figures: Figures) -> Unit:
    """The unit with some pods where a plan puts them."""
    if unit.plain is not None or not nodes:
        return unit
    names = {key: figures.snapshot.nodes[node].name for key, node in nodes.items()}

    def moved(pod: PodInfo) -> PodInfo:
        return replace(pod, node=names[pod.key], pending=False) if pod.key in names else pod

    return unit.changed(moved)


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
        return replace(pod, pod=wire, node=nodes[placed[pod.key]].name, pending=False)

    return replace(job, pods=tuple(map(there, job.pods)))
