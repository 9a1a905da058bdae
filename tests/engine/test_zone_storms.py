# SPDX-License-Identifier: Apache-2.0
"""Storms on nodes with NUMA zones: pods and gangs with claims, with extended resources that devices serve, and with
whole CPUs, most of which demand alignment (numa.md 7), while writes fail, leaders die and reports come late. The zones
of our pods hold what their Bindings say, and devices are in the zones of their pods."""

import pytest

from tests.engine.seeds import batches, played
from tests.engine.storm import through_a_storm

TRAITS = frozenset({"zones", "claims", "cards", "priorities", "kills", "cuts", "replicas"})
KNOBS = (
    "act zoned", "act zoned_card", "act zoned_cpu", "act zoned_gang", "act zone_report", "act kill", "bound", "evicted",
    "409 before", "500 after", "drop after",
)  # fmt: skip
BATCH = 40


@pytest.mark.parametrize("first", batches("KOORDPY_ZONE_STORMS", 80, BATCH))
def test_whatever_fails_devices_are_in_the_zones_of_their_pods(first: int) -> None:
    """KOORDPY_ZONE_STORMS=20000 tries that many schedules."""
    tally, wrong = played(range(first, first + BATCH), lambda seed: through_a_storm(seed, traits=TRAITS).tally)
    assert not wrong, wrong
    assert [knob for knob in KNOBS if not tally[knob]] == [], "these were never turned"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(64, id="pods-with-a-demand-were-not-known-to-use-zones-after-a-start"),
        pytest.param(120, id="a-claim-in-the-second-zone-waits-until-pods-fill-the-first"),
        pytest.param(165, id="a-node-is-made-anew-with-fewer-gpus-after-the-first-binding-of-a-gang"),
    ],
)
def test_what_went_wrong_once_goes_right(seed: int) -> None:
    assert through_a_storm(seed, traits=TRAITS).scene.made
