"""What the Binding of an NPU pod says: its chips and its rank, as the device plugin reads them (ascend.md 6)."""

from koordpy.api import keys
from koordpy.cluster.npus import chip_ids, npu_resource
from koordpy.cluster.pods import PodInfo
from koordpy.planning.ascend.job import AscendJob


def chip_notes(job: AscendJob, pod: PodInfo, chips: tuple[int, ...]) -> dict[str, str]:
    """Annotations of one NPU pod; chips ascending."""
    resource = npu_resource(pod.requests)
    if resource is None:
        raise ValueError(f"{pod.key} asks for no NPUs")
    notes = {resource: chip_ids(chips, resource), keys.DISTRIBUTED_JOB: "true" if job.several else "false"}
    if job.several:
        notes[keys.RANK_INDEX] = str(job.ranks[pod.key])
    return notes
