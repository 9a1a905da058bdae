"""Why a pod that has no node is left alone: it waits, but not for koordpy.

Nothing is decided here. A misspelt schedulerName, or a gate that nobody takes away, looks like a scheduler that does
not answer; `koordpy explain` and the table of `koordpy simulate` say what it is.
"""

from collections.abc import Sequence
from typing import NamedTuple

from koordpy.cluster.pods import FINISHED, PodInfo


class Aside(NamedTuple):
    """Why a pod is left alone, and what would have to be otherwise."""

    why: str
    miss: str


def aside(pod: PodInfo, served: Sequence[str]) -> Aside | None:
    """Of a pod without a node; None for a pod that waits for koordpy, has a node, ends or has ended.

    served: the scheduler names that are koordpy's.
    """
    spec = pod.pod.spec
    if pod.pending or pod.node or pod.pod.metadata.deletion_timestamp or pod.pod.status.phase in FINISHED:
        return None
    if spec.scheduler_name not in served:
        ours = " or ".join(served)
        return Aside(
            f"pod is of scheduler {spec.scheduler_name}, koordpy serves {ours}", f"its schedulerName were {ours}"
        )
    gates = ", ".join(gate.name for gate in spec.scheduling_gates)
    return Aside(f"pod is held by scheduling gates: {gates}", f"its scheduling gates were taken away: {gates}")
