# SPDX-License-Identifier: Apache-2.0
"""Random lives of workloads in virtual time: 2,000, of which each Python plays half of the batches;
KOORDPY_WORKLOADS=2000: that many of each sort."""

import pytest

from tests.engine.grouplives import GroupLives
from tests.engine.seeds import batches, played
from tests.engine.workloadlives import WorkloadLives, live_through

BATCH = 100
BATCHES = [
    (lives, first)
    for lives, number in ((WorkloadLives, 1500), (GroupLives, 500))
    for first in batches("KOORDPY_WORKLOADS", number, BATCH)
]


@pytest.mark.parametrize(("lives", "first"), BATCHES)
def test_what_a_controller_makes_is_bound_once_there_is_room(lives: type[WorkloadLives], first: int) -> None:
    tally, wrong = played(range(first, first + BATCH), lambda seed: live_through(seed, lives).tally)
    assert not wrong, f"python -m {lives.__module__} --trace --seeds SEED shows what happened: {wrong}"
    assert [act for act in lives.acts if not tally[act]] == [], "these were never played"
