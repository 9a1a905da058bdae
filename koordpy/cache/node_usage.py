"""What the pods of each node hold, and the resource arrays of a snapshot.

Cheap per event: one pod's figures are put on or taken off. Arrays are made for a snapshot, and only rows of nodes that
changed since the last one are written anew.
"""

from collections.abc import Collection

import numpy as np

from koordpy.api.quantity import MAX_SUM
from koordpy.cache.node_book import NodeBook
from koordpy.cache.snapshot import PODS, Columns, Ints
from koordpy.pods.pod_info import PodInfo, stays
from koordpy.pods.resource_amounts import Amounts


class _Use:
    """What the pods of one node hold; cpu, memory: milli-cores and bytes as scores count them."""

    __slots__ = ("cpu", "memory", "pods", "staying", "used")

    def __init__(self) -> None:
        self.used: Amounts = {}
        self.staying: Amounts = {}
        """Of pods that never make room, with their number."""
        self.pods: set[str] = set()
        self.cpu = 0
        self.memory = 0


class Usage:
    """What pods hold by node, also of nodes that are not known (yet)."""

    def __init__(self) -> None:
        self._by_node: dict[str, _Use] = {}
        self.columns = Columns()
        """Of the arrays; nodes with other resources get new ones."""
        self._rows: tuple[Ints, Ints, Ints, Ints] | None = None
        self._rows_of = (0, 0)
        """(static, capacity) version of the nodes that `_rows` stands for."""
        self._touched: set[str] = set()
        self.staying_version = 0
        """Grows with every pod that never makes room and that comes or goes."""

    def account(self, info: PodInfo, sign: int) -> None:
        """Puts a bound pod on its node (1), or takes it off (-1)."""
        use = self._by_node.get(info.node)
        if use is None:
            use = self._by_node[info.node] = _Use()
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

    def held(self, node: str) -> tuple[int, Amounts]:
        """(pods, amounts) that the pods on a node hold. Not a copy."""
        use = self._by_node.get(node)
        return (len(use.pods), use.used) if use is not None else (0, {})

    def pods_on(self, node: str) -> Collection[str]:
        """Keys of the pods on a node, in no order. Not a copy."""
        use = self._by_node.get(node)
        return use.pods if use is not None else ()

    def arrays(self, nodes: NodeBook) -> tuple[Ints, Ints, Ints, Ints]:
        """(allocatable, used, score_used, staying) in the tree's order; all but the first are written again by the next
        call.

        allocatable, used, staying: [nodes, resources], as in `columns` afterwards; score_used: [nodes, 2].
        """
        tree = nodes.tree
        rows = self._rows if self._rows_of == (nodes.static_version, nodes.capacity_version) else None
        index = tree.index
        todo = [name for name in self._touched if name in index]
        if rows is None:
            self.columns = Columns(name for info in nodes for name in info.allocatable)
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
    """Adds amounts, or takes them off; what is 0 then is left out."""
    for name, amount in amounts.items():
        left = total.get(name, 0) + sign * amount
        if left:
            total[name] = left
        else:
            total.pop(name, None)
