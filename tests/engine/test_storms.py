"""Random schedules through bad weather, most of them in virtual time; KOORDPY_STORMS=20000 tries that many."""

import os
import subprocess
import sys

import pytest

from tests.engine.live import live
from tests.engine.storm import killed_in_a_commit, through_a_real_storm, through_a_storm
from tests.engine.virtual import one_after_the_other

COUNT = int(os.environ.get("KOORDPY_STORMS", "2000"))
BATCH = 50
EVERY = 1 if COUNT > 2000 else 8
"""Each so manieth turn of the event loop is tried as the last one of a process."""


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_whatever_the_weather_the_end_is_right(first: int) -> None:
    wrong = {}
    with one_after_the_other():
        for seed in range(first, min(first + BATCH, COUNT)):
            try:
                assert through_a_storm(seed).made
            except AssertionError as error:
                wrong[seed] = str(error)
    assert not wrong, f"python -m tests.engine.storm --trace --seeds SEED shows what happened: {wrong}"


@pytest.mark.parametrize("part", range(8))
def test_wherever_in_a_commit_the_process_dies_the_next_one_finishes_it(part: int) -> None:
    turns = killed_in_a_commit(None)
    assert len(turns) > 100
    for turn in turns[part * EVERY :: 8 * EVERY]:
        killed_in_a_commit(turn)


@pytest.mark.parametrize("seed", range(10))
def test_one_seed_is_one_history_of_requests_and_writes(seed: int) -> None:
    assert through_a_storm(seed).history == through_a_storm(seed).history


def test_a_history_is_the_same_in_another_process_that_hashes_otherwise() -> None:
    def told(hashed: str) -> str:
        command = [sys.executable, "-m", "tests.engine.storm", "--seeds", "0-10"]
        environment = {**os.environ, "PYTHONHASHSEED": hashed}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout

    assert told("1").splitlines()[1] == told("2").splitlines()[1]


@pytest.mark.parametrize("seed", range(4))
async def test_over_sockets_and_in_real_time_the_end_is_right_too(seed: int) -> None:
    async with live() as cluster:
        assert (await through_a_real_storm(cluster, seed)).made
