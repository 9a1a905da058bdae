# SPDX-License-Identifier: Apache-2.0
"""Random lives of gangs in virtual time; KOORDPY_LIVES=20000 tries that many."""

import pytest

from tests.engine.lives import ACTS, live_through
from tests.engine.seeds import batches, played

BATCH = 250
FIRST = batches("KOORDPY_LIVES", 2000, BATCH)


@pytest.mark.parametrize(
    ("first", "driven"),
    [(at, False) for at in FIRST] + [(at, True) for at in FIRST[::4]],
)
def test_whoever_could_run_runs_and_nobody_is_evicted(first: int, driven: bool) -> None:
    tally, wrong = played(range(first, first + BATCH), lambda seed: live_through(seed, driven=driven).tally)
    assert not wrong, f"python -m tests.engine.lives --trace --seeds SEED shows what happened: {wrong}"
    assert [act for act in ACTS if not tally[act]] == [], "these were never played"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(239, id="the-first-pod-of-a-new-job-comes-while-a-pod-of-the-old-one-ends"),
        pytest.param(2297, id="a-member-succeeds-while-no-scheduler-runs-after-the-pod-of-another-was-deleted"),
    ],
)
def test_what_went_wrong_once_goes_right(seed: int) -> None:
    assert live_through(seed).tally
