"""Random lives of workloads in virtual time: 2,000 in every run; KOORDPY_WORKLOADS=2000: that many of each sort."""

import os
from collections import Counter

import pytest

from tests.engine.grouplives import GroupLives
from tests.engine.virtual import one_after_the_other
from tests.engine.workloadlives import WorkloadLives, live_through

BATCH = 100
BATCHES = [
    (lives, first)
    for lives, number in ((WorkloadLives, 1500), (GroupLives, 500))
    for first in range(0, int(os.environ.get("KOORDPY_WORKLOADS", number)), BATCH)
]


@pytest.mark.parametrize(("lives", "first"), BATCHES)
def test_what_a_controller_makes_is_bound_once_there_is_room(lives: type[WorkloadLives], first: int) -> None:
    wrong: dict[int, str] = {}
    tally: Counter[str] = Counter()
    with one_after_the_other():
        for seed in range(first, first + BATCH):
            try:
                tally += live_through(seed, lives).tally
            except AssertionError as error:
                wrong[seed] = str(error)
    assert not wrong, f"python -m {lives.__module__} --trace --seeds SEED shows what happened: {wrong}"
    assert [act for act in lives.acts if not tally[act]] == [], "these were never played"
