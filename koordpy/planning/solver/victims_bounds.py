"""What a beneficiary could have at best, every eligible victim gone: bounds that spare a model nodes and solves.

Source: preemption.md 6. Each measure of room by itself: slots per shape, and the sum of every resource.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordpy.cluster.snapshot import Ints
from koordpy.planning.placement.problem import Problem, slots
from koordpy.planning.victim_selection.choice import Choices


@dataclass(frozen=True, eq=False)
class Measure:
    """What pods take of one kind of room, by shape; [nodes] how much there is at most; how much all ask together."""

    takes: Mapping[int, int]
    have: Ints
    number: int


class Bounds:
    """Upper bounds of room. freed: [nodes, columns] what is free then; wanted: pods by shape."""

    def __init__(self, problem: Problem, freed: Ints, wanted: Mapping[int, int]) -> None:
        self.tree = problem.tree
        self.slots = {s: np.minimum(slots(freed, problem.shapes[s]), n) for s, n in wanted.items()}
        open_to = np.logical_or.reduce([here > 0 for here in self.slots.values()])
        asked: dict[int, dict[int, int]] = {}
        for shape in wanted:
            for column, amount in problem.shapes[shape].request:
                asked.setdefault(column, {})[shape] = amount
        self.measures = [Measure({s: 1}, here, wanted[s]) for s, here in self.slots.items()]
        for column, amounts in asked.items():
            have = np.where(open_to, np.maximum(freed[:, column], 0), 0)
            self.measures.append(Measure(amounts, have, sum(wanted[s] * amount for s, amount in amounts.items())))

    def holds(self, level: int) -> NDArray[np.bool_]:
        """[domains] whether all pods may find room in one."""
        sums = self.tree.levels[level].sums
        return np.asarray(np.logical_and.reduce([sums(one.have) >= one.number for one in self.measures]))

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
        sizes = np.sort(self.tree.levels[level].sums(one.have)[among])[::-1]
        return int(np.searchsorted(np.cumsum(sizes), one.number)) + 1


def freed_by(choices: Choices, units: Iterable[int]) -> Ints:
    """[nodes, columns] what is free once some units are gone; what several cover counts for each."""
    freed = choices.problem.free.copy()
    for u in units:
        for node, amounts in choices.units[u].frees:
            for column, amount in amounts:
                freed[node, column] += amount
    return freed


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
