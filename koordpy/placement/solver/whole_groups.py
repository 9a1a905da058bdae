"""Goal 3: whole PP groups in a model that counts pods per shape and cell.

Source: gang-network.md section 7. Equal groups are a type. One integer per domain counts the groups of a type that are
whole there. A group that is whole in a domain is whole in every domain above, and needs its pods of each shape in the
domain.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from koordpy.placement.goals import pipeline_groups
from koordpy.placement.problem import Problem
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.region_cells import Cell
from koordpy.placement.solver.region_room import FillingCapacity
from koordpy.placement.solver.staged_model import Term, linear

Totals = Mapping[int, Mapping[int, cp_model.IntVar]]
"""Level -> domain -> new pods in it."""


@dataclass(frozen=True, slots=True)
class GroupType:
    """Equal PP groups.

    pods: new pods per shape (positions in FillingCapacity). anchor: the lowest common (level, domain) of their bound
    members; None without any. count: number of groups.
    """

    pods: tuple[int, ...]
    anchor: tuple[int, int] | None
    count: int


def group_types(problem: Problem, ranks: Collection[int], shapes: Sequence[int]) -> dict[GroupType, list[list[int]]]:
    """Returns the PP groups with more than one placed member by their type: the new ranks of each group.

    ranks: the members that are placed; shapes: by position in FillingCapacity.
    """
    found: dict[tuple[tuple[int, ...], tuple[int, int] | None], list[list[int]]] = {}
    for group in pipeline_groups(problem):
        new = [rank for rank in group if rank in ranks]
        nodes = [problem.bound[rank] for rank in group if rank in problem.bound]
        if new and len(new) + len(nodes) > 1:
            pods = Counter(problem.members[rank].shape for rank in new)
            anchor = problem.tree.lowest_common(nodes) if nodes else None
            found.setdefault((tuple(pods[s] for s in shapes), anchor), []).append(new)
    return {GroupType(pods, anchor, len(groups)): groups for (pods, anchor), groups in found.items()}


class WholeGroups:
    """The groups of the given types below a level. Each node must be a separate cell."""

    def __init__(
        self,
        types: Sequence[GroupType],
        *,
        model: cp_model.CpModel,
        room: FillingCapacity,
        cells: Sequence[Cell],
        totals: Totals,
        level: int,
    ) -> None:
        self.model, self.room, self.tree = model, room, room.tree
        self.cells, self.totals = cells, totals
        self._whole: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self._add(types, level)

    def _add(self, types: Sequence[GroupType], level: int) -> None:
        tree = self.tree
        for t, group in enumerate(types):
            above: dict[int, cp_model.IntVar] | None = None
            for number in range(level + 1, tree.depth + 1):
                here: dict[int, cp_model.IntVar] = {}
                for domain in self._holders(number):
                    if not self._may_hold(group, number, domain):
                        continue
                    parent = int(tree.levels[number].parent[domain])
                    if above is not None and parent not in above:
                        continue
                    here[domain] = self.model.new_int_var(0, group.count, "")
                    self._whole[t, number, domain] = here[domain]
                if above is not None:
                    for parent, var in above.items():
                        below = [(v, 1) for d, v in here.items() if tree.levels[number].parent[d] == parent]
                        if below:
                            self.model.add(linear([*below, (var, -1)]) <= 0)
                if len(here) > 1:
                    self.model.add(linear((v, 1) for v in here.values()) <= group.count)
                above = here
        for number in range(level + 1, tree.depth + 1):
            for domain in self._holders(number):
                whole = [
                    (t, self._whole[t, number, domain]) for t in range(len(types)) if (t, number, domain) in self._whole
                ]
                for i in range(len(self.room.shapes)):
                    asked = [(v, -types[t].pods[i]) for t, v in whole if types[t].pods[i]]
                    if asked:
                        self.model.add(linear([*self._pods_in(number, domain, i), *asked]) >= 0)

    def _holders(self, level: int) -> Iterable[int]:
        return self.totals[level] if level < self.tree.depth else [c.nodes[0] for c in self.cells if len(c.nodes) == 1]

    def _may_hold(self, group: GroupType, level: int, domain: int) -> bool:
        place = self.tree.levels[level]
        lo, hi = int(place.start[domain]), int(place.end[domain])
        if group.anchor is not None:
            deep, at = group.anchor
            if deep < level or not lo <= int(self.tree.levels[deep].start[at]) < hi:
                return False
        return all(int(self.room.slots[i][lo:hi].sum()) >= n for i, n in enumerate(group.pods))

    def _pods_in(self, level: int, domain: int, shape: int) -> list[Term]:
        place = self.tree.levels[level]
        lo, hi = int(place.start[domain]), int(place.end[domain])
        return [(c.pods[shape], 1) for c in self.cells if shape in c.pods and lo <= c.nodes[0] < hi]

    def terms(self, level: int) -> list[Term]:
        """Returns the number of groups of any type that are whole in a domain of the level, as terms."""
        return [(v, 1) for (_, number, _), v in self._whole.items() if number == level]

    def counts(self, values: Sequence[int]) -> dict[tuple[int, int, int], int]:
        """Returns (group type, level, domain) -> number of whole groups."""
        return {key: n for key, var in self._whole.items() if (n := values[var.index])}
