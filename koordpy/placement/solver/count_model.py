"""The CP-SAT model of one region: how many pods of each shape every class of nodes takes.

Source: gang-network.md section 7. Nodes of one parent that are equal in all but their names are one cell, described by
how many of them follow each maximal filling, or each filling at all where these are worth something; unequal nodes are
cells of one. Domains carry sums, "used" and whole PP groups. Without a gather goal nobody's parent is looked at.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from koordpy.planning.limits import MODEL_TIES
from koordpy.planning.placement.problem import Ints
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.counted import CountedTable, Fits, Numbered
from koordpy.planning.solver.cpsat import cp_model
from koordpy.planning.solver.interacting import Interacting
from koordpy.planning.solver.room import NodeType, Room, every_filling
from koordpy.planning.solver.staged import StagedModel, Term, linear
from koordpy.planning.solver.whole_groups import Cell, GroupType, WholeGroups


class TooLarge(Exception):
    """A model would have too many variables to be solved in a round."""


class CountModel(StagedModel):
    """Counts inside one region. every: whether all pods in question are placed; else `shape_totals` stay open.

    keep: for a model of the given nodes only; else domains alike are filled in their order. ordered: whether nodes
    alike are. most_nodes: that take pods, where that is known. alike: [nodes] equal numbers for equal nodes, by default
    of those that differ in names alone.
    """

    def __init__(
        self,
        room: Room,
        region: tuple[int, int],
        *,
        budget: TimeBudget,
        every: bool = True,
        split: bool = False,
        keep: Sequence[int] | None = None,
        ordered: bool = True,
        most_nodes: int | None = None,
        alike: Ints | None = None,
    ) -> None:
        self.room, self.tree, self.problem = room, room.tree, room.problem
        super().__init__(budget)
        self.region, self._every = region, every
        self._alike = room.signatures[self.tree.depth] if alike is None else alike
        self._groups: WholeGroups | None = None
        self.limit = sum(room.wanted)
        level, domain = region
        self.nodes = range(int(self.tree.levels[level].start[domain]), int(self.tree.levels[level].end[domain]))
        self._keep, self._ordered = None if keep is None else set(keep), ordered
        self.cells: list[Cell] = []
        self._pods = 0
        """Variables of nodes by themselves."""
        self.totals: dict[int, dict[int, cp_model.IntVar]] = {}
        """Level -> domain -> new pods in it; only domains that can take any, the cells are the lowest."""
        self.used: dict[int, dict[int, list[Term]]] = {}
        self._flat = not (self.problem.gather or self.problem.multiples or self.problem.interactions)
        self._fillings = self._each_filling(most_nodes) if every and self._flat else None
        self.split = split or (room.singly and self._fillings is None)
        self._build(level, domain)
        self.shape_totals: list[cp_model.IntVar] = []
        for i, wanted in enumerate(room.wanted):
            total = self.model.new_int_var(wanted if every else 0, wanted, "")
            self.model.add(linear((c.pods[i], 1) for c in self.cells if i in c.pods) == total)
            self.shape_totals.append(total)
        self.possible &= bool(self.cells)
        self._interactions()
        self.counted = self._counted()
        """What a ByCount adds, as terms of this model; None without one, or where `numbered` has it."""
        self.numbered = self._numbered()

    # --- building -----------------------------------------------------------------------------------------------

    def _build(self, level: int, domain: int) -> None:
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
        k = self.problem.multiples.get(level, 1)
        if k <= 1:
            return
        if not total:
            self.possible &= bound % k == 0
            return
        times = self.model.new_int_var(0, (bound + self.limit) // k, "")
        self.model.add(linear([*total, (times, -k)]) == -bound)

    def _domain(self, level: int, domain: int) -> list[Term] | None:
        """Builds a domain above the nodes; its total, None where nothing fits."""
        tree = self.tree
        place = tree.levels[level]
        lo, hi = int(place.start[domain]), int(place.end[domain])
        if level == tree.depth - 1:
            terms = self._cell_total(self._node_cells(range(lo, hi)))
        else:
            terms = []
            signs = self.room.signatures[level + 1]
            last: dict[int, cp_model.IntVar] = {}
            taken: dict[int, int] = {}
            for child in tree.children(level, domain):
                sign = int(signs[child])
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
        most = min(self.limit, int(self.room.most[lo:hi].sum()))
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
        room, bound, depth = self.room, self.problem.bound_counts, self.tree.depth
        classes: dict[int, list[int]] = {}
        for node in nodes:
            if room.most[node] and (self._keep is None or node in self._keep):
                classes.setdefault(int(self._alike[node]), []).append(node)
            else:
                self._multiple(depth, [], int(bound[node]))
        out: list[Cell] = []
        for same in classes.values():
            kind = room.types[room.type_of[same[0]]]
            same = [n for i, n in enumerate(same) if i < self.limit or bound[n]]
            if self._fillings is not None:
                out.append(self._class(same, self._fillings[room.type_of[same[0]]]))
            elif len(same) == 1 or self.split or kind.fillings is None or depth in self.problem.multiples:
                singles = [self._single(node) for node in same]
                # goal 6 wants larger counts first
                for before, after in pairwise(singles if self._ordered else []):
                    self.model.add(linear([*before.total, *((v, -c) for v, c in after.total)]) >= 0)
                out.extend(singles)
            else:
                out.append(self._class(same, kind.fillings))
        self.cells.extend(out)
        return out

    def _single(self, node: int) -> Cell:
        self.problem.interrupts.step()  # many kinds of pods on many nodes make a model of seconds
        room = self.room
        kind = room.types[room.type_of[node]]
        pods = {i: self.model.new_int_var(0, n, "") for i, n in enumerate(kind.slots) if n}
        self._pods += len(pods)
        if self._pods > self.problem.sizes.model_pods:
            raise TooLarge
        self._capacity(kind, pods)
        cell = Cell(nodes=(node,), bound=bool(self.problem.bound_counts[node]), pods=pods)
        self._multiple(self.tree.depth, cell.total, int(self.problem.bound_counts[node]))
        return cell

    def _capacity(self, kind: NodeType, pods: Mapping[int, cp_model.IntVar]) -> None:
        """One node is asked for no more than it has."""
        for column, cap in enumerate(kind.caps):
            needs = self.room.request[:, column].tolist()
            if sum(kind.slots[i] * needs[i] for i in pods) > cap:
                self.model.add(linear((v, needs[i]) for i, v in pods.items()) <= cap)

    def _class(self, nodes: list[int], fillings: Sequence[tuple[int, ...]]) -> Cell:
        kind = self.room.types[self.room.type_of[nodes[0]]]
        pods = {
            i: self.model.new_int_var(0, min(n * len(nodes), self.room.wanted[i]), "")
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
        """Type of a node -> every way to fill it, where ways are worth something; None elsewhere, and where a node has
        too many. With so many nodes at most, a way that leaves over more than the others could take is left out."""
        room, table = self.room, self.problem.by_count
        if table is None:
            return None
        out: dict[int, list[tuple[int, ...]]] = {}
        for type_of in dict.fromkeys(room.type_of[list(self.nodes)].tolist()):
            found = every_filling(room, type_of)
            if found is None:
                return None
            out[type_of] = found
        asked = np.concatenate((room.request, np.ones((len(room.counts), 1), dtype=np.int64)), axis=1)
        used = {pods: np.array(pods, dtype=np.int64) @ asked for ways in out.values() for pods in ways}
        if most_nodes is not None and used:
            least = room.counts @ asked - (most_nodes - 1) * np.max(list(used.values()), axis=0)
            out = {t: [pods for pods in ways if bool((used[pods] >= least).all())] for t, ways in out.items()}
        return out

    def _interactions(self) -> None:
        if self.problem.interactions:
            if len(self.cells) * sum(len(one.meant) for one in self.problem.interactions) > MODEL_TIES:
                raise TooLarge
            between = self.interacting()
            for one in self.problem.interactions:
                between.add(one)

    def interacting(self) -> Interacting:
        """What adds to the model what members ask of each other's places."""
        shapes = self.room.shapes
        places = [(c.nodes[0], {shapes[i]: [(var, 1)] for i, var in c.pods.items()}) for c in self.cells]
        return Interacting(self.model, places, most=dict(zip(shapes, self.room.wanted, strict=True)))

    def _counted(self) -> CountedTable | None:
        table = self.problem.by_count
        if table is None or (table.devices is not None and self._fillings is None):
            return None
        room = self.room
        counted = CountedTable(self.model, table, shapes=len(self.problem.shapes))
        request = {shape: room.request[i].tolist() for i, shape in enumerate(room.shapes)}
        for cell in self.cells:
            kind = room.types[room.type_of[cell.nodes[0]]]
            pods = {room.shapes[i]: var for i, var in cell.pods.items()}
            most = {room.shapes[i]: kind.slots[i] for i in cell.pods}
            if self._fillings is not None:
                counted.add_filled(
                    cell.nodes[0], [(v, dict(zip(room.shapes, f, strict=True))) for v, f in cell.fillings]
                )
            else:
                counted.add(cell.nodes[0], pods, most, Fits(kind.caps, request))
        if not counted.complete:
            self.budget.proven = False
        return counted

    def _numbered(self) -> Numbered | None:
        table = self.problem.by_count
        if table is None or table.devices is None or self._fillings is not None:
            return None
        room, asks = self.room, table.devices.asks
        numbered = Numbered(self.model, table.devices)
        for cell in self.cells:
            slots = room.types[room.type_of[cell.nodes[0]]].slots
            most = sum(slots[i] * asks[room.shapes[i]] for i in cell.pods)
            free = int(table.devices.free[cell.nodes[0]])
            pods = {room.shapes[i]: var for i, var in cell.pods.items()}
            numbered.add(cell.nodes[0], pods, self.use(cell), most=min(most, free))
        return numbered

    def least_counted(self, bound: Sequence[int] = ()) -> tuple[int, ...]:
        """Brings the vector of the ByCount to its least value, number by number, and holds it there.

        bound: proven lower bound on the vector, or on its first numbers.
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
        """Keeps the vector at its least value, where that is known."""
        for terms, most in zip(self._vector(), vector, strict=True):
            self.hold(terms, most)

    def _vector(self) -> list[list[Term]]:
        """The numbers of the vector that depend on the placement; none where the model does not tell."""
        if self.numbered is not None:
            return self.numbered.components
        return self.counted.components if self.counted is not None and self.counted.complete else []

    def _fewest_several(self) -> int:
        """Lower bound on the nodes that give two devices and more: as many as the pods need that ask for two and more,
        by each measure of room."""
        devices, room = self.problem.by_count.devices if self.problem.by_count is not None else None, self.room
        if devices is None or not self._every:
            return 0
        pods = [n if devices.asks[s] > 1 else 0 for s, n in zip(room.shapes, room.wanted, strict=True)]
        nodes = [node for cell in self.cells for node in cell.nodes]
        asked = [(room.slots[i], n) for i, n in enumerate(pods)]
        asked += zip(room.caps.T, (np.array(pods, dtype=np.int64) @ room.request).tolist(), strict=True)
        sums = [(np.cumsum(np.sort(have[nodes])[::-1]), wanted) for have, wanted in asked if wanted]
        return max((int(np.searchsorted(have, wanted)) + 1 for have, wanted in sums), default=0)

    # --- used domains and whole groups --------------------------------------------------------------------------

    def add_used(self, *, siblings: bool = True) -> None:
        """Adds a 0/1 per domain that new pods open; with `siblings`, domains of bound members are open already."""
        depth, room, counts = self.tree.depth, self.room, self.shape_totals
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
                slots = place.sums(room.slots[i])
                self._cover(weights, [int(slots[d]) for _, d in weights], wanted)
            sizes = place.sums(room.most)
            self._cover(weights, [int(sizes[d]) for _, d in weights], None)
        self.used[depth] = {}
        for cell in self.cells:
            if not (siblings and cell.bound) and not self._stands(cell.nodes[0]):
                self.used[depth][cell.nodes[0]] = self.use(cell)

    def use(self, cell: Cell) -> list[Term]:
        """How many of a cell's nodes take pods; made on first use."""
        if not cell.used:
            self.problem.interrupts.step()
            used, node = self.model.new_bool_var(""), cell.nodes[0]
            self.model.add(linear([*cell.total, (used, -min(self.limit, int(self.room.most[node])))]) <= 0)
            for i, var in cell.pods.items():
                self.model.add(linear([(var, 1), (used, -int(self.room.slots[i][node]))]) <= 0)
            cell.used = [(used, 1)]
        return cell.used

    def _stands(self, node: int) -> bool:
        """Whether a node counts as used without new pods, where there is no gather goal."""
        standing = self.problem.standing
        return standing is not None and bool(standing[node])

    def opened(self, level: int) -> list[Term]:
        """How many domains of a level the new pods open."""
        return [term for terms in self.used[level].values() for term in terms]

    def _most(self, level: int, domain: int) -> int:
        place = self.tree.levels[level]
        return int(self.room.most[place.start[domain] : place.end[domain]].sum())

    def _cover(
        self,
        weights: list[tuple[cp_model.IntVar | None, int]],
        sizes: list[int],
        wanted: cp_model.IntVar | None,
    ) -> None:
        """The redundant cut: the domains used must hold what is wanted."""
        open_size = sum(size for (used, _), size in zip(weights, sizes, strict=True) if used is None)
        terms = [(used, size) for (used, _), size in zip(weights, sizes, strict=True) if used is not None and size]
        goal = [(wanted, -1)] if wanted is not None else [(v, -1) for v in self.shape_totals]
        self.model.add(linear([*terms, *goal]) >= -open_size)

    def add_groups(self, types: Sequence[GroupType]) -> None:
        """Adds the number of whole PP groups of each type per domain; single nodes must be cells of their own."""
        self._groups = WholeGroups(
            types, model=self.model, room=self.room, cells=self.cells, totals=self.totals, level=self.region[0]
        )

    def whole(self, level: int) -> list[Term]:
        """Groups whole in a domain of the level, where they were added."""
        return self._groups.terms(level) if self._groups is not None else []

    # --- the score and the placement ----------------------------------------------------------------------------

    def lost_score(self) -> list[Term]:
        """The negated total score."""
        scores = [self.problem.shapes[shape].score for shape in self.room.shapes]
        terms = [(var, -int(scores[i][cell.nodes[0]])) for cell in self.cells for i, var in cell.pods.items()]
        return [term for term in terms if term[1]]

    def hint(self, pods: Mapping[int, Sequence[int]]) -> None:
        """Hints at a placement of the region: node -> pods per shape position, nodes without any may be left out."""
        for cell in self.cells:
            for i, var in cell.pods.items():
                self.model.add_hint(var, sum(pods[node][i] for node in cell.nodes if node in pods))

    def take(self, pods: Mapping[int, Sequence[int]]) -> None:
        """Takes a placement of the region as the current solution, without a solve.

        Only for models of given nodes without order, multiples and interactions.
        """
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
        """The same of the current solution; classes are dealt out filling by filling in natural order."""
        out: dict[int, list[int]] = {}
        shapes = len(self.room.shapes)
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
        """(group type, level, domain) -> whole groups."""
        return self._groups.counts(self.values) if self._groups is not None else {}

    def node_totals(self, order: Iterable[int]) -> list[tuple[list[Term], int]]:
        """(sum, upper bound) of single nodes in the given order, nodes that take nothing left out."""
        cells = {c.nodes[0]: c for c in self.cells}
        return [(cells[n].total, min(self.limit, int(self.room.most[n]))) for n in order if n in cells]

    def domain_totals(self, level: int, order: Iterable[int]) -> list[tuple[list[Term], int]]:
        """(sum, upper bound) of the domains of a level in the given order, those that take nothing left out."""
        inside = self.totals[level]
        return [([(inside[d], 1)], min(self.limit, self._most(level, d))) for d in order if d in inside]
