"""Best fit decreasing for parts of a unit that each lie in one domain: what a model of them begins with.

Source: gang-network.md 4 (scope). The largest part first, each in the domain with the least room that takes it.
"""

from collections.abc import Sequence

import numpy as np

from koordpy.planning.placement.problem import Ints
from koordpy.planning.placement.ties import InOneDomain
from koordpy.planning.solver.room import Room

Pods = dict[int, tuple[int, ...]]
"""Node -> pods per shape position in Room."""


def packed(room: Room, region: tuple[int, int], counts: Sequence[int]) -> Pods | None:
    """A placement of all pods in a region; None where this way finds none, or where parts overlap."""
    position = {shape: i for i, shape in enumerate(room.shapes)}
    parts: list[tuple[list[int], Ints]] = []
    for one in room.problem.interactions:
        if not isinstance(one, InOneDomain):
            return None
        parts.append(([position[shape] for shape in one.meant if shape in position], one.groups))
    inside = [i for part, _ in parts for i in part]
    if len(set(inside)) < len(inside):
        return None
    parts += [([i], np.zeros(len(room.problem.free), dtype=np.int64)) for i in set(position.values()) - set(inside)]
    place = room.tree.levels[region[0]]
    packing = _Packing(room, range(int(place.start[region[1]]), int(place.end[region[1]])), len(counts))
    for part, groups in sorted(parts, key=lambda one: -sum(counts[i] for i in one[0])):
        if not packing.put({i: int(counts[i]) for i in part if counts[i]}, groups):
            return None
    return {node: tuple(pods) for node, pods in packing.pods.items()}


class _Packing:
    def __init__(self, room: Room, nodes: range, shapes: int) -> None:
        self.room, self.shapes = room, shapes
        self.caps = np.zeros_like(room.caps)
        self.caps[nodes.start : nodes.stop] = room.caps[nodes.start : nodes.stop]
        self.pods: dict[int, list[int]] = {}

    def put(self, wanted: dict[int, int], groups: Ints) -> bool:
        """Puts pods per shape position into one domain."""
        room = {i: self._room(i) for i in wanted}
        sums = {i: np.bincount(groups[groups >= 0], weights=room[i][groups >= 0]) for i in wanted}
        fits = np.all([sums[i] >= number for i, number in wanted.items()], axis=0) if wanted else np.ones(1, dtype=bool)
        domains = np.nonzero(fits)[0]
        least = sum(sums[i][domains] for i in wanted) if wanted else np.zeros(len(domains))
        return any(self._into(wanted, np.nonzero(groups == d)[0]) for d in domains[np.argsort(least, kind="stable")])

    def _room(self, i: int) -> Ints:
        """[nodes] further pods of a shape."""
        request = self.room.request[i]
        asked = request > 0
        fits = (self.caps[:, asked] // request[asked]).min(axis=1)
        return np.asarray(np.minimum(np.maximum(fits, 0), self.room.slots[i]), dtype=np.int64)

    def _into(self, wanted: dict[int, int], nodes: Ints) -> bool:
        before = self.caps[nodes].copy()
        taken: list[tuple[int, int, int]] = []
        for i, number in wanted.items():
            left = number
            for node, room in zip(nodes.tolist(), self._room(i)[nodes].tolist(), strict=True):
                if not left:
                    break
                if room:
                    taken.append((node, i, min(left, room)))
                    self.caps[node] -= min(left, room) * self.room.request[i]
                    left -= min(left, room)
            if left:
                self.caps[nodes] = before
                return False
        for node, i, number in taken:
            self.pods.setdefault(node, [0] * self.shapes)[i] += number
        return True
