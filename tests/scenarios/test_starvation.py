# SPDX-License-Identifier: Apache-2.0
"""The starvation guard (quota-fairness.md 2): nodes that are held for a job that has waited too long."""

from typing import Any

from koordpy.api.objects import Pod
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Preemption
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import TWO_LAYERS, World, bound, gang_pods, group, messages, node, nodes_of, pod, wish
from tests.scenarios.quotas import GPU, belongs, quota

EPOCH = 1767225600.0  # 2026-01-01T00:00:00Z
OFF = Preemption(enabled=False)


def plan(world: World, hours: float = 1.5, **fairness: Any) -> RoundPlan:
    config = KoordpyConfiguration(preemption=OFF, fairness=Fairness(reclaim="off", **fairness))
    return plan_round(world.state.snapshot(EPOCH + hours * 3600), config)


def gpus(count: int) -> dict[str, str]:
    return {GPU: str(count)}


def two_nodes() -> World:
    """a has 2 GPUs free, b 3."""
    world = World().add(node("a:64", **gpus(8)), node("b:64", **gpus(8)))
    world.add(pod("ra", at="a", requests=gpus(6)), pod("rb", at="b", requests=gpus(5)))
    return world


def small(number: int, **settings: Any) -> list[Any]:
    return [pod(f"s-{i}", requests=gpus(1), created=3000, **settings) for i in range(number)]


def test_the_node_that_waits_for_fewest_accelerators_is_held() -> None:
    done = plan(two_nodes().add(pod("big", requests=gpus(4)), small(4)))
    assert bound(done) == {"s-0": "a", "s-1": "a"}
    assert messages(done)["big"].endswith(f". holding nodes [b]: waiting for 1 {GPU}.")
    assert "holding" not in messages(done)["s-2"]


def test_who_is_kept_off_a_held_node_is_told_for_whom() -> None:
    world = two_nodes().add(pod("big", requests=gpus(4)), small(3), pod("cpu", cpu="65", created=3100))
    world.add(
        group("g", 2), gang_pods("g", 2, created=3200, requests=gpus(1)), pod("two", requests=gpus(4), created=3300)
    )
    said = messages(plan(world))
    held = "capacity on 1 node is reserved for pod default/big, which is starving."
    assert said["s-2"].endswith(f" {held}")
    assert held in said["p-0"] and held in said["p-1"]
    assert "is held" not in said["cpu"] and "is held" not in said["two"] and "is held" not in said["big"]


def test_nothing_is_held_in_every_second_period_before_the_first_or_without_the_guard() -> None:
    world = two_nodes().add(pod("big", requests=gpus(4)), small(5))
    for done in (plan(world, 2.5), plan(world, 0.9), plan(world, 1.5, starvation_after=0.0)):
        assert len(bound(done)) == 5
        assert "holding" not in messages(done)["big"]


def test_a_job_that_asks_for_nothing_short_goes_to_a_held_node() -> None:
    world = two_nodes().add(pod("big", requests=gpus(4)), small(2))
    world.add(pod("cpu", cpu="60", created=3100), pod("cpu2", cpu="60", created=3100))
    assert sorted(bound(plan(world)).items()) == [("cpu", "a"), ("cpu2", "b"), ("s-0", "a"), ("s-1", "a")]


def test_it_may_even_take_what_the_starving_job_needs_and_is_not_short_of() -> None:
    world = two_nodes().add(pod("big", requests=gpus(4), cpu="40"), pod("cpu", cpu="60", created=3100))
    world.add(pod("full", at="a", cpu="20"))
    assert bound(plan(world)) == {"cpu": "b"}


def test_of_what_is_short_nothing_is_left_on_any_held_node() -> None:
    world = World().add(node("a:64", **gpus(8)), node("b:64", **gpus(8)), group("g", 2))
    world.add(pod("ra", at="a", requests=gpus(2)), pod("rb", at="b", requests=gpus(5)))
    # six are free on a, of which the gang needs four: the other two are held with them
    world.add(gang_pods("g", 2, requests=gpus(4)), small(2), pod("cpu", created=3100))
    done = plan(world)
    assert f"holding nodes [a b]: waiting for 1 {GPU}" in messages(done)["p-0"]
    assert set(bound(done)) == {"cpu"}


def test_fewest_pods_to_end_then_natural_order_decide_between_equal_nodes() -> None:
    world = World().add(*(node(f"n{i}:64", **gpus(4)) for i in (10, 9, 8)))
    world.add(pod("x", at="n8", requests=gpus(1)), pod("y", at="n8", requests=gpus(1)))
    world.add(pod("z", at="n10", requests=gpus(2)), pod("w", at="n9", requests=gpus(2)))
    done = plan(world.add(pod("big", requests=gpus(4))))
    assert f"holding nodes [n9]: waiting for 2 {GPU}" in messages(done)["big"]


def test_one_that_does_not_fit_an_empty_cluster_holds_nothing_and_the_next_one_does() -> None:
    world = two_nodes().add(pod("never", requests=gpus(9)), pod("big", requests=gpus(4), created=60), small(4))
    done = plan(world)
    assert "holding" not in messages(done)["never"]
    assert "holding nodes [b]" in messages(done)["big"]


def test_pods_of_daemon_sets_never_make_room() -> None:
    from msgspec.structs import replace

    from koordpy.api.objects import OwnerReference

    world = World().add(node("a:64", **gpus(4)))
    agent = pod("agent", at="a", requests=gpus(1))
    owner = OwnerReference(kind="DaemonSet", name="agent", controller=True)
    world.add(replace(agent, metadata=replace(agent.metadata, owner_references=[owner])))
    assert "holding" not in messages(plan(world.add(pod("big", requests=gpus(4)))))["big"]


def test_a_job_that_a_quota_refuses_holds_nothing() -> None:
    world = two_nodes().add(quota("a", {}, {GPU: 3}), pod("big", requests=gpus(4), labels=belongs("a")), small(5))
    done = plan(world)
    assert len(bound(done)) == 5
    assert "Insufficient quotas" in messages(done)["big"]


def test_one_hold_at_a_time() -> None:
    world = two_nodes().add(pod("big", requests=gpus(4)), pod("huge", requests=gpus(8), created=60), small(4))
    done = plan(world)
    assert "holding nodes [b]" in messages(done)["big"]
    assert "holding" not in messages(done)["huge"]
    assert bound(done) == {"s-0": "a", "s-1": "a"}


def test_a_gang_holds_the_nodes_of_its_domain() -> None:
    world = World().add(
        TWO_LAYERS, nodes_of("s{b0: a1:4 a2:4; b1: c1:4 c2:4}"), group("g", 2, wish({"blockLayer": "Must"}))
    )
    world.add(pod("r1", at="a1", cpu="3"), pod("r2", at="c1", cpu="2"), pod("r3", at="c2", cpu="2"))
    world.add(gang_pods("g", 2, cpu="4"))
    world.add(*(pod(f"s-{i}", created=3000) for i in range(9)))
    done = plan(world)
    # without accelerators the fewest pods to end decide: one in b0, two in b1
    assert messages(done)["p-1"].endswith(". holding nodes [a1 a2]: waiting for 3 cpu.")
    assert set(bound(done).values()) == {"c1", "c2"}
    assert len(bound(done)) == 4


def test_the_longest_waiting_one_holds() -> None:
    world = two_nodes().add(
        pod("big", requests=gpus(4), created=60), pod("first", requests=gpus(5), created=0), small(1)
    )
    done = plan(world)
    assert "holding nodes [b]: waiting for 2" in messages(done)["first"]
    assert "holding" not in messages(done)["big"]


def test_a_starving_job_that_is_not_due_holds_its_nodes_and_is_not_placed() -> None:
    world = two_nodes().add(pod("big", requests=gpus(4)), small(3))
    config = KoordpyConfiguration(preemption=OFF, fairness=Fairness(reclaim="off"))
    due = frozenset(f"default/s-{i}" for i in range(3))
    done = plan_round(world.state.snapshot(EPOCH + 5400), config, only=due)
    assert bound(done) == {"s-0": "a", "s-1": "a"}
    assert "big" not in messages(done)
    world.state.delete(Pod, "default/rb")
    done = plan_round(world.state.snapshot(EPOCH + 5400), config, only=due)
    assert sorted(bound(done)) == ["s-0", "s-1", "s-2"]
