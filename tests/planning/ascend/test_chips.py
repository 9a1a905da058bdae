# SPDX-License-Identifier: Apache-2.0
"""Legality, cost, score and choice of chips inside a node (ascend.md 3): the tables row by row, and invariants."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpy.devices.ascend.tables.chip_costs import affinity, copies, cost, take
from koordpy.devices.ascend.tables.chip_division import Demand, divide
from koordpy.devices.ascend.tables.npu_presets import PRESETS, PickRule, Preset

BY_NAME = {preset.name: preset for preset in PRESETS}


def mask(text: str) -> int:
    """`0-3 8` as a set of chips."""
    out = 0
    for part in text.split():
        first, _, last = part.partition("-")
        for chip in range(int(first), int(last or first) + 1):
            out |= 1 << chip
    return out


def chips(number: int) -> tuple[int, ...]:
    return tuple(k for k in range(64) if number >> k & 1)


COSTS: list[tuple[str, int, list[tuple[str, int | None]]]] = [
    ("910-module", 1, [("0", 0), ("0-1", 2), ("0-2", 1), ("0-3", 3), ("0-3 4-5", 2), ("0-2 4", 0)]),
    ("910-module", 2, [("0", None), ("0 4", None), ("0-1", 0), ("0-2", 2), ("0-3", 1), ("0-3 4-6", 1)]),
    ("910-module", 4, [("0-1 4-5", None), ("0-3", 0), ("0-2 4-7", 0), ("0-2 4-6", None)]),
    ("910-module", 8, [("0-7", 0), ("0-6", None)]),
    ("910-half", 1, [("0", 0), ("0-1", 2), ("0-2", 1), ("0-3", 3)]),
    ("910-half", 2, [("3", None), ("0 3", 0), ("0-2", 2), ("0-3", 1)]),
    ("910-half", 4, [("0-2", None), ("0-3", 0)]),
    ("910-card", 1, [("0", 0), ("0-1", 1)]),
    ("910-card", 2, [("0", None), ("0-1", 0)]),
    ("910b-x8", 6, [("0-4", None), ("0-5", 0), ("0-6", 1), ("0-7", 2)]),
    ("910b-x8", 4, [("0-2", None), ("0-3", 0), ("0-4", 1), ("0-5", 2), ("0-6", 3), ("0-7", 4)]),
    ("910b-x16", 3, [("0-1 8-9", None), ("0-4 8-10", 0), ("0-7 8-15", 5)]),
    ("910b-x16", 10, [("0-4 8-12", 0), ("0-7 8 9", None), ("0-15", 3), ("0-5 10-15", None)]),
    ("910b-x16", 14, [("0-6 8-14", 0), ("0-7 8-13", None)]),
    ("910b-x16", 16, [("0-15", 0), ("0-14", None)]),
    ("a3-x16", 1, [("0-2", 2), ("0-1", 17), ("0", 0), ("1 2", 1)]),
    ("a3-x16", 4, [("0-3", 0), ("0 2 4 6", None), ("0-2 4 6 7", 2)]),
    ("a3-x8", 1, [("0-1", 9)]),
    ("310-card", 1, [("0", 0), ("0-1", 2), ("0-2", 1), ("0-3", 3), ("0-3 4-6 8-9", 1)]),
    ("310-card", 2, [("0 4", None), ("0-1", 0), ("0-2", 1), ("0-3", 2)]),
    ("310-card", 3, [("0-1", None), ("0-2", 0), ("0-3", 1)]),
    ("310-card", 4, [("0-2", None), ("4-7", 0)]),
    ("310-chip", 5, [("0-3", None), ("0-8", 4)]),
    ("310p", 3, [("0-7", 5)]),
    ("310p-duo-card", 1, [("0", 0), ("0-1", 1), ("0-1 2", 0)]),
    ("310p-duo-card", 2, [("0 2", None), ("2-3", 0)]),
    ("310p-duo-chip", 2, [("0 2", None), ("0-1", 1), ("0-2", 2)]),
    ("310p-duo-chip", 3, [("0-2", 1), ("0 2 4", None), ("0-3", 9), ("0-7", 11), ("0-1 2-3 4", 3)]),
    ("310p-duo-chip", 1, [("0", 1), ("0-1", 9)]),
    ("mesh-x8", 2, [("0 4", None), ("0-1", 0), ("0-1 4-7", 8 + 4)]),
    ("mesh-x8", 5, [("0-4", 0), ("0-7", 3)]),
    ("mesh-x16", 8, [("0-7", 0), ("0-3 8-13", 2), ("0-2 4-6 8-10", None), ("0-15", 40)]),
]


@pytest.mark.parametrize(
    ("name", "request_", "free", "want"),
    [(name, asked, free, want) for name, asked, rows in COSTS for free, want in rows],
)
def test_cost_follows_the_table(name: str, request_: int, free: str, want: int | None) -> None:
    assert cost(BY_NAME[name], request_, mask(free), False) == want


SCORES: list[tuple[str, int, str, int, int | None]] = [
    ("910-module", 1, "0", 8, 263),
    ("910-module", 1, "0-1 4-6", 8, 251),
    ("910-module", 4, "0-3", 8, 260),
    ("910-module", 4, "0-7", 8, 256),
    ("910-half", 1, "0-2", 4, 24),
    ("910-card", 2, "0-1", 2, 16),
    ("910b-x8", 3, "0-4", 8, 48),
    ("910b-x16", 3, "0-4 8-10", 16, 16 * 16 + 8),
    ("a3-x16", 1, "0-2", 16, 480),
    ("a3-x16", 1, "0-1", 16, 240),
    ("a3-x8", 2, "0-3", 8, 8 * 14),
    ("310-card", 3, "0-3", 64, 24),
    ("310-chip", 5, "0-8", 64, 8 * 60),
    ("310p", 3, "0-7", 8, 24),
    ("310p-duo-card", 1, "0-1", 8, 8),
    ("310p-duo-chip", 3, "0-2", 8, 120),
    ("mesh-x16", 8, "0-7", 16, 4096),
    ("mesh-x16", 8, "0-3 8-13", 16, 3968),
    ("mesh-x8", 5, "0-7", 8, 40),
    ("mesh-x8", 4, "0-3", 8, 256),
    ("mesh-x8", 4, "0-2 4-6", 8, None),
]


@pytest.mark.parametrize(("name", "request_", "free", "height", "want"), SCORES)
def test_score_follows_the_table(name: str, request_: int, free: str, height: int, want: int | None) -> None:
    assert affinity(BY_NAME[name], request_, mask(free), height, False) == want


PICKS: list[tuple[str, int, str, str]] = [
    ("910-module", 1, "0 1 4-6", "4"),
    ("910-module", 1, "0 1 4-7", "0"),
    ("910-module", 2, "0-3 4-5", "4-5"),
    ("910-module", 8, "0-7", "0-7"),
    ("910b-x8", 3, "1 3 5 7", "1 3 5"),
    ("910b-x16", 3, "0-4 8-10", "8-10"),
    ("910b-x16", 4, "1-4 9-12", "1-4"),
    ("910b-x16", 12, "0-6 9-15", "1-6 9-14"),
    ("a3-x16", 1, "0-2", "2"),
    ("a3-x16", 1, "2-3 6-7", "2"),
    ("a3-x16", 4, "0 2-3 6-7", "2-3 6-7"),
    ("310-card", 2, "0-3 4-6 8-9", "8-9"),
    ("310-chip", 3, "0-3 4-5 8", "4-5 8"),
    ("310p-duo-card", 1, "0-1 2", "2"),
    ("310p-duo-chip", 3, "0-1 3 4-5", "0-1 3"),
    ("310p-duo-chip", 3, "0-1 4-5", "0-1 4"),
    ("mesh-x8", 2, "0-3 5-7", "5-6"),
    ("mesh-x16", 8, "1-3 4-7 12-15", "4-7 12-15"),
    ("mesh-x8", 5, "1-3 5-7", "1-3 5-6"),
]


@pytest.mark.parametrize(("name", "request_", "free", "want"), PICKS)
def test_devices_lost_follow_the_table(name: str, request_: int, free: str, want: str) -> None:
    assert chips(take(BY_NAME[name], request_, mask(free), False)) == chips(mask(want))


def test_several_pods_of_ten_take_as_many_chips_left_as_right() -> None:
    preset = BY_NAME["910b-x16"]
    free = mask("0-5 10-15")
    assert cost(preset, 10, free, True) == 1
    taken = take(preset, 10, free, True)
    assert chips(taken) == chips(mask("0 2-5 10-14"))


def legal(preset: Preset) -> list[int]:
    return sorted(preset.legal | preset.single_pod_requests)


cases = st.sampled_from(PRESETS).flatmap(
    lambda preset: st.tuples(
        st.just(preset),
        st.sampled_from(legal(preset)),
        st.integers(0, (1 << min(preset.size, 16)) - 1),
        st.booleans(),
    )
)


@given(cases)
def test_what_is_taken_is_free_and_as_many_as_asked(case: tuple[Preset, int, int, bool]) -> None:
    preset, request, free, multi_pod = case
    best = cost(preset, request, free, multi_pod)
    if best is None:
        with pytest.raises(ValueError, match="cannot serve"):
            take(preset, request, free, multi_pod)
        return
    taken = take(preset, request, free, multi_pod)
    assert taken & ~free == 0
    assert taken.bit_count() == request
    assert best >= 0


def possible(preset: Preset, request: int, free: int, multi_pod: bool) -> bool:
    """Whether any set of chips keeps to the product's groups: by trying them all."""
    own = chips(free)
    for tried in combinations(own, request):
        count = [sum(k // preset.group == g for k in tried) for g in range(16)] if preset.group else []
        match preset.rule:
            case PickRule.RINGS | PickRule.CARD:
                good = request == preset.size or max(count) == request
            case PickRule.HALVES:
                pairs = all((k ^ 8) in tried for k in tried)
                good = max(count) == request if request <= 8 else pairs or (multi_pod and count[0] == count[1])
            case PickRule.DIES:
                good = request == 1 or all(n in (0, 2) for n in count)
            case PickRule.DUO:
                good = sum(n == 1 for n in count) <= 1
            case PickRule.MESH:
                good = max(count) == request if request < 4 else request % 4 > 0 or all(n in (0, 4) for n in count)
            case _:
                good = True
        if good:
            return True
    return False


small = st.sampled_from([preset for preset in PRESETS if preset.size <= 8 or preset.group]).flatmap(
    lambda preset: st.tuples(
        st.just(preset),
        st.sampled_from(legal(preset)),
        st.sets(st.integers(0, min(preset.size, 16) - 1), max_size=9).map(lambda s: sum(1 << k for k in s)),
        st.booleans(),
    )
)


@given(small)
def test_a_node_serves_exactly_when_some_set_of_its_chips_does(case: tuple[Preset, int, int, bool]) -> None:
    preset, request, free, multi_pod = case
    assert (cost(preset, request, free, multi_pod) is not None) == possible(preset, request, free, multi_pod)


@given(cases)
def test_copies_are_as_many_as_fit_together(case: tuple[Preset, int, int, bool]) -> None:
    preset, request, free, multi_pod = case
    number = copies(preset, request, free, multi_pod)
    want = Demand(preset, request, multi_pod)
    assert divide((want,) * number, free) is not None
    assert divide((want,) * (number + 1), free) is None
