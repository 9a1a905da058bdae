# SPDX-License-Identifier: Apache-2.0
"""Costs of nodes for a plain pod with GPUs (gpu-topology.md 5, kube-parity.md 3).

Nodes are compared by the slowest pair that the pod would get, then by fewest free GPUs left; then scores decide. Costs
are cached per shape, and recomputed only for nodes that the draft changed.
"""

from collections.abc import Sequence

import numpy as np

from koordpy.cache.snapshot import Ints
from koordpy.devices.gpu.choice.gpu_wants import PodWant
from koordpy.devices.gpu.gpu_nodes import GpuNodes, UnreadableWish, gpu_nodes, want_of
from koordpy.plugins.filter_inputs import FilterInputs
from koordpy.pods.pod_info import PodInfo


def plain_gpus(pod: PodInfo, inputs: FilterInputs) -> "PlainGpus":
    """Returns the costs of nodes for a plain pod, one object for all pods of its shape in a round."""
    found = inputs.memo.setdefault(_PlainGpusOfShapes, _PlainGpusOfShapes())
    assert isinstance(found, _PlainGpusOfShapes)
    return found.of(pod, inputs)


class _PlainGpusOfShapes(dict[bytes, "PlainGpus"]):
    """Shape -> costs of nodes; stored with the inputs of a round."""

    def of(self, pod: PodInfo, inputs: FilterInputs) -> "PlainGpus":
        """Returns the costs of nodes for a pod, created on the first request for its shape."""
        found = self.get(pod.shape)
        if found is None:
            found = self[pod.shape] = PlainGpus(pod, gpu_nodes(inputs))
        return found


class PlainGpus:
    """Costs of nodes for plain pods of one shape, computed per node on first use."""

    def __init__(self, pod: PodInfo, gpus: GpuNodes) -> None:
        self._pod, self._gpus = pod, gpus
        try:
            self._want: PodWant | None = want_of(pod)
        except UnreadableWish:
            self._want = None
        count = len(gpus.draft.snapshot.nodes)
        self.slow: Ints = np.full(count, -1, dtype=np.int64)
        """[nodes] class of the slowest pair that the pod gets; -1 if the node does not take it."""
        self.left: Ints = np.zeros(count, dtype=np.int64)
        """[nodes] free GPUs that the pod would leave."""
        self._known = np.zeros(count, dtype=bool)
        self._seen = gpus.draft.version

    def at(self, nodes: Ints) -> Sequence[Ints]:
        """Returns the costs of the given nodes (positions), the most important first: the slowest pair, the cost of
        zones, the GPUs left. A cost that is equal on all nodes may be left out."""
        gpus = self._gpus
        zones = [gpus.zones.pod_costs(self._pod)[nodes]] if gpus.zones is not None else []
        *slow, left = self.without_zones(nodes)
        return *slow, *zones, left

    def without_zones(self, nodes: Ints) -> Sequence[Ints]:
        """Returns the same as `at` without the cost of zones."""
        gpus, want = self._gpus, self._want
        if not gpus.view.nodes and want is not None and not want.least_kbs:
            return (gpus.counted(nodes, self._pod) - want.count,)
        draft = self._gpus.draft
        self._known[draft.touched_since(self._seen)] = False
        self._seen = draft.version
        for node in nodes[~self._known[nodes]].tolist():
            self._compute(node)
        return -self.slow[nodes], self.left[nodes]

    def _compute(self, node: int) -> None:
        self._known[node] = True
        gpus, want = self._gpus, self._want
        zones = gpus.pod_zones(node, (self._pod,)) if gpus.zones is not None else None
        worth = gpus.link_classes(node, (want,), None, zones) if want is not None else None
        self.slow[node] = -1 if worth is None else worth.low
        self.left[node] = gpus.usable_gpus(node, self._pod) - (want.count if want is not None else 0)
