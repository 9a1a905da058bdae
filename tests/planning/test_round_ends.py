# SPDX-License-Identifier: Apache-2.0
"""Nothing of a round stays behind it: no pod that is gone waits for the collector."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from koordpy.api import keys
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Queue
from koordpy.planner.planning_round import PlannerCache, plan_round
from tests.scenarios.cluster import World, gang_pods, group, node, pod
from tests.scenarios.quotas import quota

SETTINGS = {
    "placed": KoordpyConfiguration(),
    "promised": KoordpyConfiguration(queue=Queue(backfill=True)),
    "held": KoordpyConfiguration(fairness=Fairness(starvation_after=10)),
}


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def crowded() -> World:
    """Pods that fit, some that need victims, gangs of two kinds, quotas, and what can never start."""
    world = World().add(node("n1:4"), node("n2:4"), quota("team", {"cpu": "4"}, {"cpu": "4"}))
    world.add(*(pod(f"r-{i}", at=f"n{1 + i % 2}", priority=0) for i in range(6)), pod("small"))
    world.add(pod("urgent", priority=9, cpu="3"), pod("never", cpu="99"), pod("t", labels={keys.QUOTA_NAME: "team"}))
    world.add(group("train", 3), gang_pods("train", 2, priority=5), pod("q", gang="train", priority=5, cpu="2"))
    return world.add(group("big", 9), gang_pods("big", 9, prefix="b"))


@pytest.mark.parametrize("config", SETTINGS.values(), ids=SETTINGS)
def test_what_a_round_was_planned_on_goes_with_it(config: KoordpyConfiguration) -> None:
    world, cache = crowded(), PlannerCache()
    for now in (0.0, 15.0):
        snapshot = world.state.snapshot(now)
        alive = weakref.ref(snapshot)
        plan = plan_round(snapshot, config, planner_cache=cache)
        assert plan.placements and plan.pending
        del snapshot
        assert alive() is None
