# SPDX-License-Identifier: Apache-2.0
"""Device costs (`DeviceCosts`) of a unit with equal pods, as one integer for each node and number of pods.

Counting adds the cost vectors of all nodes and compares the sums, which is faster with single integers. Each component
of the vector gets as many digits as its sum can need, so that sums of packed integers compare like sums of vectors.
"""

from dataclasses import dataclass

import numpy as np

from koordpy.placement.problem import DeviceCosts, Ints


class NotCountable(Exception):
    """Raised if counting turns out not to apply to a problem. The solver then decides the problem.

    Either a node has capacity for more pods than its devices can serve, or the members chosen by goal 0 do not form
    whole pipeline groups.
    """


@dataclass(frozen=True, eq=False)
class PackedCosts:
    """Costs of equal pods on nodes, packed into integers."""

    kinds: Ints
    """[nodes] kind of the node: index of its table in `tables`."""
    tables: tuple[tuple[int, ...], ...]
    """For each kind, the cost of m pods on one node, for m = 0 up to the number of pods that fit the node."""
    base: int
    """A number larger than the total cost of a best placement; goals that are compared earlier are multiplied by it."""

    @property
    def idle(self) -> list[int]:
        """[nodes] cost of each node without a new pod."""
        costs = [table[0] for table in self.tables]
        return [costs[kind] for kind in self.kinds.tolist()]


def packed(table: DeviceCosts, shape: int, *, shapes: int, slots: Ints, n: int, nodes: int) -> PackedCosts:
    """Returns the costs of up to n equal pods of a shape on nodes with the given slots ([nodes]).

    shapes: number of shapes of the problem. nodes: upper bound of the number of nodes that the best placement uses.
    Sums over so many nodes do not overflow into the next digit. A sum over more nodes may overflow, but never becomes
    less than the best sum, so the overflow does no harm.

    Raises NotCountable if a node has slots for more pods than its devices can serve.
    """
    # the vectors of each kind for 0 .. cap pods
    caps = np.minimum(slots, n)
    count = int(table.kinds.max(initial=-1)) + 1
    most = np.zeros(count, dtype=np.int64)
    np.maximum.at(most, table.kinds, caps)
    rows: list[list[tuple[int, ...]]] = []
    for kind, cap in enumerate(most.tolist()):
        row = []
        for m in range(cap + 1):
            vector = table.cost(kind, tuple(m if i == shape else 0 for i in range(shapes)))
            if vector is None:
                raise NotCountable
            row.append(vector)
        rows.append(row)
    # weights: the base of each component is larger than the largest sum of all later components
    high = np.array([np.max(row, axis=0) for row in rows], dtype=np.int64).reshape(count, table.width)
    idle = np.array([row[0] for row in rows], dtype=np.int64).reshape(count, table.width)
    per_node = np.sort(high[table.kinds], axis=0)[::-1][:nodes].sum(axis=0) + idle[table.kinds].sum(axis=0)
    weights, base = [0] * table.width, 1
    for at in range(table.width - 1, -1, -1):
        if per_node[at]:
            weights[at] = base
            base *= int(per_node[at]) + 1
    # kinds with equal tables become one kind
    numbers: dict[tuple[int, ...], int] = {}
    names = [
        numbers.setdefault(
            tuple(sum(v * w for v, w in zip(vector, weights, strict=True)) for vector in row), len(numbers)
        )
        for row in rows
    ]
    kinds = np.array(names, dtype=np.int64)[table.kinds] if count else table.kinds
    return PackedCosts(kinds, tuple(numbers), base)
