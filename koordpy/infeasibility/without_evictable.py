# SPDX-License-Identifier: Apache-2.0
"""The cluster after every pod that can end has ended: an upper bound of what can be placed on its nodes.

Pods of DaemonSets and mirror pods stay, because they never end.
"""

from collections.abc import Collection

from koordpy.cache.plan_draft import Draft
from koordpy.feasibility.round_state import RoundState
from koordpy.pods.pod_info import stays


def without_evictable_pods(round_state: RoundState, *, but: Collection[str] = ()) -> RoundState:
    """Returns the round state of a new draft from which all bound pods that can end are evicted.

    but: keys of pods that are not evicted.
    """
    snapshot = round_state.snapshot
    draft = Draft(snapshot)
    for pod in snapshot.pods.values():
        if pod.bound and pod.key not in but and not stays(pod):
            draft.evict(pod)
    return round_state.of_draft(draft)
