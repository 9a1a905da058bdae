"""How and when pods ended, as their containers, conditions and deletion tell.

Rule: gang-network.md 2.4 (success).
"""

from collections.abc import Iterable

from koordpy.api.objects import Pod
from koordpy.api.times import seconds

DISRUPTED = "DisruptionTarget"
"""Type of the condition of a pod that an eviction, a taint or a preemption is about to end."""


def ended_at(pod: Pod) -> float:
    """When the last of its containers ended, in seconds since the epoch; 0 where none says so."""
    states = [status.state for status in pod.status.container_statuses if status.state is not None]
    return max((seconds(one.terminated.finished_at) for one in states if one.terminated is not None), default=0.0)


def is_success(pod: Pod) -> bool:
    """True if the pod has succeeded, as far as the pod itself tells: phase Succeeded, and no eviction ended it.

    A container that saves its state on SIGTERM and exits 0 leaves phase Succeeded behind, and has not done its part.
    """
    return pod.status.phase == "Succeeded" and not was_evicted(pod)


def was_evicted(pod: Pod) -> bool:
    """True if a finished pod was ended from outside: it did not end before the disruption, or the request to delete it.

    A pod of restartPolicy Always ends by its deletion alone. A pod without finishedAt is taken as ended from outside.
    """
    at = ended_at(pod)
    for condition in pod.status.conditions:
        if (condition.type, condition.status) == (DISRUPTED, "True"):
            since = seconds(condition.last_transition_time)
            if not 0 < at < since:
                return True
    meta = pod.metadata
    if not meta.deletion_timestamp:
        return False
    # a later request with a shorter grace moves both fields, and leaves their difference as it is
    requested = seconds(meta.deletion_timestamp) - (meta.deletion_grace_period_seconds or 0)
    return pod.spec.restart_policy == "Always" or not 0 < at < requested


def failed_since(failed: Iterable[Pod], bound: Iterable[Pod]) -> float | None:
    """Since when members are missing, of a gang of which these pods have failed and those are on nodes: since the last
    one failed, or since the last one came after that; None where none says when it failed."""
    ends = [(ended_at(pod), seconds(pod.metadata.creation_timestamp)) for pod in failed]
    last = max((end for end, _ in ends), default=0.0)
    if any(0 < end < created for end, created in ends):
        return last  # creations that manifests leave out are made up: they do not tell who came after it
    return max([last, *(seconds(pod.metadata.creation_timestamp) for pod in bound)]) if last else None
