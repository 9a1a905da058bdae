# SPDX-License-Identifier: Apache-2.0
"""Random schedules through bad weather, most of them in virtual time; KOORDPY_STORMS=20000 tries that many.

tests/engine/test_repair_storms.py plays 2,000 more with the same acts, and with nodes that fail besides.
"""

import os
import subprocess
import sys

import pytest

from tests.engine.live import live
from tests.engine.network import MOMENTS
from tests.engine.seeds import batches, played
from tests.engine.storm import through_a_real_storm, through_a_storm

BATCH = 250
KNOBS = (
    "409 before", "429 before", "500 before", "500 after", "503 before", "504 before", "410 before", "drop before",
    "drop after", "timeout before", "timeout after", "watches cut", "watches ended", "versions expired",
    "leaders lost", "suspended", "act unrenewed", "bound", "evicted", "act kill", "act cut", "act retire",
    "act shrink", "act lose", "act find", "act sick", "act relabel", "act topology", "act quota", "act budget",
    "act veto", "act npus", "act npu_gang", "act pair", "act join", "act cordon", "act foreign", "act volume",
    "act claimed", "act both", "planned: sick", "planned: taken", "planned: cordoned", "planned: gone",
    "assumed: sick", "unrest clock", "unrest declass", "unrest gated", "unrest guard", "unrest minimum",
    "unrest regroup", "unrest reparent", "unrest requota", "unrest resize", "unrest smaller", "unrest transfer",
    "unrest garbage", "unrest 429", "unrest undevice", "unrest ungate", "unrest untopology",
    *(f"ambush {moment} a binding" for moment in MOMENTS),
)  # fmt: skip
"""What every batch must have turned."""


@pytest.mark.parametrize("first", batches("KOORDPY_STORMS", 500, BATCH))
def test_whatever_the_weather_the_end_is_right(first: int) -> None:
    tally, wrong = played(range(first, first + BATCH), lambda seed: through_a_storm(seed).tally)
    assert not wrong, f"python -m tests.engine.storm --trace --seeds SEED shows what happened: {wrong}"
    assert [knob for knob in KNOBS if not tally[knob]] == [], "these were never turned"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1093, id="the-preemptor-goes-while-its-victim-is-marked"),
        pytest.param(16089, id="room-that-another-pod-waited-for-in-vain-is-free-again"),
        pytest.param(2714, id="a-pod-goes-for-one-whose-quota-a-promise-to-another-will-shrink"),
        pytest.param(14440, id="a-late-victim-of-a-whole-gang-goes-though-its-minimum-fits-by-then"),
        pytest.param(16050, id="a-binding-that-the-leader-before-has-carried-out-is-told-once"),
        pytest.param(6638, id="a-quota-guarantees-less-and-its-pods-may-be-taken"),
        pytest.param(6532, id="pods-without-a-quota-take-what-quotas-share-in-the-round-of-an-eviction"),
        pytest.param(6597, id="victims-are-chosen-while-word-of-a-smaller-quota-is-under-way"),
        pytest.param(8113, id="a-lease-runs-out-between-two-statuses-of-devices"),
        pytest.param(2096, id="npus-are-not-taken-for-gpus-of-their-node"),
        pytest.param(8639, id="room-of-a-gang-whose-plan-was-overtaken-is-anothers-that-was-refused-with-it"),
        pytest.param(9787, id="room-of-a-pod-that-went-while-it-was-planned-is-anothers-that-was-refused-with-it"),
        pytest.param(15223, id="a-pod-that-came-while-victims-were-chosen-wants-what-its-quota-lends"),
        pytest.param(17100, id="who-wakes-up-waits-for-a-leader-that-has-renewed-its-lease-meanwhile"),
        pytest.param(18028, id="a-binding-is-on-its-way-when-word-comes-that-its-node-is-gone"),
        pytest.param(30558, id="a-gpu-is-reported-sick-while-victims-are-chosen-for-it"),
        pytest.param(40283, id="a-node-moves-to-another-block-while-claims-of-a-gang-are-reserved"),
        pytest.param(41480, id="a-node-is-cordoned-between-two-words-to-a-victim"),
        pytest.param(41535, id="nominated-pods-are-more-than-there-are-healthy-gpus"),
        pytest.param(41871, id="a-volume-that-a-nominated-gang-counts-on-is-kept"),
        pytest.param(60426, id="an-important-member-leaves-what-is-promised-to-others-than-the-rest-of-its-gang"),
        pytest.param(1203, id="a-plan-is-dropped-while-a-gang-waits-for-a-victim-of-it"),
        pytest.param(14464, id="a-claim-comes-that-keeps-a-gang-from-victims-in-its-own-quota"),
    ],
)
def test_what_went_wrong_once_goes_right(seed: int) -> None:
    assert through_a_storm(seed, unrest=False).scene.made


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(20374, id="a-running-pod-joins-a-gang-that-waits"),
        pytest.param(41883, id="a-pod-that-room-is-kept-for-joins-a-gang"),
        pytest.param(21071, id="a-gang-has-members-to-spare-once-others-of-it-are-confirmed"),
        pytest.param(22639, id="room-comes-when-a-gang-gives-up-in-the-round-that-refused-a-pod"),
        pytest.param(238, id="a-clock-that-is-set-gives-no-gang-up"),
        pytest.param(259, id="a-clock-that-is-set-makes-nobody-starve"),
    ],
)
def test_what_went_wrong_once_in_unrest_goes_right(seed: int) -> None:
    assert through_a_storm(seed, unrest=True).scene.made


@pytest.mark.parametrize("seed", range(10))
def test_one_seed_is_one_history_of_requests_and_writes(seed: int) -> None:
    assert through_a_storm(seed).history == through_a_storm(seed).history


def test_a_history_is_the_same_in_another_process_that_hashes_otherwise() -> None:
    def told(hashed: str) -> str:
        command = [sys.executable, "-m", "tests.engine.storm", "--seeds", "0-10"]
        environment = {**os.environ, "PYTHONHASHSEED": hashed}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300).stdout

    assert told("1").splitlines()[1] == told("2").splitlines()[1]


@pytest.mark.parametrize("seed", range(4))
async def test_over_sockets_and_in_real_time_the_end_is_right_too(seed: int) -> None:
    async with live() as cluster:
        assert (await through_a_real_storm(cluster, seed)).scene.made
