# SPDX-License-Identifier: Apache-2.0
"""Least cost of m equal pods in a topology domain, for every m: the tables of counting (`counting.py`).

The cost is a lexicographic vector packed into one integer. Its components in order: number of whole pipeline groups per
layer (more is better), number of domains used per layer, device costs (`DeviceCosts`), loss of score. The cost of a
domain is the sum of the costs of its children, plus a cost of the domain itself. So the table of a domain is the
min-plus convolution of the tables of its children: out[m] = min over a + b = m of left[a] + right[b]. One convolution
costs O(entries^2).

Domains with equal content are of one kind. The table of a kind is computed once, when it is first needed. Source:
docs/rules/gang-network.md 7.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from koordpy.placement.packed_costs import PackedCosts
from koordpy.placement.problem import Ints
from koordpy.plan.limits import (
    TABLE_AT_ONCE_ENTRIES,
    TABLES_AT_ONCE,
)
from koordpy.topology.topology_tree import Tree

Costs = Any
"""Table: numpy array of packed costs over m = 0 .. capacity. int64, or Python integers if int64 is too small."""

INT64_LIMIT = 1 << 60
"""Infinite cost in int64 tables; a sum of up to seven of them fits into int64."""


def kinds_of(*columns: Ints) -> Ints:
    """Returns [rows] a number from 0 for each row, equal for rows with equal values in all columns."""
    kind = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        if (column != column[0]).any():
            values, own = np.unique(column, return_inverse=True)
            _, kind = np.unique(kind * len(values) + own, return_inverse=True)  # less than rows x rows: no overflow
    return kind


class CostTables:
    """Cost tables for one unit of n equal pods: one table for each kind of domain on each level.

    Entry m of a table is for m x `per[level]` pods. No optimum is lost by that, because some best placement has a
    multiple of that number in every domain of the level (`counting.py`).
    """

    def __init__(
        self,
        tree: Tree,
        *,
        n: int,
        slots: Ints,
        loss: Ints,
        bound: Ints,
        pipeline: int,
        per: Sequence[int],
        multiples: dict[int, int],
        most: Sequence[int],
        extra: PackedCosts | None = None,
    ) -> None:
        """slots, loss, bound: [nodes] further pods that fit, loss of score per pod, number of bound members.

        pipeline: size of a pipeline group, 1 without groups. per: [levels] pods per table entry, a multiple of the
        number for the level below. multiples: level -> k > 1, for podCountMultiples that `per` does not guarantee.
        most: [levels] upper bound of the domains that the best placement uses. A placement that uses more may get a
        wrong cost, but never a lower one than the best placement. extra: the device costs, which are compared before
        the score; None without device costs.
        """
        self.tree, self.n, self.per = tree, n, tuple(per)
        self.slots, self.loss = slots, loss
        self.pipeline, self.multiples, self.extra = pipeline, multiples, extra
        idle = extra.idle if extra is not None else []
        self.idle_in: list[list[int]] = [
            [sum(idle[a:b]) for a, b in zip(level.start.tolist(), level.end.tolist(), strict=True)] if any(idle) else []
            for level in tree.levels
        ]
        """[levels] cost in `extra` of each domain without any new pod; an empty list if all are 0."""
        self.bound_in = [level.sums(bound) for level in tree.levels]
        self._bound_any = bool(bound.any())
        self._most = most
        self._weigh(used=int((bound > 0).sum()))
        depth = tree.depth
        self._kinds: list[Ints | None] = [None] * (depth + 1)
        self._capacities: list[Ints | None] = [None] * (depth + 1)
        self._first: list[list[int]] = [[] for _ in range(depth + 1)]
        self._tables: dict[tuple[int, int], Costs] = {}

    def whole(self, level: int) -> bool:
        """Returns True if an entry of the level is whole pipeline groups.

        Then goal 3 is equal for all placements there.
        """
        return self.per[level] % self.pipeline == 0

    def open(self, level: int) -> bool:
        """Returns True if a domain of the level takes any number of entries up to its capacity.

        Then placements differ first in goal 4, because goal 3 is equal.
        """
        return not self.multiples and self.whole(level)

    def _weigh(self, *, used: int) -> None:
        """Sets the weight of each component of the packed cost, from the last goal to the first.

        A weight is larger than any sum of all later components. In ascending order: loss of score, device costs
        (`extra_weight`), used domains from the nodes up to the top layer (`domain_weight`), whole groups
        (`group_weight`). Dividing a cost by `score_base` leaves goals 3 and 4. used: number of nodes with bound
        members.
        """
        n, depth = self.n, self.tree.depth
        weight = int(self.loss.max(initial=0)) * n + 1
        self.extra_weight = weight
        weight *= self.extra.base if self.extra is not None else 1
        self.score_base = weight
        self.domain_weight = [0] * (depth + 1)
        self.domain_base = [1] * (depth + 1)
        self.group_weight = [0] * (depth + 1)
        for level in range(depth, 0, -1):
            self.domain_weight[level] = weight
            self.domain_base[level] = min(self._most[level], n // self.per[level] + used) + 1
            weight *= self.domain_base[level]
        for level in range(depth, 0, -1):
            if not self.whole(level):
                self.group_weight[level] = weight
                weight *= n // self.pipeline + 1
        self.wide = weight >= INT64_LIMIT // 2
        self.inf = weight * 2 if self.wide else INT64_LIMIT

    # -- kinds ---------------------------------------------------------------------------------------------------------

    def kinds(self, level: int) -> Ints:
        """Returns [domains of the level] the kind of each domain: equal numbers for domains with equal tables."""
        found = self._kinds[level]
        if found is None:
            found = self._node_kinds() if level == self.tree.depth else self._domain_kinds(level)
            self._kinds[level] = found
            self._first[level] = np.unique(found, return_index=True)[1].tolist()
        return found

    def _node_kinds(self) -> Ints:
        more = [self.extra.kinds] if self.extra is not None else []
        return kinds_of(self.capacity(self.tree.depth), self.bound_in[-1], self.loss, *more)

    def _domain_kinds(self, level: int) -> Ints:
        below, parent = self.kinds(level + 1), self.tree.levels[level + 1].parent
        high = int(below.max(initial=0)) + 1
        # the kinds of the children of each domain, sorted: domains with equal content get one kind
        content = (np.sort(parent * high + below) - parent * high).astype(np.int32)
        first = self.tree.first_child(level)
        sizes = np.diff(first)
        if not self._bound_any and len(sizes) and sizes[0] and (sizes == sizes[0]).all():
            rows = content.view(np.dtype((np.void, 4 * int(sizes[0]))))
            return np.asarray(np.unique(rows, return_inverse=True)[1].reshape(-1), dtype=np.int64)
        return self._unequal_kinds(level, content.tobytes(), (first * 4).tolist())

    def _unequal_kinds(self, level: int, content: bytes, edges: list[int]) -> Ints:
        """Returns the kinds of domains if bound members or numbers of children may differ between domains.

        content: the sorted kinds of the children of all domains as bytes; those of domain d are at edges[d] .. edges[d
        + 1].
        """
        numbers: dict[Any, int] = {}
        if self._bound_any:
            held = self.bound_in[level].tolist()
            keys: list[Any] = [(h, content[a:b]) for h, a, b in zip(held, edges, edges[1:], strict=False)]
        else:
            keys = [content[a:b] for a, b in pairwise(edges)]
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)

    def capacity(self, level: int) -> Ints:
        """Returns [domains of the level] the last index of each table: the number of entries that fit, for at most n
        pods."""
        found = self._capacities[level]
        if found is None:
            if level == self.tree.depth:
                found = self.slots // self.per[level]
            else:
                sums = np.add.reduceat(self.capacity(level + 1), self.tree.first_child(level)[:-1])
                found = sums // (self.per[level] // self.per[level + 1])
            found = self._capacities[level] = np.minimum(found, self.n // self.per[level])
        return found

    # -- tables --------------------------------------------------------------------------------------------------------

    def table(self, level: int, domain: int) -> Costs:
        """Returns the table of a domain: cost of m = 0 .. capacity entries; `inf` for each m that it cannot take."""
        return self.of_kind(level, int(self.kinds(level)[domain]))

    def of_kind(self, level: int, kind: int) -> Costs:
        """Returns the table of every domain of a kind."""
        found = self._tables.get((level, kind))
        if found is None:
            self.kinds(level)
            found = self._tables[level, kind] = self._evaluate(level, self._first[level][kind])
        return found

    def fill(self, top: int) -> None:
        """Computes the tables of all kinds below a level in array operations, if there are many kinds.

        It saves time if a search needs most of the tree; otherwise each table is computed when it is first needed. Does
        nothing if tables are long, need Python integers, or have multiples or bound members.
        """
        if self.wide or self.multiples or self._bound_any:
            return
        for level in range(self.tree.depth - 1, top, -1):
            if int(self.capacity(level).max(initial=0)) > TABLE_AT_ONCE_ENTRIES:
                return
            if int(self.kinds(level).max(initial=-1)) + 1 < TABLES_AT_ONCE:
                continue  # few tables: each is computed when it is first needed
            self._fill_level(level)

    def _fill_level(self, level: int) -> None:
        """Computes the tables of every kind of a level at once. The result equals that of `_evaluate` for each kind.

        Step i merges the i-th child of every kind. A kind with fewer children gets the table of an absent child.
        """
        below, first = self.kinds(level + 1), np.array(self._first[level], dtype=np.int64)
        parts = [self.of_kind(level + 1, kind) for kind in range(len(self._first[level + 1]))]
        rows = np.full((len(parts) + 1, max(map(len, parts))), self.inf, dtype=np.int64)
        for row, part in zip(rows, parts, strict=False):
            row[: len(part)] = part
        rows[-1, 0] = 0  # table of an absent child
        edges = self.tree.first_child(level)
        starts, number = edges[first], edges[first + 1] - edges[first]
        total = np.zeros((len(first), 1), dtype=np.int64)
        for i in range(int(number.max())):
            kinds = np.where(i < number, below[np.minimum(starts + i, len(below) - 1)], len(parts))
            total = self._merge_rows(total, rows[kinds], self.n // self.per[level + 1] + 1)
        total = np.minimum(self._own(level, 0, total[:, :: self.per[level] // self.per[level + 1]]), self.inf)
        caps = self.capacity(level)[first].tolist()
        self._tables.update(
            {(level, kind): row[: cap + 1] for kind, (row, cap) in enumerate(zip(total, caps, strict=True))}
        )

    def _merge_rows(self, left: Costs, right: Costs, most: int) -> Costs:
        """Returns the min-plus convolution of two tables per row, cut at `most` entries. left, right: [rows, m]."""
        size = min(left.shape[1] + right.shape[1] - 1, most)
        out = np.full((len(left), size), self.inf, dtype=np.int64)
        for j in range(min(right.shape[1], size)):
            part = out[:, j : j + left.shape[1]]
            np.minimum(part, left[:, : part.shape[1]] + right[:, j : j + 1], out=part)
        return out

    def _evaluate(self, level: int, domain: int) -> Costs:
        """Computes the table of one domain.

        The table of a node is computed from scores and device costs, the table of another domain from those of its
        children.
        """
        if level == self.tree.depth:
            total = self.array(range(int(self.capacity(level)[domain]) + 1)) * (
                int(self.loss[domain]) * self.per[level]
            )
            if self.extra is not None:
                own = self.extra.tables[int(self.extra.kinds[domain])]
                own = own[:: self.per[level]][: len(total)]
                total = total + self.array([cost * self.extra_weight for cost in own])
        else:
            inside = self.tree.children(level, domain)
            kinds, times = np.unique(self.kinds(level + 1)[inside.start : inside.stop], return_counts=True)
            total = self.array([0])
            for kind, number in zip(kinds.tolist(), times.tolist(), strict=True):
                part = self._power(self.of_kind(level + 1, kind), number, level=level + 1)
                total = self.merge(total, part, level=level + 1)
            total = total[:: self.per[level] // self.per[level + 1]]
        return self._own(level, int(self.bound_in[level][domain]), total)

    def _own(self, level: int, held: int, total: Costs) -> Costs:
        """Returns a table with the cost of the domain itself added, and `inf` for numbers that its multiple forbids.

        The cost of the domain itself is one used domain if it has any member, less its whole pipeline groups. held:
        bound members in it. total: table of all children together; with several rows, one table per row.
        """
        if level:
            sizes = np.arange(total.shape[-1])
            out = total + (self.domain_weight[level] * ((sizes + held) > 0).astype(total.dtype))
            if not self.whole(level):
                groups = (sizes * self.per[level] // self.pipeline).astype(total.dtype)
                out = out - self.group_weight[level] * groups
            if self.multiples:
                out[total >= self.inf // 2] = self.inf
            total = out
        multiple = self.multiples.get(level, 1)
        if multiple > 1:
            total[(np.arange(len(total)) + held) % multiple != 0] = self.inf
        return total

    def array(self, values: Sequence[int]) -> Costs:
        """Returns a table of the given costs."""
        return np.array(values, dtype=object if self.wide else np.int64)

    # -- combining -----------------------------------------------------------------------------------------------------

    def merge(self, left: Costs, right: Costs, *, level: int) -> Costs:
        """Returns the min-plus convolution of two tables of domains of a level, cut at n pods."""
        if len(left) < len(right):
            left, right = right, left
        if len(right) == 1:
            return left + right[0]
        size = min(len(left) + len(right) - 1, self.n // self.per[level] + 1)
        longest, takes = len(right) - 1, right < self.inf // 2
        padded = np.full(longest + size, self.inf, dtype=left.dtype)
        padded[longest : longest + min(len(left), size)] = left[:size]
        out, term = np.full(size, self.inf, dtype=left.dtype), np.empty(size, dtype=left.dtype)
        for take, cost in zip(np.arange(len(right))[takes].tolist(), right[takes].tolist(), strict=True):
            np.add(padded[longest - take : longest - take + size], cost, out=term)
            np.minimum(out, term, out=out)
        if self.wide or self.multiples:
            out[out >= self.inf // 2] = self.inf
        return out

    def _power(self, part: Costs, times: int, *, level: int) -> Costs:
        """Returns the table of `times` equal children together, by repeated squaring."""
        out: Costs | None = None
        while times:
            if times & 1:
                out = part if out is None else self.merge(out, part, level=level)
            times >>= 1
            if times:
                part = self.merge(part, part, level=level)
        return out

    def suffixes(self, tables: Sequence[Costs], *, level: int) -> list[Costs]:
        """Returns, for each position, the combined table of the domains from that position to the end.

        A last entry is the table of no domains: cost 0 for 0 pods.
        """
        out = [self.array([0])]
        for table in reversed(tables):
            out.append(self.merge(out[-1], table, level=level))
        out.reverse()
        return out
