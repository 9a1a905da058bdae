# SPDX-License-Identifier: Apache-2.0
"""Decides how and when a pod ended: whether it completed its work, or was evicted.

Read are the pod's containers, conditions and deletion. Rule: gang-network.md 2.4 (success).
"""

from collections.abc import Iterable

from koordpy.api.objects import Pod
from koordpy.api.times import seconds

DISRUPTED = "DisruptionTarget"
"""Condition type of a pod that an eviction, a taint or a preemption is about to end."""


def ended_at(pod: Pod) -> float:
    """Returns when the last container of a pod ended, in seconds since the epoch; 0 if unknown."""
    states = [status.state for status in pod.status.container_statuses if status.state is not None]
    return max((seconds(one.terminated.finished_at) for one in states if one.terminated is not None), default=0.0)


def is_success(pod: Pod) -> bool:
    """Returns True if the pod itself shows success: its phase is Succeeded, and no eviction ended it.

    A container that saves its state on SIGTERM and exits with 0 also leads to phase Succeeded, but its work is not
    complete.
    """
    return pod.status.phase == "Succeeded" and not was_evicted(pod)


def was_evicted(pod: Pod) -> bool:
    """Returns True if a finished pod was ended from outside, by a disruption or a deletion request.

    That is so if it did not end before the request. A pod with restartPolicy Always ends only by deletion. A pod
    without a finishedAt of its containers counts as ended from outside.
    """
    at = ended_at(pod)
    for condition in pod.status.conditions:
        if (condition.type, condition.status) == (DISRUPTED, "True"):
            since = seconds(condition.last_transition_time)
            if not 0 < at < since:  # ended after the disruption began, or at an unknown time
                return True
    meta = pod.metadata
    if not meta.deletion_timestamp:
        return False
    # a later request with a shorter grace period changes both fields, but not their difference
    requested = seconds(meta.deletion_timestamp) - (meta.deletion_grace_period_seconds or 0)
    return pod.spec.restart_policy == "Always" or not 0 < at < requested


def failed_since(failed: Iterable[Pod], bound: Iterable[Pod]) -> float | None:
    """Returns since when a gang lacks members, in seconds since the epoch; None if no failed pod has an end time.

    The time is the end of the gang's last failed pod, or the creation of its last bound pod if that is later. failed,
    bound: pods of the gang.
    """
    ends = [(ended_at(pod), seconds(pod.metadata.creation_timestamp)) for pod in failed]
    last = max((end for end, _ in ends), default=0.0)
    if any(0 < end < created for end, created in ends):
        return last  # a creation time missing in manifests is generated, so it does not order the pods
    return max([last, *(seconds(pod.metadata.creation_timestamp) for pod in bound)]) if last else None
