"""The cluster once every pod that can end has ended: what could ever be placed on the nodes as they are."""

from collections.abc import Collection

from koordpy.api import keys
from koordpy.cluster.pods import PodInfo
from koordpy.cluster.snapshot import Draft
from koordpy.planning.figures import Figures


def stays(pod: PodInfo) -> bool:
    """Whether a pod never makes room: one of a DaemonSet, or a mirror of a static one; such come straight back."""
    meta = pod.pod.metadata
    return keys.MIRROR in meta.annotations or any(o.kind == "DaemonSet" and o.controller for o in meta.owner_references)


def emptied(figures: Figures, *, but: Collection[str] = ()) -> Figures:
    """Figures of another draft, from which all have gone but those that stay and those named."""
    snapshot = figures.snapshot
    draft = Draft(snapshot)
    for pod in snapshot.pods.values():
        if pod.bound and pod.key not in but and not stays(pod):
            draft.evict(pod)
    return figures.of_draft(draft)
