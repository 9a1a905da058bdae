"""How a set of GPUs is best divided among pods, and a pod's set among its containers.

Source: gpu-topology.md section 4, rules 2, 3, 5 and 8. For a fixed set everything that the rules compare of a division
is a sum over its parts, so divisions are searched by what is left: exact, each remainder once. Vectors compare by their
slowest member first, which is the order of numbers written with a digit for each class.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations

from koordpy.planning.gpu.tables import Tables, bits_of
from koordpy.planning.gpu.wants import Want

Cost = tuple[int, ...]
"""Smaller is better; costs of parts add up."""

_DIGIT = 128
"""More pods or containers than a machine has GPUs."""


class Divider:
    """Divisions on one machine. floors: kB/s of each class."""

    def __init__(self, tables: Tables, floors: Sequence[int]) -> None:
        self.tables = tables
        self.floors = tuple(floors)
        classes = tables.classes
        self._weight: list[int] = [_DIGIT ** (classes - 1 - c) for c in range(classes)] + [0]
        self._sums: dict[int, int] = {}
        self._parts: dict[tuple[int, Want], Cost | None] = {}
        self._best: dict[tuple[int, tuple[tuple[Want, int], ...]], Cost | None] = {}
        self._containers: dict[tuple[int, tuple[int, ...]], tuple[int, int, tuple[int, ...]]] = {}

    def weight(self, rank: int) -> int:
        """What a slowest link of a class costs; none for no limit."""
        return self._weight[rank]

    def ranks(self, weight: int, number: int) -> tuple[int, ...]:
        """Classes of `number` parts whose weights add up to a weight, slowest first."""
        classes = self.tables.classes
        out: list[int] = []
        for rank in range(classes):
            digit = weight // self._weight[rank]
            weight -= digit * self._weight[rank]
            out += [rank] * digit
        return (*out, *[classes] * (number - len(out)))

    def sum_of(self, mask: int) -> int:
        """Sum of the class floors over the pairs of a set."""
        found = self._sums.get(mask)
        if found is None:
            ranks, nodes = self.tables.pattern.ranks, bits_of(mask)
            found = self._sums[mask] = sum(self.floors[ranks[i][j]] for i, j in combinations(nodes, 2))
        return found

    # -- containers ---------------------------------------------------------------------------------------------------

    def containers(self, mask: int, sizes: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        """(weight of the containers' slowest links, sum inside them, the set of each) of a pod's best split.

        GPUs beyond the containers' are left over: an init container's.
        """
        if len(sizes) == 1 and sizes[0] == mask.bit_count():
            return self._weight[self.tables.low_list[mask]], self.sum_of(mask), (mask,)
        if not sizes:
            return 0, 0, ()
        found = self._containers.get((mask, sizes))
        if found is None:
            found = self._containers[mask, sizes] = min(
                self._splits(mask, sizes), key=lambda s: (s[0], -s[1], [bits_of(one) for one in s[2]])
            )
        return found

    def _splits(self, mask: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        for chosen in combinations(bits_of(mask), sizes[0]):
            own = sum(1 << i for i in chosen)
            weight, inside, sets = self.containers(mask ^ own, sizes[1:])
            yield self._weight[self.tables.low_list[own]] + weight, self.sum_of(own) + inside, (own, *sets)

    # -- pods ---------------------------------------------------------------------------------------------------------

    def part(self, mask: int, want: Want) -> Cost | None:
        """What it costs to give a pod a set: listed sets missed, their score, then rules 2, 3 and 5; None = never."""
        key = (mask, want)
        if key in self._parts:
            return self._parts[key]
        cost: Cost | None = None
        if want.linked(mask):
            score = max((one.score for one in want.listed or () if one.mask == mask), default=None)
            if score is not None or not want.must:
                weight, inside, _ = self.containers(mask, want.containers)
                cost = (
                    0 if score is not None else 1,
                    -(score or 0),
                    self._weight[self.tables.low_list[mask]],
                    weight,
                    self._weight[self.tables.ring(mask)],
                    -inside,
                    -self.sum_of(mask),
                )
        self._parts[key] = cost
        return cost

    def best(self, mask: int, wants: tuple[tuple[Want, int], ...]) -> Cost | None:
        """The least cost of dividing all of a set among pods: (want, number of pods that want it), each once."""
        if len(wants) == 1 and wants[0][1] == 1:
            return self.part(mask, wants[0][0])
        key = (mask, wants)
        if key in self._best:
            return self._best[key]
        found: Cost | None = None
        first = mask & -mask
        others = bits_of(mask ^ first)
        for i, (want, number) in enumerate(wants):
            left = wants[:i] + (((want, number - 1),) if number > 1 else ()) + wants[i + 1 :]
            for chosen in combinations(others, want.count - 1):
                own = first | sum(1 << j for j in chosen)
                mine = self.part(own, want)
                if mine is None:
                    continue
                rest = self.best(mask ^ own, left)
                if rest is not None:
                    total = _sum(mine, rest)
                    if found is None or total < found:
                        found = total
        self._best[key] = found
        return found

    def first(self, mask: int, wants: Sequence[Want]) -> tuple[int, ...]:
        """The sets of the pods, in order, of the best division; of equal ones the lowest lists (rule 8)."""
        out: list[int] = []
        for i, want in enumerate(wants):
            if i == len(wants) - 1:
                out.append(mask)
                break
            goal = self.best(mask, counted(tuple(wants[i:])))
            left = counted(tuple(wants[i + 1 :]))
            for chosen in combinations(bits_of(mask), want.count):
                own = sum(1 << j for j in chosen)
                mine = self.part(own, want)
                rest = self.best(mask ^ own, left) if mine is not None else None
                if mine is not None and rest is not None and _sum(mine, rest) == goal:
                    break
            else:
                raise AssertionError("the best division has a first set")
            out.append(own)
            mask ^= own
        return tuple(out)


def _sum(one: Cost, other: Cost) -> Cost:
    return tuple(a + b for a, b in zip(one, other, strict=True))


@lru_cache(maxsize=4096)
def counted(wants: tuple[Want, ...]) -> tuple[tuple[Want, int], ...]:
    """Pods by what they want: (want, number), in a fixed order."""
    numbers: dict[Want, int] = {}
    for want in wants:
        numbers[want] = numbers.get(want, 0) + 1
    return tuple(sorted(numbers.items(), key=lambda item: repr(item[0])))
