# SPDX-License-Identifier: Apache-2.0
"""Exact placement of a gang with equal pods, without a solver: decides how many pods each node gets.

If all pods have one shape, a placement is a number of pods per node; ranks are assigned afterwards. `applies` returns
True for the units that counting decides; the solver decides all other units. The goals 0 to 7 and the letters are those
of `goals.py`: c is the lowest domain that contains all new pods.

Dynamic programming over the topology tree (docs/rules/gang-network.md 7):
1. Goal 1 chooses the level of c, and goal 2 the candidates for c on that level.
2. Bottom up, `CostTables` computes the least cost of m pods in a domain, for every m, by min-plus convolution of the
   tables of its children. The cost is a lexicographic vector, packed into one integer: goals 3 and 4 layer by layer,
   then device costs (`DeviceCosts`) and the score. Domains with equal content are computed once.
3. The candidate with the least cost becomes c; goal 5 is compared after goals 3 and 4.
4. Top down, goal 6 takes the largest counts with this least cost.
"""

from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np

from koordpy.placement.allowed_counts import able_domains, most_pods
from koordpy.placement.cost_tables import Costs, CostTables
from koordpy.placement.counting_flat import spread_flat
from koordpy.placement.goals import core_of, slots_by_level
from koordpy.placement.packed_costs import NotCountable, PackedCosts, packed
from koordpy.placement.problem import Ints, Problem, Solution
from koordpy.plan.round_plan import Proof


def applies(problem: Problem) -> bool:
    """Returns True if the number of pods per node decides all goals, so that counting is exact.

    All pending pods must be of one shape, without interactions among members. With pipeline groups there must also be
    no bound member. Only then can m pods in a domain always be ordered so that m // group size pipeline groups are
    whole.
    """
    if problem.interactions or len({problem.members[rank].shape for rank in problem.pending}) != 1:
        return False
    if problem.gather and problem.pipeline > 1:
        return all(member.node is None for member in problem.members)
    return True


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """Result of counting: the number of new pods per node. The order of ranks is not decided yet."""

    ranks: tuple[int, ...]
    """Ranks of the members to place, ascending (goal 0)."""
    counts: dict[int, int]
    """Node -> number of new pods; only nodes with new pods."""
    level: int
    """Level of c, the lowest domain that contains all new pods; 0 without a gather goal."""
    domain: int
    """Index of c in its level; 0 without a gather goal."""


def count(problem: Problem) -> NodeCounts | Solution:
    """Returns the numbers of pods per node that are best in goals 0 to 6, or in the goals without a gather goal.

    Returns a Solution without nodes, with the proof INFEASIBLE, if there is no placement. Raises NotCountable if
    numbers per node cannot represent the problem. The pending pods must be of one shape (`applies`).
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
    """Returns the ranks of the `size` members to place: the core of each gang, then other members of lowest rank (2.6).

    Empty if `size` is smaller than the core, or if a gang has too few pending members for its core.
    """
    core = core_of(problem, problem.pending)
    if core is None or size < max(len(core), 1):
        return ()
    chosen = set(core)
    others = [rank for rank in problem.pending if rank not in chosen]
    return tuple(sorted((*core, *others[: size - len(core)])))


def _extra(problem: Problem, slots: Ints, shape: int, *, n: int, nodes: int) -> PackedCosts | None:
    """Returns the device costs of up to n pods of a shape as integers; None if the problem has no device costs. nodes:
    as for `packed`."""
    if problem.device_costs is None:
        return None
    return packed(problem.device_costs, shape, shapes=len(problem.shapes), slots=slots, n=n, nodes=nodes)


class _Gather:
    """Decides goals 1 to 6 for n equal pods: chooses the domain c, then the numbers of pods inside c."""

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
        """Returns the best counts: computes every candidate for c, and distributes the pods in the best one."""
        level, candidates = self._lowest()
        candidates = self._most_attracted(level, candidates)
        candidates = self._prepare(level, candidates)
        tables = self.tables
        if 2 * len(candidates) > len(self.tree.levels[level]):
            tables.fill(level)
        # `fits`: goal 5 of each candidate. The result of `_least` is computed once for each kind of domain
        fits = zip(*(column.tolist() for column in self._upwards(level, candidates)), strict=True)
        known: dict[int, tuple[int, _Spread | None]] = {}
        best: tuple[Any, ...] | None = None
        chosen, spread = candidates[0], None
        kinds = tables.kinds(level)[candidates].tolist()
        # True if the cost outside c differs between candidates
        differs = bool(tables.idle_in[0]) or bool(self.bound.any())
        outside = 0 if differs else self._outside(level, candidates[0])
        for d, kind, up in zip(candidates, kinds, fits, strict=True):
            if kind not in known:
                known[kind] = self._least(level, d)
            cost, found = known[kind]
            cost += self._outside(level, d) if differs else outside
            # goals 3 and 4, then best fit (goal 5), then the device costs and the score
            key = (cost // tables.score_base, up, cost % tables.score_base)
            if best is None or key < best:
                best, chosen, spread = key, d, found
        counts: dict[int, int] = {}
        self._descend(level, chosen, tables.n, counts, spread)
        return NodeCounts(self.ranks, counts, level, chosen)

    def _prepare(self, level: int, candidates: list[int]) -> list[int]:
        """Creates the cost tables. Returns the candidates for c that can still be best in goal 3, by sums of capacity.

        To keep tables short, one entry of a table is a step of several pods; each level has its step. No optimum is
        lost by that, because some best placement has a multiple of the step in each domain of the level. A step is the
        least common multiple of:
        - podCountMultiples, if there are no bound members;
        - the size of a pipeline group, on each level down to which all groups can be whole. Goal 3 compares from the
          top down, so candidates that cannot keep all groups whole to that depth are dropped;
        - a common divisor of all slots and n. The counts that goal 6 prefers are a vertex of a flow with integral
          bounds (its optimum for the domains used), so they are multiples of the divisor.
        """
        # steps by podCountMultiples
        n, size, depth = len(self.ranks), self.problem.pipeline, self.tree.depth
        kept = not self.bound.any()
        multiples = {} if kept else self.multiples
        steps = [1] * (depth + 1)
        for number, k in self.multiples.items() if kept else ():
            steps[: number + 1] = [lcm(step, k) for step in steps[: number + 1]]
        # the lowest level down to which all pipeline groups can be whole
        for number in range(depth, level, -1) if size > 1 and not multiples else ():
            whole = [lcm(step, size) if at <= number else step for at, step in enumerate(steps)]
            able = self._capacities(level, candidates, whole) * whole[level] >= n
            if able.any():
                steps, candidates = whole, [d for d, ok in zip(candidates, able.tolist(), strict=True) if ok]
                break
        # a common divisor of slots and n
        linear = self.problem.device_costs is None
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
        """Returns [levels] an upper bound of the number of domains that the best placement uses.

        It limits the digits of the packed cost. If there is only one candidate for c, the bound below c is tighter.
        """
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
        """Returns [domains] the number of steps that each domain can take, if every domain below takes whole steps of
        its level.

        steps: [levels] pods of one step.
        """
        room = self.slots // steps[-1]
        for number in range(self.tree.depth - 1, level - 1, -1):
            room = np.add.reduceat(room, self.tree.first_child(number)[:-1]) // (steps[number] // steps[number + 1])
        return np.asarray(room[domains], dtype=np.int64)

    def _upwards(self, level: int, domains: list[int]) -> list[Ints]:
        """Returns goal 5 as arrays [domains]: usable slots of each domain, of its parent, .. of the cluster."""
        at, out = np.array(domains, dtype=np.int64), []
        for number in range(level, -1, -1):
            out.append(self.usable[number][at])
            at = self.tree.levels[number].parent[at]
        return out

    def _lowest(self) -> tuple[int, list[int]]:
        """Decides goal 1. Returns (level of c, its domains that can take all new pods).

        C is the lowest domain that contains all members, bound and new. Without bound members C is c. With bound
        members, C is the lowest domain that contains them and can take the new pods. c is then inside C, on the lowest
        level that has a domain for all new pods.
        """
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
        """Returns the domains of a level that can take all new pods."""
        return able_domains(self.problem, self.shape, level, len(self.ranks))

    def _most_attracted(self, level: int, candidates: list[int]) -> list[int]:
        """Returns the candidates with the most attracting pods (goal 2): in c, then in its parent, and so up."""
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
        """Returns the cost of everything outside c, if the given domain is c.

        It has two parts: goal 4 for the domains above c and for the domains outside c that contain bound members, and
        the device costs of nodes outside c.
        """
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
        """Returns (least cost of all pods in a domain, tables of its children; None if the domain is a node)."""
        tables = self.tables
        if level == self.tree.depth:
            return int(tables.table(level, domain)[tables.n // tables.per[level]]), None
        spread = self._spread(level, domain, tables.n)
        return int(spread.suffix[0][spread.m]), spread

    def _spread(self, level: int, domain: int, m: int) -> "_Spread":
        """Returns the children of a domain that may take some of m pods, and their tables."""
        tables, below = self.tables, level + 1
        m //= tables.per[below]
        children = self._needed(below, self._in_order(below, domain), domain, m)
        parts = [tables.table(below, c) for c in children]
        return _Spread(domain, m, children, parts, tables.suffixes(parts, level=below))

    def _descend(
        self, level: int, domain: int, m: int, counts: dict[int, int], spread: "_Spread | None" = None
    ) -> None:
        """Adds to `counts` (node -> pods) how goal 6 distributes m pods below a domain.

        Each child in order takes the largest count with which the remaining children still reach the least cost.
        """
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
        """Returns the children of a domain in the order of goal 6: attracting pods, slots, name."""
        inside = self.tree.children(level - 1, parent)
        at = np.arange(inside.start, inside.stop)
        keys = [-self.usable[level][at]]
        if self.attracted is not None:
            keys.append(-self.attracted[level][at])
        return [int(d) for d in at[np.lexsort(keys)]]

    def _needed(self, level: int, children: list[int], parent: int, m: int) -> list[int]:
        """Returns the children that goal 6 may need to distribute m entries, in the order of goal 6.

        Let u be the least number of used domains, which is known. Of domains with equal content, the first in order
        take the most pods, so at most the first u are needed. Domains that cost something even without new pods,
        because of bound members or device costs, are always included.
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
    """The children of a domain over which goal 6 distributes m table entries, in the order of goal 6.

    tables: the cost table of each child. suffix: for each child, the combined table of this child and all later ones; a
    last entry is for no child.
    """

    domain: int
    m: int
    children: list[int]
    tables: list[Costs]
    suffix: list[Costs]
