"""When pods ended, as their containers tell."""

from collections.abc import Iterable

from koordpy.api.objects import Pod
from koordpy.api.times import seconds


def ended_at(pod: Pod) -> float:
    """When the last of its containers ended, in seconds since the epoch; 0 where none says so."""
    states = [status.state for status in pod.status.container_statuses if status.state is not None]
    return max((seconds(one.terminated.finished_at) for one in states if one.terminated is not None), default=0.0)


def failed_since(failed: Iterable[Pod], bound: Iterable[Pod]) -> float | None:
    """Since when members are missing, of a gang of which these pods have failed and those are on nodes: since the last
    one failed, or since the last one came after that; None where none says when it failed."""
    ends = [(ended_at(pod), seconds(pod.metadata.creation_timestamp)) for pod in failed]
    last = max((end for end, _ in ends), default=0.0)
    if any(0 < end < created for end, created in ends):
        return last  # creations that manifests leave out are made up: they do not tell who came after it
    return max([last, *(seconds(pod.metadata.creation_timestamp) for pod in bound)]) if last else None
