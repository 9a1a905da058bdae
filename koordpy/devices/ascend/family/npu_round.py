# SPDX-License-Identifier: Apache-2.0
"""NPU data of a round in addition to its filters: the jobs of the snapshot and the free chips on the draft.

Both are built on the first request by a pod with NPUs, and stored with the round's `FilterInputs`, so that a round
without such pods builds neither.
"""

from dataclasses import replace

from msgspec.structs import replace as changed

from koordpy.devices.ascend.tables.ascend_job import AscendJob
from koordpy.devices.ascend.tables.ascend_jobs import AscendJobs
from koordpy.devices.ascend.tables.free_chips import FreeChips
from koordpy.devices.ascend.tables.npu_book import NPUS
from koordpy.devices.family_round import FamilyRound
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


def ascend_jobs(inputs: FilterInputs) -> AscendJobs:
    """Returns the Ascend jobs of the snapshot; read once per round."""
    found = inputs.memo.get(AscendJobs)
    if not isinstance(found, AscendJobs):
        found = inputs.memo[AscendJobs] = AscendJobs(inputs.snapshot, inputs.config.ascend)
    return found


def free_chips(inputs: FilterInputs) -> FreeChips:
    """Returns the free chips of all nodes, updated with the draft; one object per round."""
    found = inputs.memo.get(FreeChips)
    if not isinstance(found, FreeChips):
        found = inputs.memo[FreeChips] = FreeChips(inputs.draft)
    return found


def npu_job(pod: PodInfo, inputs: FilterInputs) -> AscendJob | str | None:
    """Returns the job of a pending pod, or the reason why it is illegal; None for a pod without an NPU request."""
    return ascend_jobs(inputs).of(pod) if pod.ask(NPUS) is not None else None


def bind_placed(job: AscendJob, now: FamilyRound) -> AscendJob:
    """Returns the job as if members that the draft has placed were bound; the same object if there are none.

    A round may place the members of a job one after the other. A later member must see nodes and annotations of earlier
    ones, as it would after their Bindings.
    """
    placed, nodes = now.inputs.draft.placed, now.inputs.snapshot.nodes
    if not any(pod.pending and pod.key in placed for pod in job.pods):
        return job

    def there(pod: PodInfo) -> PodInfo:
        if not pod.pending or pod.key not in placed:
            return pod
        meta = pod.pod.metadata
        notes = {**meta.annotations, **now.notes.get(pod.key, {})}
        wire = changed(pod.pod, metadata=changed(meta, annotations=notes))
        return changed(pod, pod=wire, node=nodes[placed[pod.key]].name, pending=False)

    return replace(job, pods=tuple(map(there, job.pods)))
