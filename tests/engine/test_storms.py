"""Random schedules through bad weather, most of them in virtual time; KOORDPY_STORMS=20000 tries that many."""

import os

import pytest

from tests.engine.live import live
from tests.engine.storm import through_a_real_storm, through_a_storm

COUNT = int(os.environ.get("KOORDPY_STORMS", "600"))
BATCH = 50


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_whatever_the_weather_the_end_is_right(first: int) -> None:
    wrong = {}
    for seed in range(first, min(first + BATCH, COUNT)):
        try:
            assert through_a_storm(seed).made
        except AssertionError as error:
            wrong[seed] = str(error)
    assert not wrong, f"python -m tests.engine.storm --trace --seeds SEED shows what happened: {wrong}"


def test_a_schedule_repeats_itself() -> None:
    assert through_a_storm(3).watchman.seen == through_a_storm(3).watchman.seen


@pytest.mark.parametrize("seed", range(4))
async def test_over_sockets_and_in_real_time_the_end_is_right_too(seed: int) -> None:
    async with live() as cluster:
        assert (await through_a_real_storm(cluster, seed)).made
