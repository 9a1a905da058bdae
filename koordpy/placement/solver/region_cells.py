# SPDX-License-Identifier: Apache-2.0
"""The variables of one region in CP-SAT: how many pods of each shape each group of equal nodes takes.

A model with a variable per node and shape would be too large for thousands of nodes. So nodes of one parent that are
equal except for their names form one *cell*, and the pods on all of them are one variable per shape. A *filling* is a
number of pods per shape that fit together on one node. A cell counts how many of its nodes have each maximal filling;
if device costs (`DeviceCosts`) depend on fillings, how many have each filling of any size. A node without an equal node
is a cell by itself. Without a gather goal, the parents of nodes are ignored. Source: docs/rules/gang-network.md 7.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from koordpy.placement.problem import Ints
from koordpy.placement.solver.cpsat import cp_model
from koordpy.placement.solver.filling_capacity import FillingCapacity, NodeType, every_filling
from koordpy.placement.solver.staged_model import StagedModel, Term, linear
from koordpy.placement.solver.time_budget import TimeBudget


class TooLarge(Exception):
    """Raised if a model would have too many variables to be solved in a round."""


@dataclass(slots=True)
class Cell:
    """Equal nodes of one parent that a model counts together, or a single node."""

    nodes: tuple[int, ...]
    """The nodes in natural order."""
    bound: bool
    """True for a single node that contains bound members."""
    pods: dict[int, cp_model.IntVar]
    """Shape position -> variable: number of new pods on all nodes of the cell together; only shapes that fit."""
    fillings: list[tuple[cp_model.IntVar, tuple[int, ...]]] = field(default_factory=list)
    """(variable: number of nodes with this filling, filling: pods per shape position); empty for a single node."""
    used: list[Term] = field(default_factory=list)
    """The number of nodes with new pods, as terms; empty until `CountModel.use` creates it."""

    @property
    def total(self) -> list[Term]:
        """The number of new pods of all shapes, as terms."""
        return [(v, 1) for v in self.pods.values()]


@dataclass(frozen=True, eq=False)
class CellOptions:
    """The nodes of a region that a model contains, and how it counts them."""

    every: bool = True
    """True if all pods in `capacity.wanted` must be placed. False if these numbers are upper limits, and the model
    decides how many pods are placed."""
    split: bool = False
    """True if each node is a separate cell."""
    keep: Sequence[int] | None = None
    """Nodes to model; None for all nodes of the region. With None, equal domains are filled in their order; this loses
    no optimum and saves the solver from symmetric solutions."""
    ordered: bool = True
    """True if equal single nodes are also filled in their order."""
    most_nodes: int | None = None
    """Upper bound of the number of nodes with pods; None if not known."""
    alike: Ints | None = None
    """[nodes] equal numbers for nodes that may be in one cell; None: nodes that differ in names only may be in one
    cell."""


ALL_NODES = CellOptions()
"""All nodes of the region are modelled, equal nodes are one cell, and all pods must be placed."""


class RegionCells(StagedModel):
    """The variables of one region: pods per shape of each cell, and sums per domain.

    capacity: capacity of the nodes for the pods to place. region: (level, domain).
    """

    def __init__(
        self,
        capacity: FillingCapacity,
        region: tuple[int, int],
        *,
        budget: TimeBudget,
        options: CellOptions = ALL_NODES,
    ) -> None:
        self.capacity, self.tree, self.problem = capacity, capacity.tree, capacity.problem
        super().__init__(budget)
        self.region, self._every = region, options.every
        # the nodes that are modelled, and which of them may be one cell; `limit`: upper bound of the pods in a domain
        self._alike = capacity.signatures[self.tree.depth] if options.alike is None else options.alike
        self.limit = sum(capacity.wanted)
        level, domain = region
        self.nodes = range(int(self.tree.levels[level].start[domain]), int(self.tree.levels[level].end[domain]))
        self._keep, self._ordered = None if options.keep is None else set(options.keep), options.ordered
        self.cells: list[Cell] = []
        self._pods = 0
        """Number of variables of single-node cells so far."""
        self.totals: dict[int, dict[int, cp_model.IntVar]] = {}
        """Level -> domain -> variable: new pods in it. Only domains above the nodes that can take pods."""
        # True if the parents of nodes do not matter: then all cells are directly below the region
        self._flat = not (self.problem.gather or self.problem.multiples or self.problem.interactions)
        self._fillings = self._each_filling(options.most_nodes) if options.every and self._flat else None
        self.split = options.split or (capacity.singly and self._fillings is None)
        """True if every node is a separate cell."""
        self._build(level, domain)
        self.shape_totals: list[cp_model.IntVar] = []
        """[shape positions] the number of pods placed: constants if `every`, else variables."""
        for i, wanted in enumerate(capacity.wanted):
            total = self.model.new_int_var(wanted if options.every else 0, wanted, "")
            self.model.add(linear((c.pods[i], 1) for c in self.cells if i in c.pods) == total)
            self.shape_totals.append(total)
        self.possible &= bool(self.cells)

    def _build(self, level: int, domain: int) -> None:
        """Creates the cells and sums of the region from the bottom up, and the multiples of the domains above the
        region."""
        tree, depth = self.tree, self.tree.depth
        self.totals = {number: {} for number in range(level, depth)}
        top: list[Term] | None
        if level == depth or self._flat:
            top = self._cell_total(self._node_cells(self.nodes))
        else:
            top = self._domain(level, domain)
        self.top: list[Term] = top or []
        bound = self.problem.bound_counts
        for number in range(level - 1, -1, -1):
            above = int(tree.domain_of[number, self.nodes[0]])
            held = int(tree.levels[number].sums(bound)[above])
            self._multiple(number, self.top, held)

    def _multiple(self, level: int, total: list[Term], bound: int) -> None:
        """Adds the podCountMultiple of a level for one domain. total: its new pods; bound: its bound members."""
        k = self.problem.multiples.get(level, 1)
        if k <= 1:
            return
        if not total:
            self.possible &= bound % k == 0
            return
        times = self.model.new_int_var(0, (bound + self.limit) // k, "")
        self.model.add(linear([*total, (times, -k)]) == -bound)

    def _domain(self, level: int, domain: int) -> list[Term] | None:
        """Builds a domain above the nodes. Returns the number of new pods in it as terms; None if no pod fits."""
        tree = self.tree
        place = tree.levels[level]
        lo, hi = int(place.start[domain]), int(place.end[domain])
        if level == tree.depth - 1:
            terms = self._cell_total(self._node_cells(range(lo, hi)))
        else:
            terms = []
            signs = self.capacity.signatures[level + 1]
            last: dict[int, cp_model.IntVar] = {}
            taken: dict[int, int] = {}
            for child in tree.children(level, domain):
                sign = int(signs[child])
                # n pods need at most n of several equal domains
                if self._keep is None and taken.get(sign, 0) >= self.limit and not self._holds_bound(level + 1, child):
                    continue
                if self._domain(level + 1, child) is None:
                    continue
                total = self.totals[level + 1][child]
                taken[sign] = taken.get(sign, 0) + 1
                if sign in last and self._keep is None:
                    self.model.add(total <= last[sign])
                last[sign] = total
                terms.append((total, 1))
        bound = int(self.problem.bound_counts[lo:hi].sum())
        if not terms:
            self._multiple(level, [], bound)
            return None
        most = min(self.limit, int(self.capacity.most[lo:hi].sum()))
        var = self.model.new_int_var(0, most, "")
        self.model.add(linear([*terms, (var, -1)]) == 0)
        self.totals[level][domain] = var
        self._multiple(level, [(var, 1)], bound)
        return [(var, 1)]

    def _holds_bound(self, level: int, domain: int) -> bool:
        place = self.tree.levels[level]
        return bool(self.problem.bound_counts[place.start[domain] : place.end[domain]].any())

    def _cell_total(self, cells: list[Cell]) -> list[Term]:
        return [term for cell in cells for term in cell.total]

    def _node_cells(self, nodes: Iterable[int]) -> list[Cell]:
        """Creates the cells of the nodes of one parent, and returns them.

        Equal nodes become one cell. Each node is a cell by itself if `split` is True, if nodes have a multiple, or if
        their fillings are too many to list.
        """
        capacity, bound, depth = self.capacity, self.problem.bound_counts, self.tree.depth
        classes: dict[int, list[int]] = {}
        for node in nodes:
            if capacity.most[node] and (self._keep is None or node in self._keep):
                classes.setdefault(int(self._alike[node]), []).append(node)
            else:
                self._multiple(depth, [], int(bound[node]))
        out: list[Cell] = []
        for same in classes.values():
            kind = capacity.types[capacity.type_of[same[0]]]
            same = [n for i, n in enumerate(same) if i < self.limit or bound[n]]
            if self._fillings is not None:
                out.append(self._class(same, self._fillings[capacity.type_of[same[0]]]))
            elif len(same) == 1 or self.split or kind.fillings is None or depth in self.problem.multiples:
                singles = [self._single(node) for node in same]
                # goal 6 prefers larger counts on earlier nodes
                for before, after in pairwise(singles if self._ordered else []):
                    self.model.add(linear([*before.total, *((v, -c) for v, c in after.total)]) >= 0)
                out.extend(singles)
            else:
                out.append(self._class(same, kind.fillings))
        self.cells.extend(out)
        return out

    def _single(self, node: int) -> Cell:
        """Returns a new cell of one node, with its capacity and multiple as constraints."""
        capacity = self.capacity
        kind = capacity.types[capacity.type_of[node]]
        pods = {i: self.model.new_int_var(0, n, "") for i, n in enumerate(kind.slots) if n}
        self._pods += len(pods)
        if self._pods > self.problem.sizes.model_pods:
            raise TooLarge
        self._capacity(kind, pods)
        cell = Cell(nodes=(node,), bound=bool(self.problem.bound_counts[node]), pods=pods)
        self._multiple(self.tree.depth, cell.total, int(self.problem.bound_counts[node]))
        return cell

    def _capacity(self, kind: NodeType, pods: Mapping[int, cp_model.IntVar]) -> None:
        """Limits the requests of the pods on one node to its capacity, for each resource that can be exceeded."""
        for column, cap in enumerate(kind.caps):
            needs = self.capacity.request[:, column].tolist()
            if sum(kind.slots[i] * needs[i] for i in pods) > cap:
                self.model.add(linear((v, needs[i]) for i, v in pods.items()) <= cap)

    def _class(self, nodes: list[int], fillings: Sequence[tuple[int, ...]]) -> Cell:
        """Returns a new cell of equal nodes: each node has one of the fillings, or no pod.

        If only maximal fillings are listed, a node may also have fewer pods than its filling.
        """
        kind = self.capacity.types[self.capacity.type_of[nodes[0]]]
        pods = {
            i: self.model.new_int_var(0, min(n * len(nodes), self.capacity.wanted[i]), "")
            for i, n in enumerate(kind.slots)
            if n
        }
        cell = Cell(nodes=tuple(nodes), bound=False, pods=pods)
        for filling in fillings:
            cell.fillings.append((self.model.new_int_var(0, len(nodes), ""), filling))
        self.model.add(linear((v, 1) for v, _ in cell.fillings) <= len(nodes))
        for i, var in pods.items():
            over = linear([(var, -1), *((v, f[i]) for v, f in cell.fillings if f[i])])
            self.model.add(over >= 0 if self._fillings is None else over == 0)
        cell.used = [(v, 1) for v, _ in cell.fillings]
        return cell

    def _each_filling(self, most_nodes: int | None) -> dict[int, list[tuple[int, ...]]] | None:
        """Returns node type -> all fillings of any size; None without device costs, or if a node type has too many
        fillings.

        With device costs, all fillings are needed because a smaller filling may cost less. A filling is left out if the
        other nodes with pods could not take all remaining pods: at most `most_nodes`, or all nodes if it is None.
        """
        capacity, table = self.capacity, self.problem.device_costs
        if table is None:
            return None
        out: dict[int, list[tuple[int, ...]]] = {}
        for type_of in dict.fromkeys(capacity.type_of[list(self.nodes)].tolist()):
            found = every_filling(capacity, type_of)
            if found is None:
                return None
            out[type_of] = found
        asked = np.concatenate((capacity.request, np.ones((len(capacity.counts), 1), dtype=np.int64)), axis=1)
        used = {pods: np.array(pods, dtype=np.int64) @ asked for ways in out.values() for pods in ways}
        with_room = int(np.count_nonzero(capacity.most[list(self.nodes)]))
        most_nodes = with_room if most_nodes is None else min(most_nodes, with_room)
        if used:
            least = capacity.counts @ asked - (most_nodes - 1) * np.max(list(used.values()), axis=0)
            out = {t: [pods for pods in ways if bool((used[pods] >= least).all())] for t, ways in out.items()}
        return out
