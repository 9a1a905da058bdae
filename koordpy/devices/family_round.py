# SPDX-License-Identifier: Apache-2.0
"""The part of a round that a device family may use (`FamilyRound`), and records that the methods of families return.

The interface of a family is in `device_family.py`. This module must not know any family.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from koordpy.cache.snapshot import Ints
from koordpy.framework.pod_rule_filter import Rule
from koordpy.placement.problem import DeviceCosts
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


class FamilyRound(Protocol):
    """The part of a round that a family may use: the draft, the filters of pending pods, and annotations of placed
    pods."""

    inputs: FilterInputs
    """The draft, the snapshot and the configuration of the round."""

    @property
    def notes(self) -> Mapping[str, Mapping[str, str]]:
        """Pod key -> annotations of the Binding of a pod that this round has placed."""

    def rules(self, pod: PodInfo) -> Sequence[Rule]:
        """Returns the filters of a pending pod that read more than the pod and a node, current with the draft."""

    def takes(self, pod: PodInfo, node: int) -> bool:
        """Returns whether every filter accepts a pending pod on a node (position) of the current draft."""


class UnitCosts(NamedTuple):
    """Costs of nodes for a unit, by the number of its pods on each node. Result of `Family.unit_costs`."""

    table: DeviceCosts
    """Cost vector of each node by the number of pods of each shape on it; the least sum over all nodes is best."""
    already_used: Ints | None = None
    """[nodes] 1 for a node that counts as already used by the unit, because it has bound members; else 0. None if no
    node counts as used. Read only for a unit without a gather goal, which prefers such nodes."""


Placed = Sequence[tuple[PodInfo, int]]
"""(pod, node position) of every pod of a plan."""


class NodeFacts(NamedTuple):
    """Facts that `koordpy explain` shows about nodes besides verdicts and scores. Result of `Family.node_facts`."""

    sentence: str
    """A sentence about all nodes."""
    of: Callable[[int], Mapping[str, Any] | None]
    """Returns the facts about a node (position), as plain values; None for none."""


class Obstruction(NamedTuple):
    """A pod that prevents the placement of a waiting pod, because of the devices that it uses. Result of
    `Family.obstruction`."""

    pod: str
    """Key of the pod that uses the devices."""
    sentence: str
    """What is wrong, as a clause of a message."""
    miss: str
    """Condition that completes the sentence `Would fit if ...`."""
