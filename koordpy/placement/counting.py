"""The counting shortcut: exact placement of a unit whose pods have one shape, by sums over the tree.

Source: gang-network.md section 7, "Shortcut". With one shape a placement is a count per node. The cost of m pods in a
domain is the smallest lexicographic vector (goals 3 and 4 layer by layer, then the score) over all ways to spread them
below it, so costs of children combine by min-plus convolution, bottom up; goals 1, 2 and 5 only choose the domain;
goal 6 walks down again and takes the largest counts that keep the cost. The vector is packed into one integer, and
domains with the same content are computed once.

Where it does not apply (`applies`) the solver decides. Tests hold it against the solver and against enumeration.
"""

from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np

from koordpy.placement.allowed_counts import able_domains, most_pods
from koordpy.placement.cost_tables import Costs, CostTables
from koordpy.placement.counting_flat import spread_flat
from koordpy.placement.goals import core_of, slots_by_level
from koordpy.placement.packed_worth import NotCountable, PackedCosts, packed
from koordpy.placement.problem import Ints, Problem, Solution
from koordpy.plan.round_plan import Proof


def applies(problem: Problem) -> bool:
    """Whether counts alone decide: one shape, and pipeline groups, if any, that count as m // PP in every domain.

    Members that ask something of each other's places are the solver's.
    """
    if problem.interactions or len({problem.members[rank].shape for rank in problem.pending}) != 1:
        return False
    if problem.gather and problem.pipeline > 1:
        return all(member.node is None for member in problem.members)
    return True


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """Where the chosen pods go: pods per node, and the domain c that was decided for."""

    ranks: tuple[int, ...]
    counts: dict[int, int]
    level: int
    domain: int


def count(problem: Problem) -> NodeCounts | Solution:
    """Goals 0 to 6 (or the order without a gather goal). A Solution instead where there is no plan at all.

    Raises NotCountable.
    """
    shape = problem.members[problem.pending[0]].shape
    slots = problem.slots_of[shape]
    size = most_pods(problem, shape, core=problem.core_size, limit=problem.most_of(shape))
    ranks = _chosen(problem, size)
    if not ranks:
        return Solution({}, Proof.INFEASIBLE)
    if not problem.gather:
        extra = _extra(problem, slots, shape, n=len(ranks), nodes=len(ranks))
        return NodeCounts(ranks, spread_flat(problem, slots, shape, len(ranks), extra), 0, 0)
    if problem.pipeline > 1 and (len(ranks) % problem.pipeline or ranks != tuple(range(len(ranks)))):
        raise NotCountable
    return _Gather(problem, shape, ranks).solve()


def _chosen(problem: Problem, size: int) -> tuple[int, ...]:
    """`size` members of one shape: each core, then the lowest other ranks (gang-network.md 2.6); empty where they
    cannot hold the core."""
    core = core_of(problem, problem.pending)
    if core is None or size < max(len(core), 1):
        return ()
    chosen = set(core)
    others = [rank for rank in problem.pending if rank not in chosen]
    return tuple(sorted((*core, *others[: size - len(core)])))


def _extra(problem: Problem, slots: Ints, shape: int, *, n: int, nodes: int) -> PackedCosts | None:
    if problem.by_count is None:
        return None
    return packed(problem.by_count, shape, shapes=len(problem.shapes), slots=slots, n=n, nodes=nodes)


class _Gather:
    """Goals 1 to 6 for n equal pods."""

    def __init__(self, problem: Problem, shape: int, ranks: tuple[int, ...]) -> None:
        self.problem, self.shape = problem, shape
        self.tree = problem.tree
        self.usable = slots_by_level(problem, shape)
        self.ranks = ranks
        self.bound = problem.bound_counts
        score, slots = problem.shapes[shape].score, problem.slots_of[shape]
        able = slots > 0
        top = int(score[able].max(initial=0))
        self.slots, self.loss = slots, np.where(able, top - score, 0)
        self.multiples = {level: k for level, k in problem.multiples.items() if k > 1}
        self.attracted = [level.sums(problem.attract) for level in self.tree.levels] if problem.attract.any() else None

    # -- choosing the domain -------------------------------------------------------------------------------------------

    def solve(self) -> NodeCounts:
        level, candidates = self._lowest()
        candidates = self._most_attracted(level, candidates)
        candidates = self._prepare(level, candidates)
        tables = self.tables
        if 2 * len(candidates) > len(self.tree.levels[level]):
            tables.fill(level)
        fits = zip(*(column.tolist() for column in self._upwards(level, candidates)), strict=True)
        known: dict[int, tuple[int, _Spread | None]] = {}
        best: tuple[Any, ...] | None = None
        chosen, spread = candidates[0], None
        kinds = tables.kinds(level)[candidates].tolist()
        differs = bool(tables.idle_in[0]) or bool(self.bound.any())
        outside = 0 if differs else self._outside(level, candidates[0])
        for d, kind, up in zip(candidates, kinds, fits, strict=True):
            if kind not in known:
                known[kind] = self._least(level, d)
            cost, found = known[kind]
            cost += self._outside(level, d) if differs else outside
            key = (cost // tables.score_base, up, cost % tables.score_base)
            if best is None or key < best:
                best, chosen, spread = key, d, found
        counts: dict[int, int] = {}
        self._descend(level, chosen, tables.n, counts, spread)
        return NodeCounts(self.ranks, counts, level, chosen)

    def _prepare(self, level: int, candidates: list[int]) -> list[int]:
        """Makes the tables; the domains that can be best in goal 3 as far as sums tell.

        Pods are counted level by level in steps that some best counts are all multiples of: podCountMultiples, without
        bound members; pipeline groups, where all can be whole at a level (which goal 3 asks for from the top down);
        and where slots and n are multiples of a number, the counts that goal 6 asks for are an end point of a flow with
        whole bounds (its optimum for the domains that are used), so multiples of it too.
        """
        n, size, depth = len(self.ranks), self.problem.pipeline, self.tree.depth
        kept = not self.bound.any()
        multiples = {} if kept else self.multiples
        steps = [1] * (depth + 1)
        for number, k in self.multiples.items() if kept else ():
            steps[: number + 1] = [lcm(step, k) for step in steps[: number + 1]]
        for number in range(depth, level, -1) if size > 1 and not multiples else ():
            whole = [lcm(step, size) if at <= number else step for at, step in enumerate(steps)]
            able = self._capacities(level, candidates, whole) * whole[level] >= n
            if able.any():
                steps, candidates = whole, [d for d, ok in zip(candidates, able.tolist(), strict=True) if ok]
                break
        linear = self.problem.by_count is None
        if linear and not multiples and steps[depth] % size == 0 and len(set(steps[level:])) == 1:
            common = int(np.gcd(np.gcd.reduce(self.slots // steps[depth]), n // steps[depth]))
            steps = [step * common for step in steps]
        most = self._most_used(level, candidates, steps)
        self.tables = CostTables(
            self.tree,
            n=n,
            slots=self.slots,
            loss=self.loss,
            bound=self.bound,
            pipeline=size,
            per=steps,
            multiples=multiples,
            most=most,
            extra=_extra(self.problem, self.slots, self.shape, n=n, nodes=min(n, most[depth])),
        )
        return candidates

    def _most_used(self, level: int, candidates: list[int], steps: list[int]) -> list[int]:
        """Per level the domains that the best placement uses at most, bound members' not counted as new."""
        tree = self.tree
        if self.bound.any():
            return [len(lv) for lv in tree.levels]
        out = [1] * (level + 1)
        start, end = (edge[candidates] for edge in (tree.levels[level].start, tree.levels[level].end))
        for number in range(level + 1, tree.depth + 1):
            first, last = (np.searchsorted(tree.levels[number].start, edge) for edge in (start, end))
            out.append(int((last - first).max()))
        if level < tree.depth and len(candidates) == 1 and steps[level + 1] % self.problem.pipeline == 0:
            inside = tree.children(level, candidates[0])
            room = self._capacities(level + 1, list(inside), steps)
            out[level + 1] = (
                int(np.searchsorted(np.cumsum(np.sort(room)[::-1]), len(self.ranks) // steps[level + 1])) + 1
            )
            for number in range(level + 1, tree.depth):
                below = np.sort(np.diff(tree.first_child(number)))[::-1]
                out[number + 1] = min(out[number + 1], int(below[: out[number]].sum()))
        return out

    def _capacities(self, level: int, domains: list[int], steps: list[int]) -> Ints:
        """Steps that go into the domains when every level below takes its own steps only."""
        room = self.slots // steps[-1]
        for number in range(self.tree.depth - 1, level - 1, -1):
            room = np.add.reduceat(room, self.tree.first_child(number)[:-1]) // (steps[number] // steps[number + 1])
        return np.asarray(room[domains], dtype=np.int64)

    def _upwards(self, level: int, domains: list[int]) -> list[Ints]:
        """Goal 5: slots of the domains, of their parents, .. of the cluster."""
        at, out = np.array(domains, dtype=np.int64), []
        for number in range(level, -1, -1):
            out.append(self.usable[number][at])
            at = self.tree.levels[number].parent[at]
        return out

    def _lowest(self) -> tuple[int, list[int]]:
        """Goal 1: the layer of C, then that of c; the domains at c's layer that can hold the pods."""
        tree, holders = self.tree, np.nonzero(self.bound)[0]
        if not len(holders):
            for level in range(tree.depth, -1, -1):
                found = self._able(level)
                if len(found):
                    return level, found.tolist()
            raise AssertionError("a size was chosen that no domain holds")
        low, _ = tree.lowest_common([int(i) for i in holders])
        for level in range(low, -1, -1):
            whole = int(tree.domain_of[level, holders[0]])
            if whole in self._able(level):
                break
        start, end = int(tree.levels[level].start[whole]), int(tree.levels[level].end[whole])
        for below in range(tree.depth, level - 1, -1):
            inside = tree.levels[below]
            able = self._able(below).tolist()
            within = [d for d in able if start <= inside.start[d] and inside.end[d] <= end]
            if within:
                return below, within
        raise AssertionError("C holds the pods, so c exists")

    def _able(self, level: int) -> Ints:
        """The domains of a level that can hold the pods."""
        return able_domains(self.problem, self.shape, level, len(self.ranks))

    def _most_attracted(self, level: int, candidates: list[int]) -> list[int]:
        """Goal 2, from c up to the cluster."""
        if self.attracted is None:
            return candidates
        at = np.array(candidates, dtype=np.int64)
        above = at
        for number in range(level, -1, -1):
            pull = self.attracted[number][above]
            kept = pull == pull.max()
            at = at[kept]
            above = self.tree.levels[number].parent[above[kept]]
        return [int(d) for d in at]

    def _outside(self, level: int, domain: int) -> int:
        """Goal 4 outside c: its ancestors, and domains that hold bound members only."""
        tables, tree = self.tables, self.tree
        idle = 0
        if tables.idle_in[0]:
            idle = (tables.idle_in[0][0] - tables.idle_in[level][domain]) * tables.extra_weight
        if not self.bound.any():
            return sum(tables.domain_weight[1:level]) + idle
        total, at = idle, domain
        lo, hi = int(tree.levels[level].start[domain]), int(tree.levels[level].end[domain])
        for number in range(tree.depth, 0, -1):
            lv, held = tree.levels[number], tables.bound_in[number]
            if number < level:
                at = int(tree.domain_of[number, lo])
                total += tables.domain_weight[number] * (int((held > 0).sum()) + int(held[at] == 0))
            else:
                outside = (held > 0) & ((lv.start < lo) | (lv.start >= hi))
                total += tables.domain_weight[number] * int(outside.sum())
        return int(total)

    # -- goal 6 --------------------------------------------------------------------------------------------------------

    def _least(self, level: int, domain: int) -> "tuple[int, _Spread | None]":
        """Cost of all pods below a domain, and what it was computed from."""
        tables = self.tables
        if level == self.tree.depth:
            return int(tables.table(level, domain)[tables.n // tables.per[level]]), None
        spread = self._spread(level, domain, tables.n)
        return int(spread.suffix[0][spread.m]), spread

    def _spread(self, level: int, domain: int, m: int) -> "_Spread":
        """The children of a domain that may take some of m pods, and their tables."""
        tables, below = self.tables, level + 1
        m //= tables.per[below]
        children = self._needed(below, self._in_order(below, domain), domain, m)
        parts = [tables.table(below, c) for c in children]
        return _Spread(domain, m, children, parts, tables.suffixes(parts, level=below))

    def _descend(
        self, level: int, domain: int, m: int, counts: dict[int, int], spread: "_Spread | None" = None
    ) -> None:
        """Spreads m pods below a domain: layer by layer the lexicographically largest counts of the least cost."""
        if m == 0:
            return
        if level == self.tree.depth:
            counts[domain] = m
            return
        if spread is None or spread.domain != domain:
            spread = self._spread(level, domain, m)
        rest, per = spread.m, self.tables.per[level + 1]
        for i, (child, table) in enumerate(zip(spread.children, spread.tables, strict=True)):
            after = spread.suffix[i + 1]
            least = max(0, rest - len(after) + 1)
            takes = table[least : rest + 1]
            left = after[rest - least - len(takes) + 1 : rest - least + 1][::-1]
            take = least + int(np.nonzero(takes + left == spread.suffix[i][rest])[0][-1])
            self._descend(level + 1, child, take * per, counts)
            rest -= take
            if not rest:
                return

    def _in_order(self, level: int, parent: int) -> list[int]:
        """Children of a domain in the order of goal 6: attracted pods, slots, name."""
        inside = self.tree.children(level - 1, parent)
        at = np.arange(inside.start, inside.stop)
        keys = [-self.usable[level][at]]
        if self.attracted is not None:
            keys.append(-self.attracted[level][at])
        return [int(d) for d in at[np.lexsort(keys)]]

    def _needed(self, level: int, children: list[int], parent: int, m: int) -> list[int]:
        """The domains that goal 6 may choose from when m are spread, in its order.

        It is known how many domains are used at best. Of domains alike in content the first in order take the most, so
        no more of them can be needed; domains with bound members cost something even where they take no pod.
        """
        tables = self.tables
        kinds, sizes = tables.kinds(level)[children].tolist(), tables.capacity(level)[children]
        if tables.open(level) and not self.bound.any():
            sums = np.cumsum(np.sort(sizes)[::-1])
            used = int(np.searchsorted(sums, m)) + 1
            able = (sizes > 0) & (sizes >= m - (int(sums[used - 2]) if used > 1 else 0))
        else:
            cost = int(tables.table(level - 1, parent)[m * tables.per[level] // tables.per[level - 1]])
            used = cost // tables.domain_weight[level] % tables.domain_base[level]
            able = sizes > 0
        seen: dict[int, int] = {}
        out = []
        idle = tables.idle_in[level]
        for child, number, ok in zip(children, kinds, able.tolist(), strict=True):
            seen[number] = seen.get(number, 0) + 1
            if tables.bound_in[level][child] or (idle and idle[child]) or (ok and seen[number] <= used):
                out.append(child)
        return out


@dataclass(frozen=True, slots=True)
class _Spread:
    """The children of a domain that goal 6 chooses from in its order, and what they and those after them cost."""

    domain: int
    m: int
    children: list[int]
    tables: list[Costs]
    suffix: list[Costs]
