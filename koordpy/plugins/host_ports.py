# SPDX-License-Identifier: Apache-2.0
"""NodePorts filter: at most one pod of a node may use a host port (kube-parity.md 2.4).

Two host ports conflict if protocol and port are equal, and the addresses are equal or one of them is the wildcard.
"""

from collections.abc import Sequence

import numpy as np

from koordpy.cache.snapshot import Ints, Snapshot
from koordpy.framework.filter_protocol import Code, Refusal, Verdict, refused_where
from koordpy.framework.pod_rule_filter import Rule
from koordpy.pods.pod_info import PodInfo
from koordpy.pods.pod_ties import ANY_ADDRESS, HostPort

TAKEN = Refusal("NodePorts", Code.UNSCHEDULABLE, ("node(s) didn't have free ports for the requested pod ports",))


def ports_conflict(one: HostPort, other: HostPort) -> bool:
    """Returns True if two pods with these host ports cannot be on the same node."""
    if (one.protocol, one.port) != (other.protocol, other.port):
        return False
    return one.address == other.address or ANY_ADDRESS in (one.address, other.address)


class NodePorts(Rule):
    """Refuses nodes on which a pod uses a host port that conflicts with a host port of this pod.

    Conflicts between members of a unit are part of its placement problem (`is_in_problem`): a host port is a resource
    there, with capacity 1 on each node (`gangs/member_constraints.py`).
    """

    plugin = TAKEN.plugin
    is_in_problem = True
    before_fit = True

    def __init__(self, pod: PodInfo, snapshot: Snapshot) -> None:
        self._wanted: Sequence[HostPort] = pod.ties.ports
        self._holders: Ints = np.zeros(len(snapshot.nodes), dtype=np.int64)
        """[nodes] number of host ports in use that conflict with a port of the pod."""
        for wanted in self._wanted:
            for (name, address), count in snapshot.ports.get((wanted.protocol, wanted.port), {}).items():
                if name in snapshot.index and ports_conflict(wanted, wanted._replace(address=address)):
                    self._holders[snapshot.index[name]] += count

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `Rule.change`: counts the ports of the pod that conflict."""
        if not pod.ties.ports:
            return False
        conflicts = sum(ports_conflict(wanted, held) for wanted in self._wanted for held in pod.ties.ports)
        self._holders[node] += sign * conflicts
        return bool(conflicts)

    def verdict(self) -> Verdict:
        """Implements `Rule.verdict`: refuses nodes with a conflicting port in use."""
        return refused_where(self._holders > 0, TAKEN)

    def copies(self) -> Ints | None:
        """Implements `Rule.copies`: one pod of this shape per node, because two of them conflict."""
        return np.ones(len(self._holders), dtype=np.int64)
