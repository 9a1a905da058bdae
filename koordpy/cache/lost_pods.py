# SPDX-License-Identifier: Apache-2.0
"""Marks the bound members of gangs on lost or deleted nodes (repair.md 4.1), for `ClusterState.snapshot`.

`lost_nodes.py` decides which nodes are lost. A lost member keeps using its node's capacity, but no longer counts as a
member of its gang and in quotas (`PodInfo.lost`). Cost: O(pods on lost nodes) for each snapshot; none without any.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from koordpy.cache.lost_nodes import LostNode
from koordpy.cache.node_book import NodeBook
from koordpy.cache.pod_book import PodBook
from koordpy.pods.gang_refs import GangRef

_ROUNDS = 4
"""Maximum number of repetitions in `update`: marks change gangs, and changed gangs change marks."""


@dataclass
class LostPods:
    """The lost members as of the last call of `update`, and the deleted nodes that still have pods."""

    keys: dict[str, None] = field(default_factory=dict)
    """Keys of the members that were lost at the last call of `update`."""
    absent: set[str] = field(default_factory=set)
    """Names of nodes without an object that had pods at the last call of `update`."""
    _changed: dict[GangRef, None] = field(default_factory=dict)
    """Gangs with members that were lost, or became live again, since the last call of `take_changed`."""

    def update(self, pods: PodBook, nodes: NodeBook, now: float) -> Mapping[str, LostNode]:
        """Marks the members that are lost now, unmarks those that are live again, and derives gangs again.

        Must be called after `PodBook.regroup`, because only members of gangs can be lost. Deriving gangs without the
        lost members can change which pods are members. So both steps are repeated until nothing changes.

        now: seconds since the epoch. Returns lost node -> its taints and condition; deleted nodes are left out.
        """
        lost_nodes, usage = nodes.lost(now), pods.usage
        gone = {name for name in (*usage.take_new(), *nodes.take_dropped()) if nodes.get(name) is None}
        if gone or lost_nodes or self.absent or self.keys:
            self.absent = {name for name in self.absent | gone if nodes.get(name) is None and usage.pods_on(name)}
            for _ in range(_ROUNDS):
                if not self._mark(pods, lost_nodes):
                    break
                pods.regroup(now)
        return lost_nodes

    def take_changed(self) -> list[GangRef]:
        """Returns the gangs with members that were lost, or became live again, since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def _mark(self, pods: PodBook, lost_nodes: Mapping[str, LostNode]) -> bool:
        """Marks and unmarks members of the present gangs as lost. Returns True if the mark of any pod changed."""
        usage, changed = pods.usage, False
        found: dict[str, None] = {}
        for name in (*self.absent, *lost_nodes):
            mark = lost_nodes.get(name)
            for key in usage.pods_on(name):
                info = pods.pod(key)
                if info is None or info.gang is None or not info.pod.spec.node_name:
                    continue
                if mark is None or mark.loss_of(info.pod) is not None:
                    found[key] = None
        for key in {**self.keys, **found}:
            old, lost = pods.pod(key), key in found
            if old is not None and old.lost is not lost:
                info, changed = replace(old, lost=lost), True
                if old.gang is not None:
                    self._changed[old.gang] = None
                pods.workloads.put_pod(info)
                pods.quotas.account(old, -1)
                pods._file(info)
                pods.quotas.account(info, 1)
        self.keys = found
        return changed
