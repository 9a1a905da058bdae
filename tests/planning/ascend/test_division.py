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


@st.composite
def mixed_nodes(draw: st.DrawFn) -> tuple[tuple[Demand, ...], int]:
    """Pods of several jobs, of one pod or more, on a node with few free chips; each pod may lack some of them."""
    resource = draw(st.sampled_from(sorted({preset.resource for preset in PRESETS})))
    presets = [preset for preset in PRESETS if preset.resource == resource]
    if not draw(st.booleans()):
        presets = [draw(st.sampled_from(presets))]
    chip = st.integers(0, min(16, *(preset.size for preset in presets)) - 1)
    free = sum(1 << k for k in draw(st.sets(chip, min_size=2, max_size=12)))
    demands = []
    for _ in range(draw(st.integers(2, 4))):
        preset = draw(st.sampled_from(presets))
        multi_pod = draw(st.booleans())
        request = draw(st.sampled_from([n for n in range(1, 13) if preset.is_legal(n, multi_pod=multi_pod)]))
        lost = sum(1 << k for k in draw(st.sets(chip, max_size=3)))
        demands.append(Demand(preset, request, multi_pod, ~lost))
    return tuple(demands), free


@given(st.one_of(nodes(), mixed_nodes()))
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


@given(st.one_of(nodes(), mixed_nodes()))
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


MIXED: list[tuple[str, tuple[tuple[int, bool, str], ...], str, tuple[str, ...] | None]] = [
    # product, (request, job of several pods, chips that the pod may not use) in rank order, free chips, chips of each
    ("910-module", ((2, True, "0"), (4, True, "")), "0-6", ("4-5", "0-3")),
    ("910-module", ((1, True, ""), (1, True, "1-3")), "0-1", ("1", "0")),
    ("910-module", ((2, True, "4"), (2, True, "0")), "0-1 4-5", ("0-1", "4-5")),
    ("910-module", ((2, True, "0"), (2, True, "0")), "0-1 4-5", None),
    ("910b-x8", ((2, True, ""), (2, True, "2-3")), "0-3", ("2-3", "0-1")),
    ("a3-x8", ((2, True, "4-5"), (4, True, "4-5")), "0-5", None),
    ("a3-x8", ((2, True, ""), (4, True, "4-7")), "0-3 6-7", ("6-7", "0-3")),
    ("310p-duo-chip", ((1, True, ""), (1, True, "2")), "0 2", ("2", "0")),
    ("910b-x16", ((2, True, ""), (10, False, "")), "0-6 9-13", ("0 6", "1-5 9-13")),
]


@pytest.mark.parametrize(("product", "asked", "free", "want"), MIXED)
def test_pods_that_may_use_different_chips(
    product: str, asked: tuple[tuple[int, bool, str], ...], free: str, want: tuple[str, ...] | None
) -> None:
    demands = tuple(Demand(BY_NAME[product], request, many, ~mask(lost)) for request, many, lost in asked)
    found = divide(demands, mask(free))
    assert found == (None if want is None else tuple(mask(text) for text in want))


def test_many_pods_on_many_cards_are_divided_or_refused_fast() -> None:
    """The order of cards does not matter, so the search has few states: 16 cards with 0 to 4 free chips each."""
    free = mask("0-2 4-6 8-10 12-14 16-18 20-22 24-26 28-30 32-34 36-38 40-42 44-46 48-51 52-55 56-59 60-63")
    card = BY_NAME["310-card"]
    demands = [Demand(card, request, True) for request in (1, 2, 3) * 6 + (2,) * 8]
    assert divide(demands, free) is not None
    assert divide([*demands, Demand(card, 2, True)], free) is None
