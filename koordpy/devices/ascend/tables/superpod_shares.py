# SPDX-License-Identifier: Apache-2.0
"""Divides the blocks of a job among SuperPoDs: the exact optimum of the objective in docs/rules/ascend.md 5.1.

A SuperPoD is a set of nodes with a fast fabric; a block is a number of nodes of one SuperPoD. A share is the number of
blocks of the job in one SuperPoD. Levels 2 to 4 of the objective determine the multiset of shares, which is found
greedily. Levels 5 and 6 assign shares to SuperPoDs: each share in order gets the SuperPoD with the smallest key that
leaves a SuperPoD for every other share. To test this, shares are matched as points with SuperPoDs as intervals (lowest
and highest share). SuperPoDs of equal size are one kind, so O(shares x kinds) matchings are needed. Must not know
nodes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """Sizes that determine how many blocks a SuperPoD can have, and how well it suits a share.

    nodes: number of candidate nodes of the SuperPoD. share: number of blocks.
    """

    size: int
    """b: nodes of a block."""
    reserve: int
    """R: nodes of a SuperPoD that stay unused if possible."""

    def most(self, nodes: int) -> int:
        """Returns the blocks that fit into a SuperPoD."""
        return nodes // self.size

    def keep(self, nodes: int) -> int:
        """Returns the blocks that fit into a SuperPoD without using its reserve."""
        return max(0, (nodes - self.reserve) // self.size)

    def cell(self, nodes: int) -> tuple[int, int]:
        """Returns (row, column) of a SuperPoD in the table of ascend.md 5.1.

        Row: nodes left over after the reserve and whole blocks. Column: blocks that fit without using the reserve. A
        SuperPoD smaller than the reserve is in column 0.
        """
        spare = nodes - self.reserve
        return (nodes % self.size, 0) if spare < 0 else (spare % self.size, spare // self.size)

    def key(self, nodes: int, share: int) -> tuple[int, int, int]:
        """Returns how well a SuperPoD suits a share; smaller is better (level 5 of the objective).

        First come SuperPoDs with room for the share and at most one more block besides the reserve, then larger ones.
        SuperPoDs with a reserve that the share would use come last, the largest first.
        """
        row, column = self.cell(nodes)
        if column < share:
            return 2, -nodes, 0
        return (0, row, column) if column <= share + 1 else (1, column, row)


def divide_blocks(sizes: Sequence[int], need: int, grid: Grid) -> list[tuple[int, int]] | None:
    """Returns (position of a SuperPoD, blocks) in the order in which shares are chosen; None if `need` blocks do not
    fit.

    sizes: [SuperPoDs] candidate nodes, in the order of ids. need: whole blocks of the job.
    """
    most = [grid.most(nodes) for nodes in sizes]
    if sum(most) < need:
        return None
    if need == 0:
        return []
    keep = [grid.keep(nodes) for nodes in sizes]
    eaten = need - sum(keep)
    if eaten <= 0:
        # no reserve is used: filling the largest SuperPoDs first uses the fewest
        spans = [(1, high) if high else None for high in keep]
        forced = [False] * len(sizes)
        shares = _largest_first(sorted(keep, reverse=True), need)
    else:
        # all blocks that need no reserve are used, and `eaten` blocks of reserves
        spans = [(max(1, low), high) if high else None for low, high in zip(keep, most, strict=True)]
        forced = [low > 0 for low in keep]
        shares = _raised_shares(keep, most, need)
    return _assign_shares(sizes, shares, spans, forced, grid)


def _largest_first(highest: Sequence[int], need: int) -> list[int]:
    """Returns the shares if SuperPoDs are filled one after the other. highest: blocks of each, descending."""
    shares = []
    for high in highest:
        if not need:
            break
        shares.append(min(high, need))
        need -= shares[-1]
    return shares


def _raised_shares(keep: Sequence[int], most: Sequence[int], need: int) -> list[int]:
    """Returns the lexicographically greatest shares in which every SuperPoD has at least its `keep` blocks.

    keep, most: [SuperPoDs] blocks without and with the reserve. As few SuperPoDs without `keep` as possible are used.
    """
    # the SuperPoDs that get a share, with its lowest and highest value
    inside = [(low, high) for low, high in zip(keep, most, strict=True) if low]
    others = sorted((high for low, high in zip(keep, most, strict=True) if not low and high), reverse=True)
    room = sum(high for _, high in inside)
    joined = 0
    while room < need:
        room += others[joined]
        joined += 1
    spans = inside + [(1, high) for high in others[:joined]]
    # blocks beyond the lowest shares make the largest shares as large as possible
    budget = need - sum(low for low, _ in spans)
    shares = [low for low, _ in spans]
    raised = [False] * len(spans)
    for share in range(max(high for _, high in spans), 0, -1):
        # raise as many as possible to this share; the SuperPoDs with the highest start cost least
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


def _assign_shares(
    sizes: Sequence[int],
    shares: Sequence[int],
    spans: Sequence[tuple[int, int] | None],
    forced: Sequence[bool],
    grid: Grid,
) -> list[tuple[int, int]]:
    """Returns, for each share in order, the SuperPoD of the smallest key that leaves a SuperPoD for each other share.

    spans: [SuperPoDs] (lowest, highest) share of each; None for a SuperPoD without a share. forced: [SuperPoDs] True if
    it must have one.
    """
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
            if len(able) == 1 or _has_matching(rest, left):
                out.append((kinds[kind][given[kind]], share))
                given[kind] += 1
                break
            left[kind] += 1
        else:
            raise AssertionError("shares without a SuperPoD")
    return out


def _has_matching(shares: Counter[int], left: dict[tuple[int, int, int, bool], int]) -> bool:
    """Returns whether every share gets its own SuperPoD, and every forced SuperPoD gets a share.

    Two matchings are counted: one that covers all shares, one that covers all forced SuperPoDs. If both exist, one
    matching covers both (theorem of Mendelsohn and Dulmage).
    """
    wanted = sorted((share, number) for share, number in shares.items() if number)
    spans = [(low, high, number, forced) for (_, low, high, forced), number in left.items() if number]
    givers = [(low, high, number) for low, high, number, _ in spans]
    held = [(low, high, number) for low, high, number, forced in spans if forced]
    every_share = _count_pairs(wanted, givers) == sum(number for _, number in wanted)
    return every_share and _count_pairs(wanted, held) == sum(number for _, _, number in held)


def _count_pairs(wanted: list[tuple[int, int]], spans: list[tuple[int, int, int]]) -> int:
    """Returns how many shares get distinct SuperPoDs. Exact, because points and intervals allow a greedy matching.

    In ascending order each share takes the open interval that ends first. wanted: (share, number). spans: (lowest
    share, highest share, number of SuperPoDs).
    """
    active: list[list[int]] = []
    remaining, paired = sorted(spans), 0
    for share, number in wanted:
        while remaining and remaining[0][0] <= share:
            _, high, count = remaining.pop(0)
            active.append([high, count])
        active = sorted(one for one in active if one[0] >= share and one[1])
        for one in active:
            taken = min(number, one[1])
            one[1] -= taken
            number -= taken
            paired += taken
    return paired


def divide_short_blocks(
    left: Sequence[int], used: Sequence[bool], missing: int, grid: Grid
) -> list[tuple[int, int]] | None:
    """Returns (position of a SuperPoD, nodes) of the short blocks of a soft job; None if there are too few nodes.

    left: [SuperPoDs] candidate nodes after whole blocks. used: [SuperPoDs] True if it has a whole block. missing: nodes
    that the whole blocks lack. The SuperPoDs with most nodes left come first.
    """
    if sum(left) < missing:
        return None
    out: list[tuple[int, int]] = []
    for i in sorted(range(len(left)), key=lambda i: (-left[i], not used[i], i)):
        taken = min(left[i], grid.size, missing)
        if taken:
            out.append((i, taken))
            missing -= taken
    return out if not missing else None
