# SPDX-License-Identifier: Apache-2.0
"""Rows and leaves of switch jobs (ascend.md 4.1, 4.2), against plain search where there is something to search."""

from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpy.devices.ascend.tables import switch_rules_v1, switch_rules_v2
from koordpy.devices.ascend.tables.ascend_job import Tor
from koordpy.devices.ascend.tables.leaf_switches import LeafState, PlannedServer, Server


def leaf(number: int, slices: Sequence[int], *spanning: Tor, whole: bool = False) -> LeafState:
    """A leaf with servers of equal worth; nodes are numbered leaf * 100 + slice."""
    servers = tuple(Server(number * 100 + at, at, 0) for at in sorted(slices))
    return LeafState(number, number, f"ip{number}", servers, spanning, whole)


def leaves(*slices: Sequence[int]) -> list[LeafState]:
    return [leaf(number, own) for number, own in enumerate(slices)]


def names(found: Sequence[PlannedServer] | None) -> list[str] | None:
    """`a0`: leaf a, slice 0."""
    if found is None:
        return None
    return [f"{'abcdefgh'[planned.leaf.number]}{planned.server.at}" for planned in found]


WIDE = leaves(range(4), range(3), range(2), range(1))


@pytest.mark.parametrize(
    ("number", "kind", "want"),
    [
        (6, Tor.FOUNDATION, "a0 a1 a2 a3 b0 b1"),
        (8, Tor.FOUNDATION, None),
        (8, Tor.COMMON, "a0 a1 a2 a3 b0 b1 b2 c0"),
        (10, Tor.COMMON, "a0 a1 a2 a3 b0 b1 b2 c0 c1 d0"),
        (11, Tor.COMMON, None),
        (3, Tor.PADDING, "b0 b1 b2"),
        (2, Tor.PADDING, "c0 c1"),
        (1, Tor.COMMON, "d0"),
        (5, Tor.PADDING, None),
    ],
)
def test_rows_of_worked_example_8(number: int, kind: Tor, want: str | None) -> None:
    assert names(switch_rules_v1.place(WIDE, number, 4, kind)) == (want.split() if want else None)


def test_two_logical_rows_of_worked_example_9() -> None:
    """Four leaves, leaf k without slice 3 - k: rank 4 has rank 0's slice."""
    found = switch_rules_v1.place(leaves((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)), 8, 4, Tor.FOUNDATION)
    assert found is not None
    assert [planned.server.at for planned in found[:4]] == [planned.server.at for planned in found[4:]]


def test_fewer_pods_than_positions_take_the_last_row_that_holds_them() -> None:
    found = switch_rules_v1.take_logical_rows(leaves((0, 1), (0, 2), (1, 2)), 3, 4)
    assert names(found) == ["b0", "c1", "c2"]


def test_a_leaf_with_a_foreign_uplink_is_blank_to_a_job_that_would_span() -> None:
    own = [leaf(0, range(4), Tor.COMMON), leaf(1, range(4)), leaf(2, range(4))]
    assert names(switch_rules_v1.place(own, 4, 4, Tor.FOUNDATION)) == ["a0", "a1", "a2", "a3"]
    assert names(switch_rules_v1.place(own, 5, 4, Tor.FOUNDATION)) == ["b0", "b1", "b2", "b3", "c0"]
    assert names(switch_rules_v1.place(own, 5, 4, Tor.COMMON)) == ["a0", "a1", "a2", "a3", "b0"]


def possible(own: Sequence[LeafState], number: int, positions: int) -> bool:
    """Whether servers can be chosen so that each column has one slice position of its own: by trying all."""
    rows = -(-number // positions)
    last = number - (rows - 1) * positions
    have = [sum(s.at == at for one in own for s in one.servers) for at in range(positions)]
    needs = [rows if j < last else rows - 1 for j in range(positions)]
    return any(
        all(have[at] >= need for at, need in zip(order, needs, strict=True)) for order in permutations(range(positions))
    )


slots = st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=6).map(lambda sets: leaves(*map(sorted, sets)))


@given(slots, st.integers(4, 14))
def test_a_foundation_model_is_placed_exactly_when_rows_exist(own: list[LeafState], number: int) -> None:
    found = switch_rules_v1.place(own, number, 4, Tor.FOUNDATION)
    assert (found is not None) == possible(own, number, 4)
    if found is None:
        return
    assert len({planned.server.node for planned in found}) == number
    for rank in range(number - 4):
        assert found[rank].server.at == found[rank + 4].server.at
    columns = [planned.server.at for planned in found[:4]]
    assert len(set(columns)) == len(columns)


@given(slots, st.integers(1, 14))
def test_a_common_job_waits_only_for_want_of_servers(own: list[LeafState], number: int) -> None:
    found = switch_rules_v1.place(own, number, 4, Tor.COMMON)
    assert (found is not None) == (sum(one.count for one in own) >= number)


@given(slots, st.integers(5, 14), st.data())
def test_lost_ranks_come_back_to_their_slice_position(own: list[LeafState], number: int, data: st.DataObject) -> None:
    found = switch_rules_v1.place(own, number, 4, Tor.FOUNDATION)
    if found is None:
        return
    lost = data.draw(st.sets(st.integers(0, number - 1), min_size=1, max_size=3))
    at = {rank: (planned.leaf.number, planned.server.at) for rank, planned in enumerate(found) if rank not in lost}
    held = {planned.server.node for rank, planned in enumerate(found) if rank not in lost}
    left = [leaf(one.number, [server.at for server in one.servers if server.node not in held]) for one in own]
    again = switch_rules_v1.place_again(left, at, sorted(lost), 4, Tor.FOUNDATION)
    assert again is not None, "the lost servers are still there"
    columns: dict[int, set[int]] = {}
    for rank in range(number):
        where = again[rank].server.at if rank in lost else at[rank][1]
        columns.setdefault(rank % 4, set()).add(where)
    assert all(len(own_positions) == 1 for own_positions in columns.values())
    assert len(set().union(*columns.values())) == len(columns)


def test_a_lost_rank_prefers_the_leaf_of_its_row_then_the_job_then_the_fullest_leaf() -> None:
    at = {rank: (0, rank) for rank in range(3)} | {rank + 4: (1, rank) for rank in range(4)}
    free = [leaf(0, [3]), leaf(1, []), leaf(2, [0, 1, 2, 3]), leaf(3, [3])]
    assert names(list((switch_rules_v1.place_again(free, at, [3], 4, Tor.FOUNDATION) or {}).values())) == ["a3"]
    free[0] = leaf(0, [])
    assert names(list((switch_rules_v1.place_again(free, at, [3], 4, Tor.FOUNDATION) or {}).values())) == ["d3"]
    free[1] = leaf(1, [3])
    assert names(list((switch_rules_v1.place_again(free, at, [3], 4, Tor.FOUNDATION) or {}).values())) == ["b3"]
    assert switch_rules_v1.place_again([leaf(2, [0, 1, 2])], at, [3], 4, Tor.FOUNDATION) is None
    assert names(list((switch_rules_v1.place_again([leaf(2, [0, 1, 2])], at, [3], 4, Tor.COMMON) or {}).values())) == [
        "c0"
    ]


def test_a_lost_padding_rank_waits_for_its_leaf() -> None:
    at = {0: (0, 0), 1: (0, 1)}
    assert switch_rules_v1.place_again([leaf(0, []), leaf(1, [2])], at, [2], 4, Tor.PADDING) is None
    assert names(list((switch_rules_v1.place_again([leaf(0, [3])], at, [2], 4, Tor.PADDING) or {}).values())) == ["a3"]


# --- version 2.0 --------------------------------------------------------------------------------------------------

SHARED = (Tor.FOUNDATION, Tor.FOUNDATION)


def marked(found: list[PlannedServer], kind: Tor) -> dict[str, str]:
    """Leaf -> isSharedTor."""
    notes = switch_rules_v2.leaf_notes(found, kind)
    return {"abcdefgh"[planned.leaf.number]: own["isSharedTor"] for planned, own in zip(found, notes, strict=True)}


def place2(own: list[LeafState], number: int, kind: Tor = Tor.FOUNDATION, q: int = 2) -> list[PlannedServer] | None:
    return switch_rules_v2.place(own, number, 4, kind=kind, shared_most=q)


def test_leaves_taken_whole_of_worked_example_10() -> None:
    idle = leaves(range(4), range(4), range(3), range(2))
    found = place2(idle, 9)
    assert names(found) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "c0"]
    assert marked(found or [], Tor.FOUNDATION) == {"a": "2", "b": "2", "c": "1"}
    assert names(place2(idle, 3)) == ["c0", "c1", "c2"]


def test_shared_leaves_of_worked_example_11() -> None:
    own = [leaf(0, range(4)), leaf(1, range(4)), leaf(2, range(3), *SHARED), leaf(3, range(2), *SHARED)]
    found = place2(own, 12)
    assert names(found) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "d0", "d1", "c0", "c1"]
    assert marked(found or [], Tor.FOUNDATION) == {"a": "2", "b": "2", "c": "1", "d": "1"}
    assert place2(own, 14) is None
    assert place2(own, 12, q=1) is None


def test_small_jobs_try_exclusive_then_unhealthy_then_healthy_then_idle_leaves() -> None:
    exclusive = leaf(0, range(4), Tor.FOUNDATION, whole=True)
    sick, healthy, idle = leaf(1, range(4), Tor.COMMON), leaf(2, range(4), *SHARED), leaf(3, range(2))
    own = [exclusive, sick, healthy, idle]
    for want in ("a", "b", "c", "d"):
        found = place2(own, 2, Tor.PADDING)
        assert found is not None and names(found) == [f"{want}0", f"{want}1"]
        assert {note["isSharedTor"] for note in switch_rules_v2.leaf_notes(found, Tor.PADDING)} == {"0"}
        own = own[1:]
    assert place2(own, 2, Tor.PADDING) is None


def test_a_common_job_beyond_the_cap_takes_unhealthy_before_healthy_leaves() -> None:
    own = [leaf(0, range(4)), leaf(1, range(2), Tor.COMMON), leaf(2, range(3), *SHARED), leaf(3, range(3), *SHARED)]
    assert place2(own, 11, q=1) is None
    assert names(place2(own, 9, Tor.COMMON, q=1)) == ["a0", "a1", "a2", "a3", "b0", "b1", "c0", "c1", "c2"]
    found = place2(own, 9, Tor.COMMON, q=1) or []
    assert {note["isHealthy"] for note in switch_rules_v2.leaf_notes(found, Tor.COMMON)} == {"0", "1"}
    assert [note.get("sharedTorIp", "") for note in switch_rules_v2.leaf_notes(found, Tor.COMMON)][3:5] == ["", "ip1"]
    exclusive = leaf(4, range(4), Tor.FOUNDATION, whole=True)
    assert place2([*own, exclusive], 13, Tor.COMMON) is None, "never an exclusive leaf"


states = st.sampled_from([(), SHARED, (Tor.COMMON,), (Tor.FOUNDATION,)])
mixed = st.lists(st.tuples(st.integers(0, 4), states, st.booleans()), min_size=1, max_size=6).map(
    lambda rows: [leaf(i, range(count), *spanning, whole=whole) for i, (count, spanning, whole) in enumerate(rows)]
)


@given(mixed, st.integers(4, 16), st.sampled_from([Tor.FOUNDATION, Tor.COMMON]), st.sampled_from([1, 2]))
def test_no_job_touches_more_than_q_healthy_shared_leaves(own: list[LeafState], number: int, kind: Tor, q: int) -> None:
    found = place2(own, number, kind, q)
    idle = sum(one.count for one in own if one.idle)
    healthy = [one.count for one in own if one.shared and one.healthy]
    most = idle + max((sum(some) for some in combinations(healthy, min(q, len(healthy)))), default=0)
    sick = sum(one.count for one in own if one.shared and not one.healthy)
    assert (found is not None) == (number <= most + (sick if kind is Tor.COMMON else 0))
    if found is None:
        return
    assert len({planned.server.node for planned in found}) == number
    assert len({planned.leaf.number for planned in found if planned.leaf.shared and planned.leaf.healthy}) <= q
    assert not any(planned.leaf.exclusive for planned in found)


def test_lost_ranks_prefer_own_exclusive_then_own_shared_then_idle_leaves() -> None:
    own = {0: "2", 1: "1"}
    free = [
        leaf(0, [3]),
        leaf(1, [3], Tor.FOUNDATION),
        leaf(2, [0, 1]),
        leaf(3, [0, 1], *SHARED),
        leaf(4, [0, 1], *SHARED),
    ]
    found = switch_rules_v2.place_again(free, own, 5, kind=Tor.FOUNDATION, shared_most=2)
    assert names(found) == ["a3", "b3", "c0", "c1", "d0"]
    assert [note["isSharedTor"] for note in switch_rules_v2.leaf_notes(found or [], Tor.FOUNDATION, own)] == [
        "2",
        "1",
        "2",
        "2",
        "1",
    ]
    assert switch_rules_v2.place_again(free, own, 7, kind=Tor.FOUNDATION, shared_most=2) is None
    assert switch_rules_v2.place_again(free, own, 2, kind=Tor.PADDING, shared_most=2) is not None
    assert switch_rules_v2.place_again(free, own, 3, kind=Tor.PADDING, shared_most=2) is None
