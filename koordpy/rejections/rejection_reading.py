# SPDX-License-Identifier: Apache-2.0
"""Recognizes pods that a kubelet rejected, and reads when they were rejected and when running pods were bound.

Source: numa.md 8.1 and 8.5. Only reasons about resources and devices count. A kubelet that refuses a pod because of
ports, labels, taints or its spec is ignored: filters check ports, labels and taints, and a kubelet that refuses a spec
will always refuse it.
"""

from koordpy.api.objects import Pod, condition_of
from koordpy.api.times import seconds

UNEXPECTED = "UnexpectedAdmissionError"
"""Reason of a kubelet with a device plugin or a resource manager that failed."""
TOPOLOGY = "TopologyAffinityError"
"""Reason of a kubelet that could not align a pod with NUMA zones."""
_REASONS = {
    UNEXPECTED: UNEXPECTED,
    TOPOLOGY: TOPOLOGY,
    "Topology Affinity Error": TOPOLOGY,  # before Kubernetes 1.22
    "SMTAlignmentError": "SMTAlignmentError",
}
OUT_OF = "OutOf"
"""Beginning of reasons that name a resource, such as OutOfcpu."""


def rejection_reason(pod: Pod) -> str:
    """Returns the reason for which a kubelet rejected a pod; empty if it was not rejected, or if it ran.

    The caller must check a reason that begins with `OUT_OF`: it counts only if the pod fits the totals of the node.
    """
    status = pod.status
    if status.phase != "Failed" or not pod.spec.node_name:
        return ""
    if any(one.container_id for one in (*status.container_statuses, *status.init_container_statuses)):
        return ""
    return status.reason if status.reason.startswith(OUT_OF) else _REASONS.get(status.reason, "")


def rejection_time(pod: Pod, now: float) -> float:
    """Returns when a pod was rejected, in seconds since 1970, at most `now`: the latest transition of its conditions,
    else its startTime, else its creation."""
    status = pod.status
    latest = max((seconds(one.last_transition_time) for one in status.conditions), default=0.0)
    return min(now, latest or seconds(status.start_time) or seconds(pod.metadata.creation_timestamp))


def bind_time(pod: Pod) -> float:
    """Returns when a running pod was bound, in seconds since 1970: by its condition PodScheduled, else its startTime.

    0 if neither is known.
    """
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    at = seconds(scheduled.last_transition_time) if scheduled is not None and scheduled.status == "True" else 0.0
    return at or seconds(pod.status.start_time)
