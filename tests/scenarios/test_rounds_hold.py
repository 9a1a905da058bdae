# SPDX-License-Identifier: Apache-2.0
"""Invariants I1 to I7 and I10 of preemption.md 9, witnessed in every round of whole simulations."""

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.simulation.simulated_rounds import simulate
from tests.scenarios.cluster import World
from tests.scenarios.turmoil import Turmoil
from tests.scenarios.witness import Witness

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


def witnessed(random: Random) -> Witness:
    """What a simulation of a random cluster shows, to the end or for 50 rounds."""
    witness, turmoil = Witness(), Turmoil(random)
    state = World().add(*turmoil.objects).state
    result = simulate(state, turmoil.config, planner=witness, now=NOW, rounds=50)
    if not result.stable:
        witness.fault("I1: no end after 50 rounds")
    return witness


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 40))
def test_every_round_keeps_what_is_promised(seed: int) -> None:
    assert witnessed(Random(seed)).faults == []


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(64812, id="each of three takes from the next, by priority and by fair share"),
        pytest.param(69164, id="two gangs take their share back from each other, small pods between them"),
        pytest.param(114203, id="two pods take a node back from each other by quota, small pods of theirs elsewhere"),
    ],
)
def test_evictions_that_went_in_a_circle_come_to_rest(seed: int) -> None:
    assert witnessed(Random(seed)).faults == []


@pytest.mark.parametrize("seed", [52429, 52608])
def test_who_has_to_go_beside_those_that_start_in_the_round_does_not_go_in_vain(seed: int) -> None:
    assert witnessed(Random(seed)).faults == []


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(111900, id="a gang of which only those who wait count comes back with its minimum"),
        pytest.param(89481581, id="fewer pods move once it is known where they return"),
    ],
)
def test_who_moves_does_not_move_in_vain(seed: int) -> None:
    assert witnessed(Random(seed)).faults == []


@pytest.mark.parametrize("seed", [376, 103535, 117223, 118966])
def test_who_moved_comes_back_as_those_who_are_counted(seed: int) -> None:
    assert witnessed(Random(seed)).faults == []


def test_the_witness_has_something_to_look_at() -> None:
    seen = {rule for seed in range(40) for rule in witnessed(Random(seed)).evictions}
    assert {"priority", "quota", "fair-share"} <= seen


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(27330, id="of a gang without a core"),
        pytest.param(31000919, id="where a pod of the other tenant is ending"),
    ],
)
def test_a_pod_of_the_own_tenant_that_opens_another_tenants_share_is_no_needless_victim(seed: int) -> None:
    """The members' tenant ends no further above its share than the other one is, because a pod of its own goes too."""
    assert witnessed(Random(seed)).faults == []
