# SPDX-License-Identifier: Apache-2.0
"""Rule set 1.0 of switch affinity: places the servers of a job in rows, so that ranks r and r + c share a slice
position.

c is the number of slice positions of a leaf. A job spans if its servers are under several leaves; only then it uses
uplinks. `place` tries three forms, one after the other:

- one leaf;
- whole leaves, one row each;
- logical switches: a row of servers from any leaves, with one slice position for each column. The columns are the
  positions with most usable servers; counting these servers decides exactly if there are enough rows.

O(servers log servers). `place_again` places pending ranks of a job with bound ranks: a rank keeps the position of the
bound ranks that are congruent to it modulo c (docs/rules/ascend.md 4.1, 4.3). This module knows leaves and servers, not
pods.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from koordpy.devices.ascend.tables.ascend_job import Tor
from koordpy.devices.ascend.tables.leaf_switches import (
    LeafState,
    PlannedServer,
    Server,
    leaf_order,
    servers_of,
    tightest,
    used_up,
)


def place(leaves: Sequence[LeafState], number: int, positions: int, kind: Tor) -> list[PlannedServer] | None:
    """Returns the servers of a job of `number` pods in rank order; None if the job must wait.

    positions: c, slice positions of a leaf. kind: switch affinity of the job.
    """
    open_ = [leaf for leaf in leaves if not _is_blocked(leaf, number, kind)]
    if number < positions or kind is Tor.PADDING:
        one = tightest(open_, number)
        if one is not None:
            return servers_of(one, number)
        if kind is Tor.PADDING:
            return None
    found = take_whole_leaves(open_, number, positions) or take_logical_rows(open_, number, positions)
    if found is None and kind is Tor.COMMON:
        found = take_in_leaf_order(open_, number)
    return found


def _is_blocked(leaf: LeafState, number: int, kind: Tor) -> bool:
    """Returns True if a job of `number` pods may not use a leaf, because another spanning job uses the leaf's uplinks.

    A leaf with enough servers for the whole job is never blocked, because the job would use no uplinks there. A common
    job is blocked by foundation models only.
    """
    rivals = [one for one in leaf.spanning if kind is not Tor.COMMON or one is Tor.FOUNDATION]
    return bool(rivals) and number > leaf.count


def take_whole_leaves(leaves: Sequence[LeafState], number: int, positions: int) -> list[PlannedServer] | None:
    """Returns servers in rank order; None if there are too few leaves.

    Each row is one leaf with a usable server at every position. The last row is used only as far as needed.
    """
    rows = -(-number // positions)
    full = [leaf for leaf in leaf_order(leaves) if leaf.count == positions][:rows]
    if len(full) < rows:
        return None
    return [PlannedServer(server, leaf) for leaf in full for server in leaf.servers][:number]


def take_logical_rows(leaves: Sequence[LeafState], number: int, positions: int) -> list[PlannedServer] | None:
    """Returns servers in rank order, in rows from any leaves with one slice position per column; None if there are too
    few."""
    rows = -(-number // positions)
    last = number - (rows - 1) * positions
    lists: dict[int, list[PlannedServer]] = {}
    for leaf in leaf_order(leaves):
        for server in leaf.servers:
            lists.setdefault(server.at, []).append(PlannedServer(server, leaf))
    columns = [lists[at] for at in sorted(lists, key=lambda at: (-len(lists[at]), at))]
    needed = [rows if j < last else rows - 1 for j in range(positions)]
    if any(need > (len(columns[j]) if j < len(columns) else 0) for j, need in enumerate(needed)):
        return None
    if number < positions:
        row = len(columns[number - 1]) - 1
        return [columns[j][row] for j in range(number)]
    return [columns[rank % positions][rank // positions] for rank in range(number)]


def take_in_leaf_order(leaves: Sequence[LeafState], number: int) -> list[PlannedServer] | None:
    """Returns servers of any leaves, the fullest leaf first; None if there are too few. For common jobs only."""
    found = used_up(leaf_order(leaves), number)
    return found if len(found) == number else None


@dataclass
class _ReturningRanks:
    """Servers chosen so far for pending ranks of a job with bound ranks. Filled rank by rank."""

    leaves: Sequence[LeafState]
    positions: int
    """c: number of slice positions of a leaf."""
    kind: Tor
    """Switch affinity of the job."""
    at: dict[int, tuple[int, int]]
    """Rank -> (leaf number, slice position) of bound ranks and of ranks with a chosen server."""
    taken: set[int] = field(default_factory=set)
    """Positions of nodes that are chosen already."""

    def choices(self, rank: int, where: int) -> list[PlannedServer]:
        """Returns the free servers at slice position `where` for a rank, the best first.

        Leaves with other spanning jobs are left out, except for a common job.
        """
        found = [
            PlannedServer(server, leaf)
            for leaf in self.leaves
            if not leaf.spanning or self.kind is Tor.COMMON
            for server in leaf.servers
            if server.at == where and server.node not in self.taken
        ]
        return sorted(found, key=lambda planned: self.preference(rank, planned))

    def preference(self, rank: int, planned: PlannedServer) -> tuple[int, ...]:
        """Returns a sort key of a server for a rank; smaller is better.

        Preferred are, in this order: leaves without other spanning jobs (this matters to a common job only), the leaf
        with most ranks of the same row, another leaf of the job, and the leaf with the fewest usable servers.
        """
        row = Counter(leaf for other, (leaf, _) in self.at.items() if other // self.positions == rank // self.positions)
        own = {leaf for leaf, _ in self.at.values()}
        number = planned.leaf.number
        rivals = int(bool(planned.leaf.spanning))
        if number in row:
            return rivals, 0, -row[number], planned.leaf.tor_id, planned.server.at
        if number in own:
            return rivals, 1, 0, planned.leaf.tor_id, planned.server.at
        return rivals, 2, planned.leaf.count, planned.leaf.tor_id, planned.server.at

    def assign(self, rank: int, planned: PlannedServer) -> None:
        """Records the server of a rank."""
        self.at[rank] = planned.leaf.number, planned.server.at
        self.taken.add(planned.server.node)


def place_again(
    leaves: Sequence[LeafState],
    at: Mapping[int, tuple[int, int]],
    pending: Sequence[int],
    positions: int,
    kind: Tor,
) -> dict[int, PlannedServer] | None:
    """Returns rank -> server of the pending ranks of a job with bound ranks; None if they must wait.

    at: rank -> (leaf number, slice position) of the bound ranks. pending: ranks. positions: c.
    """
    if kind is Tor.PADDING:
        return _place_under_own_leaf(leaves, at, pending)
    home = {leaf for leaf, _ in at.values()}
    if len(home) == 1 and max((*at, *pending)) < positions:
        # a job under one leaf uses no uplinks, so other spanning jobs there do not matter
        own = [replace(leaf, spanning=()) for leaf in leaves if leaf.number in home]
        found = _place_by_column(_ReturningRanks(own, positions, kind, dict(at)), pending)
        if found is not None:
            return found
    state = _ReturningRanks(leaves, positions, kind, dict(at))
    found = _place_by_column(state, pending)
    if found is None and kind is Tor.COMMON:
        state = _ReturningRanks(leaves, positions, kind, dict(at))
        return _place_anywhere(state, pending)
    return found


def _place_under_own_leaf(
    leaves: Sequence[LeafState], at: Mapping[int, tuple[int, int]], pending: Sequence[int]
) -> dict[int, PlannedServer] | None:
    """Returns rank -> server under the leaf of the bound pods, where a padding job stays; None if there are too few."""
    held = Counter(leaf for leaf, _ in at.values())
    own = sorted((leaf for leaf in leaves if leaf.number in held), key=lambda leaf: (-held[leaf.number], leaf.tor_id))
    found = used_up(own, len(pending))
    return dict(zip(sorted(pending), found, strict=True)) if len(found) == len(pending) else None


def _place_by_column(state: _ReturningRanks, pending: Sequence[int]) -> dict[int, PlannedServer] | None:
    """Returns rank -> server at the slice position of the rank's column; None if a column finds no position or server.

    A column is the ranks that are congruent modulo c. A column with bound ranks keeps their position. Any other column
    gets a position that no column uses. It takes the preferred position that leaves enough servers for the columns
    after it.
    """
    # the pending ranks of each column, and the position that its bound ranks use most
    c = state.positions
    columns: dict[int, list[int]] = {}
    for rank in sorted(pending):
        columns.setdefault(rank % c, []).append(rank)
    held: dict[int, Counter[int]] = {}
    for rank, (_, where) in state.at.items():
        held.setdefault(rank % c, Counter())[where] += 1
    position = {j: min(counts, key=lambda at: (-counts[at], at)) for j, counts in held.items()}
    # columns without bound ranks: a free position each, with enough servers left for the columns that follow
    unknown = [j for j in sorted(columns, key=lambda j: columns[j][0]) if j not in position]
    free = [at for at in range(c) if at not in {where for counts in held.values() for where in counts}]
    room = {at: len(state.choices(columns[j][0], at)) for j in unknown[:1] for at in free}
    for k, j in enumerate(unknown):
        needs = sorted((len(columns[other]) for other in unknown[k + 1 :]), reverse=True)
        options = []
        for at in free:
            others = sorted((room[other] for other in free if other != at), reverse=True)
            if room[at] < len(columns[j]) or len(others) < len(needs):
                continue
            if all(need <= have for need, have in zip(needs, others, strict=False)):
                options.append((state.preference(columns[j][0], state.choices(columns[j][0], at)[0]), at))
        if not options:
            return None
        position[j] = min(options)[1]
        free.remove(position[j])
    # a server for each rank at the position of its column
    found: dict[int, PlannedServer] = {}
    for rank in sorted(pending):
        choices = state.choices(rank, position[rank % c])
        if not choices:
            return None
        found[rank] = choices[0]
        state.assign(rank, choices[0])
    return found


def _place_anywhere(state: _ReturningRanks, pending: Sequence[int]) -> dict[int, PlannedServer] | None:
    """Returns rank -> server of a common job that cannot keep its positions; None if there are too few servers.

    Any usable server is allowed, the leaves of the job first.
    """
    found: dict[int, PlannedServer] = {}
    for rank in sorted(pending):
        open_: list[tuple[Server, LeafState]] = [
            (server, leaf) for leaf in state.leaves for server in leaf.servers if server.node not in state.taken
        ]
        if not open_:
            return None
        planned = min((PlannedServer(*pair) for pair in open_), key=lambda planned: state.preference(rank, planned))
        found[rank] = planned
        state.assign(rank, planned)
    return found
