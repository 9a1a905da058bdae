"""What a beneficiary could have at best, every eligible victim gone: bounds that spare a model nodes and solves.

Source: preemption.md 6. Each measure of room by itself: slots per shape, and the sum of every resource.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from koordpy.cluster.snapshot import Ints
from koordpy.planning.limits import COVER_FILLINGS, LEAST_VICTIMS_ENTRIES, NODE_COVER_STATES
from koordpy.planning.placement.problem import Problem, hard_regions, slots
from koordpy.planning.solver.cover import origins
from koordpy.planning.solver.room import maximal_fillings
from koordpy.planning.victim_selection.choice import Choices, UnitFigures


@dataclass(frozen=True, eq=False)
class Measure:
    """What pods take of one kind of room, by shape; [nodes] how much there is at most; how much all ask together.

    free: [nodes] how much of it there is without an eviction; gain: what evictions add to that at most, on all nodes.
    """

    takes: Mapping[int, int]
    have: Ints
    number: int
    free: Ints
    gain: int

    def most(self, have: Ints, free: Ints) -> Ints:
        """What there is at most where so much is there at most, and free."""
        return np.minimum(have, free + self.gain)


class Bounds:
    """Upper bounds of room. freed: [nodes, columns] what is free then; wanted: pods by shape; gains: column -> what is
    freed of it at most, on all nodes together."""

    def __init__(
        self, problem: Problem, freed: Ints, wanted: Mapping[int, int], gains: Mapping[int, int] | None = None
    ) -> None:
        self.tree = problem.tree
        self.slots = {s: np.minimum(slots(freed, problem.shapes[s]), n) for s, n in wanted.items()}
        open_to = np.logical_or.reduce([here > 0 for here in self.slots.values()])
        asked: dict[int, dict[int, int]] = {}
        for shape in wanted:
            for column, amount in problem.shapes[shape].request:
                asked.setdefault(column, {})[shape] = amount
        self.measures = [Measure({s: 1}, here, wanted[s], here, 0) for s, here in self.slots.items()]
        for column, amounts in asked.items():
            # pods take whole steps of it, so what is beyond the last one is of no use
            step = gcd(*amounts.values())
            have = np.where(open_to, np.maximum(freed[:, column], 0), 0) // step * step
            free = np.minimum(np.maximum(problem.free[:, column], 0), have)
            number = sum(wanted[s] * amount for s, amount in amounts.items())
            gain = min(int((have - free).sum()), (gains or {}).get(column, number))
            self.measures.append(Measure(amounts, have, number, free, gain))

    def holds(self, level: int) -> NDArray[np.bool_]:
        """[domains] whether all pods may find room in one."""
        sums = self.tree.levels[level].sums
        enough = [one.most(sums(one.have), sums(one.free)) >= one.number for one in self.measures]
        return np.asarray(np.logical_and.reduce(enough))

    def fewest(self, level: int, inside: int) -> int:
        """Domains of a level that are used at least where all pods lie in one domain of the level `inside`."""
        if level <= inside:
            return 1
        above = self.tree.domain_of[inside, self.tree.levels[level].start]
        fewest = [
            max(self._fewest(level, above == domain, one) for one in self.measures)
            for domain in np.nonzero(self.holds(inside))[0].tolist()
        ]
        return min(fewest, default=1)

    def _fewest(self, level: int, among: NDArray[np.bool_], one: Measure) -> int:
        sums = self.tree.levels[level].sums
        have, free = (np.cumsum(np.sort(sums(room)[among])[::-1]) for room in (one.have, one.free))
        return int(np.searchsorted(one.most(have, free), one.number)) + 1


def freed_by(choices: Choices, units: Iterable[int]) -> Ints:
    """[nodes, columns] what is free once some units are gone; what several cover counts for each."""
    freed = choices.problem.free.copy()
    for u in units:
        for node, amounts in choices.units[u].frees:
            for column, amount in amounts:
                freed[node, column] += amount
    return freed


def held_bounds(choices: Choices, units: Iterable[int], taken: Iterable[int], wanted: Mapping[int, int]) -> Bounds:
    """The bounds of all choices that cost no more by the gangs that they break, their accelerators and their pods than
    one that takes some of the units."""
    gone = [choices.units[u] for u in taken]
    levels: tuple[Callable[[UnitFigures], int], ...] = (lambda u: u.breaks, lambda u: u.devices, lambda u: u.pods)
    most = [sum(map(level, gone)) for level in levels]
    able = [u for u in units if all(level(choices.units[u]) <= n for level, n in zip(levels, most, strict=True))]
    gains = {}
    for column in {c for shape in wanted for c, _ in choices.problem.shapes[shape].request}:
        frees = []
        for unit in map(choices.units.__getitem__, able):
            amount = sum(dict(here).get(column, 0) for _, here in unit.frees)
            if amount:
                frees.append((amount, unit))
        gains[column] = sum(amount for amount, _ in frees)
        for level, n in zip(levels, most, strict=True):
            costs = [(amount, level(unit)) for amount, unit in frees]
            best = max((amount * n // cost for amount, cost in costs if cost), default=0)
            gains[column] = min(gains[column], sum(a for a, cost in costs if not cost) + best)
    return Bounds(choices.problem, freed_by(choices, able), wanted, gains)


def wanted_of(problem: Problem) -> dict[int, int]:
    """Pods by shape."""
    return dict(Counter(problem.members[rank].shape for rank in problem.pending))


def priorities(choices: Choices) -> list[int]:
    """Priorities of units, lowest first, from the one on below which no choice is enough."""
    problem, units = choices.problem, {option.unit for option in choices.options}
    wanted = wanted_of(problem)
    steps = sorted({choices.units[u].priority for u in units})

    def enough(most: int) -> bool:
        gone = (u for u in units if choices.units[u].priority <= most)
        return bool(Bounds(problem, freed_by(choices, gone), wanted).holds(problem.hard).any())

    return steps[bisect_left(steps, True, key=enough) :]


Offer = tuple[tuple[int, ...], int]
"""(pods per shape that a node takes at most together, the least price of the room for them)."""


class LeastPrice:
    """What a choice costs at least where each unit has a price, by the scarcest resource and whatever else binds units.

    A table over the pods that are still to be placed; the part of a unit on each node is taken or not by itself.
    """

    def __init__(self, choices: Choices, bounds: Bounds, wanted: Mapping[int, int], units: Iterable[int]) -> None:
        """bounds: of the room once all the units are gone; wanted: pods by shape."""
        self.choices, self.bounds, self.wanted, self.units = choices, bounds, wanted, tuple(units)
        problem = choices.problem
        lacking: dict[int, int] = {}
        for shape, pods in wanted.items():
            for column, amount in problem.shapes[shape].request:
                lacking[column] = lacking.get(column, 0) + pods * amount
        free = np.maximum(problem.free, 0).sum(axis=0)
        self.column = max(lacking, key=lambda column: lacking[column] / max(1, int(free[column])))
        self._fillings: dict[tuple[tuple[int, ...], int], tuple[tuple[int, ...], ...] | None] = {}
        self.asks = [[dict(problem.shapes[shape].request).get(self.column, 0)] for shape in wanted]

    def of(self, price: Callable[[int], int]) -> int | None:
        """The least sum of the prices; None where that is not known."""
        problem, counts = self.choices.problem, list(self.wanted.values())
        held: dict[int, list[tuple[int, int]]] = {}
        for u in self.units:
            gains = [(node, dict(amounts).get(self.column, 0)) for node, amounts in self.choices.units[u].frees]
            whole, cost = sum(gain for _, gain in gains), price(u)
            for node, gain in gains:
                if gain:
                    held.setdefault(node, []).append((gain, cost * gain // whole))
        kinds: dict[tuple[int, tuple[tuple[int, int], ...], tuple[int, ...]], list[int]] = {}
        room = np.stack([self.bounds.slots[shape] for shape in self.wanted], axis=1)
        for node in np.nonzero(room.any(axis=1))[0].tolist():
            free, parts = int(problem.free[node, self.column]), tuple(sorted(held.get(node, ())))
            kinds.setdefault((free, parts, tuple(room[node].tolist())), []).append(node)
        offers: dict[int, list[Offer]] = {}
        for (free, parts, most), nodes in kinds.items():
            found = self._offers(free, parts, most)
            if found is None:
                return None
            offers.update(dict.fromkeys(nodes, found))
        entries = int(np.prod([n + 1 for n in counts], dtype=object)) * sum(map(len, offers.values()))
        if entries > LEAST_VICTIMS_ENTRIES:
            return None
        place, steps = problem.tree.levels[problem.hard], dict[tuple[int, ...], Ints]()
        able = self.bounds.holds(problem.hard)
        return min(
            (
                self._table([offers[n] for n in range(place.start[d], place.end[d]) if n in offers], counts, steps)
                for _, d in hard_regions(problem)
                if able[d]
            ),
            default=None,
        )

    def _table(self, offers: Iterable[Sequence[Offer]], counts: list[int], steps: dict[tuple[int, ...], Ints]) -> int:
        """The least price of all pods on some nodes."""
        table = np.full(int(np.prod([n + 1 for n in counts])), 1 << 60, dtype=np.int64)
        table[0] = 0
        for node in offers:
            after = table
            for filling, cost in node:
                if filling not in steps:
                    steps[filling] = origins(counts, filling)
                after = np.minimum(after, table[steps[filling]] + cost)
            table = after
        return int(table[-1])

    def _offers(self, free: int, parts: Sequence[tuple[int, int]], most: tuple[int, ...]) -> list[Offer] | None:
        """What a node takes at which price, the cheap first; None where there are too many ways."""
        prices = {free: 0}
        for gain, cost in parts:
            for have, before in list(prices.items()):
                prices[have + gain] = min(prices.get(have + gain, 1 << 60), before + cost)
            if len(prices) > NODE_COVER_STATES:
                return None
        out: list[Offer] = []
        largest = -1
        for have, cost in sorted(prices.items(), key=lambda one: (one[1], -one[0])):
            have = max(0, have)  # shapes that ask nothing of it stand where it is overdrawn, too
            if have <= largest:
                continue
            largest = have
            if (most, have) not in self._fillings:
                self._fillings[most, have] = maximal_fillings(most, [have], self.asks, most=COVER_FILLINGS)
            if (fillings := self._fillings[most, have]) is None:
                return None
            for filling in fillings:
                if any(filling) and not any(all(a <= b for a, b in zip(filling, f, strict=True)) for f, _ in out):
                    out.append((filling, cost))
        return out
