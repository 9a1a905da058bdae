# SPDX-License-Identifier: Apache-2.0
"""What is kept of gangs between rounds changes no plan, and goes with their pods."""

import random

import pytest

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.api.pod_groups import PodGroup
from koordpy.planner.planning_round import PlannerCache, plan_round
from tests.scenarios.cluster import World, group, node, pod

GATHER = {keys.GANG_TOPOLOGY: '{"gatherStrategy": [{"layer": "nodeLayer", "strategy": "PreferGather"}]}'}


def change(world: World, chance: random.Random) -> None:
    """A pod comes, is bound, or goes; or a PodGroup asks for another minimum, a gather, or another gang, or goes."""
    name, other = chance.sample(["a", "b", "c"], 2)
    member = f"{name}-{chance.randrange(4)}"
    match chance.randrange(8):
        case 0 | 1 | 2:
            world.add(pod(member, gang=name, priority=chance.randrange(3)))
        case 3:
            world.add(pod(member, gang=name, at=chance.choice(["n1", "n2"])))
        case 4:
            world.state.delete(Pod, f"default/{member}")
        case 5:
            world.add(group(name, chance.randrange(1, 5), chance.choice([{}, GATHER])))
        case 6:
            world.add(group(name, 2, {keys.GANG_GROUPS: f'["default/{other}"]'}))
        case 7:
            world.state.delete(PodGroup, f"default/{name}")


@pytest.mark.parametrize("seed", range(20))
def test_a_round_with_what_earlier_rounds_have_read_plans_as_one_without(seed: int) -> None:
    chance, world, cache = random.Random(seed), World().add(node("n1:6"), node("n2:6")), PlannerCache()
    world.add(*(group(name, 2) for name in "abc"))
    for _ in range(25):
        change(world, chance)
        assert plan_round(world.state.snapshot(0.0), planner_cache=cache) == plan_round(world.state.snapshot(0.0))


def test_a_gang_that_stays_is_read_once_and_goes_with_its_last_pod() -> None:
    world, cache = World().add(node("n1:6"), group("a", 3), pod("a-0", gang="a")), PlannerCache()
    plan_round(world.state.snapshot(0.0), planner_cache=cache)
    ((ref, kept),) = cache.gangs.gangs.items()
    world.add(pod("b-0"))
    plan_round(world.state.snapshot(1.0), planner_cache=cache)
    assert cache.gangs.gangs == {ref: kept} and cache.gangs.gangs[ref] is kept
    world.state.delete(Pod, "default/a-0")
    world.add(pod("c-0", gang="c"))
    plan_round(world.state.snapshot(2.0), planner_cache=cache)
    plan_round(world.state.snapshot(3.0), planner_cache=cache)
    assert kept not in cache.gangs.gangs.values()
