# SPDX-License-Identifier: Apache-2.0
"""Wherever in a commit a process dies, the next one finishes what it began; KOORDPY_STORMS=20000: at each turn."""

import os

import pytest

from tests.engine.deaths import SCENES, Scene, awaits, play
from tests.engine.virtual import one_after_the_other

EVERY = 1 if int(os.environ.get("KOORDPY_STORMS", "2000")) > 2000 else 16
NEVER_WAITED_AT = {
    "claim_calls.ClaimCalls._patch: with self._places": "no gang here has so many claims",
    "claim_calls.ClaimCalls.create: with self._places": "the same",
    "claim_calls.ClaimCalls.read: with self._places": "the same",
    "claim_calls.ClaimCalls.write_pod: with self._places": "the same",
    "device_checks.DeviceChecks.check_written: self._list_claims()": "no watch is so late here",
    "claim_writes.DeviceReserver._list_claims: self._calls.list_claims()": "the same",
    "eviction_calls.EvictionCalls.each.one: with self._slots": "no plan here has so many victims",
    "evictor.Evictor._confirmed: asyncio.sleep(0.02)": "a plan is not made on victims whose Bindings are under way",
    "evictor.Evictor._evict: self._confirmed(eviction)": "the same",
    "evictor.Evictor.run: asyncio.gather(*jobs, return_exceptions=True)": "this is the end",
    "volume_writes.ClaimBinder._patch: with self._places": "no gang here has so many claims",
}


@pytest.mark.parametrize("scene", SCENES, ids=[scene.name.replace(" ", "-") for scene in SCENES])
def test_whoever_dies_at_an_await_leaves_nothing_half_done(scene: Scene) -> None:
    with one_after_the_other():
        played = play(scene)
        covering = played.covering()
        died_at = frozenset[str]().union(*(play(scene, turn).died_at for turn in covering))
        assert died_at == frozenset[str]().union(*played.standing.values()), "the play is the same until a death"
        for turn in list(played.standing)[::EVERY] if EVERY == 1 or scene is SCENES[0] else ():
            play(scene, turn)


def test_every_await_of_a_commit_is_died_at() -> None:
    there = {said for of_file in awaits().values() for said in of_file.values()}
    stood_at = {said for scene in SCENES for awaited in play(scene).standing.values() for said in awaited}
    assert sorted(there - stood_at) == sorted(NEVER_WAITED_AT)
