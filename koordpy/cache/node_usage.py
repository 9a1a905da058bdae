# SPDX-License-Identifier: Apache-2.0
"""Sums the requests of bound pods by node, and builds the resource arrays of a Snapshot from them.

A change of a pod adds or subtracts its amounts in O(resources). For a Snapshot only the rows of nodes that changed
since the last one are rewritten. All rows are rebuilt after a change of the nodes themselves.
"""

from collections.abc import Collection

import numpy as np

from koordpy.api.quantity import MAX_SUM
from koordpy.cache.node_book import NodeBook
from koordpy.cache.snapshot import PODS, Columns, Ints
from koordpy.pods.pod_info import PodInfo, stays
from koordpy.pods.resource_amounts import Amounts


class _Use:
    """Used amounts of one node. pods: keys of the pods. cpu, memory: milli-cores and bytes for scores, which count
    containers without a request with a default."""

    __slots__ = ("cpu", "memory", "pods", "staying", "used")

    def __init__(self) -> None:
        self.used: Amounts = {}
        self.staying: Amounts = {}
        """Amounts and number of pods that are never evicted."""
        self.pods: set[str] = set()
        self.cpu = 0
        self.memory = 0


class Usage:
    """Used amounts by node name. Pods may be seen before their node, so the node may be unknown."""

    def __init__(self) -> None:
        self._new: set[str] = set()
        """Nodes that got their first pod since the last call of `take_new`."""
        self._by_node: dict[str, _Use] = {}
        """Node name -> used amounts; only nodes with pods."""
        self.columns = Columns()
        """Columns of the arrays; replaced if nodes have other resources."""
        self._rows: tuple[Ints, Ints, Ints, Ints] | None = None
        """The last result of `arrays`; None before the first."""
        self._rows_of = (0, 0)
        """(static, capacity) version of the nodes in `_rows`."""
        self._touched: set[str] = set()
        """Names of nodes with pods that changed since the last call of `arrays`."""
        self.staying_version = 0
        """Increases when a pod that is never evicted is added or removed."""

    def account(self, info: PodInfo, sign: int) -> None:
        """Adds a bound pod to its node (sign 1), or removes it (-1)."""
        use = self._by_node.get(info.node)
        if use is None:
            use = self._by_node[info.node] = _Use()
            self._new.add(info.node)
        _add(use.used, info.requests, sign)
        if stays(info):
            self.staying_version += 1
            _add(use.staying, {PODS: 1, **info.requests}, sign)
        use.cpu += sign * info.score_requests[0]
        use.memory += sign * info.score_requests[1]
        if sign > 0:
            use.pods.add(info.key)
        else:
            use.pods.discard(info.key)
            if not use.pods:
                del self._by_node[info.node]
        self._touched.add(info.node)

    def usage_of(self, node: str) -> tuple[int, Amounts]:
        """Returns (number of pods, amounts) that the pods on a node use. Not a copy."""
        use = self._by_node.get(node)
        return (len(use.pods), use.used) if use is not None else (0, {})

    def take_new(self) -> set[str]:
        """Returns the names of nodes that got their first pod since the last call."""
        found, self._new = self._new, set()
        return found

    def pods_on(self, node: str) -> Collection[str]:
        """Returns the keys of the pods on a node, in no order. Not a copy."""
        use = self._by_node.get(node)
        return use.pods if use is not None else ()

    def arrays(self, nodes: NodeBook) -> tuple[Ints, Ints, Ints, Ints]:
        """Returns (allocatable, used, score_used, staying), as in `Snapshot`, with columns as in `columns` afterwards.

        The arrays belong to this object: the next call overwrites all except the first, so callers copy them. Sums are
        cut at `MAX_SUM`.
        """
        tree = nodes.tree
        # arrays of the last call, if neither the set of nodes nor allocatable amounts nor the order changed
        rows = self._rows if self._rows_of == (nodes.static_version, nodes.capacity_version) else None
        index = tree.index
        todo = [name for name in self._touched if name in index]
        if rows is None:
            self.columns = Columns([name for info in nodes for name in info.allocatable])
            count, width = len(tree.node_names), len(self.columns)
            allocatable, used, score_used, staying = (np.zeros((count, k), np.int64) for k in (width, width, 2, width))
            rows = allocatable, used, score_used, staying
            for info in nodes:
                row = rows[0][index[info.name]]
                for resource, amount in info.allocatable.items():
                    row[self.columns[resource]] = amount
            todo = [name for name in self._by_node if name in index]
            self._rows = rows
            self._rows_of = nodes.static_version, nodes.capacity_version
        # rows of nodes with changed pods, or of all nodes with pods in new arrays
        _, used, score_used, staying = rows
        for name in todo:
            i = index[name]
            used[i] = staying[i] = 0
            score_used[i] = 0
            holder = self._by_node.get(name)
            if holder is None:
                continue
            used[i, 0] = len(holder.pods)
            for row, amounts in ((used[i], holder.used), (staying[i], holder.staying)):
                for resource, amount in amounts.items():
                    column = self.columns[resource]
                    row[column] = min(int(row[column]) + amount, MAX_SUM)
            score_used[i] = min(holder.cpu, MAX_SUM), min(holder.memory, MAX_SUM)
        self._touched.clear()
        return rows


def _add(total: Amounts, amounts: Amounts, sign: int) -> None:
    """Adds (sign 1) or subtracts (-1) amounts; removes entries that become 0."""
    for name, amount in amounts.items():
        left = total.get(name, 0) + sign * amount
        if left:
            total[name] = left
        else:
            total.pop(name, None)
