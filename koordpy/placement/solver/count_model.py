# SPDX-License-Identifier: Apache-2.0
"""The CP-SAT model of one region: how many pods of each shape each group of equal nodes takes, and the goals.

A region is a domain of the topology tree in which all new pods of the unit are placed. The variables of the model are
in `region_cells.py`. This module adds the constraints and sums that goals and rules need: used domains, whole pipeline
groups, interactions among members, device costs (`DeviceCosts`), and scores. Each goal is a sum (a list of `Term`s)
that `StagedModel.minimise` minimises. Source: docs/rules/gang-network.md 7.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from koordpy.placement.solver.counted_costs import CountedTable, Fits, Numbered
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.filling_capacity import FillingCapacity
from koordpy.placement.solver.member_interaction import Interacting
from koordpy.placement.solver.region_cells import ALL_NODES, Cell, CellOptions, RegionCells, TooLarge
from koordpy.placement.solver.staged_model import Term, linear
from koordpy.placement.solver.time_budget import TimeBudget
from koordpy.placement.solver.whole_groups import GroupType, WholeGroups
from koordpy.plan.limits import MODEL_TIES


class CountModel(RegionCells):
    """The counts of pods in one region, and the sums of its goals: used domains, whole groups, device costs, scores.

    Arguments as for `RegionCells`. Raises TooLarge if the model would have too many variables or interactions.
    """

    def __init__(
        self,
        capacity: FillingCapacity,
        region: tuple[int, int],
        *,
        budget: TimeBudget,
        options: CellOptions = ALL_NODES,
    ) -> None:
        super().__init__(capacity, region, budget=budget, options=options)
        self._groups: WholeGroups | None = None
        self.used: dict[int, dict[int, list[Term]]] = {}
        """Level -> domain -> 1 if new pods open the domain, else 0, as terms (`add_used`).

        On the level of the nodes, the key is the first node of a cell, and the value is the number of used nodes of the
        cell.
        """
        self._interactions()
        self.counted = self._counted()
        """The device costs as terms of this model; None without device costs, or if `numbered` has them."""
        self.numbered = self._numbered()
        """The device costs computed from numbers of devices, with fewer variables; None if that is not possible."""

    # --- interactions among members, and the device costs ----------------------------------------------------------

    def _interactions(self) -> None:
        """Adds all interactions of the problem; raises TooLarge if they need too many constraints."""
        if self.problem.interactions:
            if len(self.cells) * sum(len(one.meant) for one in self.problem.interactions) > MODEL_TIES:
                raise TooLarge
            between = self.interacting()
            for one in self.problem.interactions:
                between.add(one)

    def interacting(self) -> Interacting:
        """Returns the object that adds interactions among members to the model."""
        shapes = self.capacity.shapes
        places = [(c.nodes[0], {shapes[i]: [(var, 1)] for i, var in c.pods.items()}) for c in self.cells]
        most = dict(zip(shapes, self.capacity.wanted, strict=True))
        return Interacting(self.model, places, most=most, every=self._every)

    def _counted(self) -> CountedTable | None:
        """Adds the device costs of every cell as a table of values; None without device costs, or if `_numbered` adds
        them.

        A table that would be too large is left out, and then nothing is proven.
        """
        table = self.problem.device_costs
        if table is None or (table.devices is not None and self._fillings is None):
            return None
        capacity = self.capacity
        counted = CountedTable(self.model, table, shapes=len(self.problem.shapes))
        request = {shape: capacity.request[i].tolist() for i, shape in enumerate(capacity.shapes)}
        for cell in self.cells:
            kind = capacity.types[capacity.type_of[cell.nodes[0]]]
            pods = {capacity.shapes[i]: var for i, var in cell.pods.items()}
            most = {capacity.shapes[i]: kind.slots[i] for i in cell.pods}
            if self._fillings is not None:
                counted.add_filled(
                    cell.nodes[0], [(v, dict(zip(capacity.shapes, f, strict=True))) for v, f in cell.fillings]
                )
            else:
                counted.add(cell.nodes[0], pods, most, Fits(kind.caps, request))
        if not counted.complete:
            self.budget.proven = False
        return counted

    def _numbered(self) -> Numbered | None:
        """Adds the device costs of every cell, computed from numbers of devices.

        Returns None if the costs depend on more than these numbers, or if some cell has several nodes.
        """
        table = self.problem.device_costs
        if table is None or table.devices is None or self._fillings is not None:
            return None
        capacity, asks = self.capacity, table.devices.asks
        numbered = Numbered(self.model, table.devices)
        for cell in self.cells:
            slots = capacity.types[capacity.type_of[cell.nodes[0]]].slots
            most = sum(slots[i] * asks[capacity.shapes[i]] for i in cell.pods)
            free = int(table.devices.free[cell.nodes[0]])
            pods = {capacity.shapes[i]: var for i, var in cell.pods.items()}
            numbered.add(cell.nodes[0], pods, self.use(cell), most=min(most, free))
        return numbered

    def least_counted(self, bound: Sequence[int] = ()) -> tuple[int, ...]:
        """Minimises the device cost vector, component by component, makes the values constraints, and returns them.

        bound: proven lower bound of the vector or of its first components; empty if not known. The bound of a component
        is used only if all components before it have reached their bound. Returns () without device costs.
        """
        if self.numbered is not None:
            self.numbered.settle(self.values)
            bound = bound or (self._fewest_several(),)
        out: list[int] = []
        for at, terms in enumerate(self._vector()):
            sure = at < len(bound) and out == list(bound[:at])
            out.append(self.minimise("counted", terms, bound=bound[at] if sure else None))
        return tuple(out)

    def hold_counted(self, vector: Sequence[int]) -> None:
        """Limits the device cost vector to a value that another model has found."""
        for terms, most in zip(self._vector(), vector, strict=True):
            self.hold(terms, most)

    def _vector(self) -> list[list[Term]]:
        """Returns the terms of each component of the device cost vector; empty if the model does not represent it.

        For `numbered`, the last component is left out, because it does not depend on the placement.
        """
        if self.numbered is not None:
            return self.numbered.components
        return self.counted.components if self.counted is not None and self.counted.complete else []

    def _fewest_several(self) -> int:
        """Returns a lower bound of the number of nodes on which the new pods use two or more devices together.

        For each measure of capacity alone, the pods that request two or more devices fill the largest nodes first. The
        result is the largest number of nodes. 0 if not all pods must be placed, or without numbers of devices.
        """
        devices, capacity = (
            self.problem.device_costs.devices if self.problem.device_costs is not None else None,
            self.capacity,
        )
        if devices is None or not self._every:
            return 0
        pods = [n if devices.asks[s] > 1 else 0 for s, n in zip(capacity.shapes, capacity.wanted, strict=True)]
        nodes = [node for cell in self.cells for node in cell.nodes]
        asked = [(capacity.slots[i], n) for i, n in enumerate(pods)]
        asked += zip(capacity.caps.T, (np.array(pods, dtype=np.int64) @ capacity.request).tolist(), strict=True)
        sums = [(np.cumsum(np.sort(have[nodes])[::-1]), wanted) for have, wanted in asked if wanted]
        return max((int(np.searchsorted(have, wanted)) + 1 for have, wanted in sums), default=0)

    # --- used domains and whole groups --------------------------------------------------------------------------

    def add_used(self, *, siblings: bool = True) -> None:
        """Adds the variables of `used`: 0/1 per domain, 1 if the domain contains new pods and was not open before.

        siblings: True to count domains with bound members as open before. Nodes in `Problem.already_used` are always
        open.
        """
        depth, capacity, counts = self.tree.depth, self.capacity, self.shape_totals
        # domains above the nodes: `used` must be 1 if the domain has new pods. One constraint per shape and one for all
        # pods
        for number in range(self.region[0] + 1, depth):
            self.used[number] = {}
            place = self.tree.levels[number]
            weights: list[tuple[cp_model.IntVar | None, int]] = []
            for domain, total in self.totals[number].items():
                if siblings and self._holds_bound(number, domain):
                    weights.append((None, domain))
                    continue
                used = self.model.new_bool_var("")
                self.model.add(linear([(total, 1), (used, -min(self.limit, self._most(number, domain)))]) <= 0)
                self.used[number][domain] = [(used, 1)]
                weights.append((used, domain))
            if not self.used[number]:
                continue
            for i, wanted in enumerate(counts):
                slots = place.sums(capacity.slots[i])
                self._cover(weights, [int(slots[d]) for _, d in weights], wanted)
            sizes = place.sums(capacity.most)
            self._cover(weights, [int(sizes[d]) for _, d in weights], None)
        # nodes
        self.used[depth] = {}
        for cell in self.cells:
            if not (siblings and cell.bound) and not self._stands(cell.nodes[0]):
                self.used[depth][cell.nodes[0]] = self.use(cell)

    def use(self, cell: Cell) -> list[Term]:
        """Returns the number of nodes of a cell with new pods, as terms. Creates the variable on the first call."""
        if not cell.used:
            used, node = self.model.new_bool_var(""), cell.nodes[0]
            self.model.add(linear([*cell.total, (used, -min(self.limit, int(self.capacity.most[node])))]) <= 0)
            for i, var in cell.pods.items():
                self.model.add(linear([(var, 1), (used, -int(self.capacity.slots[i][node]))]) <= 0)
            cell.used = [(used, 1)]
        return cell.used

    def _stands(self, node: int) -> bool:
        """Returns True if a node counts as used without new pods (Problem.already_used)."""
        standing = self.problem.already_used
        return standing is not None and bool(standing[node])

    def opened(self, level: int) -> list[Term]:
        """Returns the number of domains of a level that the new pods open, as terms.

        `add_used` must have been called.
        """
        return [term for terms in self.used[level].values() for term in terms]

    def _most(self, level: int, domain: int) -> int:
        """Returns an upper bound on the new pods in a domain."""
        place = self.tree.levels[level]
        return int(self.capacity.most[place.start[domain] : place.end[domain]].sum())

    def _cover(
        self,
        weights: list[tuple[cp_model.IntVar | None, int]],
        sizes: list[int],
        wanted: cp_model.IntVar | None,
    ) -> None:
        """Adds a redundant constraint, which shortens proofs: the used domains together must have capacity for the
        pods.

        weights: for each domain (0/1 variable that it is used, or None if it is open anyway; domain). sizes: capacity
        of each domain. wanted: variable for the number of pods of one shape; None for the pods of all shapes.
        """
        open_size = sum(size for (used, _), size in zip(weights, sizes, strict=True) if used is None)
        terms = [(used, size) for (used, _), size in zip(weights, sizes, strict=True) if used is not None and size]
        goal = [(wanted, -1)] if wanted is not None else [(v, -1) for v in self.shape_totals]
        self.model.add(linear([*terms, *goal]) >= -open_size)

    def add_groups(self, types: Sequence[GroupType]) -> None:
        """Adds the number of whole pipeline groups of each type per domain. Each node must be a separate cell."""
        self._groups = WholeGroups(
            types, model=self.model, capacity=self.capacity, cells=self.cells, totals=self.totals, level=self.region[0]
        )

    def whole(self, level: int) -> list[Term]:
        """Returns the number of pipeline groups that are whole in a domain of the level, as terms; empty if none were
        added."""
        return self._groups.terms(level) if self._groups is not None else []

    # --- the score and the placement ----------------------------------------------------------------------------

    def lost_score(self) -> list[Term]:
        """Returns the negated total score, as terms to minimise."""
        scores = [self.problem.shapes[shape].score for shape in self.capacity.shapes]
        terms = [(var, -int(scores[i][cell.nodes[0]])) for cell in self.cells for i, var in cell.pods.items()]
        return [term for term in terms if term[1]]

    def on_scarce(self) -> list[Term]:
        """Returns the number of pods on nodes with a scarce resource that the pods do not request, as terms.

        Empty without `Problem.scarce`.
        """
        scarce = self.problem.scarce
        cells = [cell for cell in self.cells if scarce[cell.nodes[0]]] if scarce is not None else []
        return [(var, 1) for cell in cells for var in cell.pods.values()]

    def hint(self, pods: Mapping[int, Sequence[int]]) -> None:
        """Suggests a placement to the next solve as its start.

        pods: node -> [shape positions] number of pods; nodes without pods may be left out.
        """
        for cell in self.cells:
            for i, var in cell.pods.items():
                self.model.add_hint(var, sum(pods[node][i] for node in cell.nodes if node in pods))

    def take(self, pods: Mapping[int, Sequence[int]]) -> None:
        """Makes a placement of the region the current solution, without a solve. pods: as for `hint`.

        Only for models with `keep` and without `ordered`, multiples and interactions, because their variables all
        follow from the pods per node.
        """
        # variables of cells: pods, fillings, used nodes
        values = self.values = [0] * len(self.model.proto.variables)
        placed = np.zeros(len(self.problem.free), dtype=np.int64)
        placed[list(pods)] = [sum(held) for held in pods.values()]
        for cell in self.cells:
            here = [pods[node] for node in cell.nodes if node in pods]
            for i, var in cell.pods.items():
                values[var.index] = sum(held[i] for held in here)
            for held in here:
                if cell.fillings:
                    var = next(v for v, f in cell.fillings if all(a <= b for a, b in zip(held, f, strict=True)))
                    values[var.index] += 1
                elif cell.used:
                    values[cell.used[0][0].index] = 1
        # variables of domains, and totals per shape
        for number, domains in self.totals.items():
            sums = self.tree.levels[number].sums(placed)
            for domain, var in domains.items():
                values[var.index] = int(sums[domain])
                for used, _ in self.used.get(number, {}).get(domain, []):
                    values[used.index] = int(sums[domain] > 0)
        for i, var in enumerate(self.shape_totals):
            values[var.index] = sum(held[i] for held in pods.values())
        if self.numbered is not None:
            self.numbered.settle(values)

    def pods(self) -> dict[int, list[int]]:
        """Returns node -> [shape positions] number of pods, in the current solution.

        The pods of a cell of several nodes are distributed filling by filling. The fullest nodes come first in natural
        order.
        """
        out: dict[int, list[int]] = {}
        shapes = len(self.capacity.shapes)
        for cell in self.cells:
            left = [self.values[cell.pods[i].index] if i in cell.pods else 0 for i in range(shapes)]
            plans = [f for var, f in cell.fillings for _ in range(self.values[var.index])] or [tuple(left)]
            taken = []
            for plan in plans:
                pods = [min(have, most) for have, most in zip(left, plan, strict=True)]
                left = [have - n for have, n in zip(left, pods, strict=True)]
                taken.append(pods)
            taken.sort(key=sum, reverse=True)
            out.update({node: pods for node, pods in zip(cell.nodes, taken, strict=False) if any(pods)})
        return out

    def whole_counts(self) -> dict[tuple[int, int, int], int]:
        """Returns (index of the group type, level, domain) -> number of whole groups in the current solution."""
        return self._groups.counts(self.values) if self._groups is not None else {}

    def node_totals(self, order: Iterable[int]) -> list[tuple[list[Term], int]]:
        """Returns (new pods as terms, upper bound) of single nodes in the given order.

        Nodes that take no pod are left out.
        """
        cells = {c.nodes[0]: c for c in self.cells}
        return [(cells[n].total, min(self.limit, int(self.capacity.most[n]))) for n in order if n in cells]

    def domain_totals(self, level: int, order: Iterable[int]) -> list[tuple[list[Term], int]]:
        """Returns (new pods as terms, upper bound) of domains of a level in the given order.

        Domains that take no pod are left out.
        """
        inside = self.totals[level]
        return [([(inside[d], 1)], min(self.limit, self._most(level, d))) for d in order if d in inside]
