# SPDX-License-Identifier: Apache-2.0
"""Sums the requests of bound pods by node, and builds the resource arrays of a Snapshot from them.

When a pod changes, its amounts are added or subtracted in O(resources). For a Snapshot only the rows of nodes that
changed since the last Snapshot are rewritten. If the set of nodes or allocatable changes, all rows are rebuilt.
"""

from collections.abc import Collection

import numpy as np

from koordpy.api.quantity import MAX_SUM
from koordpy.cache.node_book import NodeBook
from koordpy.cache.snapshot import PODS, Columns, Ints
from koordpy.pods.pod_info import PodInfo, stays
from koordpy.pods.resource_amounts import Amounts


class _Use:
    """Used amounts of one node.

    pods: keys of the pods. cpu, memory: milli-cores and bytes for scores, with kube-scheduler's default for each
    container that has no request.
    """

    __slots__ = ("cpu", "memory", "pods", "staying", "used")

    def __init__(self) -> None:
        self.used: Amounts = {}
        self.staying: Amounts = {}
        """The part of `used` of pods that are never evicted (DaemonSet and mirror pods), with their number."""
        self.pods: set[str] = set()
        self.cpu = 0
        self.memory = 0


class Usage:
    """Used amounts by node name. Also of unknown nodes, because a pod may be seen before its node."""

    def __init__(self) -> None:
        self._new: set[str] = set()
        """Nodes that got their first pod since the last call of `take_new`."""
        self._by_node: dict[str, _Use] = {}
        """Node name -> used amounts; only nodes with pods."""
        self.columns = Columns()
        """Resource -> column of the arrays; replaced if nodes list other resources than before."""
        self._rows: tuple[Ints, Ints, Ints, Ints] | None = None
        """The last result of `arrays`; None before the first call."""
        self._rows_of = (0, 0)
        """(`static_version`, `capacity_version`) of the NodeBook when `_rows` was built."""
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
        """Returns (number of pods, amounts that they use) of a node. The amounts are not a copy."""
        use = self._by_node.get(node)
        return (len(use.pods), use.used) if use is not None else (0, {})

    def take_new(self) -> set[str]:
        """Returns the names of nodes that got their first pod since the last call."""
        found, self._new = self._new, set()
        return found

    def pods_on(self, node: str) -> Collection[str]:
        """Returns the keys of the pods on a node, unordered. Not a copy."""
        use = self._by_node.get(node)
        return use.pods if use is not None else ()

    def arrays(self, nodes: NodeBook) -> tuple[Ints, Ints, Ints, Ints]:
        """Returns (allocatable, used, score_used, unevictable_used) as in `Snapshot`; their columns are then in
        `columns`.

        The next call overwrites all arrays except the first, so callers must copy them. Sums are cut at `MAX_SUM`.
        """
        tree = nodes.tree
        # reuse the arrays of the last call if the set of nodes, their order and their allocatable amounts are unchanged
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
        # rewrite the rows of nodes with changed pods; in new arrays the rows of all nodes with pods
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
