# SPDX-License-Identifier: Apache-2.0
"""Counting for equal pods without a gather goal: distance does not matter, so nodes are not grouped into domains.

Goals in order: fewest pods on scarce nodes (nodes with a scarce resource that the pods do not request), fewest nodes,
least device costs (`DeviceCosts`), largest score, fewest slots, natural names (docs/rules/gang-network.md 4, "No gather
goal"). One table over the nodes is enough: dynamic programming in O(nodes x pods^2). Of nodes with equal content, only
the first n by name are considered.
"""

from typing import Any

import numpy as np

from koordpy.placement.cost_tables import INT64_LIMIT, kinds_of
from koordpy.placement.packed_costs import PackedCosts
from koordpy.placement.problem import Ints, Problem


def _filled(able: Ints, room: Ints, n: int) -> dict[int, int]:
    """Returns node -> pods, if nodes of one kind are filled one after the other; this uses the fewest nodes.

    able: nodes in the order of names. room: slots of each of them.
    """
    before = np.cumsum(room) - room
    taken = np.minimum(room, n - before)
    return {int(node): int(count) for node, count in zip(able, taken, strict=True) if count > 0}


def spread_flat(problem: Problem, slots: Ints, shape: int, n: int, extra: PackedCosts | None) -> dict[int, int]:
    """Returns node -> pods for n pods of a shape: fewest pods on scarce nodes first, then the goals of `_spread`.

    If the other nodes cannot take all n pods, they are all filled, and only the scarce nodes for the remaining pods
    must be chosen. This is exact: each later goal is a sum over nodes or compares sorted names, and the full nodes
    contribute equally to every choice.

    slots: [nodes] pods that fit. extra: packed device costs; None without device costs.
    """
    if problem.scarce is None:
        return _spread(problem, slots, shape, n, extra)
    others = np.where(problem.scarce > 0, 0, slots)
    held = int(others.sum())
    if held >= n:
        return _spread(problem, others, shape, n, extra)
    full = {int(node): int(others[node]) for node in np.nonzero(others)[0]}
    return full | _spread(problem, slots - others, shape, n - held, extra)


def _spread(problem: Problem, slots: Ints, shape: int, n: int, extra: PackedCosts | None) -> dict[int, int]:
    """Returns node -> pods: fewest nodes, `extra`, largest total score, fewest slots, then names in natural order."""
    # the nodes with capacity in the order of names; per node its slots, loss of score, kind of device costs, and
    # `already_used`
    able = np.nonzero(slots > 0)[0]
    able = able[np.argsort(problem.name_rank[able])]
    room = slots[able]
    score = problem.shapes[shape].score[able]
    loss = int(score.max()) - score
    costs = extra.kinds[able] if extra is not None else np.zeros(len(able), dtype=np.int64)
    stands = problem.already_used[able] if problem.already_used is not None else np.zeros(len(able), dtype=np.int64)
    # of nodes that are equal in all these values, only the first n by name can be needed
    kind = kinds_of(room, loss, costs, stands)
    order = np.argsort(kind, kind="stable")
    place = np.empty(len(able), dtype=np.int64)
    starts = np.concatenate(([0], np.nonzero(np.diff(kind[order]))[0] + 1))
    place[order] = np.arange(len(able)) - np.repeat(starts, np.diff(np.concatenate((starts, [len(able)]))))
    capped = np.minimum(room, n)
    keep = place < -(-n // np.maximum(capped, 1)) if len(starts) == 1 and not stands.any() else place < n
    able, room, loss, costs, stands = able[keep], room[keep], loss[keep], costs[keep], stands[keep]
    # if n is a multiple of the slots of equal nodes, all chosen nodes are full; then any cost gives the same choice
    one_way = extra is None or not n % int(room[0])
    if one_way and len(starts) == 1 and not stands.any() and int(room.sum()) >= n:
        return _filled(able, room, n)
    # one integer for the goals in order: nodes, device costs, lost score, slots; each base exceeds any sum of later
    # goals
    slot_base = int(np.sort(room)[::-1][:n].sum()) + 1
    extra_weight = slot_base * (int(loss.max()) * n + 1)
    node_weight = extra_weight * (2 * extra.base if extra is not None else 1)
    wide = node_weight * (n + 1) >= INT64_LIMIT
    dtype: Any = object if wide else np.int64
    inf = node_weight * (n + 2) * 2 if wide else INT64_LIMIT
    rows: list[tuple[int, int, int, int]] = [*zip(*(one.tolist() for one in (room, loss, costs, stands)), strict=True)]
    tables: dict[tuple[int, int, int, int], list[int]] = {}
    for key in set(rows):
        slots_here, loss_here, costs_here, stands_here = key
        own = extra.tables[costs_here] if extra is not None else (0,) * (n + 1)
        fixed = (0 if stands_here else node_weight) + slots_here
        several = range(1, min(slots_here, n) + 1)
        tables[key] = [0, *(fixed + slot_base * loss_here * m + extra_weight * (own[m] - own[0]) for m in several)]
    if max(map(len, tables.values())) == 2 and len(rows) >= n:
        # each node takes at most one pod: the n cheapest nodes, of equal ones the first by name
        cheapest = sorted(range(len(rows)), key=lambda i: tables[rows[i]][1])[:n]
        return {int(able[i]): 1 for i in sorted(cheapest)}
    # suffix[i][m]: least cost of m pods on the nodes from position i to the end
    suffix = np.full((len(able) + 1, n + 1), inf, dtype=dtype)
    suffix[-1, 0] = 0
    for i in range(len(able) - 1, -1, -1):
        table = tables[rows[i]]
        row = suffix[i + 1].copy()
        for m in range(1, len(table)):
            np.minimum(row[m:], suffix[i + 1][: n + 1 - m] + table[m], out=row[m:])
        suffix[i] = row
    # from the naturally first node on, each node takes as many pods as the least cost allows
    counts: dict[int, int] = {}
    rest = n
    for i in range(len(able)):
        table = tables[rows[i]]
        for take in range(min(rest, len(table) - 1), -1, -1):
            if table[take] + suffix[i + 1][rest - take] == suffix[i][rest]:
                break
        if take:
            counts[int(able[i])] = take
            rest -= take
        if not rest:
            break
    return counts
