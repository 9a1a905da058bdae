# SPDX-License-Identifier: Apache-2.0
"""Storms of pods and gangs with claims and with extended resources that devices serve, while writes fail and leaders
die: no device is given twice, no pod is bound without its devices, and nothing stays reserved for nobody."""

import pytest

from tests.engine.seeds import batches, played
from tests.engine.storm import through_a_storm

TRAITS = frozenset({"claims", "cards", "priorities", "kills", "cuts", "replicas", "ambushes"})
KNOBS = (
    "act claimed", "act card", "act card_gang", "act kill", "bound", "evicted", "409 before", "500 after", "drop after",
)  # fmt: skip
BATCH = 200


@pytest.mark.parametrize("first", batches("KOORDPY_CARD_STORMS", 2000, BATCH))
def test_whatever_fails_devices_are_given_once_and_come_back(first: int) -> None:
    """KOORDPY_CARD_STORMS=20000 tries that many schedules."""
    tally, wrong = played(range(first, first + BATCH), lambda seed: through_a_storm(seed, traits=TRAITS).tally)
    assert not wrong, wrong
    assert [knob for knob in KNOBS if not tally[knob]] == [], "these were never turned"


# 317: two pods that share a claim, nominated on a node where another claim comes free
# 1864: a gang counted devices that a nominated pod keeps
# 1998: a reservation of a pod that is gone protected another user of its claim from preemption
# 2200: a nomination ended while a claim of its victim, a deleted pod, was still allocated
# 2505: a member of a gang took the room of a nominated one that waited for such a claim
@pytest.mark.parametrize("seed", [317, 1864, 1998, 2200, 2505])
def test_schedules_that_failed(seed: int) -> None:
    through_a_storm(seed, traits=TRAITS)
