"""The choice inside a machine of more GPUs than tables over all sets can hold: one NVLink domain of 72, say.

Source: gpu-topology.md 4. Sets of the best class are cliques of the graph of fast enough links. Where all free
GPUs are linked alike, as in one switch domain, the rest of the rules is exact: blocks of sixteen add up. Elsewhere the
first cliques that a bounded search finds are compared, and pods share the set in order; `is_exact` tells which it was,
so that nothing is called proven that is not.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations

import numpy as np

from koordpy.cluster.partitions import PartitionTable
from koordpy.planning.gpu.board import Board
from koordpy.planning.gpu.submasks import bits_of, reversed_bits
from koordpy.planning.gpu.wants import GpuWant, Sets
from koordpy.planning.limits import CLIQUE_STEPS, CLIQUES, NUMA_CHOICES, NUMA_NODES

_BLOCK = 16
"""GPUs of a block: the bits of 0xFFFF."""

Value = tuple[int, ...]


class LargeMachine:
    """Choices on one machine by cliques and blocks."""

    def __init__(self, board: Board) -> None:
        self.matrix, self._numa, self._roots = board.matrix, board.numa, board.roots
        self.size, self.classes = board.matrix.pattern.size, board.matrix.pattern.classes
        self._listed = board.listed if board.listed is not None else PartitionTable(())
        self._lows: dict[int, int] = {}

    def low(self, mask: int) -> int:
        """Class of the slowest pair of a set; the number of classes for none."""
        found = self._lows.get(mask)
        if found is None:
            ranks = self.matrix.pattern.ranks
            pairs = combinations(bits_of(mask), 2)
            found = self._lows[mask] = min((ranks[i][j] for i, j in pairs), default=self.classes)
        return found

    @cached_property
    def _near(self) -> list[list[int]]:
        """Per class, per GPU: those linked to it at the class or above."""
        ranks = self.matrix.pattern.ranks
        return [
            [sum(1 << j for j in range(self.size) if j != i and ranks[i][j] >= t) for i in range(self.size)]
            for t in range(self.classes)
        ]

    # -- cliques ------------------------------------------------------------------------------------------------------

    def _cliques(self, near: Sequence[int], among: int, size: int) -> Iterator[int]:
        """Cliques of a size, those with the lowest GPUs first, as far as the steps go."""
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
                i = first.bit_length() - 1
                inner = able & near[i]
                if inner.bit_count() >= left - 1:
                    yield from grow(clique | first, inner, left - 1)

        yield from grow(0, among, size)

    def _candidates(self, free: int, held: int, size: int) -> list[int]:
        """Sets of the best class with what is held."""
        top = min(self.low(held), self.classes - 1)
        for threshold in range(top, -1, -1):
            near = self._near[threshold]
            among = sum(1 << i for i in bits_of(free) if not held & ~near[i])
            if among.bit_count() < size:
                continue
            if all(not among & ~near[i] & ~(1 << i) for i in bits_of(among)):
                return self._even(among, free, held, size)
            found = []
            for clique in self._cliques(near, among, size):
                found.append(clique)
                if len(found) == CLIQUES:
                    break
            if found:
                return found
        return [sum(1 << i for i in bits_of(free)[:size])]

    # -- machines of one class ----------------------------------------------------------------------------------------

    def _even(self, among: int, free: int, held: int, size: int) -> list[int]:
        """The best sets where links do not tell GPUs apart: fewest NUMA nodes, then whole blocks, then lowest."""
        out = []
        for part in self._fewest_numa(among, held, size):
            found = self._by_blocks(part, free, size)
            if found is not None:
                out.append(found)
        return out

    def _fewest_numa(self, among: int, held: int, size: int) -> list[int]:
        """GPUs of the fewest NUMA nodes that hold the size; one entry for each such choice of nodes."""
        if self._numa is None:
            return [among]
        nodes: dict[int, int] = {}
        for i in bits_of(among):
            nodes[self._numa[i]] = nodes.get(self._numa[i], 0) | 1 << i
        own = {self._numa[i] for i in bits_of(held)}
        base = sum(mask for name, mask in nodes.items() if name in own)
        others = sorted(
            ((name, mask) for name, mask in nodes.items() if name not in own), key=lambda one: one[1] & -one[1]
        )
        for number in range(len(others) + 1):
            found = []
            for chosen in combinations(others, number):
                part = base + sum(mask for _, mask in chosen)
                if part.bit_count() >= size:
                    found.append(part)
                    if len(found) == NUMA_CHOICES:
                        break
            if found:
                return found
        return [among]

    def _by_blocks(self, part: int, free: int, size: int) -> int | None:
        """Best set of a size out of `part`: what is left whole of the free GPUs, fewest listed sets, lowest GPUs.

        Aligned blocks of sixteen do not overlap, so what they lose adds up.
        """
        best: dict[int, tuple[Value, int]] = {0: ((0,) * 6, 0)}
        for at in range(0, self.size, _BLOCK):
            rows = self._block((part >> at) & 0xFFFF, (free >> at) & 0xFFFF, at)
            new: dict[int, tuple[Value, int]] = {}
            for taken, (value, mask) in best.items():
                for count, row in enumerate(rows):
                    if row is None or taken + count > size:
                        continue
                    total = tuple(a + b for a, b in zip(value, row[0], strict=True))
                    known = new.get(taken + count)
                    if known is None or total < known[0]:
                        new[taken + count] = total, mask | row[1] << at
            best = new
        found = best.get(size)
        return found[1] if found is not None else None

    def _block(self, part: int, free: int, at: int) -> list[tuple[Value, int] | None]:
        """Per number of GPUs taken of a block: (what it costs, the set), None where there are too few.

        The cost: score of whole listed sets lost, by size from the largest; listed sets it is made of; place.
        """
        width = min(_BLOCK, self.size - at)
        inside = [
            (one.mask >> at, one.size, one.score)
            for one in self._listed.sets
            if one.mask >> at << at == one.mask and one.mask >> at < 1 << width
        ]
        masks = np.arange(1 << width, dtype=np.int64)
        masks = masks[(masks & ~part) == 0]
        rest = free & ~masks
        columns = [
            -sum(
                (np.where((rest & m) == m, s, 0) for m, n, s in inside if n == size),
                np.zeros(len(masks), dtype=np.int64),
            )
            for size in (16, 8, 4, 2)
        ]
        cover = _covers(width, [m for m, _, _ in inside])[masks] if inside else np.zeros(len(masks), dtype=np.int64)
        turned = reversed_bits(width)[masks]
        sizes = np.bitwise_count(masks)
        shift = max(0, self.size - at - width)
        out: list[tuple[Value, int] | None] = []
        for count in range(width + 1):
            here = np.nonzero(sizes == count)[0]
            if not len(here):
                out.append(None)
                continue
            order = np.lexsort((-turned[here], cover[here], *(c[here] for c in reversed(columns))))
            i = int(here[order[0]])
            value = (*(int(c[i]) for c in columns), int(cover[i]), -(int(turned[i]) << shift))
            out.append((value, int(masks[i])))
        return out

    # -- the answer ---------------------------------------------------------------------------------------------------

    def is_exact(self, free: int, held: int, wants: tuple[GpuWant, ...]) -> bool:
        """Whether `choose` gives what comparing all sets by all rules would: where links, PCIe roots and listed sets
        leave nothing that blocks cannot add up."""
        count = sum(want.count for want in wants)
        if free.bit_count() < count:
            return True
        whole = free | held
        if not self._is_flat(whole):
            return False
        if any(not want.plain and not self._makes_no_difference(want, free) for want in wants):
            return False
        return self._places_add_up(whole) and self._table_adds_up

    def _makes_no_difference(self, want: GpuWant, free: int) -> bool:
        """Whether a threshold leaves all sets of the free GPUs."""
        return want.linked(free) and not want.listed and not want.must

    def _places_add_up(self, whole: int) -> bool:
        at = bits_of(whole)
        if self._roots is not None and len({self._roots[i] for i in at}) < len(at):
            return False
        return self._numa is None or len({self._numa[i] for i in at}) <= NUMA_NODES

    @cached_property
    def _table_adds_up(self) -> bool:
        """Whether listed sets lie inside the blocks, and of each two one holds the other or they are disjoint."""
        sets = self._listed.sets
        inside = all(_block_of(one.mask) == _block_of(one.mask, last=True) for one in sets)
        return inside and all(a.mask & b.mask in (0, a.mask, b.mask) for a, b in combinations(sets, 2))

    def choose(self, free: int, held: int, wants: tuple[GpuWant, ...]) -> Sets | None:
        """The GPUs of each pod; None where they cannot all be given what they want."""
        if any(not want.plain for want in wants):
            return self._one_by_one(free, wants)
        size = sum(want.count for want in wants)
        if free.bit_count() < size:
            return None
        found = self._candidates(free, held, size)
        mask = min(found, key=lambda one: self._value(one, free, held))
        out = []
        flat = self._is_flat(mask)
        for want in wants:
            if flat:
                own = sum(1 << i for i in bits_of(mask)[: want.count])
                out.append((own, self._containers(own, want.containers)))
                mask &= ~own
                continue
            own = mask if want.count == mask.bit_count() else self._candidates(mask, 0, want.count)[0]
            out.append((own, self._containers(own, want.containers)))
            mask &= ~own
        return tuple(out)

    def _is_flat(self, mask: int) -> bool:
        """Whether all pairs of a set are of one class: then its pods share it in ascending order."""
        ranks = self.matrix.pattern.ranks
        return len({ranks[i][j] for i, j in combinations(bits_of(mask), 2)}) < 2

    def _one_by_one(self, free: int, wants: tuple[GpuWant, ...]) -> Sets | None:
        """With thresholds or listed sets each pod gets its best set in turn."""
        out = []
        for want in wants:
            own = self._wanted(free, want)
            if own is None:
                return None
            out.append((own, self._containers(own, want.containers)))
            free &= ~own
        return tuple(out)

    def _wanted(self, free: int, want: GpuWant) -> int | None:
        if free.bit_count() < want.count:
            return None
        listed = [one for one in want.listed or () if not one.mask & ~free and want.linked(one.mask)]
        if listed:
            top = max(one.score for one in listed)
            return min(
                (one.mask for one in listed if one.score == top),
                key=lambda one: (-self.low(one), self._value(one, free, 0)),
            )
        if want.must:
            return None
        if want.near is None:
            return min(self._candidates(free, 0, want.count), key=lambda one: self._value(one, free, 0))
        found = list(self._cliques(want.near, free, want.count))[:CLIQUES]
        return min(found, key=lambda one: (-self.low(one), self._value(one, free, 0)), default=None)

    def _containers(self, mask: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """A pod's set dealt out to its containers in order, the best first set for each."""
        out = []
        flat = self._is_flat(mask)
        for size in sizes:
            if size == mask.bit_count():
                own = mask
            elif flat:
                own = sum(1 << i for i in bits_of(mask)[:size])
            else:
                own = self._candidates(mask, 0, size)[0]
            out.append(own)
            mask &= ~own
        return tuple(out)

    def _value(self, mask: int, free: int, held: int) -> tuple[object, ...]:
        """Rules 5 to 8 of a set whose slowest pair is settled."""
        ranks, floors = self.matrix.pattern.ranks, self.matrix.floors
        union, rest = mask | held, free & ~mask
        total = sum(floors[ranks[i][j]] for i, j in combinations(bits_of(union), 2))
        numa = len({self._numa[i] for i in bits_of(union)}) if self._numa is not None else 0
        roots = len({self._roots[i] for i in bits_of(union)}) if self._roots is not None else 0
        whole = [-sum(one.score for one in self._listed.of(size) if not one.mask & ~rest) for size in (16, 8, 4, 2)]
        return -total, numa, roots, whole, self._cover(mask), bits_of(mask)

    def _cover(self, mask: int) -> int:
        """Listed sets that a set is made of, the largest first: the fewest where they do not overlap in part."""
        number = 0
        for one in sorted(self._listed.sets, key=lambda one: -one.size):
            if one.size > 1 and not one.mask & ~mask:
                number += 1
                mask &= ~one.mask
        return number + mask.bit_count()


def _block_of(mask: int, *, last: bool = False) -> int:
    """Block of a set's first GPU, or of its last."""
    return ((mask.bit_length() if last else (mask & -mask).bit_length()) - 1) // _BLOCK


def _covers(width: int, sets: Sequence[int]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """[masks] fewest disjoint listed sets that make up each set, a GPU in none counting as one."""
    out = np.zeros(1 << width, dtype=np.int64)
    own = [m for m in sets if m.bit_count() > 1]
    for bit in range(width):
        rests = np.arange(1 << bit, dtype=np.int64)
        block = out[: 1 << bit] + 1
        for one in own:
            if one.bit_length() == bit + 1:
                inner = one ^ (1 << bit)
                at = rests[(rests & inner) == inner]
                block[at] = np.minimum(block[at], 1 + out[at ^ inner])
        out[1 << bit : 2 << bit] = block
    return out
