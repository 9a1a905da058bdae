"""Random schedules with evictions through bad weather; KOORDPY_STORMS=300 tries that many."""

import os

import pytest

from tests.engine.eviction_storm import through_an_eviction_storm
from tests.engine.live import live

SEEDS = range(int(os.environ.get("KOORDPY_STORMS", "40")))


@pytest.mark.parametrize("seed", SEEDS)
async def test_important_work_takes_its_room_and_no_more_whatever_the_weather(seed: int) -> None:
    async with live() as cluster:
        storm = await through_an_eviction_storm(cluster, seed)
        assert storm.made >= 10
