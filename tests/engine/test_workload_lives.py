"""Random lives of workloads in virtual time; KOORDPY_WORKLOADS=2000 tries that many of each sort."""

from collections import Counter

import pytest

from tests.engine.grouplives import GroupLives
from tests.engine.seeds import batches
from tests.engine.virtual import one_after_the_other
from tests.engine.workloadlives import WorkloadLives, live_through

BATCH = 100
BATCHES = [
    (lives, first)
    for lives, most in ((WorkloadLives, 1400), (GroupLives, 600))
    for first in batches("KOORDPY_WORKLOADS", most, BATCH)
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
