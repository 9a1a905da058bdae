"""Random schedules through bad weather; KOORDPY_STORMS=300 tries that many."""

import os

import pytest

from tests.engine.live import live
from tests.engine.storm import through_a_storm

SEEDS = range(int(os.environ.get("KOORDPY_STORMS", "6")))


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_the_weather_the_end_is_right(seed: int) -> None:
    async with live() as cluster:
        storm = await through_a_storm(cluster, seed)
        assert storm.made >= 10
