# SPDX-License-Identifier: Apache-2.0
"""Pods in no quota and the total that quotas share (quota-fairness.md 4), through whole rounds."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.config.configuration import Fairness, KoordpyConfiguration, Preemption, Quota
from koordpy.plan.round_plan import RoundPlan
from koordpy.simulation.simulated_rounds import simulate
from tests.scenarios.cluster import World, bound, group, messages, node, pod
from tests.scenarios.quotas import belongs, quota
from tests.scenarios.witness import Witness

GPU = "nvidia.com/gpu"
NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
TEAM = quota("team", {GPU: 8}, {GPU: 8})


def yields(value: str, **settings: Any) -> KoordpyConfiguration:
    return KoordpyConfiguration(quota=Quota(no_quota_yields=value, **settings))  # type: ignore[arg-type]


def gone(plan: RoundPlan) -> list[tuple[str, str]]:
    return sorted((one.pod_key.partition("/")[2], str(one.rule)) for one in plan.evictions)


def gpus(name: str, number: int, at: str = "", quota_: str = "", **settings: Any) -> Any:
    labels = belongs(quota_) if quota_ else {}
    settings.setdefault("created", 0 if at else 100)
    return pod(name, cpu="0", requests={GPU: str(number)}, at=at, labels=labels, **settings)


def full(low: int = 10, high: int = 1000) -> World:
    """Example 7: 8 GPUs, two pods of 4 in no quota; a quota of min 8 whose pod of 4 waits."""
    world = World().add(node("n1", cpu="64", **{GPU: "8"}), TEAM)
    world.add(gpus("free-0", 4, "n1", priority=low, created=1), gpus("free-1", 4, "n1", priority=low, created=2))
    return world.add(gpus("hi", 4, quota_="team", priority=high))


@pytest.mark.parametrize(
    ("value", "low", "high", "evicted"),
    [
        ("lowerPriority", 10, 1000, [("free-1", "priority")]),
        ("lowerPriority", 10, 10, []),
        ("lowerPriority", 1000, 10, []),
        ("always", 10, 1000, [("free-1", "quota")]),
        ("always", 10, 10, [("free-1", "quota")]),
        ("always", 1000, 10, [("free-1", "quota")]),
        ("never", 10, 1000, []),
    ],
)
def test_who_yields_to_a_quota(value: str, low: int, high: int, evicted: list[tuple[str, str]]) -> None:
    plan = full(low, high).plan(config=yields(value))
    assert gone(plan) == evicted and ("hi" in bound(plan)) == bool(evicted)
    if not evicted:
        told = messages(plan)["hi"]
        assert "exceedDimensions: [nvidia.com/gpu], pods in no quota use: nvidia.com/gpu=8." in told


def test_always_takes_nothing_beyond_min() -> None:
    world = World().add(node("n1", cpu="64", **{GPU: "8"}), quota("team", {GPU: 2}, {GPU: 8}))
    world.add(gpus("free", 8, "n1", priority=50), gpus("hi", 4, quota_="team"))
    assert gone(world.plan(config=yields("always"))) == []


def test_the_system_quota_yields_by_priority_alone() -> None:
    world = World().add(node("n1", cpu="64", **{GPU: "8"}), TEAM)
    dns = gpus("dns", 8, "n1", priority=5)
    dns = replace(dns, metadata=replace(dns.metadata, namespace="kube-system"))
    world.add(dns, gpus("hi", 4, quota_="team"))
    assert gone(world.plan(config=yields("always"))) == []
    world.add(gpus("higher", 4, quota_="team", priority=9))
    assert gone(world.plan(config=yields("always"))) == [("dns", "priority")]


def test_as_few_go_as_the_quota_needs() -> None:
    """Pods of 1 GPU in no quota: 8 of 8, and a pod of 3 waits."""
    world = World().add(node("n1", cpu="64", **{GPU: "8"}), TEAM)
    world.add(*(gpus(f"free-{i}", 1, "n1", created=i) for i in range(8)), gpus("hi", 3, quota_="team", priority=9))
    assert [name for name, _ in gone(world.plan())] == ["free-5", "free-6", "free-7"]


def test_free_room_alone_spares_no_pod_in_no_quota() -> None:
    """4 GPUs are free, and kept for a quota that lends nothing: the total has to grow for the other's."""
    world = World().add(node("n1", cpu="64", **{GPU: "4"}), node("n2", cpu="64", **{GPU: "4"}))
    world.add(quota("idle", {GPU: 4}, {GPU: 8}, lends=False), quota("team", {GPU: 4}, {GPU: 8}))
    world.add(gpus("free", 4, "n1"), gpus("hi", 4, quota_="team", priority=9))
    plan = world.plan()
    assert gone(plan) == [("free", "priority")] and bound(plan)["hi"] in ("n1", "n2")


def test_victims_of_its_own_quota_and_in_no_quota_are_weighed_together() -> None:
    """1 GPU more by its own less important pod is one pod less than by one in no quota of 2 GPUs."""
    world = World().add(node("n1", cpu="64", **{GPU: "4"}), quota("team", {GPU: 4}, {GPU: 4}))
    world.add(gpus("free", 2, "n1", created=1), gpus("own", 1, "n1", "team", created=2))
    world.add(gpus("rest", 1, "n1", "team", priority=50), gpus("hi", 1, quota_="team", priority=9))
    assert gone(world.plan()) == [("own", "priority")]


def test_a_parents_runtime_is_lifted_too() -> None:
    world = World().add(node("n1", cpu="64", **{GPU: "8"}), quota("org", {GPU: 8}, {GPU: 8}, inner=True))
    world.add(quota("a", {GPU: 4}, {GPU: 8}, parent="org"), quota("b", {GPU: 4}, {GPU: 8}, parent="org"))
    world.add(gpus("free", 4, "n1"), gpus("b", 4, "n1", "b", priority=50), gpus("a", 4, quota_="a", priority=9))
    plan = world.plan()
    assert gone(plan) == [("free", "priority")] and "a" in bound(plan)


def test_a_gang_gets_all_its_room() -> None:
    world = World().add(node("n1", cpu="64", **{GPU: "8"}), TEAM, group("g", 4))
    world.add(*(gpus(f"free-{i}", 2, "n1", created=i) for i in range(4)))
    world.add(*(gpus(f"g-{i}", 1, quota_="team", priority=9, gang="g") for i in range(4)))
    plan = world.plan()
    assert [name for name, _ in gone(plan)] == ["free-2", "free-3"] and len(bound(plan)) == 4


def test_a_gangs_refusal_ends_with_what_pods_in_no_quota_use() -> None:
    world = World().add(node("n1", cpu="64", **{GPU: "8"}), TEAM, group("g", 4))
    world.add(gpus("free", 6, "n1", priority=9))
    world.add(*(gpus(f"g-{i}", 1, quota_="team", gang="g") for i in range(4)))
    told = messages(world.plan())["g-0"]
    assert "gang default/g needs 4 members, quota has room for 2, pods in no quota use: nvidia.com/gpu=6." in told


def test_a_quota_with_a_total_of_its_own_loses_nothing_to_pods_in_no_quota() -> None:
    world = World().add(node("n1", cpu="64", **{GPU: "8"}))
    world.add(quota("tree", {GPU: 2}, {GPU: 8}, tree="t", total={GPU: 2}))
    world.add(gpus("free", 6, "n1"), gpus("hi", 4, quota_="tree", priority=9))
    plan = world.plan()
    assert gone(plan) == [] and "pods in no quota" not in messages(plan)["hi"]


def test_what_is_ending_in_no_quota_is_waited_for() -> None:
    """Victims of an earlier round that still end: nobody else goes, wherever the room is."""
    world = World().add(node("n1", cpu="64", **{GPU: "8"}), node("n2", cpu="64", **{GPU: "4"}))
    world.add(quota("idle", {GPU: 4}, {GPU: 8}, lends=False), quota("team", {GPU: 8}, {GPU: 8}))
    leaving = gpus("leaving", 4, "n1", created=2)
    leaving = replace(leaving, metadata=replace(leaving.metadata, deletion_timestamp="1970-01-01T00:00:00Z"))
    world.add(leaving, gpus("free", 4, "n1", created=1), gpus("hi", 4, quota_="team", priority=9))
    plan = world.plan()
    assert gone(plan) == []
    assert [one.pod_key for one in plan.awaiting_nominations] == ["default/hi"]


@pytest.mark.parametrize("value", ["lowerPriority", "always"])
@pytest.mark.parametrize("monitored", [False, True])
@pytest.mark.parametrize("reclaim", ["quotas", "all"])
def test_pods_in_no_quota_take_nothing_back(value: str, monitored: bool, reclaim: str) -> None:
    """They start again in room that is kept for a quota that lends nothing; the gainer stays all the same."""
    world = World().add(node("n1", cpu="64", **{GPU: "4"}), node("n2", cpu="64", **{GPU: "4"}))
    world.add(quota("idle", {GPU: 4}, {GPU: 8}, lends=False), quota("team", {GPU: 4}, {GPU: 8}))
    world.add(gpus("free", 4, "n1"), gpus("hi", 4, quota_="team", priority=9))
    config = KoordpyConfiguration(
        quota=Quota(no_quota_yields=value, monitor_all_quotas=monitored, delay_evict_time=0.0),  # type: ignore[arg-type]
        fairness=Fairness(reclaim=reclaim),  # type: ignore[arg-type]
    )
    witness = Witness()
    done = simulate(world.state, config, planner=witness, now=NOW, rounds=50)
    assert done.stable and witness.faults == []
    within_its_share = reclaim == "all" and value == "lowerPriority"  # 4 GPUs of 8, for one of two users
    assert sum(witness.evictions.values()) == (0 if within_its_share else 1)


def test_without_preemption_a_runtime_is_the_end_of_it() -> None:
    config = KoordpyConfiguration(preemption=Preemption(enabled=False))
    assert gone(full().plan(config=config)) == []
