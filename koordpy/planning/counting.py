"""The counting shortcut: exact placement of a unit whose pods have one shape, by sums over the tree.

Source: gang-network.md section 7, "Shortcut". With one shape a placement is a count per node. The cost of m pods in a
domain is the smallest lexicographic vector (goals 3 and 4 layer by layer, then the score) over all ways to spread them
below it, so costs of children combine by min-plus convolution, bottom up; goals 1, 2 and 5 only choose the domain;
goal 6 walks down again and takes the largest counts that keep the cost. The vector is packed into one integer, and
domains with the same content are computed once.

Where it does not apply (`applies`) the solver decides. Tests hold it against the solver and against enumeration.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from koordpy.planning.plan import Proof
from koordpy.planning.problem import Ints, Problem, Solution
from koordpy.planning.reach import Reach
from koordpy.planning.selection import choose_ranks

Costs = Any
"""numpy array over m = 0 .. cap: int64, or Python integers where the packed vector needs more than 62 bits."""

_INT64_LIMIT = 1 << 60


def applies(problem: Problem) -> bool:
    """Whether counts alone decide: one shape, and pipeline groups, if any, that count as m // PP in every domain.

    Members that ask something of each other's places are the solver's.
    """
    if problem.interactions:
        return False
    if len({problem.members[rank].shape for rank in problem.pending}) != 1:
        return False
    if problem.gather and problem.pipeline > 1:
        return all(member.node is None for member in problem.members)
    return True


@dataclass(frozen=True, slots=True)
class Counted:
    """Where the chosen pods go: pods per node, and the domain c that was decided for."""

    ranks: tuple[int, ...]
    counts: dict[int, int]
    level: int
    domain: int


def count(problem: Problem) -> Counted | Solution:
    """Goals 0 to 6 (or the order without a gather goal). A Solution instead where there is no plan at all.

    Raises NotCountable where pipeline groups turn out not to divide the chosen pods.
    """
    shape = problem.members[problem.pending[0]].shape
    slots = problem.slots_of[shape]
    reach = Reach(problem, slots)
    size = reach.largest(core=problem.core_size, limit=len(problem.pending))
    ranks = choose_ranks(problem, size) if size else ()
    if not ranks:
        return Solution({}, Proof.INFEASIBLE)
    if not problem.gather:
        return Counted(ranks, _spread_flat(problem, slots, shape, len(ranks)), 0, 0)
    if problem.pipeline > 1 and (len(ranks) % problem.pipeline or ranks != tuple(range(len(ranks)))):
        raise NotCountable
    return _Gather(problem, slots, shape, reach, ranks).solve()


class NotCountable(Exception):
    """The shortcut does not apply to the pods that goal 0 chose; the solver decides."""


class _Gather:
    """Goals 1 to 6 for n equal pods."""

    def __init__(self, problem: Problem, slots: Ints, shape: int, reach: Reach, ranks: tuple[int, ...]) -> None:
        self.problem = problem
        self.tree = problem.tree
        self.slots = slots
        self.reach = reach
        self.ranks = ranks
        self.n = len(ranks)
        self.bound = problem.bound_counts
        self.bound_in = [level.sums(self.bound) for level in self.tree.levels]
        score = problem.shapes[shape].score
        able = slots > 0
        top = int(score[able].max(initial=0))
        self.loss = np.where(able, top - score, 0)
        self._weigh()
        self._costs: dict[tuple[int, int], Costs] = {}
        self._known: dict[Any, tuple[int, Costs]] = {}
        self._signature: dict[tuple[int, int], int] = {}
        self._numbered: list[Costs] = []

    def _weigh(self) -> None:
        """Packs the cost vector: score loss lowest, then domains used from the nodes up, then whole groups likewise."""
        n, depth = self.n, self.tree.depth
        self.pp = self.problem.pipeline
        weight = int(self.loss.max(initial=0)) * n + 1
        self.score_base = weight
        used = int((self.bound > 0).sum())
        self.domain_weight = [0] * (depth + 1)
        self.domain_base = [1] * (depth + 1)
        self.group_weight = [0] * (depth + 1)
        for level in range(depth, 0, -1):
            self.domain_weight[level] = weight
            self.domain_base[level] = min(len(self.tree.levels[level]), n + used) + 1
            weight *= self.domain_base[level]
        if self.pp > 1:
            for level in range(depth, 0, -1):
                self.group_weight[level] = weight
                weight *= n // self.pp + 1
        self.wide = weight >= _INT64_LIMIT // 2
        self.inf = weight * 2 if self.wide else _INT64_LIMIT

    # -- choosing the domain -------------------------------------------------------------------------------------------

    def solve(self) -> Counted:
        level, candidates = self._lowest()
        candidates = self._most_attracted(level, candidates)
        best: tuple[Any, ...] | None = None
        chosen = candidates[0]
        fits = self._fits(level)
        for d in candidates:
            cost = int(self.costs(level, d)[self.n]) + self._outside(level, d)
            up = []
            at, number = d, level
            while number >= 0:
                up.append(int(fits[number][at]))
                at, number = int(self.tree.levels[number].parent[at]), number - 1
            key = (cost // self.score_base, tuple(up), cost % self.score_base)
            if best is None or key < best:
                best, chosen = key, d
        counts: dict[int, int] = {}
        self._descend(level, chosen, self.n, counts)
        return Counted(self.ranks, counts, level, chosen)

    def _lowest(self) -> tuple[int, list[int]]:
        """Goal 1: the layer of C, then that of c; the domains at c's layer that can hold the pods."""
        tree, n = self.tree, self.n
        holders = np.nonzero(self.bound)[0]
        if not len(holders):
            for level in range(tree.depth, -1, -1):
                found = self.reach.domains(level, n)
                if len(found):
                    return level, found.tolist()
            raise AssertionError("a size was chosen that no domain holds")
        low, _ = tree.lowest_common([int(i) for i in holders])
        for level in range(low, -1, -1):
            whole = int(tree.domain_of[level, holders[0]])
            if whole in self.reach.domains(level, n):
                break
        start, end = int(tree.levels[level].start[whole]), int(tree.levels[level].end[whole])
        for below in range(tree.depth, level - 1, -1):
            inside = tree.levels[below]
            able = self.reach.domains(below, n).tolist()
            within = [d for d in able if start <= inside.start[d] and inside.end[d] <= end]
            if within:
                return below, within
        raise AssertionError("C holds the pods, so c exists")

    def _most_attracted(self, level: int, candidates: list[int]) -> list[int]:
        """Goal 2, from c up to the cluster."""
        if not self.problem.attract.any():
            return candidates
        sums = [lv.sums(self.problem.attract) for lv in self.tree.levels]
        vectors = {}
        for d in candidates:
            at, vector = d, []
            for number in range(level, -1, -1):
                vector.append(int(sums[number][at]))
                at = int(self.tree.levels[number].parent[at])
            vectors[d] = tuple(vector)
        top = max(vectors.values())
        return [d for d in candidates if vectors[d] == top]

    def _fits(self, level: int) -> list[Ints]:
        return [self.reach.usable(number) for number in range(level + 1)]

    def _outside(self, level: int, domain: int) -> int:
        """Goal 4 outside c: its ancestors, and domains that hold bound members only."""
        total, at = 0, domain
        tree = self.tree
        lo, hi = int(tree.levels[level].start[domain]), int(tree.levels[level].end[domain])
        above = set()
        for number in range(level, -1, -1):
            above.add((number, at))
            at = int(tree.levels[number].parent[at])
        for number in range(1, tree.depth + 1):
            lv = tree.levels[number]
            if number < level:
                held = int((self.bound_in[number] > 0).sum())
                own = next(a for n, a in above if n == number)
                total += self.domain_weight[number] * (held + int(self.bound_in[number][own] == 0))
            else:
                outside = (self.bound_in[number] > 0) & ((lv.start < lo) | (lv.start >= hi))
                total += self.domain_weight[number] * int(outside.sum())
        return int(total)

    # -- costs ---------------------------------------------------------------------------------------------------------

    def costs(self, level: int, domain: int) -> Costs:
        """Cost of m = 0 .. cap pods in a domain; `inf` where they do not go in."""
        key = (level, domain)
        found = self._costs.get(key)
        if found is None:
            signature, found = self._compute(level, domain)
            self._costs[key] = found
            self._signature[key] = signature
        return found

    def _compute(self, level: int, domain: int) -> tuple[int, Costs]:
        held = int(self.bound_in[level][domain])
        if level == self.tree.depth:
            content: Any = (level, held, min(int(self.slots[domain]), self.n), int(self.loss[domain]))
        else:
            below: list[int] = []
            for child in self.tree.children(level, domain):
                self.costs(level + 1, child)
                below.append(self._signature[level + 1, child])
            content = (level, held, tuple(sorted(below)))
        known = self._known.get(content)
        if known is None:
            known = (len(self._known), self._evaluate(level, held, content))
            self._known[content] = known
            self._numbered.append(known[1])
        return known

    def _evaluate(self, level: int, held: int, content: Any) -> Costs:
        if level == self.tree.depth:
            total = self._array(range(content[2] + 1)) * content[3]
        else:
            numbered = self._numbered
            parts: list[tuple[Costs, int]] = []
            for number in content[2]:
                if parts and parts[-1][0] is numbered[number]:
                    parts[-1] = (parts[-1][0], parts[-1][1] + 1)
                else:
                    parts.append((numbered[number], 1))
            total = self._array([0])
            for part, times in parts:
                total = self._merge(total, self._power(part, times))
        return self._own(level, held, total)

    def _own(self, level: int, held: int, total: Costs) -> Costs:
        """Adds what the domain itself costs, and takes out counts that its multiple forbids."""
        if level == 0:
            return self._allowed(level, held, total)
        sizes = np.arange(len(total))
        out = total + (self.domain_weight[level] * ((sizes + held) > 0).astype(total.dtype))
        if self.pp > 1:
            out = out - self.group_weight[level] * (sizes // self.pp).astype(total.dtype)
        out[total >= self.inf // 2] = self.inf
        return self._allowed(level, held, out)

    def _allowed(self, level: int, held: int, total: Costs) -> Costs:
        multiple = self.problem.multiples.get(level, 1)
        if multiple > 1:
            sizes = np.arange(len(total))
            total[(sizes + held) % multiple != 0] = self.inf
        return total

    def _array(self, values: Sequence[int]) -> Costs:
        return np.array(values, dtype=object if self.wide else np.int64)

    def _merge(self, left: Costs, right: Costs) -> Costs:
        """Min-plus convolution, cut at n pods."""
        if len(left) < len(right):
            left, right = right, left
        size = min(len(left) + len(right) - 1, self.n + 1)
        out = np.full(size, self.inf, dtype=left.dtype)
        half = self.inf // 2
        for j in range(min(len(right), size)):
            if right[j] < half:
                upto = min(len(left), size - j)
                np.minimum(out[j : j + upto], left[:upto] + right[j], out=out[j : j + upto])
        out[out >= half] = self.inf
        return out

    def _power(self, part: Costs, times: int) -> Costs:
        """`times` equal children together, by squaring."""
        out: Costs | None = None
        while times:
            if times & 1:
                out = part if out is None else self._merge(out, part)
            times >>= 1
            if times:
                part = self._merge(part, part)
        return out

    # -- goal 6 --------------------------------------------------------------------------------------------------------

    def _descend(self, level: int, domain: int, m: int, counts: dict[int, int]) -> None:
        """Spreads m pods below a domain: layer by layer the lexicographically largest counts of the least cost."""
        if m == 0:
            return
        if level == self.tree.depth:
            counts[domain] = m
            return
        below = level + 1
        fits, attracted = self.reach.usable(below), self.tree.levels[below].sums(self.problem.attract)
        children = sorted(self.tree.children(level, domain), key=lambda c: (-int(attracted[c]), -int(fits[c]), c))
        children = self._needed(below, children, int(self.costs(level, domain)[m]))
        tables = [self.costs(below, c) for c in children]
        suffix: list[Costs] = [self._array([0])]
        for table in reversed(tables):
            suffix.append(self._merge(suffix[-1], table))
        suffix.reverse()
        rest = m
        for i, (child, table) in enumerate(zip(children, tables, strict=True)):
            goal, after = suffix[i][rest], suffix[i + 1]
            for take in range(min(rest, len(table) - 1), -1, -1):
                if rest - take < len(after) and table[take] + after[rest - take] == goal:
                    break
            self._descend(below, child, take, counts)
            rest -= take

    def _needed(self, level: int, children: list[int], cost: int) -> list[int]:
        """The domains that goal 6 may choose from, in its order.

        The cost says how many domains are used. Of domains alike in content the first in order take the most, so no
        more of them can be needed; domains with bound members cost something even where they take no pod.
        """
        used = cost // self.domain_weight[level] % self.domain_base[level]
        seen: dict[int, int] = {}
        out = []
        for child in children:
            table = self.costs(level, child)
            number = self._signature[level, child]
            seen[number] = seen.get(number, 0) + 1
            if self.bound_in[level][child] or (len(table) > 1 and seen[number] <= used):
                out.append(child)
        return out


def _spread_flat(problem: Problem, slots: Ints, shape: int, n: int) -> dict[int, int]:
    """Without a gather goal: fewest nodes, largest total score, fewest slots on them, then names in natural order.

    The nodes in order of names; of nodes alike in slots and score only the first n by name can be needed.
    """
    able = np.nonzero(slots > 0)[0]
    able = able[np.argsort(problem.name_rank[able])]
    room = slots[able]
    score = problem.shapes[shape].score[able]
    loss = int(score.max()) - score
    _, kind = np.unique(np.stack([room, loss]), axis=1, return_inverse=True)
    kind = kind.reshape(-1)
    order = np.argsort(kind, kind="stable")
    place = np.empty(len(able), dtype=np.int64)
    starts = np.concatenate(([0], np.nonzero(np.diff(kind[order]))[0] + 1))
    place[order] = np.arange(len(able)) - np.repeat(starts, np.diff(np.concatenate((starts, [len(able)]))))
    capped = np.minimum(room, n)
    keep = place < -(-n // np.maximum(capped, 1)) if len(starts) == 1 else place < n
    able, room, loss = able[keep], room[keep], loss[keep]
    slot_base = int(np.sort(room)[::-1][:n].sum()) + 1
    node_weight = slot_base * (int(loss.max()) * n + 1)
    wide = node_weight * (n + 1) >= _INT64_LIMIT
    dtype: Any = object if wide else np.int64
    inf = node_weight * (n + 2) * 2 if wide else _INT64_LIMIT
    tables: dict[tuple[int, int], Any] = {}
    suffix = np.full((len(able) + 1, n + 1), inf, dtype=dtype)
    suffix[-1, 0] = 0
    for i in range(len(able) - 1, -1, -1):
        key = (int(room[i]), int(loss[i]))
        table = tables.get(key)
        if table is None:
            table = np.array(
                [0] + [node_weight + slot_base * key[1] * m + key[0] for m in range(1, min(key[0], n) + 1)], dtype=dtype
            )
            tables[key] = table
        row = suffix[i + 1].copy()
        for m in range(1, len(table)):
            np.minimum(row[m:], suffix[i + 1][: n + 1 - m] + table[m], out=row[m:])
        suffix[i] = row
    counts: dict[int, int] = {}
    rest = n
    for i in range(len(able)):
        table = tables[int(room[i]), int(loss[i])]
        for take in range(min(rest, len(table) - 1), -1, -1):
            if table[take] + suffix[i + 1][rest - take] == suffix[i][rest]:
                break
        if take:
            counts[int(able[i])] = take
            rest -= take
        if not rest:
            break
    return counts
