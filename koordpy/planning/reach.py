"""How many pods of one shape a domain can take, with podCountMultiple at every layer (gang-network.md 4 and 5).

Without multiples a domain takes any number up to the sum of its slots. With them the numbers it can take are a set,
kept as the bits of one integer and built bottom up; domains with the same content share it.
"""

from functools import cached_property
from math import lcm
from typing import Any

import numpy as np

from koordpy.planning.problem import Ints, Problem


class Reach:
    """What counts of one shape the domains of a problem can take."""

    def __init__(self, problem: Problem, slots: Ints) -> None:
        self.problem = problem
        self.tree = problem.tree
        self.slots = slots
        self.held = [level.sums(problem.bound_counts) for level in self.tree.levels]
        self.multiples = {level: k for level, k in problem.multiples.items() if k > 1}
        self.limit = len(problem.pending)
        room = [level.sums(slots) for level in self.tree.levels]
        self.closed = {
            level for level, k in self.multiples.items() if k > int((self.held[level] + room[level]).max(initial=0))
        }
        """Levels whose multiple is beyond every domain: each must stay empty."""

    # -- slots ---------------------------------------------------------------------------------------------------------

    def usable(self, level: int) -> Ints:
        """[domains of the level] slots: further pods that fit, whatever the unit's size; with multiples of the layers
        at and below it the largest number that leaves a multiple in every domain, 0 where there is none."""
        if not any(at >= level for at in self.multiples):
            return self.tree.levels[level].sums(self.slots)
        return np.array([max(0, int(best.max())) for best in self._residues(level)], dtype=np.int64)

    def _residues(self, level: int) -> list[Ints]:
        """Per domain: the largest number for each residue modulo the least common multiple at this level and above."""
        modulus = lcm(*(k for at, k in self.multiples.items() if at not in self.closed))
        memo = self._residue_memo.get((level, modulus))
        if memo is None:
            memo = self._residue_memo[level, modulus] = self._residues_of(level, modulus)
        return memo

    @cached_property
    def _residue_memo(self) -> dict[tuple[int, int], list[Ints]]:
        return {}

    def _residues_of(self, level: int, modulus: int) -> list[Ints]:
        none = np.int64(-(1 << 40))
        shared: dict[Any, Ints] = {}
        out: list[Ints] = []
        below = self._residues_of(level + 1, modulus) if level < self.tree.depth else []
        multiple = self.multiples.get(level, 1)
        residues = np.arange(modulus)
        for d in range(len(self.tree.levels[level])):
            held = int(self.held[level][d])
            if level in self.closed:
                content: Any = held == 0
                best = shared.get(content)
                if best is None:
                    best = np.full(modulus, none)
                    best[0] = 0 if held == 0 else none
            elif level == self.tree.depth:
                content = (held % multiple, int(self.slots[d]))
                best = shared.get(content)
                if best is None:
                    room = int(self.slots[d])
                    best = np.where(residues <= room, room - (room - residues) % modulus, none)
                    best = np.where((best + held) % multiple == 0, best, none)
            else:
                parts = [below[c] for c in self.tree.children(level, d)]
                content = (held % multiple, tuple(sorted(part.tobytes() for part in parts)))
                best = shared.get(content)
                if best is None:
                    best = np.full(modulus, none)
                    best[0] = 0
                    for part in parts:
                        merged = np.full(modulus, none)
                        for r in range(modulus):
                            if part[r] >= 0:
                                np.maximum(merged, np.roll(best, r) + part[r], out=merged)
                        best = np.where(merged < 0, none, merged)
                    best = np.where((best + held) % multiple == 0, best, none)
            shared[content] = best
            out.append(best)
        return out

    # -- which sizes ---------------------------------------------------------------------------------------------------

    def domains(self, level: int, size: int) -> Ints:
        """Domains of a level that can take exactly `size` new pods, with every multiple kept in the whole tree."""
        if not self.multiples:
            return np.nonzero(self.tree.levels[level].sums(self.slots) >= size)[0]
        found = [d for d in range(len(self.tree.levels[level])) if self._bits(level)[d] >> size & 1]
        return np.array([d for d in found if self._rest_kept(level, d, size)], dtype=np.int64)

    def _rest_kept(self, level: int, domain: int, size: int) -> bool:
        """Whether the domains above and beside hold multiples: bound members there, `size` more in the ancestors."""
        tree = self.tree
        lo, hi = int(tree.levels[level].start[domain]), int(tree.levels[level].end[domain])
        for at, k in self.multiples.items():
            lv = tree.levels[at]
            wrong = self.held[at] % k != 0
            if at <= level:
                own = int(tree.domain_of[at, lo])
                if at < level and (int(self.held[at][own]) + size) % k:
                    return False
                wrong[own] = False
            else:
                wrong &= (lv.start < lo) | (lv.start >= hi)
            if wrong.any():
                return False
        return True

    def _bits(self, level: int) -> list[int]:
        memo = self._bit_memo.get(level)
        if memo is None:
            memo = self._bit_memo[level] = self._bits_of(level)
        return memo

    @cached_property
    def _bit_memo(self) -> dict[int, list[int]]:
        return {}

    def _bits_of(self, level: int) -> list[int]:
        multiple = self.multiples.get(level, 1)
        full = (1 << (self.limit + 1)) - 1
        masks = {
            held: sum(1 << m for m in range(self.limit + 1) if (m + held) % multiple == 0)
            for held in {int(held) % multiple for held in self.held[level]}
        }
        if level == self.tree.depth:
            rooms = np.minimum(self.slots, self.limit).tolist()
            return [
                ((1 << (room + 1)) - 1) & masks[int(held) % multiple]
                for room, held in zip(rooms, self.held[level].tolist(), strict=True)
            ]
        below = self._bits(level + 1)
        shared: dict[tuple[int, ...], int] = {}
        out: list[int] = []
        for d in range(len(self.tree.levels[level])):
            parts = tuple(sorted(below[c] for c in self.tree.children(level, d)))
            total = shared.get(parts)
            if total is None:
                total = 1
                for part in parts:
                    total = _sumset(total, part) & full
                    if not total:
                        break
                shared[parts] = total
            out.append(total & masks[int(self.held[level][d]) % multiple])
        return out

    def largest(self, *, core: int, limit: int) -> int:
        """Most pods, `core` to `limit`, that some placement under the hard layer and multiples takes; 0 for none."""
        hard = self.problem.hard
        allowed = self._hard_domains(hard)
        if not len(allowed):
            return 0
        if not self.multiples:
            most = min(limit, int(self.tree.levels[hard].sums(self.slots)[allowed].max()))
            return most if most >= core else 0
        for size in range(limit, core - 1, -1):
            if np.isin(self.domains(hard, size), allowed).any():
                return size
        return 0

    def _hard_domains(self, hard: int) -> Ints:
        """Domains of the hard layer that bound members leave open: all, theirs, or none where they are in two."""
        holders = np.nonzero(self.held[hard])[0]
        if len(holders) == 0:
            return np.arange(len(self.tree.levels[hard]))
        return holders if len(holders) == 1 else np.zeros(0, dtype=np.int64)


def _sumset(left: int, right: int) -> int:
    """Bits of all sums of a member of each set."""
    if left.bit_count() < right.bit_count():
        left, right = right, left
    out = 0
    while right:
        low = right & -right
        out |= left * low
        right ^= low
    return out
