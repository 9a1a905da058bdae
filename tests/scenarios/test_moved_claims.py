# SPDX-License-Identifier: Apache-2.0
"""Consolidation moves running pods whose claims have devices (dra.md 10)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from koordpy.api.claim_objects import ClaimConsumer, ResourceClaim
from koordpy.config.configuration import Consolidation, KoordpyConfiguration, MaxHarm, Protection
from koordpy.planner.planning_round import plan_round
from koordpy.simulation.simulated_rounds import simulate
from tests.planning.node_rules import node
from tests.planning.test_filter_dra import CLASS, asks, facts, held, offers, resource_claim, user
from tests.scenarios.cluster import World

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
CONFIG = KoordpyConfiguration(
    consolidation=Consolidation(enabled=True), protection=Protection(max_harm=MaxHarm(consolidation=None))
)
NUMA = "resource.kubernetes.io/numaNode"


def held_by(name: str, *devices: str, at: str, by: tuple[str, ...]) -> ResourceClaim:
    consumers = [ClaimConsumer(resource="pods", name=one, uid=f"uid-{one}") for one in by]
    return resource_claim(name, asks(len(devices)), allocation=held(*devices, at=at), reserved_for=consumers)


def on_numa_nodes(at: str, *numbers: int) -> list[Any]:
    """Slices of one device each: g0 on the first of the NUMA nodes, g1 on the second, and so on."""
    every = enumerate(numbers)
    return [offers(at, f"g{i}", slices=len(numbers), number=i, attributes=facts(**{NUMA: numa})) for i, numa in every]


ONE = [offers("n1", "g0", "g1", "g2", "g3"), user("a", "c-a", at="n1")]
TWO = [*ONE, held_by("c-a", "g0", "g1", at="n1", by=("a",)), user("b", "c-b", at="n1")]
TWO += [held_by("c-b", "g2", "g3", at="n1", by=("b",))]
MOVES: dict[str, tuple[list[Any], dict[str, str]]] = {
    "to free devices": (
        [*ONE, held_by("c-a", "g0", "g1", at="n1", by=("a",)), offers("n2", "g0", "g1")],
        {"a": "n2"},
    ),
    "too few devices": ([*ONE, held_by("c-a", "g0", "g1", at="n1", by=("a",)), offers("n2", "g0")], {}),
    "a pod that is not known has the claim": (
        [*ONE, held_by("c-a", "g0", "g1", at="n1", by=("a", "gone")), offers("n2", "g0", "g1")],
        {},
    ),
    "two pods to two nodes": (
        [*TWO, offers("n2", "g0", "g1", "g2"), offers("n3", "g0", "g1", "g2")],
        {"a": "", "b": ""},
    ),
    "two pods, devices for one": ([*TWO, offers("n2", "g0", "g1", "g2")], {}),
    "two pods with one claim": (
        [*ONE, user("b", "c-a", at="n1"), held_by("c-a", "g0", "g1", at="n1", by=("a", "b")), offers("n2", "g0", "g1")],
        {"a": "n2", "b": "n2"},
    ),
    "slower links": (
        [
            *on_numa_nodes("n1", 0, 0, 1, 1),
            *on_numa_nodes("n2", 0, 1),
            ONE[1],
            held_by("c-a", "g0", "g1", at="n1", by=("a",)),
        ],
        {},
    ),
    "equal links": (
        [
            *on_numa_nodes("n1", 0, 0, 1, 1),
            *on_numa_nodes("n2", 0, 1),
            ONE[1],
            held_by("c-a", "g0", "g2", at="n1", by=("a",)),
        ],
        {"a": "n2"},
    ),
}
"""Objects; pod that moves -> its new node, empty for any."""


@pytest.mark.parametrize(("objects", "moved"), MOVES.values(), ids=MOVES)
def test_pods_move_with_claims_that_only_moved_pods_have(objects: list[Any], moved: dict[str, str]) -> None:
    nodes = [node(f"n{i}:8") for i in (1, 2, 3)]
    big = [resource_claim("c-big", asks(4)), user("big", "c-big")]
    state = World().add(*nodes, CLASS, *objects, *big).state
    result = simulate(state, CONFIG, planner=plan_round, now=NOW, rounds=9)
    final = {key.partition("/")[2]: at for key, at in result.final}
    assert {one.eviction.pod_key.partition("/")[2] for one in result.evictions} == set(moved)
    assert final.get("big") == ("n1" if moved else None)
    assert all(final[name] == at if at else final[name] != "n1" for name, at in moved.items())
    taken = [(one["pool"], one["device"]) for claim in result.claims for one in claim["results"]]
    assert len(taken) == len(set(taken))
