"""What the Binding of an NPU pod says: its chips and its rank, as the device plugin reads them (ascend.md 6)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from koordpy.api import keys
from koordpy.cluster.npus import chip_ids, npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.planning.ascend.job import Job

if TYPE_CHECKING:
    pass


def chip_notes(job: Job, pod: PodInfo, chips: tuple[int, ...]) -> dict[str, str]:
    """Annotations of one NPU pod; chips ascending."""
    resource = npu_resource(pod.requests)
    if resource is None:
        raise ValueError(f"{pod.key} asks for no NPUs")
    notes = {resource: chip_ids(chips, resource), keys.DISTRIBUTED_JOB: "true" if job.several else "false"}
    if job.several:
        notes[keys.RANK_INDEX] = str(job.ranks[pod.key])
    return notes


def merged(*parts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Pod key -> notes, of several sources."""
    out: dict[str, dict[str, str]] = {}
    for part in parts:
        for key, notes in part.items():
            out.setdefault(key, {}).update(notes)
    return out
