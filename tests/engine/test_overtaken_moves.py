# SPDX-License-Identifier: Apache-2.0
"""Pods that are to move: none is evicted if the node that it is to return to is gone, another one, too small or full by
then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from koordpy.api.objects import Node
from koordpy.cache.cluster_state import ClusterState
from koordpy.config.configuration import Consolidation, KoordpyConfiguration
from koordpy.engine.staleness import PlanGround, find_stale_reason
from tests.engine.live import Live, in_virtual_time, live, pod, small, until
from tests.engine.test_recreated_nodes import make_anew, shrink
from tests.scenarios import cluster as scenes
from tests.scenarios.cluster import World, node
from tests.scenarios.test_seats import owned

MOVES = Consolidation(enabled=True)


def owned_pod(name: str, gpus: int) -> dict[str, Any]:
    """A pod that a controller would create again."""
    made = pod(name, gpus=gpus, cpu="0", memory="1Mi")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": name, "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    return made


def leave(cluster: Live, name: str, gpus: int) -> None:
    pass


def remove(cluster: Live, name: str, gpus: int) -> None:
    cluster.server.store.remove("nodes", name)


def fill(cluster: Live, name: str, gpus: int) -> None:
    """Another scheduler binds a pod there."""
    cluster.pod("theirs", gpus=gpus, cpu="0", scheduler_name="default-scheduler")
    cluster.bind("theirs", name)


@pytest.mark.parametrize(
    ("happens", "evicted"), [(leave, {"a"}), (make_anew, set()), (shrink, set()), (remove, set()), (fill, set())]
)
def test_no_pod_is_evicted_for_a_move_that_is_not_possible_any_more(
    happens: Callable[[Live, str, int], None], evicted: set[str]
) -> None:
    """2 GPUs are free on each node. c needs 4: a is to move from n1 to n2. n2 changes during the search."""

    @in_virtual_time
    async def scene() -> None:
        async with live([small("n1"), small("n2")]) as cluster:
            cluster.planner.config = structs.replace(cluster.planner.config, consolidation=MOVES)
            cluster.create(owned_pod("a", 2), owned_pod("b", 1), owned_pod("d", 1))
            for name, there in (("a", "n1"), ("b", "n2"), ("d", "n2")):
                cluster.bind(name, there)
            async with cluster.running(consolidation=MOVES) as scheduler:
                hold = cluster.planner.search_hold = threading.Event()
                cluster.create(pod("c", gpus=4, cpu="0", memory="1Mi"))
                await until(lambda: cluster.planner.tried("default/c") > 1)
                happens(cluster, "n2", 2)
                await until(lambda: cluster.is_known_to(scheduler, "nodes", "pods"))
                cluster.planner.search_hold = None
                hold.set()
                await asyncio.sleep(3.0)
                ending = {name for name, obj in cluster.pods().items() if obj["metadata"].get("deletionTimestamp")}
                assert ({"a", "b", "d"} - cluster.pods().keys()) | ending == evicted

    scene()


def anew(state: ClusterState) -> None:
    state.delete(Node, "n0")
    made = node("n0:2")
    state.upsert(structs.replace(made, metadata=structs.replace(made.metadata, uid="new")))


def load(state: ClusterState) -> None:
    state.upsert(scenes.pod("theirs", at="n0", scheduler="default-scheduler"))


@pytest.mark.parametrize(
    ("change", "stale", "lost"),
    [
        pytest.param(lambda state: None, "", "", id="nothing"),
        pytest.param(lambda state: state.upsert(node("n2:2")), "", "", id="another-node"),
        pytest.param(lambda state: state.delete(Node, "n0"), "node", "node", id="deleted"),
        pytest.param(anew, "node", "node", id="made-anew"),
        pytest.param(lambda state: state.upsert(node("n0:2", {"zone": "b"})), "node", "node", id="relabelled"),
        pytest.param(lambda state: state.upsert(node("n0:1")), "room", "", id="smaller"),
        pytest.param(load, "room", "", id="full"),
        pytest.param(lambda state: state.delete(type(scenes.pod("b")), "default/b"), "victim", "", id="moved-pod-gone"),
    ],
)
def test_a_move_is_checked_again_for_the_node_of_its_return(
    change: Callable[[ClusterState], None], stale: str, lost: str
) -> None:
    """big takes n1, and b returns to n0. Evictions that have begun go on if amounts fall for a while."""
    world = World().add(node("n0:2"), node("n1:2"), scenes.pod("a", at="n0"), owned(scenes.pod("b", at="n1")))
    world.add(scenes.pod("big", cpu="2"))
    snapshot, plan = world.snapshot(), world.plan(config=KoordpyConfiguration(consolidation=MOVES))
    assert [(one.pod_key, one.returns_to) for one in plan.evictions] == [("default/b", "n0")]
    victims = {"default/b"}
    ground = PlanGround(world.state, plan.placements, victims, plan.evictions)
    assert ground.lost() == ""
    change(world.state)
    theirs = world.state.pod("default/theirs")
    foreign = {"n0": [theirs]} if theirs is not None else {}
    assert find_stale_reason(world.state, snapshot, plan.placements, foreign, victims, plan.evictions) == stale
    # evictions without a preemptor
    assert find_stale_reason(world.state, snapshot, (), foreign, victims, plan.evictions) == stale
    assert ground.lost() == lost
