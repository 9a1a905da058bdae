# SPDX-License-Identifier: Apache-2.0
"""ScarceResourceAvoidance: pods that request no accelerator avoid nodes with accelerators (kube-parity.md 3).

The configuration lists the scarce resources; by default they are GPUs and NPUs. For a pod that requests none of them,
the score is 100 on a node without them, and 0 on a node with some of them. No placement changes the resources of a
node, so the score is computed once from the snapshot and does not follow the draft. For a gang without a gather goal,
the same preference is a separate goal instead, which is compared before the number of nodes (`avoided_nodes`).
"""

from collections.abc import Iterable

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.plugins.soft_scores import Mask, SoftScore
from koordpy.pods.pod_info import PodInfo

SCARCE = "ScarceResourceAvoidance"


class ScarceResourceAvoidance(SoftScore):
    """Prefers nodes without scarce resources, for a pod that requests none of them."""

    plugin = SCARCE
    fixed = True

    def __init__(self, scarce: Ints) -> None:
        """scarce: [nodes] 1 if a node has any scarce resource, else 0."""
        self._points: Ints = 100 * (1 - scarce)

    def change(self, pod: PodInfo, node: int, sign: int) -> bool:
        """Implements `SoftScore.change`: placements do not change the score."""
        return False

    def values(self, feasible: Mask) -> Ints:
        """Implements `SoftScore.values`.

        0 everywhere if all feasible nodes are equal, so that the score makes no difference.
        """
        points = np.where(feasible, self._points, 0)
        alike = not points.any() or bool((points == 100)[feasible].all())
        return np.zeros(len(points), dtype=np.int64) if alike else points


def asks_for_scarce(pod: PodInfo, inputs: FilterInputs) -> bool:
    """Returns True if a pod requests any scarce resource."""
    return any(pod.requests.get(name) for name in inputs.scarce_resources)


def avoided_nodes(members: Iterable[PodInfo], inputs: FilterInputs) -> Ints | None:
    """Returns [nodes] 1 for the nodes with scarce resources, if a gang without a gather goal must avoid them, else 0.

    None if the gang avoids no node: the weight of the score is 0, a member requests a scarce resource, or either all
    nodes or no nodes have scarce resources.
    """
    scarce = inputs.scarce_nodes
    if scarce is None or not inputs.config.scores.weight(SCARCE):
        return None
    return None if any(asks_for_scarce(pod, inputs) for pod in members) else scarce
