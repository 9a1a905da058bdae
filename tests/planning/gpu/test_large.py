# SPDX-License-Identifier: Apache-2.0
"""Machines of more GPUs than tables hold: against enumeration, and what is said to be proven of them."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.devices.gpu.choice.gpu_choosers import chooser_of
from koordpy.devices.gpu.choice.gpu_wants import PodWant, want_on
from koordpy.devices.gpu.choice.large_chooser import LargeChooser
from koordpy.devices.links.device_masks import bits_of
from koordpy.plan.round_plan import Proof
from tests.planning.gpu.machines import chosen, machine, mask
from tests.scenarios.cluster import group
from tests.scenarios.gpus import GpuWorld, gpu_pod, measured
from tests.scenarios.gpus import given as given_gpus


def _uniform(size: int) -> list[list[int]]:
    return [[900] * size for _ in range(size)]


@st.composite
def uneven_machines(draw: st.DrawFn) -> tuple[list[list[float]], list[int], list[int], int]:
    size = draw(st.sampled_from([17, 19]))
    rows = [[0.0] * size for _ in range(size)]
    odds = draw(st.sampled_from([[10, 100], [10, 10, 100], [10, 50, 100]]))
    for i, j in combinations(range(size), 2):
        rows[i][j] = rows[j][i] = draw(st.sampled_from(odds))
    places = draw(st.lists(st.sampled_from("fffffh"), min_size=size, max_size=size))
    free = [i for i, place in enumerate(places) if place == "f"]
    held = [i for i, place in enumerate(places) if place == "h"][:2]
    return rows, free, held, draw(st.integers(2, 5))


@given(uneven_machines())
@settings(max_examples=60, deadline=None)
def test_the_slowest_pair_is_the_fastest_that_any_set_has(situation: Any) -> None:
    rows, free, held, count = situation
    on = machine(rows)
    wants = (want_on(on, PodWant(count, (count,))),)
    found = chooser_of(on).choose(mask(free), mask(held), wants)
    if len(free) < count:
        assert found is None
        return
    assert found is not None

    def slowest(own: tuple[int, ...]) -> float:
        return min(rows[i][j] for i, j in combinations((*own, *held), 2))

    own = tuple(bits_of(found[0][0]))
    assert len(own) == count
    assert set(own) <= set(free)
    assert slowest(own) == max(slowest(one) for one in combinations(free, count))


@given(uneven_machines(), st.sampled_from([50, 100]))
@settings(max_examples=40, deadline=None)
def test_a_threshold_is_met_by_a_set_wherever_there_is_one(situation: Any, least: int) -> None:
    rows, free, _, count = situation
    on = machine(rows)
    wants = (want_on(on, PodWant(count, (count,), least * 10**6)),)
    found = chooser_of(on).choose(mask(free), 0, wants)
    able = [one for one in combinations(free, count) if all(rows[i][j] >= least for i, j in combinations(one, 2))]
    assert (found is not None) == bool(able)
    assert found is None or tuple(bits_of(found[0][0])) in able


def test_seventy_two_gpus_of_one_domain_are_dealt_out_in_blocks() -> None:
    on = machine(_uniform(72))
    assert isinstance(chooser_of(on), LargeChooser)
    rest = [i for i in range(72) if i != 17]
    assert chosen(on, rest, (1,)) == [[[16]]]
    assert chosen(on, rest, (2,)) == [[[18, 19]]]
    assert chosen(on, rest, (4,)) == [[[20, 21, 22, 23]]]
    assert chosen(on, rest, (8,)) == [[[64, 65, 66, 67, 68, 69, 70, 71]]]
    assert chosen(on, range(72), (4,), (4,)) == [[[64, 65, 66, 67]], [[68, 69, 70, 71]]]
    assert chosen(on, range(72), (2, 2)) == [[[64, 65], [66, 67]]]


def test_containers_split_an_even_set_in_ascending_order() -> None:
    on = machine(_uniform(20))
    assert chosen(on, (1, 2, 3, 4), (2, 2)) == [[[1, 2], [3, 4]]]


def _bridged(size: int) -> list[list[int]]:
    return [[100 if i // 2 == j // 2 else 10 for j in range(size)] for i in range(size)]


@pytest.mark.parametrize(
    ("matrix", "proof"),
    [
        pytest.param(_uniform(72), Proof.FEASIBLE, id="one domain of 72 goes by best fit"),
        pytest.param(_bridged(18), Proof.FEASIBLE, id="bridged pairs of 18"),
        pytest.param(_bridged(16), Proof.OPTIMAL, id="up to 16 all sets are compared"),
    ],
)
def test_a_plan_is_called_optimal_only_where_all_sets_were_compared(matrix: Any, proof: Proof) -> None:
    world = GpuWorld().add(measured("n1", matrix=matrix), group("g", 3))
    world.add([gpu_pod(f"w-{i}", 4, gang="g") for i in range(3)])
    plan = world.plan()
    assert len(given_gpus(plan)) == 3
    assert [gang.proof for gang in plan.gangs] == [proof]
