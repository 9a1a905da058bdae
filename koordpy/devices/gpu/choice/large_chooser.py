"""A documented heuristic for machines of more GPUs than tables over all sets can hold: one NVLink domain of 72, say.

Source: gpu-topology.md 4. Pods are served one by one. A set's slowest pair is the fastest that a bounded search finds:
of GPUs that are all linked as fast, else a clique. Within that the set comes from one NUMA node where one has enough,
and by best fit from aligned blocks of powers of two, so that large blocks stay whole. Nothing of it is proven: plans
that rest on it are `feasible`.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, islice

from koordpy.devices.gpu.choice.gpu_choice import Board, Objective
from koordpy.devices.gpu.choice.gpu_judge import Worth, worth_of
from koordpy.devices.gpu.choice.gpu_submasks import bits_of
from koordpy.devices.gpu.choice.gpu_wants import GpuWant, Sets
from koordpy.plan.limits import CLIQUE_STEPS, JUDGEMENTS_KEPT


class LargeChooser:
    """The interface of `Chooser`. Sets are masks, bit i for GPU i; held: what the group of the pods has already."""

    def __init__(self, board: Board) -> None:
        self.matrix, self._numa = board.matrix, board.numa
        pattern = board.matrix.pattern
        self.size, self._ranks, self._classes = pattern.size, pattern.ranks, pattern.classes
        self._near = [
            [sum(1 << j for j in range(self.size) if j != i and self._ranks[i][j] >= least) for i in range(self.size)]
            for least in range(self._classes)
        ]
        self.choose = lru_cache(JUDGEMENTS_KEPT)(self._choose)
        """`_choose`, remembered."""

    def judge(self, free: int, held: int, wants: tuple[GpuWant, ...]) -> Worth | None:
        """What the choice is worth to a comparison of nodes."""
        sets = self.choose(free, held, wants, "bottleneck")
        return None if sets is None else worth_of(sets, held, self.low)

    def can(self, free: int, wants: tuple[GpuWant, ...]) -> bool:
        """Whether pods can all be given what they want, as far as the search goes."""
        return self.judge(free, 0, wants) is not None

    def low(self, mask: int) -> int:
        """Class of the slowest pair of a set; the number of classes for none."""
        return min((self._ranks[i][j] for i, j in combinations(bits_of(mask), 2)), default=self._classes)

    def _choose(
        self, free: int, held: int, wants: tuple[GpuWant, ...], objective: Objective = "bottleneck"
    ) -> Sets | None:
        """The GPUs of each pod, None where one finds none; of the objectives only the first is known here."""
        out = []
        for want in wants:
            own = self._wanted(free, held, want)
            if own is None:
                return None
            out.append((own, _containers(own, want.containers)))
            free, held = free & ~own, held | own
        return tuple(out)

    def _wanted(self, free: int, held: int, want: GpuWant) -> int | None:
        """The set of one pod: a listed one of the best score, else by its threshold, else by links."""
        listed = [one for one in want.listed or () if not one.mask & ~free and want.linked(one.mask)]
        if listed:
            return min(listed, key=lambda one: (-one.score, -self.low(one.mask), bits_of(one.mask))).mask
        if want.must or free.bit_count() < want.count:
            return None
        if want.near is not None:
            return self._clique(want.near, free, want.count)
        return self._linked(free, held, want.count)

    def _linked(self, free: int, held: int, size: int) -> int:
        """A set of the fastest class that one is found in with what is held; any pair is of class 0 at least."""
        for near in reversed(self._near):
            among = sum(1 << i for i in bits_of(free) if not held & ~near[i])
            found = self._clique(near, among, size)
            if found is not None:
                return found
        return self._fit(free, size)

    def _clique(self, near: Sequence[int], among: int, size: int) -> int | None:
        """GPUs of which each is near all others; None where the steps of the search end without any."""
        if among.bit_count() < size:
            return None
        if all(not among & ~near[i] & ~(1 << i) for i in bits_of(among)):
            return self._fit(among, size)
        steps = CLIQUE_STEPS

        def grow(clique: int, able: int, left: int) -> Iterator[int]:
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

        return next(grow(0, among, size), None)

    def _fit(self, free: int, size: int) -> int:
        """The lowest GPUs of the smallest aligned block that holds a set; of equal blocks the one in fuller ones."""
        among = self._on_one_numa_node(free, size)
        width = 1 << (size - 1).bit_length()
        while True:
            blocks = [((1 << width) - 1) << at for at in range(0, self.size, width)]
            able = [block for block in blocks if (among & block).bit_count() >= size]
            if able:
                best = min(able, key=lambda block: self._left(free, block, width))
                return sum(1 << i for i in bits_of(among & best)[:size])
            width *= 2

    def _left(self, free: int, block: int, width: int) -> tuple[int, ...]:
        """Free GPUs of the block and of each that it lies in; then its place."""
        at, out = (block & -block).bit_length() - 1, []
        while width <= 2 * self.size:
            start = at // width * width
            out.append((free >> start & (1 << width) - 1).bit_count())
            width *= 2
        return *out, at

    def _on_one_numa_node(self, among: int, size: int) -> int:
        """Those of the fullest NUMA node that has enough of them; all where none has."""
        if self._numa is None:
            return among
        nodes: dict[int, int] = {}
        for i in bits_of(among):
            nodes[self._numa[i]] = nodes.get(self._numa[i], 0) | 1 << i
        return min((mask for mask in nodes.values() if mask.bit_count() >= size), key=int.bit_count, default=among)


def _containers(mask: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A pod's set dealt out to its containers in ascending order."""
    at = iter(bits_of(mask))
    return tuple(sum(1 << i for i in islice(at, size)) for size in sizes)
