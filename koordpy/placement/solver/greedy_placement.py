# SPDX-License-Identifier: Apache-2.0
"""Greedy placement of pods in a region: a start for the solver, and the result if the solver finds nothing in time.

It proves nothing, and need not be the best placement. Domains are filled one after the other, the one with the most
capacity first. Each node gets the filling that uses most of the scarcest resources. If the unit has parts that must
each be in one domain (docs/rules/gang-network.md 4, scope), they are placed by best fit decreasing: the largest part
first, each into the domain with the least capacity that takes it.

The *price* of a pod is the largest share that it uses of any resource of the region, so it is high for pods that
request much of a scarce resource. The *worth* of a node is its capacity measured by these prices.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from koordpy.placement.member_interactions import AntiAffinity, InOneDomain, LinkedAffinity
from koordpy.placement.problem import Ints
from koordpy.placement.solver.filling_capacity import FillingCapacity

Pods = dict[int, tuple[int, ...]]
"""Node -> [shape positions of FillingCapacity] number of pods."""


class Greedy:
    """Fills regions with all pods of `capacity.wanted`.

    It respects capacity, parts, required affinity and anti-affinity only; the caller must check every other rule.
    """

    def __init__(self, capacity: FillingCapacity) -> None:
        self.capacity, self.tree, self.counts = capacity, capacity.tree, capacity.wanted
        position = {shape: i for i, shape in enumerate(capacity.shapes)}
        ties = [one for one in capacity.problem.interactions if isinstance(one, InOneDomain)]
        parts = [([position[shape] for shape in one.meant if shape in position], one.groups) for one in ties]
        inside = [i for part, _ in parts for i in part]
        self.parts = [one for one in parts if one[0]] if len(set(inside)) == len(inside) else []
        """(shape positions, [nodes] number of the domain) of each part; empty if parts overlap."""
        self.slots = capacity.slots
        """[shapes, nodes] slots. A shape with required affinity that running pods match has slots only on nodes in a
        domain with a match."""
        for one in capacity.problem.interactions:
            if isinstance(one, LinkedAffinity):
                self._apply_affinity(one, position)
        self.anti_affinities = [
            (position[one.shape], [position[shape] for shape in one.meant if shape in position], one.groups)
            for one in capacity.problem.interactions
            if isinstance(one, AntiAffinity) and one.shape in position
        ]
        """For each anti-affinity term: (shape position, positions of the shapes that it matches, [nodes] number of the
        domain)."""
        self._open = np.ones(capacity.slots.shape if self.anti_affinities else (0, 0), dtype=bool)
        """[shapes, nodes] True if no placed pod excludes the shape by anti-affinity."""

    def _apply_affinity(self, one: LinkedAffinity, position: Mapping[int, int]) -> None:
        """Applies required affinity: changes `parts` and `slots`.

        Linked pods that no running pod matches become a part, if they are in no other part. Pods that running pods
        match may use only nodes in a domain with a match. New matching pods without required terms are not considered.
        """
        first = [
            near for near in one.owners if near.shape in position and not (near.has_existing or one.unlinked(near))
        ]
        inside = {i for part, _ in self.parts for i in part}
        if first and not inside.intersection(position[near.shape] for near in first):
            rows = np.stack([groups for near in first for groups in near.groups], axis=1)
            groups = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
            self.parts.append(([position[near.shape] for near in first], np.where((rows >= 0).all(axis=1), groups, -1)))
        for near in one.owners:
            if near.shape in position and near.has_existing and not one.unlinked(near):
                pairs = zip(near.groups, near.existing_matches, strict=True)
                matching = [(groups >= 0) & (existing[groups] > 0) for groups, existing in pairs]
                self.slots = self.slots.copy()
                self.slots[position[near.shape]] *= np.logical_and.reduce(matching)

    def fill(self, region: tuple[int, int]) -> Pods | None:
        """Returns node -> pods per shape position for a region; None if not all pods could be placed.

        Without parts, nodes are filled in the order of their worth. With parts, or if that fails, pods are placed by
        size.
        """
        place = self.tree.levels[region[0]]
        nodes = slice(int(place.start[region[1]]), int(place.end[region[1]]))
        capacity = np.maximum(self.capacity.caps[nodes].sum(axis=0), 1)
        price = (self.capacity.request / capacity).max(axis=1)
        worth = np.minimum(self.slots.T * price, 1).sum(axis=1) + (self.capacity.caps / capacity).sum(axis=1)
        worth = np.where(self.capacity.most > 0, worth, 0)
        order = list(self._nodes(*region, worth=worth))
        if (scarce := self.capacity.problem.scarce) is not None:
            order.sort(key=lambda node: int(scarce[node]))
        found = None if self.parts else self._by_worth(order, price)
        return found or self._by_size(order, price)

    def _nodes(self, level: int, domain: int, *, worth: Any) -> Iterator[int]:
        """Yields the nodes below a domain; on every level, the child with the greatest worth comes first.

        worth: [nodes] floats. Domains with worth 0 are left out.
        """
        if level == self.tree.depth:
            yield domain
            return
        below, children = self.tree.levels[level + 1], self.tree.children(level, domain)
        before = np.concatenate(
            ([0.0], np.cumsum(worth[int(below.start[children.start]) : int(below.end[children[-1]])]))
        )
        first = int(below.start[children.start])
        # rounded, so that domains of equal worth are equal despite floating point
        sums = {c: round(float(before[below.end[c] - first] - before[below.start[c] - first]), 9) for c in children}
        for child in sorted(children, key=lambda c: (-sums[c], c)):
            if sums[child] > 0:
                yield from self._nodes(level + 1, child, worth=worth)

    def _by_worth(self, order: list[int], price: Any) -> Pods | None:
        """Fills the nodes in order, each with the filling of the greatest total price among the pods that are left.

        None if pods remain, or if a node has too many fillings to list. price: [shape positions] floats.
        """
        left, out = list(self.counts), Pods()
        for node in order:
            kind = self.capacity.types[self.capacity.type_of[node]]
            if kind.fillings is None:
                return None
            fillings = [tuple(map(min, filling, left)) for filling in kind.fillings]
            taken = max(fillings, key=lambda f: (sum(n * p for n, p in zip(f, price, strict=True)), f))
            if any(taken):
                out[node] = taken
                left = [have - n for have, n in zip(left, taken, strict=True)]
                if not any(left):
                    return out
        return None

    def _by_size(self, order: list[int], price: Any) -> Pods | None:
        """Places part by part, the part with the most pods first, then shape by shape, the highest price first.

        None if a part fits no domain, or a pod fits no node.
        """
        caps, out = self.capacity.caps.copy(), dict[int, list[int]]()
        self._open[:] = True
        for part, groups in sorted(self.parts, key=lambda one: -sum(self.counts[i] for i in one[0])):
            domains = self._domains(part, groups, order, caps)
            if not any(self._place_all(part, nodes, caps, out) for nodes in domains):
                return None
        inside = {i for part, _ in self.parts for i in part}
        for shape in sorted(range(len(self.counts)), key=lambda i: (-price[i], i)):
            if shape not in inside and not self._place_all([shape], order, caps, out):
                return None
        return {node: tuple(pods) for node, pods in out.items()}

    def _domains(self, part: Sequence[int], groups: Ints, order: list[int], caps: Ints) -> Iterator[list[int]]:
        """Yields the nodes of each domain that may take a part, the domain with the least capacity first.

        part: shape positions. groups: [nodes] number of the domain, -1 for none. caps: [nodes, columns] free capacity.
        """
        nodes = np.array([node for node in order if groups[node] >= 0], dtype=np.int64)
        of = groups[nodes]
        sums = np.stack([np.bincount(of, weights=self._room(i, caps)[nodes]) for i in part])
        fits = (sums >= np.array([self.counts[i] for i in part])[:, None]).all(axis=0)
        for domain in sorted(np.nonzero(fits)[0].tolist(), key=lambda d: (sums[:, d].sum(), d)):
            yield nodes[of == domain].tolist()

    def _room(self, i: int, caps: Ints) -> Ints:
        """Returns [nodes] the number of further pods of shape position `i` that fit the remaining capacity."""
        request = self.capacity.request[i]
        asked = request > 0
        return np.asarray(np.minimum((caps[:, asked] // request[asked]).min(axis=1), self.slots[i]))

    def _place_all(self, shapes: Sequence[int], nodes: list[int], caps: Ints, out: dict[int, list[int]]) -> bool:
        """Places all pods of the given shapes on the first nodes with capacity, and returns True.

        If they do not fit, restores everything and returns False. caps, out: free capacity and placement; both are
        changed.
        """
        before, taken, opened = caps[nodes], list[tuple[int, int, int]](), self._open.copy()
        for i in shapes:
            left, fits = self.counts[i], self._room(i, caps).tolist()
            for node in nodes:
                if not left:
                    break
                fit = min(left, fits[node])
                if fit > 0 and (not self.anti_affinities or self._open[i, node]):
                    fit = self._exclude_by_anti_affinity(i, node, fit)
                    caps[node] -= fit * self.capacity.request[i]
                    taken.append((node, i, fit))
                    left -= fit
            if left:
                caps[nodes], self._open = before, opened
                return False
        for node, i, fit in taken:
            out.setdefault(node, [0] * len(self.counts))[i] += fit
        return True

    def _exclude_by_anti_affinity(self, i: int, node: int, most: int) -> int:
        """Closes nodes to pods that anti-affinity separates from pods of shape `i` on `node`.

        Returns the number of pods of the shape that the node may take, at most `most`.
        """
        for shape, meant, groups in self.anti_affinities:
            if (domain := groups[node]) < 0 or (shape != i and i not in meant):
                continue
            # the shapes to exclude; none if the anti-affinity of the placed pod matches no shape of this placement
            kept_off = np.array(meant if shape == i else [shape], dtype=np.int64)
            self._open[kept_off[:, None], np.nonzero(groups == domain)[0]] = False
            if shape == i and i in meant:
                most = 1
        return most
