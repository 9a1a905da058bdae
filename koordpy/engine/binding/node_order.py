# SPDX-License-Identifier: Apache-2.0
"""The order of the Bindings to one node with NUMA data: one at a time, in the order of the plan (numa.md 7).

The kubelet gives a pod zones from what the pods that it admitted before have left. If Bindings to one node were sent at
the same time, pods could arrive in another order than planned, get other zones, and later pods would be rejected.
"""

from collections import deque

from koordpy.cache.cluster_state import ClusterState
from koordpy.engine.binding.unit_commit import PendingBinding


class NodeOrder:
    """Bindings that wait until earlier Bindings to their nodes are answered. Other nodes get Bindings at once."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._waiting: dict[str, deque[PendingBinding]] = {}
        """Node to which a Binding is being sent -> Bindings that wait; only nodes with NUMA data."""

    def of(self, job: PendingBinding) -> PendingBinding | None:
        """Returns the Binding if it may be sent now; None if another one to its node is being sent.

        In that case `next_to` returns it later. After each Binding the caller sends those of `next_to`, until None.
        """
        node = job.placement.node
        if node in self._waiting:
            self._waiting[node].append(job)
            return None
        # a pod without devices and zones takes none that another pod could get
        if job.placement.devices and any(book.predicts_admission(node) for book in self._state.families.values()):
            self._waiting[node] = deque()
        return job

    def next_to(self, node: str) -> PendingBinding | None:
        """Returns the next Binding to a node after one was answered; None if none waits."""
        waiting = self._waiting.get(node)
        if waiting:
            return waiting.popleft()
        self._waiting.pop(node, None)
        return None
