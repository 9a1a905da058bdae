# SPDX-License-Identifier: Apache-2.0
"""Storms of nodes that fail, return and are cordoned and of GPUs that fall sick, under gangs with every policy of
repair, while writes fail and leaders die (docs/rules/repair.md 4): no gang lacks members without saying so, seats are
kept for their time and no longer, and no pod asks for nodes that would not help it."""

import pytest

from tests.engine.seeds import batches, played
from tests.engine.storm import through_a_storm

ALSO = frozenset({"repairs", "devices", "priorities"})
"""What every schedule has, besides what its seed says."""
KNOBS = (
    "act gang", "act lose", "act find", "act breaks", "act mends", "act cordon", "act sick", "act delete", "act kill",
    "member created again", "bound", "evicted", "seats", "seats at the end", "degraded at the end", "lulls",
    "goes by priority", "goes by stale-gang", "goes by repair", "409 before", "500 after", "drop after",
)  # fmt: skip
BATCH = 250


@pytest.mark.parametrize("first", batches("KOORDPY_REPAIR_STORMS", 2000, BATCH))
def test_whatever_fails_gangs_are_repaired_or_say_what_they_lack(first: int) -> None:
    """KOORDPY_REPAIR_STORMS=20000 tries that many schedules."""
    tally, wrong = played(range(first, first + BATCH), lambda seed: through_a_storm(seed, also=ALSO).tally)
    told = f"python -m tests.engine.storm --also {','.join(sorted(ALSO))} --trace --seeds SEED shows what happened"
    assert not wrong, f"{told}: {wrong}"
    assert [knob for knob in KNOBS if not tally[knob]] == [], "these were never turned"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3361, id="two-of-three-npu-members-wait-while-the-third-is-ending"),
        pytest.param(3494, id="a-member-created-again-starts-where-one-of-a-higher-rank-was-nominated"),
    ],
)
def test_what_went_wrong_once_goes_right(seed: int) -> None:
    assert through_a_storm(seed, also=ALSO).scene.made
