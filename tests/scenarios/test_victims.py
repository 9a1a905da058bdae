# SPDX-License-Identifier: Apache-2.0
"""Who is evicted for whom: the worked examples of preemption.md 10, and the rules of sections 2 to 5."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import (
    Container,
    ContainerPort,
    LabelSelector,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Preemption, Quota
from koordpy.plan.round_plan import Proof, RoundPlan
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import World, bound, gang_pods, group, hierarchy, messages, node, pod, whole_messages, wish
from tests.scenarios.quotas import belongs, quota

GPU = "nvidia.com/gpu"
SPINES = hierarchy(("spineLayer", "spine"))
SOME_TIME = 1767225600.0
"""2026-01-01T00:00:00Z."""


def gpus(name: str, number: int, **labels: str) -> Any:
    return node(name, labels, cpu="64", **{GPU: str(number)})


def runs(name: str, at: str, *, gpu: int = 1, priority: int = 0, age: int = 0, **settings: Any) -> Pod:
    """A running pod; a larger `age` is younger (created later)."""
    return pod(name, at=at, cpu="0", requests={GPU: str(gpu)}, priority=priority, created=age, **settings)


def waits(name: str, *, gpu: int = 1, priority: int = 0, **settings: Any) -> Pod:
    return pod(name, cpu="0", requests={GPU: str(gpu)}, priority=priority, created=3000, **settings)


def planned(objects: Sequence[Any], **settings: Any) -> RoundPlan:
    return World().add(*objects).plan(**settings)


def evicted(plan: RoundPlan) -> set[str]:
    return {one.pod_key.partition("/")[2] for one in plan.evictions}


def budget(allowed: int | None, app: str, **spec: Any) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=f"pdb-{app}", namespace="default"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": app}), **spec),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
    )


# --- the worked examples ---------------------------------------------------------------------------------------------


def full_of_pairs() -> list[Any]:
    old = [
        pod(name, at=at, cpu="16", created=i)
        for i, (name, at) in enumerate([("a1", "n1"), ("b1", "n2"), ("a2", "n1"), ("b2", "n2")])
    ]
    return [node("n1:32"), node("n2:32"), *old]


def test_1_the_two_youngest_go_wherever_they_are() -> None:
    gang = gang_pods("g", 2, cpu="16", priority=100, created=99)
    plan = planned([*full_of_pairs(), group("g", 2), gang])
    assert evicted(plan) == {"a2", "b2"}
    assert sorted(bound(plan)) == ["p-0", "p-1"]
    assert {one.beneficiary for one in plan.evictions} == {"default/g"}


def test_1_with_a_gather_annotation_those_of_one_node_go() -> None:
    gang = gang_pods("g", 2, cpu="16", priority=100, created=99)
    plan = planned([*full_of_pairs(), group("g", 2, wish({"nodeLayer": "Prefer"})), gang])
    assert evicted(plan) == {"b1", "b2"}
    assert bound(plan) == {"p-0": "n2", "p-1": "n2"}


@pytest.mark.parametrize(("young", "spine"), [("x", "s1"), ("y", "s2")])
def test_2_the_younger_of_two_low_pods_decides_the_spine(young: str, spine: str) -> None:
    nodes = [gpus(f"{s}-{i}", 1, spine=s) for s in ("s1", "s2") for i in range(4)]
    old = "y" if young == "x" else "x"
    where = {"x": "s1-0", "y": "s2-0"}
    low = [runs(old, where[old], age=1), runs(young, where[young], age=2)]
    gang = [waits(f"p-{i}", gang="g", priority=10) for i in range(4)]
    plan = planned([SPINES, *nodes, *low, group("g", 4, wish({"spineLayer": "Must"})), *gang])
    assert evicted(plan) == {young}
    assert {name.partition("-")[0] for name in bound(plan).values()} == {spine}


def test_2_nobody_goes_where_no_spine_can_reach_four() -> None:
    nodes = [gpus(f"{s}-{i}", 1, spine=s) for s in ("s1", "s2") for i in range(4)]
    busy = [runs("x", "s1-0", priority=50), runs("y", "s2-0", priority=50), runs("low", "s1-1")]
    gang = [waits(f"p-{i}", gang="g", priority=10) for i in range(4)]
    plan = planned([SPINES, *nodes, *busy, group("g", 4, wish({"spineLayer": "Must"})), *gang])
    assert not plan.evictions
    assert not plan.placements
    assert plan.gangs[0].proof is Proof.INFEASIBLE


def test_3_a_budget_is_kept_before_the_lowest_priority_goes() -> None:
    low = [
        runs("a", "n", gpu=5, priority=1, labels={"app": "web"}),
        runs("b", "n", gpu=5, priority=2),
    ]
    plan = planned([gpus("n", 10), *low, budget(0, "web"), waits("p", gpu=5, priority=5)])
    assert evicted(plan) == {"b"}


def test_3_a_budget_ranks_and_does_not_forbid() -> None:
    low = runs("a", "n", priority=1, labels={"app": "web"})
    plan = planned([gpus("n", 1), low, budget(0, "web"), waits("p", priority=5)])
    assert evicted(plan) == {"a"}


def test_4_three_low_pods_rather_than_one_of_higher_priority() -> None:
    low = [runs("big", "n1", gpu=3, priority=5), *(runs(f"s{i}", "n2", priority=3) for i in range(3))]
    plan = planned([gpus("n1", 3), gpus("n2", 3), *low, waits("p", gpu=3, priority=9)])
    assert evicted(plan) == {"s0", "s1", "s2"}
    assert bound(plan) == {"p": "n2"}


def two_gangs(first_minimum: int) -> list[Any]:
    old = [runs(f"a-{i}", "n1", gang="a", age=i) for i in range(10)]
    young = [runs(f"b-{i}", "n2", gang="b", age=50 + i) for i in range(10)]
    return [gpus("n1", 10), gpus("n2", 10), group("a", first_minimum), group("b", 10), *old, *young]


def test_5_one_whole_gang_goes_the_younger() -> None:
    plan = planned([*two_gangs(10), waits("p", priority=100)])
    assert evicted(plan) == {f"b-{i}" for i in range(10)}


def test_5_a_surplus_pod_rather_than_a_gang() -> None:
    plan = planned([*two_gangs(8), waits("p", priority=100)])
    assert evicted(plan) == {"a-9"}


def test_11_one_missing_accelerator_is_told_at_once() -> None:
    nodes = [gpus(f"n{i}", 8) for i in range(100)]
    pods = [runs(f"r{i}", f"n{i // 8}", priority=0 if i < 79 else 100, age=i) for i in range(800)]
    gang = [waits(f"p-{i}", gpu=8, gang="g", priority=50) for i in range(10)]
    plan = planned([*nodes, *pods, group("g", 10), *gang])
    assert not plan.evictions
    assert plan.gangs[0].proof is Proof.INFEASIBLE
    assert "preemption: needed 80 nvidia.com/gpu, free 0, reclaimable 79." in whole_messages(plan)["p-0"]
    assert not any(unit.solver for unit in plan.units)


# --- who may be evicted ----------------------------------------------------------------------------------------------

DAEMON = [OwnerReference(kind="DaemonSet", name="d", controller=True)]


@pytest.mark.parametrize(
    ("why", "settings"),
    [
        ("not preemptible", {"labels": {keys.QUOTA_PREEMPTIBLE: "false"}}),
        ("not preemptible, other label", {"labels": {keys.DISABLE_PREEMPTIBLE: "true"}}),
        ("a mirror pod", {"annotations": {"kubernetes.io/config.mirror": "x"}}),
        ("equal priority", {"priority": 5}),
        ("higher priority", {"priority": 6}),
    ],
)
def test_some_pods_are_never_evicted(why: str, settings: dict[str, Any]) -> None:
    plan = planned([gpus("n", 1), runs("low", "n", **settings), waits("p", priority=5)])
    assert not plan.evictions, why


def _changed(wire: Pod, **meta: Any) -> Pod:
    return replace(wire, metadata=replace(wire.metadata, **meta))


def test_daemon_pods_and_pods_that_end_are_never_evicted() -> None:
    for meta in ({"owner_references": DAEMON}, {"deletion_timestamp": "1970-01-01T00:00:00Z"}):
        plan = planned([gpus("n", 1), _changed(runs("low", "n"), **meta), waits("p", priority=5)])
        assert not plan.evictions


def test_a_pod_of_another_scheduler_may_be_preempted() -> None:
    plan = planned([gpus("n", 1), runs("low", "n", scheduler="default-scheduler"), waits("p", priority=5)])
    assert evicted(plan) == {"low"}


def test_one_protected_member_protects_the_core() -> None:
    members = [runs("a-0", "n", gang="a"), runs("a-1", "n", gang="a", labels={keys.DISABLE_PREEMPTIBLE: "true"})]
    plan = planned([gpus("n", 2), group("a", 2), *members, waits("p", priority=5)])
    assert not plan.evictions


def test_the_core_has_the_priority_of_its_highest_pod() -> None:
    members = [runs("a-0", "n", gang="a"), runs("a-1", "n", gang="a", priority=9)]
    plan = planned([gpus("n", 2), group("a", 2), *members, waits("p", priority=5)])
    assert not plan.evictions


def test_a_gang_group_goes_as_one() -> None:
    linked = {keys.GANG_GROUPS: '["default/a", "default/b"]'}
    members = [runs("a-0", "n1", gang="a"), runs("b-0", "n2", gang="b")]
    groups = [group("a", 1, linked), group("b", 1, linked)]
    plan = planned([gpus("n1", 1), gpus("n2", 1), *groups, *members, waits("p", priority=5)])
    assert evicted(plan) == {"a-0", "b-0"}


def test_a_gang_below_its_minimum_is_one_unit_and_breaks_nothing() -> None:
    members = [runs("a-0", "n1", gang="a"), runs("a-1", "n1", gang="a")]
    whole = [runs("b-0", "n2", gang="b", age=9), runs("b-1", "n2", gang="b", age=9)]
    nodes = [gpus("n1", 2), gpus("n2", 2)]
    plan = planned([*nodes, group("a", 3), group("b", 2), *members, *whole, waits("p", priority=5)])
    assert evicted(plan) == {"a-0", "a-1"}


def test_surplus_keeps_the_multiple_of_its_gang() -> None:
    annotations = wish({"nodeLayer": "Prefer"}, multiple={"nodeLayer": 2})
    members = [runs(f"a-{i}", "n", gang="a", age=i) for i in range(4)]
    plan = planned([gpus("n", 4), group("a", 2, annotations), *members, waits("p", priority=5)])
    assert evicted(plan) == {"a-2", "a-3"}


def test_a_gang_that_lost_its_multiple_already_asks_nobody_to_go_for_it() -> None:
    """One of four ended: three stand where pairs should. Somebody else's place is wanted, and only he goes."""
    annotations = wish({"nodeLayer": "Prefer"}, multiple={"nodeLayer": 2})
    three = [runs(f"w-{i}", "n0", gang="w", age=50 + i) for i in range(3)]
    nodes = [gpus("n0", 3), gpus("n1", 1), group("w", 1, annotations), group("me", 1)]
    plan = planned([*nodes, *three, runs("v", "n1", age=60), waits("p", gang="me", priority=9)])
    assert evicted(plan) == {"v"}
    assert bound(plan) == {"p": "n1"}
    # two leave nothing of a pair behind, one would leave two
    alone = planned([gpus("n0", 3), group("w", 1, annotations), *three, waits("p", priority=9)])
    assert evicted(alone) == {"w-2"}


@pytest.mark.parametrize("minimum", [0, 1])
def test_a_broken_gang_goes_whatever_multiple_its_group_keeps(minimum: int) -> None:
    """The one that stays of the group is no pair, with it or without."""
    linked = {keys.GANG_GROUPS: '["default/a", "default/b"]'}
    pairs = {**linked, **wish({"nodeLayer": "Prefer"}, multiple={"nodeLayer": 2})}
    members = [runs("a-0", "n", gang="a"), *(runs(f"b-{i}", "n", gang="b") for i in range(2))]
    groups = [group("a", minimum, pairs), group("b", 3, linked)]
    plan = planned([gpus("n", 3), *groups, *members, waits("p", gpu=2, priority=5)])
    assert evicted(plan) == {"b-0", "b-1"}
    assert not plan.rejected


def test_a_member_that_is_ending_is_none_of_the_pairs_that_stay() -> None:
    pairs = wish({"nodeLayer": "Prefer"}, multiple={"nodeLayer": 2})
    members = [runs(f"a-{i}", "n", gang="a", age=i) for i in range(4)]
    stuck = runs("a-4", "n", gang="a")
    stuck = replace(stuck, metadata=replace(stuck.metadata, deletion_timestamp="2025-12-31T00:00:00Z"))
    world = World().add(gpus("n", 5), group("a", 2, pairs), *members, stuck, waits("p", gpu=2, priority=5))
    plan = plan_round(world.state.snapshot(SOME_TIME))
    assert evicted(plan) == {"a-2", "a-3"}


def test_what_members_bring_to_a_quota_counts_where_it_loses() -> None:
    """3.1: used_after is that of the whole plan. The gang's quota is that of its first member."""
    running = runs("v", "n1", labels=belongs("a"))
    members = [waits("m-0", gang="m", priority=5), waits("m-1", gang="m", priority=5, labels=belongs("a"))]
    objects = [gpus("n1", 1), gpus("n2", 1), quota("a", {GPU: 1}, {GPU: 2}), group("m", 2), running, *members]
    assert evicted(planned(objects)) == {"v"}
    alone = [one for one in objects if one not in members]
    outside = [waits("m-0", gang="m", priority=5), waits("m-1", gang="m", priority=5)]
    assert evicted(planned([*alone, *outside])) == set()


def test_the_lowest_priority_of_a_gang_asks() -> None:
    gang = [waits("p-0", gang="g", priority=5), waits("p-1", gang="g", priority=9)]
    plan = planned([gpus("n", 2), runs("x", "n", priority=5), runs("y", "n", priority=1), group("g", 2), *gang])
    assert not plan.evictions


def test_a_gang_that_may_not_preempt_evicts_nobody() -> None:
    plan = planned([gpus("n", 1), runs("low", "n"), waits("p", priority=5, preemption_policy="Never")])
    assert not plan.evictions
    assert whole_messages(plan)["p"].endswith("preemption: not eligible due to preemptionPolicy=Never.")


@pytest.mark.parametrize(("minimum", "told"), [(2, {"p-0", "p-1"}), (1, {"p-1"})])
def test_every_member_is_told_that_its_gang_may_not_preempt(minimum: int, told: set[str]) -> None:
    gang = [waits("p-0", gang="g", gpu=2, priority=5)]
    gang += [waits("p-1", gang="g", gpu=2, priority=5, preemption_policy="Never")]
    plan = planned([gpus("n", 1), runs("low", "n"), group("g", minimum), *gang])
    assert not plan.evictions
    never = "preemption: not eligible due to preemptionPolicy=Never."
    assert {name for name, text in whole_messages(plan).items() if never in text} == told


def test_preemption_can_be_switched_off() -> None:
    config = KoordpyConfiguration(preemption=Preemption(enabled=False))
    world = World().add(gpus("n", 1), runs("low", "n"), waits("p", priority=5))
    plan = plan_round(world.snapshot(), config)
    assert not plan.evictions
    assert whole_messages(plan) == messages(plan)


def test_the_core_alone_gets_room_where_not_all_members_can() -> None:
    nodes = [gpus("n1", 1), gpus("n2", 1)]
    gang = [waits(f"p-{i}", gang="g", priority=5) for i in range(2)]
    plan = planned([*nodes, runs("low", "n1"), runs("high", "n2", priority=9), group("g", 1), *gang])
    assert evicted(plan) == {"low"}
    assert bound(plan) == {"p-0": "n1"}


def test_members_above_the_minimum_ask_one_by_one() -> None:
    nodes = [gpus("n1", 1), gpus("n2", 2)]
    members = [runs("p-0", "n1", gang="g", priority=5), *(waits(f"p-{i}", gang="g", priority=5) for i in (1, 2, 3))]
    plan = planned([*nodes, runs("x", "n2"), runs("y", "n2", priority=1), group("g", 1), *members])
    assert evicted(plan) == {"x", "y"}
    assert bound(plan) == {"p-1": "n2", "p-2": "n2"}


# --- pods that are leaving -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ended_at", "goes"), [("1970-01-01T00:00:00Z", set()), ("1969-12-31T23:57:59Z", {"low"})])
def test_room_that_comes_free_is_waited_for_until_it_is_stuck(ended_at: str, goes: set[str]) -> None:
    leaving = _changed(runs("leaving", "n1"), deletion_timestamp=ended_at)
    plan = planned([gpus("n1", 1), gpus("n2", 1), leaving, runs("low", "n2"), waits("p", priority=5)])
    assert evicted(plan) == goes
    if not goes:
        assert "waiting for 1 terminating pod on n1." in messages(plan)["p"]


def test_every_member_is_told_the_same_while_pods_end_however_many_are_left() -> None:
    def told(count: int) -> set[str]:
        ending = [
            _changed(runs(f"l-{i}", f"n{i + 1}"), deletion_timestamp="1970-01-01T00:00:00Z") for i in range(count)
        ]
        nodes = [gpus(f"n{i}", 1) for i in range(1, 6)]
        others = [runs("x", "n5", priority=9)]
        plan = planned([*nodes, *ending, *others, group("g", 4), *(waits(f"p-{i}", gang="g") for i in range(4))])
        assert not bound(plan) and not evicted(plan)
        return set(messages(plan).values())

    kept = "waiting for terminating pods: capacity on n1, n2, n3 and 1 more is reserved for it."
    assert told(4) == told(1) == {f"gang default/g: needed 4, {kept} 0/5 nodes are available: {kept}"}


def test_members_on_other_nodes_are_told_that_they_go_with_their_gang() -> None:
    victims = [runs(f"v-{i}", f"n{i}", gang="v") for i in (1, 2)]
    plan = planned([gpus("n1", 1), gpus("n2", 1), group("v", 2), *victims, waits("p", priority=5)])
    said = {one.pod_key: one.message for one in plan.evictions}
    taken = next(one.node for one in plan.nominations)
    assert {key: text.partition(" on node ")[2] for key, text in said.items()} == {
        f"default/v-{i}": f"n{i}" if taken == f"n{i}" else f"n{i}, evicted with its gang" for i in (1, 2)
    }


def test_awaited_room_is_given_to_one_only() -> None:
    leaving = _changed(runs("leaving", "n1"), deletion_timestamp="1970-01-01T00:00:00Z")
    both = [waits("p", priority=5), waits("q", priority=4)]
    plan = planned([gpus("n1", 1), gpus("n2", 1), leaving, runs("low", "n2"), *both])
    assert evicted(plan) == {"low"}
    assert bound(plan) == {"q": "n2"}


def test_quota_that_comes_free_is_waited_for_as_room_is() -> None:
    mine = belongs("q")
    leaving = _changed(runs("leaving", "n1", labels=mine), deletion_timestamp="1970-01-01T00:00:00Z")
    running = runs("low", "n2", labels=mine)
    limits = quota("q", {GPU: 2}, {GPU: 2})
    plan = planned([gpus("n1", 1), gpus("n2", 4), limits, leaving, running, waits("p", priority=5, labels=mine)])
    assert not plan.evictions
    assert not plan.placements


def test_a_pod_whose_nominated_node_is_being_emptied_chooses_nobody_else() -> None:
    leaving = _changed(runs("leaving", "n1", gpu=2), deletion_timestamp="1970-01-01T00:00:00Z")
    asks = waits("p", gpu=4, priority=5)
    asks = replace(asks, status=replace(asks.status, nominated_node_name="n1"))
    plan = planned([gpus("n1", 4), gpus("n2", 4), leaving, runs("x", "n1", gpu=2), runs("low", "n2", gpu=4), asks])
    assert not plan.evictions
    ending = "preemption: not eligible due to a terminating pod on the nominated node."
    assert ending in whole_messages(plan)["p"]


# --- filters on what is left -----------------------------------------------------------------------------------------


def test_a_host_port_is_had_by_evicting_its_holder() -> None:
    port = [Container(name="c", ports=[ContainerPort(host_port=80, container_port=80)])]
    holder = runs("holder", "n", priority=3)
    holder = replace(holder, spec=replace(holder.spec, containers=[*holder.spec.containers, *port]))
    asks = waits("p", priority=5)
    asks = replace(asks, spec=replace(asks.spec, containers=[*asks.spec.containers, *port]))
    plan = planned([gpus("n", 4), holder, runs("cheap", "n", priority=1), asks])
    assert evicted(plan) == {"holder"}


def test_a_taint_is_no_reason_to_evict() -> None:
    plan = planned([gpus("n", 1), runs("low", "n"), waits("p", priority=5, node_selector={"pool": "x"})])
    assert not plan.evictions
    sentence = "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    never = "never fits: no node matches its node selector, affinity and tolerations."
    assert whole_messages(plan)["p"].endswith(f" {sentence} {never}")


def test_events_say_who_took_the_room() -> None:
    gang = [waits(f"p-{i}", gpu=8, gang="train", priority=1000) for i in range(2)]
    low = [runs("low", "n1", priority=10)]
    plan = planned([gpus("n1", 8), gpus("n2", 8), *low, group("train", 2), *gang])
    [one] = plan.evictions
    assert (one.rule, one.reason) == ("priority", "Preempted")
    assert one.message == "Preempted by gang default/train (2 pods, priority 1000 over 10) on node n1"
    assert {n.pod_key: n.node for n in plan.nominations} == {"default/p-0": "n1", "default/p-1": "n2"}
    assert plan.benefits[0].message == "evicts 1 pod with 1 accelerator so that 2 pods can start"


def test_a_quota_over_its_runtime_gives_back_the_least_important() -> None:
    settings = Quota(monitor_all_quotas=True, delay_evict_time=0.0)
    config = KoordpyConfiguration(quota=settings, fairness=Fairness(reclaim="off"))
    world = World().add(gpus("n", 8), quota("a", {GPU: 1}, {GPU: 4}), quota("b", {GPU: 1}, {GPU: 8}))
    pods = [runs(f"r{i}", "n", priority=i % 2, age=i, labels=belongs("a")) for i in range(6)]
    pods.append(runs("rigid", "n", labels=belongs("a", rigid=True)))
    plan = plan_round(world.add(*pods).snapshot(), config)
    assert evicted(plan) == {"r4", "r2", "r0"}
    assert {(one.rule, one.beneficiary) for one in plan.evictions} == {("quota", None)}
    assert plan.evictions[0].message == "Reclaimed: quota a uses 7 of runtime 4 nvidia.com/gpu"


def test_a_quota_gives_back_though_nobody_more_important_waits() -> None:
    settings = Quota(monitor_all_quotas=True, delay_evict_time=0.0)
    config = KoordpyConfiguration(
        quota=settings, fairness=Fairness(reclaim="off"), preemption=Preemption(enabled=False)
    )
    world = World().add(gpus("n", 8), quota("a", {}, {GPU: 4}), quota("b", {}, {GPU: 8}))
    world.add(*(runs(f"r{i}", "n", age=i, labels=belongs("a")) for i in range(6)))
    # of the priority of those that run: by priority nobody would be a victim
    world.add(waits("p", gpu=1, labels=belongs("b")))
    assert evicted(plan_round(world.snapshot(), config)) == {"r4", "r5"}


def test_what_is_ending_counts_as_given_back() -> None:
    settings = Quota(monitor_all_quotas=True, delay_evict_time=0.0)
    config = KoordpyConfiguration(quota=settings, fairness=Fairness(reclaim="off"))
    world = World().add(gpus("n", 8), quota("a", {}, {GPU: 4}))
    pods = [runs(f"r{i}", "n", age=i, labels=belongs("a")) for i in range(6)]
    going = replace(pods[5], metadata=replace(pods[5].metadata, deletion_timestamp="1970-01-01T00:00:00Z"))
    world.add(*pods[:5], going)
    assert evicted(plan_round(world.snapshot(), config)) == {"r4"}
