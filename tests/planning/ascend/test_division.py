# SPDX-License-Identifier: Apache-2.0
"""Chips of one node divided among several pods (ascend.md 3): against trying every set of chips."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpy.devices.ascend.tables.chip_costs import cost, take
from koordpy.devices.ascend.tables.chip_division import Demand, divide, servable
from koordpy.devices.ascend.tables.npu_presets import PRESETS, PickRule, Preset
from tests.planning.ascend.test_chips import BY_NAME, chips, legal, mask


def keeps_to_groups(demand: Demand, tried: tuple[int, ...]) -> bool:
    """Whether a set of chips of the right size is one that the product gives."""
    preset, request = demand.preset, demand.request
    count = [sum(k // preset.group == g for k in tried) for g in range(16)] if preset.group else []
    match preset.rule:
        case PickRule.RINGS | PickRule.CARD:
            return request == preset.size or max(count) == request
        case PickRule.HALVES:
            across = count[0] == count[1] if demand.multi_pod else all((k ^ 8) in tried for k in tried)
            return max(count) == request if request <= 8 else across
        case PickRule.DIES:
            return request == 1 or all(n in (0, 2) for n in count)
        case PickRule.DUO:
            return sum(n == 1 for n in count) <= 1
        case PickRule.MESH:
            return max(count) == request if request < 4 else request % 4 > 0 or all(n in (0, 4) for n in count)
    return True


def enumerated(demands: tuple[Demand, ...], free: int) -> bool:
    """Whether disjoint sets of chips exist: by trying them all."""
    if not demands:
        return True
    first, rest = demands[0], demands[1:]
    return any(
        enumerated(rest, free & ~sum(1 << k for k in tried))
        for tried in combinations(chips(free & first.usable), first.request)
        if keeps_to_groups(first, tried)
    )


@st.composite
def nodes(draw: st.DrawFn) -> tuple[tuple[Demand, ...], int]:
    """Pods of one job on a node with few free chips, its last chips at times without network."""
    preset: Preset = draw(st.sampled_from(PRESETS))
    free = sum(1 << k for k in draw(st.sets(st.integers(0, min(preset.size, 16) - 1), min_size=2, max_size=9)))
    sizes = [n for n in legal(preset) if n <= 6 and n in preset.legal]
    requests = draw(st.lists(st.sampled_from(sizes), min_size=2, max_size=4))
    lost = draw(st.sampled_from((0, 0, 1 << 2, 3)))
    return tuple(Demand(preset, request, True, ~lost) for request in requests), free


@given(nodes())
def test_pods_share_a_node_exactly_when_some_sets_of_chips_do(case: tuple[tuple[Demand, ...], int]) -> None:
    demands, free = case
    possible = enumerated(demands, free)
    assert servable(demands, free) is possible
    found = divide(demands, free)
    assert (found is not None) is possible
    if found is None:
        return
    assert sum(found).bit_count() == sum(one.request for one in demands), "no chip is given twice"
    for demand, own in zip(demands, found, strict=True):
        assert own & ~(free & demand.usable) == 0
        assert keeps_to_groups(demand, chips(own))


@given(nodes())
def test_the_table_decides_while_it_strands_nobody(case: tuple[tuple[Demand, ...], int]) -> None:
    demands, free = case
    found = divide(demands, free)
    for i, demand in enumerate(demands):
        own = free & demand.usable
        if cost(demand.preset, demand.request, own, demand.multi_pod) is None:
            assert found is None
            return
        first = take(demand.preset, demand.request, own, demand.multi_pod)
        if not enumerated(demands[i + 1 :], free & ~first):
            return
        assert found is not None
        assert found[i] == first
        free &= ~first


STRANDED: list[tuple[str, tuple[int, ...], str, tuple[str, ...] | None]] = [
    # product, requests in rank order, free chips, chips of each: by the table alone the last one finds none
    ("910-module", (2, 4), "0-2 4-7", ("0-1", "4-7")),
    ("910-module", (1, 2, 4), "0-2 4-7", ("0", "1-2", "4-7")),
    ("910-module", (2, 2, 4), "0-2 4-7", None),
    ("910b-x16", (2, 4, 3), "0-4 8-11", ("0-1", "8-11", "2-4")),
    ("310-card", (1, 3, 3), "0-2 4-7", ("4", "0-2", "5-7")),
    ("mesh-x16", (5, 4), "0-3 4-5 8-10", ("4-5 8-10", "0-3")),
    ("mesh-x16", (6, 3, 4), "0-3 4-7 8-12", ("0-4 12", "5-7", "8-11")),
    ("mesh-x8", (3, 1, 3), "0-2 4-7", ("0-2", "4", "5-7")),
]


@pytest.mark.parametrize(("product", "requests", "free", "want"), STRANDED)
def test_a_choice_of_the_table_that_strands_another_pod_is_passed_over(
    product: str, requests: tuple[int, ...], free: str, want: tuple[str, ...] | None
) -> None:
    demands = tuple(Demand(BY_NAME[product], request, True) for request in requests)
    found = divide(demands, mask(free))
    assert found == (None if want is None else tuple(mask(text) for text in want))


def test_jobs_of_two_kinds_on_one_node_are_divided_too() -> None:
    """Any chips serve the pod of a chip job; those of a card job share what it leaves."""
    card, chip = BY_NAME["310-card"], BY_NAME["310-chip"]
    demands = (Demand(chip, 3, True), Demand(card, 4, True), Demand(card, 2, True))
    assert divide(demands, mask("0-3 4-7 8-9")) == (mask("0 8-9"), mask("4-7"), mask("1-2"))
    assert divide((*demands, Demand(card, 2, True)), mask("0-3 4-7 8-9")) is None
