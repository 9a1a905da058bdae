"""How many blocks each SuperPoD gives to a job: the exact optimum of the stated objective (ascend.md 5.1).

A share is the number of blocks taken from one SuperPoD. Levels 2 to 4 of the objective fix the multiset of shares,
level 5 and 6 who gives which. Nothing here knows nodes: SuperPoDs are numbers of candidate nodes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """size: b, nodes of a block; reserve: R, nodes of a SuperPoD that are kept if possible."""

    size: int
    reserve: int

    def most(self, nodes: int) -> int:
        """Blocks that a SuperPoD can give."""
        return nodes // self.size

    def keep(self, nodes: int) -> int:
        """Blocks that a SuperPoD gives without touching its reserve."""
        return max(0, (nodes - self.reserve) // self.size)

    def cell(self, nodes: int) -> tuple[int, int]:
        """(row, column) of a SuperPoD."""
        spare = nodes - self.reserve
        return (nodes % self.size, 0) if spare < 0 else (spare % self.size, spare // self.size)

    def key(self, nodes: int, share: int) -> tuple[int, int, int]:
        """How well a SuperPoD suits a share; smaller is better."""
        row, column = self.cell(nodes)
        if column < share:
            return 2, -nodes, 0
        return (0, row, column) if column <= share + 1 else (1, column, row)


def by_objective(sizes: Sequence[int], need: int, grid: Grid) -> list[tuple[int, int]] | None:
    """(position of a SuperPoD, blocks) in the order in which shares are chosen; None where `need` do not fit.

    sizes: candidate nodes of the SuperPoDs in the order of their ids.
    """
    most = [grid.most(nodes) for nodes in sizes]
    if sum(most) < need:
        return None
    if need == 0:
        return []
    keep = [grid.keep(nodes) for nodes in sizes]
    eaten = need - sum(keep)
    if eaten <= 0:
        # no reserve is touched: the largest first are the fewest
        spans = [(1, high) if high else None for high in keep]
        forced = [False] * len(sizes)
        shares = _fewest(sorted(keep, reverse=True), need)
    else:
        # every block that needs no reserve is used, and `eaten` more
        spans = [(max(1, low), high) if high else None for low, high in zip(keep, most, strict=True)]
        forced = [low > 0 for low in keep]
        shares = _stretched(keep, most, need)
    return _givers(sizes, shares, spans, forced, grid)


def _fewest(highest: Sequence[int], need: int) -> list[int]:
    shares = []
    for high in highest:
        if not need:
            break
        shares.append(min(high, need))
        need -= shares[-1]
    return shares


def _stretched(keep: Sequence[int], most: Sequence[int], need: int) -> list[int]:
    """The greatest share vector where SuperPoDs with keep > 0 all give at least that, and the fewest others join in."""
    inside = [(low, high) for low, high in zip(keep, most, strict=True) if low]
    others = sorted((high for low, high in zip(keep, most, strict=True) if not low and high), reverse=True)
    room = sum(high for _, high in inside)
    joined = 0
    while room < need:
        room += others[joined]
        joined += 1
    spans = inside + [(1, high) for high in others[:joined]]
    budget = need - sum(low for low, _ in spans)
    shares = [low for low, _ in spans]
    raised = [False] * len(spans)
    for share in range(max(high for _, high in spans), 0, -1):
        # as many as possible reach this share; the cheapest to lift are those that start highest
        for i in sorted(range(len(spans)), key=lambda i: -spans[i][0]):
            low, high = spans[i]
            if raised[i] or high < share:
                continue
            cost = max(0, share - low)
            if cost <= budget:
                budget -= cost
                shares[i] = max(share, low)
                raised[i] = True
    assert not budget, "blocks are left over"
    return sorted(shares, reverse=True)


def _givers(
    sizes: Sequence[int],
    shares: Sequence[int],
    spans: Sequence[tuple[int, int] | None],
    forced: Sequence[bool],
    grid: Grid,
) -> list[tuple[int, int]]:
    """For each share in its order the SuperPoD of the smallest key that leaves the others a giver each."""
    kinds: dict[tuple[int, int, int, bool], list[int]] = {}
    for i, span in enumerate(spans):
        if span is not None:
            kinds.setdefault((sizes[i], *span, forced[i]), []).append(i)
    left = {kind: len(members) for kind, members in kinds.items()}
    given = dict.fromkeys(kinds, 0)
    out: list[tuple[int, int]] = []
    rest = Counter(shares)
    for share in shares:
        rest[share] -= 1
        able = [kind for kind in kinds if left[kind] and kind[1] <= share <= kind[2]]
        able.sort(key=lambda kind: (grid.key(kind[0], share), kinds[kind][given[kind]]))
        for kind in able:
            left[kind] -= 1
            if len(able) == 1 or _matches(rest, left):
                out.append((kinds[kind][given[kind]], share))
                given[kind] += 1
                break
            left[kind] += 1
        else:
            raise AssertionError("shares without a giver")
    return out


def _matches(shares: Counter[int], left: dict[tuple[int, int, int, bool], int]) -> bool:
    """Whether all shares find a giver each and all forced givers a share: each alone is enough for both."""
    wanted = sorted((share, number) for share, number in shares.items() if number)
    spans = [(low, high, number, forced) for (_, low, high, forced), number in left.items() if number]
    givers = [(low, high, number) for low, high, number, _ in spans]
    held = [(low, high, number) for low, high, number, forced in spans if forced]
    every_share = _paired(wanted, givers) == sum(number for _, number in wanted)
    return every_share and _paired(wanted, held) == sum(number for _, _, number in held)


def _paired(wanted: list[tuple[int, int]], spans: list[tuple[int, int, int]]) -> int:
    """How many shares find a giver of their own; ascending, each takes the one whose span ends first, which is most."""
    open_: list[list[int]] = []
    coming, paired = sorted(spans), 0
    for share, number in wanted:
        while coming and coming[0][0] <= share:
            _, high, count = coming.pop(0)
            open_.append([high, count])
        open_ = sorted(one for one in open_ if one[0] >= share and one[1])
        for one in open_:
            taken = min(number, one[1])
            one[1] -= taken
            number -= taken
            paired += taken
    return paired


def by_code(sizes: Sequence[int], need: int, grid: Grid) -> list[tuple[int, int]] | None:
    """The same in the order of the published code, for comparison (`superPodOrder: code`)."""
    if sum(grid.most(nodes) for nodes in sizes) < need:
        return None
    left = list(sizes)
    given: dict[int, int] = {}
    cells: dict[tuple[int, int], list[int]] = {}
    for i, nodes in enumerate(sizes):
        cells.setdefault(grid.cell(nodes), []).append(i)
    widest = max((column for _, column in cells), default=0)
    rest = need

    def visit(row: int, column: int) -> int:
        got = 0
        for i in cells.get((row, column), ()):
            while rest - got and left[i] - grid.size >= grid.reserve:
                left[i] -= grid.size
                given[i] = given.get(i, 0) + 1
                got += 1
        return got

    for row in range(grid.size):
        column = 1
        while column <= min(rest, widest):
            rest -= visit(row, column)
            column += 1
    for column in range(max(1, rest + 1), widest + 1):
        for row in range(grid.size):
            rest -= visit(row, column)
    while rest:
        rest -= _pass(left, given, rest, grid)
    return list(given.items())


def _pass(left: list[int], given: dict[int, int], rest: int, grid: Grid) -> int:
    """One pass over the reserves: a block of each SuperPoD, the fullest rows first."""

    def order(i: int) -> tuple[int, int, int, int]:
        row, column = grid.cell(left[i])
        return -row, column, -left[i], i

    got = 0
    for i in sorted(range(len(left)), key=order):
        if got < rest and left[i] >= grid.size:
            left[i] -= grid.size
            given[i] = given.get(i, 0) + 1
            got += 1
    return got


def short_blocks(left: Sequence[int], used: Sequence[bool], missing: int, grid: Grid) -> list[tuple[int, int]] | None:
    """(position, nodes) of the short blocks for so many nodes; None where there are too few nodes."""
    if sum(left) < missing:
        return None
    out: list[tuple[int, int]] = []
    for i in sorted(range(len(left)), key=lambda i: (-left[i], not used[i], i)):
        taken = min(left[i], grid.size, missing)
        if taken:
            out.append((i, taken))
            missing -= taken
    return out if not missing else None
