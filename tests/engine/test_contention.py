# SPDX-License-Identifier: Apache-2.0
"""Random lives of units that take room from one another: contention.py says what must hold."""

import pytest

from tests.engine.contention import Story, live_through
from tests.engine.seeds import batches, played

BATCH = 100
LATE_BATCH = 50


@pytest.mark.parametrize("first", batches("KOORDPY_CONTENTIONS", 400, BATCH))
def test_nobody_goes_in_vain_or_in_a_circle_and_all_comes_to_rest(first: int) -> None:
    tally, wrong = played(
        (seed for seed in range(first, first + BATCH) if not Story(seed).dull), lambda seed: live_through(seed).tally
    )
    assert not wrong, f"python -m tests.engine.contention --least --seeds SEED shows what happened: {wrong}"
    assert {"priority", "quota", "fair-share"} <= tally.keys()


@pytest.mark.parametrize("tenants", [False, True])
@pytest.mark.parametrize("first", batches("KOORDPY_CONTENTIONS", 100, LATE_BATCH))
def test_nor_where_rounds_of_those_who_come_are_planned_beside_others(first: int, tenants: bool) -> None:
    """tenants: of several namespaces, in rounds that are short of time."""
    tally, wrong = played(
        (seed for seed in range(first, first + LATE_BATCH) if not Story(seed, late=2.0, tenants=tenants).dull),
        lambda seed: live_through(seed, late=2.0, tenants=tenants).tally,
    )
    shows = f"python -m tests.engine.contention --late 2 {'--tenants ' * tenants}--least --seeds SEED"
    assert not wrong, f"{shows} shows what happened: {wrong}"
    assert tally["placed beside others"]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(126, id="with-guaranteeUsage-what-is-promised-is-guaranteed-as-its-victims-were"),
        pytest.param(411, id="two-budgets-cover-a-victim"),
        pytest.param(445, id="a-pod-shuns-one-that-is-nominated-elsewhere-in-its-zone"),
        pytest.param(653, id="an-affinity-is-closed-by-a-pod-of-the-same-round"),
        pytest.param(171, id="awaited-room-stays-closed-to-whom-it-was-taken-from"),
        pytest.param(715, id="a-nominated-pod-waits-for-another-whose-place-its-spread-counts-on"),
        pytest.param(994, id="pods-without-a-quota-start-in-the-round-of-an-eviction"),
        pytest.param(1454, id="room-is-judged-with-the-pods-that-are-nominated-to-it"),
        pytest.param(2257, id="two-places-that-are-made-in-one-round-lean-on-each-other"),
        pytest.param(3198, id="a-part-that-starts-leaves-too-few-that-only-wait"),
        pytest.param(1842, id="victims-for-a-place-beside-one-that-was-reclaimed-from-the-same-party"),
        pytest.param(2093, id="victims-for-a-place-that-closes-an-older-one"),
    ],
)
def test_what_went_wrong_once_goes_right(seed: int) -> None:
    assert live_through(seed).tally


def test_victims_are_checked_by_the_limits_that_they_were_chosen_by() -> None:
    assert live_through(2906, late=2.0, tenants=True).tally


def test_whom_a_promise_in_its_quota_kept_from_a_second_turn_is_woken_when_that_is_kept() -> None:
    assert live_through(3030, late=2.0, tenants=True).tally
