# SPDX-License-Identifier: Apache-2.0
"""Capacity of nodes and domains for the pods of one search: the combinations of pods that fit a node or a domain.

A *filling* is a number of pods per shape on one node; a *maximal* filling admits no further pod. Nodes with the same
fillings are of one node type. Models count the nodes of one type together (docs/rules/gang-network.md 7). Sums of
capacity over a domain give conditions that are necessary, but not sufficient: if such a condition fails, the pods
certainly do not fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from koordpy.placement.allowed_counts import rest_kept
from koordpy.placement.goals import progressions
from koordpy.placement.problem import Ints, Problem
from koordpy.plan.limits import COMPARED_COLUMNS, MODEL_FILLINGS


@dataclass(frozen=True, slots=True)
class NodeType:
    """The fillings of the nodes of one type. These nodes are also equal for all rules among members.

    A shape is a position in `FillingCapacity.shapes`, a column a position in the columns of `FillingCapacity.request`.
    """

    slots: tuple[int, ...]
    """[shapes] number of pods that fit if no other pod is placed on the node."""
    caps: tuple[int, ...]
    """[columns] the scaled free capacity."""
    fillings: tuple[tuple[int, ...], ...] | None
    """All maximal fillings, each as [shapes] number of pods; None if there are more than `MODEL_FILLINGS`."""
    most: int
    """Upper bound on the number of pods of all shapes together on one node."""


class FillingCapacity:
    """Capacities of the nodes for some of the pending members.

    wanted: shape -> number of its pods that may be placed. Requests of a resource are divided by their greatest common
    divisor, and capacities are cut to the amount that these pods could use. So nodes that do not differ for these pods
    become equal, and models become smaller.
    """

    def __init__(self, problem: Problem, wanted: dict[int, int]) -> None:
        self.problem = problem
        self.tree = problem.tree
        self.shapes = tuple(sorted(wanted))
        """Shapes of the problem with pods to place. In the rest of the solver, a shape is given as a position in this
        list."""
        self.wanted = tuple(wanted[s] for s in self.shapes)
        """[shape positions] number of pods to place."""
        self.counts: Ints = np.array(self.wanted, dtype=np.int64)
        """`wanted` as an array."""
        # requests and capacities, divided by a common divisor per column
        requests = [dict(problem.shapes[s].request) for s in self.shapes]
        columns = sorted({c for request in requests for c in request})
        scale = [int(np.gcd.reduce([r[c] for r in requests if c in r])) for c in columns]
        self.request: Ints = np.array(
            [[r.get(c, 0) // g for c, g in zip(columns, scale, strict=True)] for r in requests], dtype=np.int64
        )
        """[shapes, columns] scaled request of one pod; only columns that some shape requests."""
        self.slots: Ints = np.stack(
            [np.minimum(problem.slots_of[s], n) for s, n in zip(self.shapes, self.wanted, strict=True)]
        )
        """[shapes, nodes] slots, at most the pods in `wanted`."""
        caps = np.clip(problem.free[:, columns], 0, None) // np.array(scale, dtype=np.int64)
        self.caps: Ints = _binding(caps, self.request, self.slots.T @ self.request)
        """[nodes, columns] scaled capacity. If a column does not limit the pods, its value is the amount that all slots
        together would use. A column does not limit them if they cannot use more, or if another column is as strict."""
        signs = [codes[:, None] for one in problem.interactions for codes in one.signs]
        self.singly = any(bool((codes < -1).any()) for codes in signs) or problem.device_costs is not None
        """True if equal nodes must not be counted together, because the number of pods on each single node matters.

        This is so with device costs, and with rules that have a single node as a domain.
        """
        if problem.device_costs is not None:
            signs.append(problem.device_costs.kinds[:, None])
        if problem.already_used is not None:
            signs.append(problem.already_used[:, None])
        if problem.scarce is not None:
            signs.append(problem.scarce[:, None])
        # node types: nodes with equal rows of slots, capacities and all other values that rules and goals distinguish
        rows = np.concatenate((self.slots.T, self.caps, *signs), axis=1)
        first, self.type_of = _distinct(rows)
        """[nodes] index of the node's type in `types`."""
        count, end = len(self.shapes), len(self.shapes) + len(columns)
        self.types = tuple(self._type(row[:count], row[count:end]) for row in rows[first].tolist())
        self.most: Ints = np.array([t.most for t in self.types], dtype=np.int64)[self.type_of]
        """[nodes] upper bound on the number of pods of all shapes together; 0 if no pod fits."""

    def _type(self, slots: list[int], caps: list[int]) -> NodeType:
        """Returns the type of nodes with these slots per shape and capacities per column."""
        fillings = maximal_fillings(slots, caps, self.request.tolist(), most=MODEL_FILLINGS)
        if fillings is not None:
            most = max(sum(f) for f in fillings)
        else:
            least = self.request[[i for i, n in enumerate(slots) if n]].min(axis=0).tolist()
            most = min([sum(slots), *(cap // need for cap, need in zip(caps, least, strict=True) if need)])
        return NodeType(slots=tuple(slots), caps=tuple(caps), fillings=fillings, most=most)

    def may_take(self, level: int, counts: Ints) -> NDArray[np.bool_]:
        """Returns [domains of a level] False if a domain certainly cannot take `counts` pods per shape.

        True proves nothing. Sums of capacity are compared, and the multiples of all domains outside are checked.
        """
        tree_level, total = self.tree.levels[level], int(counts.sum())
        fits = tree_level.sums(self.most) >= total
        for i, n in enumerate(counts.tolist()):
            fits &= tree_level.sums(self.slots[i]) >= n
        for column, need in enumerate((counts @ self.request).tolist()):
            fits &= tree_level.sums(self.caps[:, column]) >= need
        return fits & rest_kept(self.problem, level)

    def may_fit(self, level: int) -> NDArray[np.bool_]:
        """Returns [domains of a level] False if a domain certainly cannot take exactly the pods in `wanted`.

        True proves nothing, except for a single node. Unlike `may_take`, it also checks the multiples of this domain
        and of the domains above it for this number of pods.
        """
        total, fits = sum(self.wanted), self.may_take(level, self.counts)
        if len(self.shapes) == 1 and self.problem.multiples:
            low, high, step, possible = progressions(self.problem, self.shapes[0])[level]
            fits &= possible & (low <= total) & (total <= high) & ((total - low) % step == 0)
        return fits & rest_kept(self.problem, level, total)

    def most_in(self, level: int) -> Ints:
        """Returns [domains of a level] an upper bound on the pods of all shapes together; at most the pods to place."""
        return np.minimum(self.tree.levels[level].sums(self.most), sum(self.wanted))

    @cached_property
    def signatures(self) -> tuple[Ints, ...]:
        """[levels][domains] equal numbers for domains that differ in names only.

        Such domains have equal nodes in equal subtrees: capacity, scores, attraction, and slots of the reference shape.
        """
        problem = self.problem
        asked = tuple(rank for rank in problem.pending if problem.members[rank].shape in self.shapes)
        return self._signs(problem.attract, problem.copies_of[problem.reference(asked)])

    @cached_property
    def twins(self) -> tuple[Ints, ...]:
        """[levels][domains] equal numbers for domains in which goals 3 and 4 and the scores are equal.

        Unlike in `signatures`, attraction and slots of the reference shape may differ.
        """
        return self._signs()

    def _signs(self, *more: Ints) -> tuple[Ints, ...]:
        """Returns [levels][domains] a number for the content of a domain: types and scores of its nodes, and `more`.

        more: arrays [nodes]. A node with bound members is equal to no other node.
        """
        tree, problem = self.tree, self.problem
        fixed = np.where(problem.bound_counts > 0, np.arange(len(problem.free)), -1)
        rows = np.stack([self.type_of, fixed, *more, *(problem.shapes[s].score for s in self.shapes)], axis=1)
        leaves = _distinct(rows)[1].tolist()
        out: list[list[int]] = [leaves]
        for number in range(tree.depth - 1, -1, -1):
            numbers: dict[tuple[int, ...], int] = {}
            signs = []
            for domain in range(len(tree.levels[number])):
                children = tree.children(number, domain)
                key = tuple(sorted(out[-1][children.start : children.stop]))
                signs.append(numbers.setdefault(key, len(numbers)))
            out.append(signs)
        return tuple(np.array(signs, dtype=np.int64) for signs in reversed(out))


def _distinct(rows: Ints) -> tuple[Ints, Ints]:
    """Numbers the distinct rows in sorted order. Returns ([numbers] first row with the number, [rows] number of the
    row).

    The result is that of np.unique by rows. Rows are hashed here, because np.unique compares whole rows in a sort.
    """
    # the order of the bytes is the order of the values
    coded = (np.ascontiguousarray(rows) ^ np.iinfo(np.int64).min).astype(">u8")
    texts = [row.tobytes() for row in coded]
    first: dict[bytes, int] = {}
    for i, text in enumerate(texts):
        first.setdefault(text, i)
    numbers = {text: k for k, text in enumerate(sorted(first))}
    return np.array([first[text] for text in numbers]), np.array([numbers[text] for text in texts], dtype=np.int64)


def _binding(caps: Ints, request: Ints, most: Ints) -> Ints:
    """Returns [nodes, columns] capacities without differences that do not matter for the pods.

    A capacity is cut to `most`, the amount that all slots together would use. It is also set to `most` if another
    column of the node is as strict for every pod. Example: if pods use all GPUs of a node before its memory, nodes do
    not differ by their free memory.

    caps, most: [nodes, columns]; request: [shapes, columns].
    """
    out = np.minimum(caps, most)
    columns = range(request.shape[1] if request.shape[1] <= COMPARED_COLUMNS else 0)
    # False where a column was set to `most`: such a column must not be the reason to set another one
    open_to = np.ones(out.shape, dtype=bool)
    for column in columns:
        for other in columns:
            times = implied_by(request[:, column].tolist(), request[:, other].tolist())
            if column == other or times is None or int(caps.max(initial=0)) * max(times) >= 1 << 62:
                continue
            weight, each = times
            spare = (caps[:, column] * each >= out[:, other] * weight) & open_to[:, other]
            out[spare, column] = most[spare, column]
            open_to[spare, column] = False
    return out


def implied_by(amounts: Sequence[int], others: Sequence[int]) -> tuple[int, int] | None:
    """Returns (a, b) such that a / b is the largest ratio of a shape's request in one column to its request in another.

    So b times the use of the first column is at most a times the use of the second. None if there is no such ratio: no
    pod requests the first column, or a pod requests only the first.

    amounts, others: [shapes] requests in the first and in the second column.
    """
    asked = [(one, other) for one, other in zip(amounts, others, strict=True) if one]
    if not asked or not all(other for _, other in asked):
        return None
    return max(asked, key=lambda pair: Fraction(*pair))


def maximal_fillings(
    slots: Sequence[int], caps: Sequence[int], request: list[list[int]], *, most: int
) -> tuple[tuple[int, ...], ...] | None:
    """Returns all maximal fillings of a node; None if there are more than `most`, or if the search takes too many
    steps.

    Chooses the pods shape by shape, the largest number first. slots: [shapes]. caps: [columns]. request:
    [shapes][columns].
    """
    if not any(slots):
        return (tuple(slots),)
    found: list[tuple[int, ...]] = []
    chosen = [0] * len(slots)
    tries = 0

    def room_for(shape: int, left: Sequence[int]) -> int:
        """Returns how many pods of a shape fit the capacity that is left."""
        return min([slots[shape], *(have // need for have, need in zip(left, request[shape], strict=True) if need)])

    def step(shape: int, left: Sequence[int]) -> bool:
        """Adds all maximal fillings with the numbers already chosen for earlier shapes.

        Returns False after too many steps.
        """
        nonlocal tries
        tries += 1
        if tries > 20 * most:  # gives up, because the search would take too long
            return False
        fit = room_for(shape, left)
        last = shape == len(slots) - 1
        for n in range(fit, fit - 1 if last else -1, -1):
            chosen[shape] = n
            rest = [have - n * need for have, need in zip(left, request[shape], strict=True)]
            if not last:
                if not step(shape + 1, rest):
                    return False
            elif all(chosen[s] == slots[s] or room_for(s, rest) == 0 for s in range(shape)):
                found.append(tuple(chosen))
        return True

    if not step(0, caps) or len(found) > most:
        return None
    return tuple(found)


def every_filling(capacity: FillingCapacity, type_of: int) -> list[tuple[int, ...]] | None:
    """Returns all non-empty fillings of a node type; None if there are more than `class_fillings`."""
    kind, request, limit = capacity.types[type_of], capacity.request, capacity.problem.sizes.class_fillings
    # if even the combinations without regard to capacity are a hundred times as many, they are not listed
    if np.prod([n + 1 for n in kind.slots], dtype=np.float64) > 100 * limit:
        return None
    ways = np.array(list(product(*(range(n + 1) for n in kind.slots))), dtype=np.int64)[1:]
    fits = (ways @ request <= np.array(kind.caps, dtype=np.int64)).all(axis=1)
    return [tuple(pods) for pods in ways[fits].tolist()] if int(fits.sum()) <= limit else None
