# SPDX-License-Identifier: Apache-2.0
"""Objective `partition`: chooses GPUs pod by pod as NVIDIA's go-gpuallocator does.

The free GPUs are divided completely into sets of the request's size; one set may be smaller. The division with the
highest total of pair scores is taken. Of divisions with equal totals, the first is taken, with sets written in
ascending order and compared as lists. The pod gets the full set of that division with the best score; of equal scores,
the first. A request for one GPU gets the lowest GPU. Source: docs/rules/gpu-topology.md 4.
"""

from itertools import combinations

from koordpy.devices.gpu.choice.gpu_wants import GpuWant
from koordpy.devices.gpu.gpu_machine import Matrix
from koordpy.devices.links.device_masks import bits_of


def division_choice(matrix: Matrix, size: int, free: int, wants: tuple[GpuWant, ...]) -> tuple[int, ...] | None:
    """Returns the set of each pod; None if they do not fit, or if this choice breaks a hard requirement of a pod."""
    out: list[int] = []
    for want in wants:
        able = free & want.within if want.within else free
        if able.bit_count() < want.count:
            return None
        own = able & -able if want.count == 1 else _AllocatorChoice(matrix, want.count).pick(able)
        listed = want.listed or ()
        if not want.linked(own) or (want.must and all(one.mask != own for one in listed)):
            return None
        out.append(own)
        free &= ~own
    return tuple(out)


class _AllocatorChoice:
    """The choice of go-gpuallocator for requests of one size on one machine, with cached scores."""

    def __init__(self, matrix: Matrix, count: int) -> None:
        self.matrix, self.count = matrix, count
        self._totals: dict[int, int] = {}
        self._scores: dict[int, int] = {}

    def _pair(self, i: int, j: int) -> int:
        """Returns the score of a pair of GPUs."""
        if self.matrix.links is None:
            return self.matrix.floors[self.matrix.pattern.ranks[i][j]]
        link = self.matrix.links[i][j]
        return link.score if link is not None else 0

    def _score(self, mask: int) -> int:
        """Returns the sum of the scores of all pairs of a set."""
        found = self._scores.get(mask)
        if found is None:
            found = self._scores[mask] = sum(self._pair(i, j) for i, j in combinations(bits_of(mask), 2))
        return found

    def _parts(self, mask: int) -> list[int]:
        """Returns the sets of a division that may contain the lowest GPU of `mask`, ordered as ascending lists."""
        first, *others = bits_of(mask)
        sizes = {self.count} if mask.bit_count() >= self.count else set()
        if mask.bit_count() % self.count:
            sizes.add(mask.bit_count() % self.count)
        found = [(first, *chosen) for size in sizes for chosen in combinations(others, size - 1)]
        return [sum(1 << i for i in chosen) for chosen in sorted(found)]

    def _total(self, mask: int) -> int:
        """Returns the highest total of scores over the divisions of a set."""
        if not mask:
            return 0
        found = self._totals.get(mask)
        if found is None:
            found = self._totals[mask] = max(self._score(own) + self._total(mask ^ own) for own in self._parts(mask))
        return found

    def pick(self, free: int) -> int:
        """Returns the set that the library allocates for one request."""
        full: list[int] = []
        while free:
            goal = self._total(free)
            own = next(p for p in self._parts(free) if self._score(p) + self._total(free ^ p) == goal)
            if own.bit_count() == self.count:
                full.append(own)
            free ^= own
        return max(full, key=lambda mask: (self._score(mask), [-i for i in bits_of(mask)]))
