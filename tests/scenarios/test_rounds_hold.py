# SPDX-License-Identifier: Apache-2.0
"""Invariants I1 to I7 and I10 of preemption.md 9, witnessed in every round of whole simulations."""

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.snapshot import Snapshot
from koordpy.config.configuration import Consolidation, KoordpyConfiguration
from koordpy.plan.round_plan import Eviction, Placement, RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.simulation.simulated_rounds import simulate
from tests.scenarios.cluster import World, group, node, pod
from tests.scenarios.quotas import GPU
from tests.scenarios.turmoil import Turmoil
from tests.scenarios.witness import Witness

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


def witnessed(random: Random) -> Witness:
    """What a simulation of a random cluster shows, to the end or for 50 rounds."""
    witness, turmoil = Witness(), Turmoil(random)
    state = World().add(*turmoil.objects).state
    result = simulate(state, turmoil.config, planner=witness, now=NOW, rounds=50)
    if not result.stable:
        witness.fault("I1: no end after 50 rounds")
    return witness


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 40))
def test_every_round_keeps_what_is_promised(seed: int) -> None:
    assert witnessed(Random(seed)).faults == []


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(64812, id="each of three takes from the next, by priority and by fair share"),
        pytest.param(69164, id="two gangs take their share back from each other, small pods between them"),
        pytest.param(114203, id="two pods take a node back from each other by quota, small pods of theirs elsewhere"),
    ],
)
def test_evictions_that_went_in_a_circle_come_to_rest(seed: int) -> None:
    assert witnessed(Random(seed)).faults == []


@pytest.mark.parametrize("seed", [52429, 52608])
def test_who_has_to_go_beside_those_that_start_in_the_round_does_not_go_in_vain(seed: int) -> None:
    assert witnessed(Random(seed)).faults == []


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(111900, id="a gang of which only those who wait count comes back with its minimum"),
        pytest.param(89481581, id="fewer pods move once it is known where they return"),
    ],
)
def test_who_moves_does_not_move_in_vain(seed: int) -> None:
    assert witnessed(Random(seed)).faults == []


@pytest.mark.parametrize("seed", [376, 103535, 117223, 118966])
def test_who_moved_comes_back_as_those_who_are_counted(seed: int) -> None:
    assert witnessed(Random(seed)).faults == []


def test_the_witness_has_something_to_look_at() -> None:
    seen = {rule for seed in range(40) for rule in witnessed(Random(seed)).evictions}
    assert {"priority", "quota", "fair-share"} <= seen


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(27330, id="of a gang without a core"),
        pytest.param(31000919, id="where a pod of the other tenant is ending"),
    ],
)
def test_a_pod_of_the_own_tenant_that_opens_another_tenants_share_is_no_needless_victim(seed: int) -> None:
    """The members' tenant ends no further above its share than the other one is, because a pod of its own goes too."""
    assert witnessed(Random(seed)).faults == []


def _with_seat(priority: int, hold: str) -> ClusterState:
    """A node of 4 slots: a live member of priority 5 of a gang that lacks a second one, two victims, and a pod that
    needs a slot."""
    victims = [pod(name, at="n0") for name in ("v0", "v1")]
    gang = [group("g", 2, {keys.GANG_SEAT_HOLD: hold}), pod("g-0", gang="g", at="n0", priority=5)]
    return World().add(node("n0:4"), *gang, *victims, pod("p", priority=priority, created=9)).state


@pytest.mark.parametrize(
    ("priority", "hold", "gone", "spared"),
    [
        pytest.param(5, "5m", ["v1"], [], id="the free slot is a seat that is closed to the pod"),
        pytest.param(4, "5m", ["v1"], [], id="of a lower priority"),
        pytest.param(5, "5m", ["v0", "v1"], ["v0", "v1"], id="one slot beside the seat is enough"),
        pytest.param(6, "5m", [], [], id="the seat is open to a higher priority"),
        pytest.param(6, "5m", ["v1"], ["v1"], id="the seat is open, and a pod is evicted"),
        pytest.param(5, "0s", [], [], id="no seat"),
        pytest.param(5, "0s", ["v1"], ["v1"], id="no seat, and a pod is evicted"),
    ],
)
def test_capacity_of_seats_spares_a_victim_only_if_it_is_open_to_the_pod(
    priority: int, hold: str, gone: list[str], spared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_with_victims(snapshot: Snapshot, config: KoordpyConfiguration) -> RoundPlan:
        evictions = (Eviction(f"default/{v}", f"uid-{v}", "n0", "priority", "default/p", "default/p") for v in gone)
        return replace(plan_round(snapshot, config), evictions=tuple(evictions))

    monkeypatch.setattr("tests.scenarios.witness.plan_round", plan_with_victims)
    witness = Witness()
    witness(_with_seat(priority, hold).snapshot(NOW.timestamp()), KoordpyConfiguration())
    assert witness.faults == [f"round 1: I7: default/p could do without ['default/{v}']" for v in spared]


@pytest.mark.parametrize(("priority", "hold", "gone"), [(5, "5m", ["v1"]), (6, "5m", []), (5, "0s", [])])
def test_a_pod_evicts_a_victim_beside_seats_only_if_they_are_closed_to_it(
    priority: int, hold: str, gone: list[str]
) -> None:
    plan = plan_round(_with_seat(priority, hold).snapshot(NOW.timestamp()), KoordpyConfiguration())
    assert [one.pod_key for one in plan.evictions] == [f"default/{v}" for v in gone]
    assert [one.pod_key for one in plan.placements] == ["default/p"]


def test_a_victim_is_needed_while_a_seat_is_closed_that_a_later_unit_takes() -> None:
    def of(user: str, name: str, at: str = "", gpus: str = "1", **settings: Any) -> Pod:
        return pod(name, at=at, requests={GPU: gpus}, labels={keys.QUOTA_USER: user}, **settings)

    nodes = [node("n0:64", None, **{GPU: "5"}), node("n1:64", None, **{GPU: "2"})]
    gang = [group("g", 2), of("carol", "g-0", "n0", gang="g", priority=5)]
    running = [of("bob", "v0", "n0"), of("alice", "v1", "n0"), of("alice", "a", "n0", priority=9)]
    running.append(of("alice", "b", "n1", gpus="2", priority=9))
    pending = [of("bob", "p", priority=5, created=9), of("alice", "h", priority=6, created=9)]
    witness = Witness()
    plan = witness(
        World().add(*nodes, *gang, *running, *pending).state.snapshot(NOW.timestamp()), KoordpyConfiguration()
    )
    assert [one.pod_key for one in plan.placements] == ["default/p", "default/h"] and not plan.seats
    assert [(one.pod_key, one.unit) for one in plan.evictions] == [("default/v0", "default/p")]
    assert witness.faults == []


@pytest.mark.parametrize(
    ("minimum", "priorities", "at_fault"),
    [
        pytest.param(0, (9, 1), False, id="the member of a gang without minMember evicts it by itself"),
        pytest.param(0, (5, 1), True, id="of a priority that is not higher"),
        pytest.param(1, (9, 9), True, id="both members are surplus"),
    ],
)
def test_a_gang_is_broken_by_a_member_to_which_the_limit_on_surplus_does_not_apply(
    minimum: int, priorities: tuple[int, int], at_fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gangs a and b are linked and have their minimum, so that each pending member is a plan of its own."""

    def plan_with_victims(snapshot: Snapshot, config: KoordpyConfiguration) -> RoundPlan:
        plan = plan_round(snapshot, config)
        [unit] = [one.unit for one in plan.units]
        placements = tuple(Placement(f"default/{name}", f"uid-{name}", "n0", unit) for name in ("a-1", "b-1"))
        victims = ["v-0", "v-1", "w"]
        evictions = tuple(Eviction(f"default/{v}", f"uid-{v}", "n0", "priority", "default/a", unit) for v in victims)
        if minimum == 0 and priorities[0] > 5:
            assert {one.pod_key for one in plan.evictions} == {one.pod_key for one in evictions}
            assert {one.pod_key for one in plan.placements} == {one.pod_key for one in placements}
        return replace(plan, placements=placements, evictions=evictions)

    gangs = [group("a", minimum, {keys.GANG_GROUPS: '["default/b"]'}), group("b", 1), group("v", 2)]
    running = [pod(f"{name}-0", gang=name, at="n0") for name in ("a", "b")]
    victims = [*(pod(f"v-{i}", gang="v", at="n0", priority=5) for i in range(2)), pod("w", at="n0")]
    own, other = priorities
    pending = [pod("a-1", gang="a", cpu="2", priority=own), pod("b-1", gang="b", priority=other)]
    monkeypatch.setattr("tests.scenarios.witness.plan_round", plan_with_victims)
    witness = Witness()
    state = World().add(node("n0:5"), *gangs, *running, *victims, *pending).state
    witness(state.snapshot(NOW.timestamp()), KoordpyConfiguration())
    text = "gang:default/a,default/b breaks default/v by priority for members above minMember"
    assert (f"round 1: {text}" in witness.faults) is at_fault


@pytest.mark.parametrize("idle", [[], ["n1"], ["n0", "n1"]])
def test_no_pod_moves_for_a_member_that_fits_beside_the_victims_of_another_one(idle: list[str]) -> None:
    """g-1 evicts a pod of 2 cpu, so that g-2 fits without a move. idle: the nodes of pods that request nothing."""
    small = [pod(f"z{i}", at=at, cpu="0") for i, at in enumerate(idle)]
    running = [pod("g-0", gang="g", at="n0", priority=1), pod("k", at="n0", cpu="3", priority=9)]
    pending = [pod(f"g-{i}", gang="g", priority=n, created=9) for i, n in ((1, 9), (2, 5))]
    world = World().add(
        node("n0:4"), node("n1:2"), group("g", 1), *running, pod("v", at="n1", cpu="2"), *small, *pending
    )
    witness, config = Witness(), KoordpyConfiguration(consolidation=Consolidation(enabled=True))
    plan = witness(world.state.snapshot(NOW.timestamp()), config)
    assert [(one.pod_key, one.rule) for one in plan.evictions] == [("default/v", "priority")]
    assert witness.faults == []
