# SPDX-License-Identifier: Apache-2.0
"""A heuristic choice of GPUs for machines with too many GPUs for tables over all sets, such as an NVLink domain of 72.

Pods are served one after the other. For each link class, the fastest first, the search looks for GPUs that are all
linked by this class or a faster one. First it looks among GPUs that all have such links; if that fails, it searches a
clique, with a limited number of steps. Within the class, the set is taken from one NUMA node if one has enough GPUs.
Among aligned blocks of powers of two the best fit is chosen, so that large blocks stay free as a whole. The result is
not proven optimal: plans that depend on it have the proof `feasible`. Source: docs/rules/gpu-topology.md 4.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, islice

from koordpy.devices.gpu.choice.gpu_choice import Board, Objective
from koordpy.devices.gpu.choice.gpu_judge import LinkClasses, link_classes_of
from koordpy.devices.gpu.choice.gpu_wants import GpuWant, Sets
from koordpy.devices.links.device_masks import bits_of
from koordpy.plan.limits import CLIQUE_STEPS, JUDGEMENTS_KEPT


class LargeChooser:
    """Choices on one large machine, with the interface of `Chooser`. A set of GPUs is a bit mask."""

    def __init__(self, board: Board) -> None:
        self.matrix, self._numa = board.matrix, board.numa
        pattern = board.matrix.pattern
        self.size, self._ranks, self._classes = pattern.size, pattern.ranks, pattern.classes
        self._near = [
            [sum(1 << j for j in range(self.size) if j != i and self._ranks[i][j] >= least) for i in range(self.size)]
            for least in range(self._classes)
        ]
        """[classes][GPUs] mask of the GPUs that are linked to this GPU at this class or a faster one."""
        self.choose = lru_cache(JUDGEMENTS_KEPT)(self._choose)
        """`_choose` with a cache."""

    def judge(self, free: int, held: int, wants: tuple[GpuWant, ...]) -> LinkClasses | None:
        """Returns the link classes of the choice, by which nodes are compared; None if the search finds no choice."""
        sets = self.choose(free, held, wants, "bottleneck")
        return None if sets is None else link_classes_of(sets, held, self.low)

    def can(self, free: int, wants: tuple[GpuWant, ...]) -> bool:
        """Returns whether the bounded search finds GPUs for all pods."""
        return self.judge(free, 0, wants) is not None

    def low(self, mask: int) -> int:
        """Returns the class of the slowest pair of a set; the number of classes if there is no pair."""
        return min((self._ranks[i][j] for i, j in combinations(bits_of(mask), 2)), default=self._classes)

    def _choose(
        self, free: int, held: int, wants: tuple[GpuWant, ...], objective: Objective = "bottleneck"
    ) -> Sets | None:
        """Returns the GPUs of each pod; None if the search finds none for a pod.

        held: mask of GPUs that bound members of the pods' group use. objective: ignored, because only `bottleneck` is
        supported.
        """
        out = []
        for want in wants:
            own = self._choose_for(free, held, want)
            if own is None:
                return None
            out.append((own, _containers(own, want.containers)))
            free, held = free & ~own, held | own
        return tuple(out)

    def _choose_for(self, free: int, held: int, want: GpuWant) -> int | None:
        """Returns the set of one pod; None if the search finds none.

        A listed set of the best score comes first. Otherwise the minimum bandwidth decides, else the fastest links.
        """
        free = free & want.within if want.within else free
        listed = [one for one in want.listed or () if not one.mask & ~free and want.linked(one.mask)]
        if listed:
            return min(listed, key=lambda one: (-one.score, -self.low(one.mask), bits_of(one.mask))).mask
        if want.must or free.bit_count() < want.count:
            return None
        if want.near is not None:
            return self._clique(want.near, free, want.count)
        return self._fastest_set(free, held, want.count)

    def _fastest_set(self, free: int, held: int, size: int) -> int:
        """Returns a set with the fastest class that the search finds; links to the GPUs of `held` count, too."""
        for near in reversed(self._near):
            candidates = sum(1 << i for i in bits_of(free) if not held & ~near[i])
            found = self._clique(near, candidates, size)
            if found is not None:
                return found
        return self._best_fit(free, size)

    def _clique(self, near: Sequence[int], candidates: int, size: int) -> int | None:
        """Returns `size` GPUs that are all near each other; None if the search ends without a result.

        near: [GPUs] mask of the GPUs near each GPU. The search is limited to `CLIQUE_STEPS` steps.
        """
        if candidates.bit_count() < size:
            return None
        if all(not candidates & ~near[i] & ~(1 << i) for i in bits_of(candidates)):
            return self._best_fit(candidates, size)
        steps = CLIQUE_STEPS

        def grow(clique: int, able: int, left: int) -> Iterator[int]:
            """Yields cliques with `left` more GPUs out of `able`, all of which are near the clique."""
            nonlocal steps
            if not left:
                yield clique
                return
            while able.bit_count() >= left and steps > 0:
                steps -= 1
                first = able & -able
                able ^= first
                inner = able & near[first.bit_length() - 1]
                if inner.bit_count() >= left - 1:
                    yield from grow(clique | first, inner, left - 1)

        return next(grow(0, candidates, size), None)

    def _best_fit(self, free: int, size: int) -> int:
        """Returns `size` GPUs: the lowest of the smallest aligned block of a power of two that has enough free GPUs.

        Of equal blocks the block with the fewest free GPUs in and around it is taken.
        """
        candidates = self._on_one_numa_node(free, size)
        width = 1 << (size - 1).bit_length()
        while True:
            blocks = [((1 << width) - 1) << at for at in range(0, self.size, width)]
            able = [block for block in blocks if (candidates & block).bit_count() >= size]
            if able:
                best = min(able, key=lambda block: self._free_around(free, block, width))
                return sum(1 << i for i in bits_of(candidates & best)[:size])
            width *= 2

    def _free_around(self, free: int, block: int, width: int) -> tuple[int, ...]:
        """Returns the free GPUs of a block and of each larger block around it, then its position."""
        at, out = (block & -block).bit_length() - 1, []
        while width <= 2 * self.size:
            start = at // width * width
            out.append((free >> start & (1 << width) - 1).bit_count())
            width *= 2
        return *out, at

    def _on_one_numa_node(self, candidates: int, size: int) -> int:
        """Returns the free GPUs of the NUMA node with the fewest that are enough; all candidates if no node has
        enough."""
        if self._numa is None:
            return candidates
        nodes: dict[int, int] = {}
        for i in bits_of(candidates):
            nodes[self._numa[i]] = nodes.get(self._numa[i], 0) | 1 << i
        return min((mask for mask in nodes.values() if mask.bit_count() >= size), key=int.bit_count, default=candidates)


def _containers(mask: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Divides a pod's set among its containers in ascending order."""
    at = iter(bits_of(mask))
    return tuple(sum(1 << i for i in islice(at, size)) for size in sizes)
