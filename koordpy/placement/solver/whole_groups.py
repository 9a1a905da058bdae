# SPDX-License-Identifier: Apache-2.0
"""Goal 3 in a CP-SAT model: the number of pipeline groups that are whole in each domain of the tree.

A group is whole in a domain if all its placed members are there. Groups with equal pods are of one type, and one
integer variable per type and domain counts the groups that are whole in the domain. A group that is whole in a domain
is also whole in every domain above, and the domain must have enough pods for all its whole groups. Source:
docs/rules/gang-network.md 7.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from koordpy.placement.goals import pipeline_groups
from koordpy.placement.problem import Problem
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.filling_capacity import FillingCapacity
from koordpy.placement.solver.region_cells import Cell
from koordpy.placement.solver.staged_model import Term, linear

Totals = Mapping[int, Mapping[int, cp_model.IntVar]]
"""Level -> domain -> variable for the number of new pods in it."""


@dataclass(frozen=True, slots=True)
class GroupType:
    """Pipeline groups that are equal for the model.

    pods: [shape positions] new pods of one group. anchor: (level, domain) of the lowest domain that contains all bound
    members of the group; a whole group must be in a domain that contains it. None without bound members. count: number
    of such groups.
    """

    pods: tuple[int, ...]
    anchor: tuple[int, int] | None
    count: int


def group_types(problem: Problem, ranks: Collection[int], shapes: Sequence[int]) -> dict[GroupType, list[list[int]]]:
    """Returns group type -> the new ranks of each group of the type.

    Left out are groups without a new member, and groups with only one placed member, which are always whole. ranks: the
    pending members that are placed. shapes: the shapes of the problem in the order of their positions in the model.
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
    """Adds the number of whole groups of the given types to a model, for all levels below `level`.

    On the level of the nodes, only nodes that are separate cells can have whole groups.
    """

    def __init__(
        self,
        types: Sequence[GroupType],
        *,
        model: cp_model.CpModel,
        capacity: FillingCapacity,
        cells: Sequence[Cell],
        totals: Totals,
        level: int,
    ) -> None:
        self.model, self.capacity, self.tree = model, capacity, capacity.tree
        self.cells, self.totals = cells, totals
        self._whole: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self._add(types, level)

    def _add(self, types: Sequence[GroupType], level: int) -> None:
        """Adds one integer per type, level and domain, and its constraints."""
        tree = self.tree
        # groups that are whole in the children of a domain are also whole in the domain; their number is limited
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
        # the pods in a domain must be enough for all groups that are whole there
        for number in range(level + 1, tree.depth + 1):
            for domain in self._holders(number):
                whole = [
                    (t, self._whole[t, number, domain]) for t in range(len(types)) if (t, number, domain) in self._whole
                ]
                for i in range(len(self.capacity.shapes)):
                    asked = [(v, -types[t].pods[i]) for t, v in whole if types[t].pods[i]]
                    if asked:
                        self.model.add(linear([*self._pods_in(number, domain, i), *asked]) >= 0)

    def _holders(self, level: int) -> Iterable[int]:
        """Returns the domains of a level in the model."""
        return self.totals[level] if level < self.tree.depth else [c.nodes[0] for c in self.cells if len(c.nodes) == 1]

    def _may_hold(self, group: GroupType, level: int, domain: int) -> bool:
        """Returns False if no group of the type can be whole in a domain: bound members are outside, or slots are too
        few."""
        place = self.tree.levels[level]
        lo, hi = int(place.start[domain]), int(place.end[domain])
        if group.anchor is not None:
            deep, at = group.anchor
            if deep < level or not lo <= int(self.tree.levels[deep].start[at]) < hi:
                return False
        return all(int(self.capacity.slots[i][lo:hi].sum()) >= n for i, n in enumerate(group.pods))

    def _pods_in(self, level: int, domain: int, shape: int) -> list[Term]:
        """Returns the new pods of a shape position in a domain, as terms."""
        place = self.tree.levels[level]
        lo, hi = int(place.start[domain]), int(place.end[domain])
        return [(c.pods[shape], 1) for c in self.cells if shape in c.pods and lo <= c.nodes[0] < hi]

    def terms(self, level: int) -> list[Term]:
        """Returns the number of groups, of all types, that are whole in a domain of the level, as terms."""
        return [(v, 1) for (_, number, _), v in self._whole.items() if number == level]

    def counts(self, values: Sequence[int]) -> dict[tuple[int, int, int], int]:
        """Returns (index of the group type, level, domain) -> number of whole groups, where it is above 0.

        values: value of each variable of the model by index.
        """
        return {key: n for key, var in self._whole.items() if (n := values[var.index])}
