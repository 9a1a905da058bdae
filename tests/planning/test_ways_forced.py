# SPDX-License-Identifier: Apache-2.0
"""Each way of choosing victims alone, forced by an argument: what it finds, and what it is called."""

from random import Random

import pytest

from koordpy.cache.snapshot import Snapshot
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.selection.preemption_names import Way
from tests.scenarios.cluster import World, group, node, pod


def plain_pod(seed: int) -> Snapshot:
    """A plain pod before full nodes, whose pods hold one, two or three CPUs, some of them of one gang."""
    random = Random(seed)
    world = World().add(group("v", 2))
    for i in range(4):
        world.add(node(f"n{i}:6"))
        for k, cpus in enumerate(random.choice([(1, 2, 3), (2, 2, 2), (3, 3), (1, 1, 2, 2)])):
            gang, priority, created = random.choice(["", "", "v"]), random.choice([0, 0, 1, 2]), random.randrange(900)
            world.add(pod(f"r-{i}-{k}", at=f"n{i}", cpu=str(cpus), gang=gang, priority=priority, created=created))
    return world.add(pod("p", cpu=str(random.randint(1, 4)), priority=5, created=1000)).snapshot()


def test_the_table_of_nodes_finds_for_a_plain_pod_what_counting_and_the_model_find() -> None:
    found = 0
    for seed in range(60):
        snapshot = plain_pod(seed)
        by_way = {
            way: sorted(one.pod_key for one in plan_round(snapshot, ways=(way,)).evictions)
            for way in (Way.NODE, Way.COUNTING, Way.MODEL)
        }
        if by_way[Way.NODE]:
            assert by_way[Way.NODE] == by_way[Way.MODEL], seed
            assert by_way[Way.COUNTING] in ([], by_way[Way.MODEL]), seed
            found += 1
    assert found > 30


@pytest.mark.parametrize(
    ("way", "method"),
    [(Way.NODE, "victims-counting"), (Way.COUNTING, "victims-counting"), (Way.MODEL, "victims-model"),
     (Way.GREEDY, "victims-greedy")],
)  # fmt: skip
def test_a_plan_names_the_way_that_it_is_held_to(way: Way, method: str) -> None:
    world = World().add(node("n0:1"), pod("r", at="n0"), pod("p", priority=5, created=9))
    assert [one.method for one in plan_round(world.snapshot(), ways=(way,)).units] == [method]
