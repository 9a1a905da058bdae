"""Goal 7 by search: which rank goes to which node when no order of whole domains will do.

Source: gang-network.md section 5, goal 7: exact up to 64 pods; above, any assignment that keeps goals 0-6.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from koordpy.planning.placement.goals import Goals, pipeline_groups
from koordpy.planning.placement.problem import Problem
from koordpy.planning.placement.rank_ring import RankRing
from koordpy.planning.placement.rank_search import RankSearch
from koordpy.planning.plan import RANKS
from koordpy.planning.solver.budget import TimeBudget
from koordpy.planning.solver.counted import CountedTable, Fits
from koordpy.planning.solver.cpsat import cp_model
from koordpy.planning.solver.interacting import Interacting
from koordpy.planning.solver.staged import Term, hint, linear


class Ring:
    """Assigns new pods to nodes with given totals; bound members are fixed places of the ring."""

    def __init__(self, problem: Problem, start: Mapping[int, int], *, budget: TimeBudget) -> None:
        """start: a valid assignment, optimal in goals 0-6, whose counts per node and goal 3 are kept."""
        self.problem, self.tree, self.budget, self.start = problem, problem.tree, budget, dict(start)
        self.model = cp_model.CpModel()
        self.goals = Goals(problem)
        self.nodes = sorted(set(start.values()))
        self.ring = sorted(self.goals.placed(start))
        self.fixed = {rank: node for rank in self.ring if rank not in start and (node := self._bound(rank)) is not None}
        self.at: dict[tuple[int, int], cp_model.IntVar] = {}
        """(rank, node) -> whether a new pod is there."""
        self._domain_nodes: dict[int, dict[int, list[int]]] = {}
        """Level -> domain -> nodes."""
        crossed = self.goals.pipeline(start)
        ring = RankRing(problem, Counter(start.values()), sorted(start), crossed=crossed, score=None)
        self.least = RankSearch(ring).least_crossings()
        self._places()
        self._keep_groups()
        score = [(v, self._score(rank, node)) for (rank, node), v in self.at.items()]
        if any(n for _, n in score):
            self.model.add(linear(score) >= sum(self._score(rank, node) for rank, node in start.items()))

    def _score(self, rank: int, node: int) -> int:
        return int(self.problem.shapes[self.problem.members[rank].shape].score[node])

    def _bound(self, rank: int) -> int | None:
        return self.problem.members[rank].node

    def _places(self) -> None:
        problem, model = self.problem, self.model
        for rank in sorted(self.start):
            problem.interrupts.step()
            shape = problem.members[rank].shape
            for node in self.nodes:
                if problem.slots_of[shape][node]:
                    self.at[rank, node] = model.new_bool_var("")
            model.add_exactly_one(self.at[rank, n] for n in self.nodes if (rank, n) in self.at)
        for node in self.nodes:
            here = [(rank, self.at[rank, node]) for rank in sorted(self.start) if (rank, node) in self.at]
            model.add(linear((v, 1) for _, v in here) == sum(n == node for n in self.start.values()))
            columns: dict[int, list[Term]] = {}
            for rank, var in here:
                for column, amount in problem.shapes[problem.members[rank].shape].request:
                    columns.setdefault(column, []).append((var, amount))
            for column, terms in sorted(columns.items()):
                if sum(amount for _, amount in terms) > problem.free[node, column]:
                    model.add(linear(terms) <= int(problem.free[node, column]))
        self._keep_apart()
        self._keep_counted()

    def _keep_counted(self) -> None:
        """Holds the vector of a ByCount, where pods of several shapes may change their places."""
        problem, table = self.problem, self.problem.by_count
        shape_of = {rank: problem.members[rank].shape for rank in self.start}
        wanted = Counter(shape_of.values())
        if table is None or len(wanted) == 1:
            return
        counted = CountedTable(self.model, table, shapes=len(problem.shapes))
        for node in self.nodes:
            held: dict[int, list[Term]] = {}
            for (rank, at), var in self.at.items():
                if at == node:
                    held.setdefault(shape_of[rank], []).append((var, 1))
            most = {shape: min(len(terms), int(problem.slots_of[shape][node])) for shape, terms in held.items()}
            pods = {}
            for shape, terms in held.items():
                pods[shape] = self.model.new_int_var(0, most[shape], "")
                self.model.add(linear([*terms, (pods[shape], -1)]) == 0)
            counted.add(node, pods, most, Fits((), {}))
        if not counted.complete:
            self.budget.proven = False
            return
        for terms, goal in zip(counted.components, self.goals.counted(self.start), strict=True):
            if terms:
                self.model.add(linear(terms) == int(goal))

    def _keep_apart(self) -> None:
        """What members ask of each other's places depends on shapes alone, so pods of one shape may change theirs."""
        shape_of = {rank: self.problem.members[rank].shape for rank in self.start}
        most = Counter(shape_of.values())
        if not self.problem.interactions or len(most) == 1:
            return
        held: dict[int, dict[int, list[Term]]] = {node: {} for node in self.nodes}
        for (rank, node), var in self.at.items():
            held[node].setdefault(shape_of[rank], []).append((var, 1))
        Interacting(self.model, list(held.items()), most=most).add(self.problem.interactions)

    def _there(self, rank: int, level: int, domain: int) -> tuple[list[Term], int]:
        """Whether a member lies in a domain, as a sum and a constant."""
        if rank in self.fixed:
            return [], int(self.tree.domain_of[level, self.fixed[rank]] == domain)
        return [(self.at[rank, n], 1) for n in self._inside(level).get(domain, ()) if (rank, n) in self.at], 0

    def _inside(self, level: int) -> Mapping[int, Sequence[int]]:
        """Domain -> its nodes."""
        if level not in self._domain_nodes:
            inside = self._domain_nodes[level] = {}
            for node in self.nodes:
                inside.setdefault(int(self.tree.domain_of[level, node]), []).append(node)
        return self._domain_nodes[level]

    def _domains(self, level: int) -> list[int]:
        used = [*self.nodes, *self.fixed.values()]
        return sorted({int(d) for d in self.tree.domain_of[level, used]})

    def _keep_groups(self) -> None:
        groups = [[rank for rank in group if rank in set(self.ring)] for group in pipeline_groups(self.problem)]
        groups = [group for group in groups if len(group) > 1 and any(rank in self.start for rank in group)]
        if not groups:
            return
        placed = self.goals.placed(self.start)
        for level in range(1, self.tree.depth + 1):
            target = sum(len({int(self.tree.domain_of[level, placed[rank]]) for rank in g}) == 1 for g in groups)
            whole: list[Term] = []
            for group in groups if target else []:
                for domain in self._domains(level):
                    var = self.model.new_bool_var("")
                    for rank in group:
                        terms, constant = self._there(rank, level, domain)
                        self.model.add(linear([*terms, (var, -1)]) >= -constant)
                    whole.append((var, 1))
            if whole:
                self.model.add(linear(whole) >= target)

    def solve(self) -> dict[int, int]:
        """The best assignment found; the budget knows whether its order is proven."""
        for (rank, node), var in self.at.items():
            self.model.add_hint(var, int(self.start[rank] == node))
        for level in range(1, self.tree.depth + 1):
            domains = self._domains(level)
            if len(domains) == 1:
                continue
            same = self._stays(level, domains)
            if level in self.least:
                self.model.add(linear(same) <= len(self.ring) - self.least[level])
            if self._crossings(level) == self.least.get(level):
                self.model.add(linear(same) >= len(self.ring) - self.least[level])
                continue
            self.model.maximize(linear(same))
            _, values = self.budget.solve(RANKS, self.model, linearization=2)
            self.model.clear_objective()  # type: ignore[no-untyped-call]
            if not values:
                return self.start
            hint(self.model, values)
            self.model.add(linear(same) >= sum(values[v.index] for v, _ in same))
            self._read(values)
        self._paths()
        return self.start

    def _crossings(self, level: int) -> int:
        """Ring neighbours in different domains as the members stand now."""
        placed = self.goals.placed(self.start)
        domains = [int(self.tree.domain_of[level, placed[rank]]) for rank in self.ring]
        return sum(one != two for one, two in zip(domains, [*domains[1:], domains[0]], strict=True))

    def _stays(self, level: int, domains: Sequence[int]) -> list[Term]:
        out: list[Term] = []
        pairs = list(zip(self.ring, [*self.ring[1:], self.ring[0]], strict=True))
        for domain in domains:
            self.problem.interrupts.step()
            stays: list[Term] = []
            held = 0
            members: list[Term] = []
            for rank in self.ring:
                terms, constant = self._there(rank, level, domain)
                members += terms
                held += constant
            for one, two in pairs:
                (terms_1, c_1), (terms_2, c_2) = self._there(one, level, domain), self._there(two, level, domain)
                if (not terms_1 and not c_1) or (not terms_2 and not c_2):
                    continue
                var = self.model.new_bool_var("")
                self.model.add(linear([*terms_1, (var, -1)]) >= -c_1)
                self.model.add(linear([*terms_2, (var, -1)]) >= -c_2)
                stays.append((var, 1))
            if stays:  # a domain that is not the only one has one run at least
                self.model.add(linear([*stays, *((v, -c) for v, c in members)]) <= held - 1)
            out += stays
        return out

    def _paths(self) -> None:
        """The naturally smallest sequence of nodes, a few pods at a time."""
        ranks = sorted(self.start)
        place = {node: i for i, node in enumerate(self.nodes)}
        base = len(self.nodes)
        if base == 1:
            return
        size = max(1, int(30 / np.log2(base)))
        for at in range(0, len(ranks), size):
            batch = ranks[at : at + size]
            terms = [
                (self.at[rank, node], place[node] * base ** (len(batch) - 1 - i))
                for i, rank in enumerate(batch)
                for node in self.nodes
                if (rank, node) in self.at
            ]
            self.model.minimize(linear(terms))
            _, values = self.budget.solve(RANKS, self.model, linearization=2)
            self.model.clear_objective()  # type: ignore[no-untyped-call]
            if not values:
                return
            hint(self.model, values)
            self._read(values)
            for rank in batch:
                self.model.add(self.at[rank, self.start[rank]] == 1)

    def _read(self, values: Sequence[int]) -> None:
        self.start = {rank: node for (rank, node), var in self.at.items() if values[var.index]}
