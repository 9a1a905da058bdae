# SPDX-License-Identifier: Apache-2.0
"""The choice inside a node by plain enumeration: every way to give the GPUs is compared rule by rule."""

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import Any

Division = list[list[tuple[int, ...]]]
"""Per pod the GPUs of each container, and last those of none."""


def best_choice(
    ranks: Sequence[Sequence[int]],
    floors: Sequence[int],
    free: Sequence[int],
    pods: Sequence[tuple[int, tuple[int, ...]]],
    *,
    held: Sequence[int] = (),
    numa: Sequence[int] | None = None,
    listed: Sequence[tuple[tuple[int, ...], int]] = (),
) -> list[tuple[int, ...]] | None:
    """The pods' sets. pods: (GPUs, GPUs of each container); listed: sets with their scores, for rule 7 alone."""
    judge = _Judge(ranks, floors, free, held, numa, listed)
    best: tuple[Any, list[tuple[int, ...]]] | None = None
    for division in _divisions(tuple(sorted(free)), pods):
        value = judge.value(division)
        if best is None or value < best[0]:
            best = value, [tuple(sorted(g for part in pod for g in part)) for pod in division]
    return None if best is None else best[1]


def _divisions(free: tuple[int, ...], pods: Sequence[tuple[int, tuple[int, ...]]]) -> Iterator[Division]:
    if not pods:
        yield []
        return
    count, containers = pods[0]
    for own in combinations(free, count):
        rest = tuple(g for g in free if g not in own)
        for split in _splits(own, containers):
            for others in _divisions(rest, pods[1:]):
                yield [split, *others]


def _splits(own: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    if not sizes:
        yield [own]
        return
    for first in combinations(own, sizes[0]):
        rest = tuple(g for g in own if g not in first)
        for others in _splits(rest, sizes[1:]):
            yield [first, *others]


class _Judge:
    def __init__(self, ranks, floors, free, held, numa, listed):  # type: ignore[no-untyped-def]
        self.ranks, self.floors, self.free, self.held = ranks, floors, set(free), tuple(held)
        self.numa, self.listed = numa, listed

    def _low(self, gpus: Sequence[int]) -> int:
        return min((self.ranks[a][b] for a, b in combinations(gpus, 2)), default=10**6)

    def _ring(self, gpus: Sequence[int]) -> int:
        if len(gpus) <= 3:
            return self._low(gpus)
        if len(gpus) > 8:
            return 10**6
        first, *others = gpus
        return max(
            min(self.ranks[a][b] for a, b in zip((first, *order), (*order, first), strict=True))
            for order in permutations(others)
        )

    def _sum(self, gpus: Sequence[int]) -> int:
        return sum(self.floors[self.ranks[a][b]] for a, b in combinations(gpus, 2))

    def _packed(self, rest: frozenset[int], size: int) -> tuple[int, ...]:
        """Numbers of sets by class, the highest first, negated; least is best."""
        if len(rest) < size:
            return (0,) * len(self.floors)
        best: tuple[int, ...] | None = None
        first = min(rest)
        options = [self._packed(rest - {first}, size)]
        for others in combinations(sorted(rest - {first}), size - 1):
            inner = list(self._packed(rest - {first, *others}, size))
            inner[len(self.floors) - 1 - self._low((first, *others))] -= 1
            options.append(tuple(inner))
        for one in options:
            if best is None or one < best:
                best = one
        assert best is not None
        return best

    def _cover(self, gpus: frozenset[int]) -> int:
        if not gpus:
            return 0
        first = min(gpus)
        options = [1 + self._cover(gpus - {first})]
        for one, _ in self.listed:
            if first in one and set(one) <= gpus:
                options.append(1 + self._cover(gpus - set(one)))
        return min(options)

    def value(self, division: Division) -> tuple[Any, ...]:
        pods = [tuple(sorted(g for part in pod for g in part)) for pod in division]
        containers = [part for pod in division for part in pod[:-1]]
        given = tuple(sorted(g for pod in pods for g in pod))
        union = tuple(sorted((*given, *self.held)))
        rest = frozenset(self.free - set(given))
        whole = [
            -sum(score for one, score in self.listed if len(one) == size and set(one) <= rest) for size in (16, 8, 4, 2)
        ]
        return (
            -self._low(union),
            [-x for x in sorted(self._low(pod) for pod in pods)],
            [-x for x in sorted(self._low(part) for part in containers)],
            [-x for x in sorted(self._ring(pod) for pod in pods)],
            -self._ring(union),
            [self._packed(rest, size) for size in (8, 4, 2)],
            -sum(self._sum(part) for part in containers),
            -sum(self._sum(pod) for pod in pods),
            -self._sum(union),
            len({self.numa[g] for g in union}) if self.numa else 0,
            whole if self.listed else 0,
            self._cover(frozenset(given)) if self.listed else 0,
            pods,
        )
