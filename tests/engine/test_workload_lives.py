"""Random lives of workloads in virtual time; KOORDPY_WORKLOADS=20000 tries that many."""

import os
from collections import Counter

import pytest

from tests.engine.virtual import one_after_the_other
from tests.engine.workloadlives import ACTS, live_through

COUNT = int(os.environ.get("KOORDPY_WORKLOADS", "500"))
BATCH = 125


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_what_a_controller_makes_is_bound_once_there_is_room(first: int) -> None:
    wrong: dict[int, str] = {}
    tally: Counter[str] = Counter()
    with one_after_the_other():
        for seed in range(first, min(first + BATCH, COUNT)):
            try:
                tally += live_through(seed).tally
            except AssertionError as error:
                wrong[seed] = str(error)
    assert not wrong, f"python -m tests.engine.workloadlives --trace --seeds SEED shows what happened: {wrong}"
    assert [act for act in ACTS if not tally[act]] == [], "these were never played"
