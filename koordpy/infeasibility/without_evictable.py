"""The cluster once every pod that can end has ended: what could ever be placed on the nodes as they are."""

from collections.abc import Collection

from koordpy.cache.plan_draft import Draft
from koordpy.feasibility.round_state import RoundState
from koordpy.pods.pod_info import stays


def emptied(figures: RoundState, *, but: Collection[str] = ()) -> RoundState:
    """Figures of another draft, from which all have gone but those that stay and those named."""
    snapshot = figures.snapshot
    draft = Draft(snapshot)
    for pod in snapshot.pods.values():
        if pod.bound and pod.key not in but and not stays(pod):
            draft.evict(pod)
    return figures.of_draft(draft)
