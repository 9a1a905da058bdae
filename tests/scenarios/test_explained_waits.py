# SPDX-License-Identifier: Apache-2.0
"""`koordpy explain` on pods that quotas, queue order and held nodes keep waiting: what it says would help does help."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import ContainerState, ContainerStateTerminated, ContainerStatus
from koordpy.config.configuration import Consolidation, Fairness, KoordpyConfiguration, Preemption, Quota, StaleGangs
from koordpy.explain.explanation import explain
from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import World, bound, gang_pods, group, node, pod
from tests.scenarios.quotas import GPU, belongs, quota

EPOCH = 1767225600.0  # 2026-01-01T00:00:00Z
QUIET = KoordpyConfiguration(preemption=Preemption(enabled=False), fairness=Fairness(reclaim="off"))
RECLAIM = replace(QUIET, fairness=Fairness(reclaim="quotas"))


def gpus(count: int) -> dict[str, str]:
    return {GPU: str(count)}


def of(name: str, quota_name: str, count: int, *, rigid: bool = False, **settings: Any) -> Any:
    return pod(name, labels=belongs(quota_name, rigid=rigid), requests=gpus(count), cpu="0", **settings)


def world(*objects: Any, total: int = 8) -> World:
    return World().add(node("n1:64", **gpus(total)), list(objects))


def misses(made: World, config: KoordpyConfiguration = QUIET, *, hours: float = 0.5, name: str = "p") -> list[str]:
    return list(explain(made.state.snapshot(EPOCH + hours * 3600), config, f"default/{name}").would_fit_if)


def helps(made: World, config: KoordpyConfiguration, *changed: Any) -> bool:
    """Whether the pod is placed once some objects are as told."""
    return "p" in bound(plan_round(made.add(*changed).state.snapshot(EPOCH), config)) or bool(
        plan_round(made.state.snapshot(EPOCH), config).nominations
    )


def test_beyond_max_it_is_max_that_would_have_to_grow() -> None:
    made = world(quota("a", {GPU: 2}, {GPU: 4}), of("r", "a", 4, at="n1"), of("p", "a", 1))
    assert misses(made) == [
        "pod default/r completed and released what it uses of quota a",
        f"max of quota a were 5 {GPU} (it is 4)",
    ]
    assert not helps(made, QUIET)
    assert helps(made, QUIET, quota("a", {GPU: 2}, {GPU: 5}))


def test_within_max_the_runtime_is_short() -> None:
    made = world(quota("a", {}, {GPU: 8}), quota("b", {GPU: 7}, {GPU: 8}), of("r", "b", 6, at="n1"), of("p", "a", 2))
    assert misses(made) == []
    made.add(of("q", "b", 1))
    found = misses(made)
    assert f"min of quota a were 2 {GPU} (it is 0)" in found
    assert f"the pending pods of quota b were deleted (they request 1 {GPU})" in found
    assert not [line for line in found if line.startswith("max of")]
    assert not helps(made, QUIET)
    assert helps(made, QUIET, quota("a", {GPU: 2}, {GPU: 8}))


def test_a_larger_max_is_not_said_to_be_enough_where_nothing_is_left() -> None:
    owned = [quota("a", {}, {GPU: 4}), quota("b", {GPU: 4}, {GPU: 8}), of("r", "a", 4, at="n1"), of("s", "b", 4)]
    made = world(*owned, of("p", "a", 2))
    found = misses(made)
    assert found[0] == "pod default/r completed and released what it uses of quota a"
    assert not [line for line in found if line.startswith("node n1 had")]  # the same pod, said once
    assert not [line for line in found if line == f"max of quota a were 6 {GPU} (it is 4)"]
    assert not helps(made, QUIET, quota("a", {}, {GPU: 6}))
    assert helps(made, QUIET, quota("a", {}, {GPU: 6}), node("n2:64", **gpus(2)))


def test_of_two_limits_the_first_is_told_alone_where_it_is_enough() -> None:
    """The parent's runtime refuses only because the child's max caps what the parent is asked for."""
    world = World().add(node("n1", cpu="64", **{GPU: "64"}), quota("org", {GPU: 16}, {GPU: 64}, inner=True))
    world.add(quota("team-a", {GPU: 16}, {GPU: 16}, parent="org"), quota("team-b", {}, {GPU: 32}, parent="org"))
    world.add(of("r", "team-a", 16, at="n1"), of("p", "team-a", 16))
    found = misses(world)
    assert f"max of quota team-a were 32 {GPU} (it is 16)" in found
    assert not [line for line in found if "quota org" in line]


def test_every_limit_on_the_way_up_has_to_give_way() -> None:
    config = replace(QUIET, quota=Quota(enable_runtime_quota=False))
    made = world(
        quota("org", {}, {GPU: 6}, inner=True),
        quota("a", {}, {GPU: 5}, parent="org"),
        quota("b", {}, {GPU: 6}, parent="org"),
        of("ra", "a", 3, at="n1"),
        of("rb", "b", 2, at="n1"),
        of("p", "a", 3),
    )
    assert misses(made, config) == [
        "pod default/ra completed and released what it uses of quota a",
        f"max of quota a were 6 {GPU} (it is 5), and max of quota org were 8 {GPU} (it is 6)",
        f"it requested 1 {GPU} (it requests 3)",
    ]
    assert not helps(made, config, quota("a", {}, {GPU: 6}, parent="org"))
    assert helps(made, config, quota("org", {}, {GPU: 8}, inner=True))


def test_a_non_preemptible_pod_may_give_that_up() -> None:
    made = world(quota("a", {GPU: 2}, {GPU: 4}), of("r", "a", 2, at="n1", rigid=True), of("p", "a", 1, rigid=True))
    assert misses(made) == [
        f"the pod were preemptible (without label {keys.QUOTA_PREEMPTIBLE})",
        "pod default/r completed and released what it uses of quota a",
        f"min of quota a were 3 {GPU} (it is 2)",
    ]
    assert helps(made, QUIET, of("p", "a", 1))
    assert helps(made, QUIET, of("p", "a", 1, rigid=True), quota("a", {GPU: 3}, {GPU: 4}))


def test_a_gang_is_told_what_its_minimum_lacks() -> None:
    made = world(quota("a", {}, {GPU: 3}), group("g", 4))
    made.add(gang_pods("g", 6, requests=gpus(1), labels=belongs("a"), cpu="0"))
    assert misses(made, name="p-5") == [
        "minMember of PodGroup default/g were 3 (it is 4)",
        f"max of quota a were 4 {GPU} (it is 3)",
    ]


def test_a_guarantee_that_would_bring_others_to_give_back_is_named() -> None:
    quotas = [quota("a", {GPU: 2}, {GPU: 8}), quota("b", {GPU: 2}, {GPU: 8})]
    made = world(*quotas, of("ra", "a", 2, at="n1"), of("p", "a", 1))
    made.add(*(of(f"rb-{i}", "b", 1, at="n1") for i in range(6)))
    told = f"min of quota a were 3 {GPU} (it is 2): pods of other quotas or users would be evicted"
    assert told in misses(made, RECLAIM)
    assert told not in misses(made, QUIET)
    assert helps(made, RECLAIM, quota("a", {GPU: 3}, {GPU: 8}))
    # nobody is above its guarantee: then no larger one helps
    fair = world(quota("a", {GPU: 2}, {GPU: 8}), quota("b", {GPU: 6}, {GPU: 8}), of("ra", "a", 2, at="n1"))
    fair.add(of("p", "a", 1), *(of(f"rb-{i}", "b", 1, at="n1") for i in range(6)))
    assert not [text for text in misses(fair, RECLAIM) if text.startswith("min of")]


def test_the_weight_that_it_would_take_is_named_where_shares_are_taken_back() -> None:
    config = replace(QUIET, fairness=Fairness(reclaim="all"))
    made = world(
        *(pod(f"{user}-{i}", labels=belongs(user=user), at="n1", requests=gpus(1)) for user in "ab" for i in range(4))
    )
    made.add(pod("p", labels=belongs(user="a"), requests=gpus(1)))
    told = "fairness.weights of user a were 2 (it is 1): pods of other quotas or users would be evicted"
    assert told in misses(made, config)
    assert told not in misses(made, QUIET)
    heavier = replace(QUIET, fairness=Fairness(reclaim="all", weights={"a": 2}))
    assert helps(made, heavier)


def test_jobs_before_it_in_the_queue_are_named_where_they_take_the_room() -> None:
    made = world(pod("first", requests=gpus(8), cpu="0"), pod("p", requests=gpus(1), cpu="0", created=5))
    assert misses(made)[0] == "pod default/first were not placed before it"
    assert misses(made, name="first") == []


@pytest.mark.parametrize(
    ("jobs", "needed", "line"),
    [
        (2, 4, "pod default/j-0 were not placed before it"),
        (2, 8, "pod default/j-0 and pod default/j-1 were not placed before it"),
        (4, 4, "pod default/j-0 and pod default/j-1 were not placed before it"),
        (
            8,
            8,
            "the 8 jobs of this round (pod default/j-0, pod default/j-1, pod default/j-2 and 5 more) were not placed "
            "before it",
        ),
    ],
)
def test_the_fewest_jobs_before_it_are_named(jobs: int, needed: int, line: str) -> None:
    made = world(*(pod(f"j-{i}", requests=gpus(8 // jobs), cpu="0") for i in range(jobs)))
    made.add(pod("p", requests=gpus(needed), cpu="0", created=5))
    assert misses(made)[0] == line


def test_a_gang_before_it_is_named_by_its_name() -> None:
    made = world(group("g", 2), *gang_pods("g", 2, requests=gpus(3)), pod("j", requests=gpus(1), created=3))
    made.add(pod("p", requests=gpus(6), cpu="0", created=5))
    assert misses(made)[0] == "gang default/g were not placed before it"


def test_held_nodes_are_named_where_they_keep_it_from_room() -> None:
    made = world(pod("r", at="n1", requests=gpus(5)), pod("big", requests=gpus(4)))
    made.add(pod("p", requests=gpus(1), created=3000))
    told = "no nodes were reserved for a starving job (fairness.starvationAfter: 0s in the configuration)"
    assert told in misses(made, hours=1.5)
    assert misses(made, hours=0.5) == []


def test_evictions_that_make_it_no_room_are_not_said_to_help() -> None:
    # a stale gang whose bound member is given up: its waiting one finds no room by that
    made = World().add(node("a:64", **gpus(8)), node("b:64", **gpus(8)), group("g", 2))
    stays = pod("g-0", gang="g", at="a", requests=gpus(8))
    older = replace(stays.metadata, creation_timestamp="2025-12-31T23:00:00Z")
    made.add(pod("x", at="b", requests=gpus(8)), replace(stays, metadata=older))
    failed, ended = pod("g-1", gang="g", at="b", phase="Failed"), "2025-12-31T23:58:00Z"
    terminated = ContainerState(terminated=ContainerStateTerminated(finished_at=ended))
    status = replace(failed.status, container_statuses=[ContainerStatus(name="main", state=terminated)])
    made.add(replace(failed, status=status), pod("p", gang="g", requests=gpus(8)))
    asked = replace(QUIET, stale_gangs=StaleGangs(enabled=True))
    assert [one.rule for one in plan_round(made.state.snapshot(EPOCH), asked).evictions] == ["stale-gang"]
    assert not [text for text in misses(made, asked, hours=0) if "evicted" in text]


def test_moved_pods_are_not_called_evicted() -> None:
    config = replace(QUIET, consolidation=Consolidation(enabled=True))
    made = World().add(node("a:4", **gpus(2)), node("b:4", **gpus(2)))
    made.add(pod("ra", at="a", requests=gpus(1)), pod("rb", at="b", requests=gpus(1)), pod("p", requests=gpus(2)))
    found = explain(made.state.snapshot(EPOCH), config, "default/p")
    assert found.evictions == ("1 pod is moved by rule consolidation: default/rb",)
    assert found.would_fit_if == ()


def test_room_that_terminating_pods_will_leave_is_waited_for() -> None:
    leaving = of("leaving", "", 1, at="n1")
    leaving = replace(leaving, metadata=replace(leaving.metadata, deletion_timestamp="2026-01-01T00:29:30Z"))
    made = world(leaving, of("stays", "", 7, at="n1"), of("p", "", 1))
    assert "1 terminating pod on n1 had ended" in misses(made)
    assert helps(made, QUIET, replace(leaving, status=replace(leaving.status, phase="Succeeded")))
    assert "1 terminating pod on n1 had ended" not in misses(made, hours=0.6)  # stuck: no longer room to come


def test_a_runtime_that_is_short_for_its_parent_names_the_parent() -> None:
    world = World().add(node("n1", cpu="64", **{GPU: "16"}), quota("org", {GPU: 8}, {GPU: 8}, inner=True))
    world.add(quota("a", {GPU: 2}, {GPU: 8}, parent="org"), quota("b", {GPU: 6}, {GPU: 8}, parent="org"))
    world.add(pod("r", cpu="0", requests={GPU: "6"}, labels=belongs("b"), at="n1"))
    world.add(pod("p", cpu="0", requests={GPU: "4"}, labels=belongs("a"), created=100))
    found = misses(world)
    assert f"max of quota org were 10 {GPU} (it is 8)" in found
    assert not [line for line in found if "quota a were" in line]


def inner(least: int, most: int, *below: Any) -> World:
    return World().add(
        node("n1:64", **gpus(99)), quota("org", {GPU: least}, {GPU: most}, inner=True), list(below), of("o", "b", 6)
    )


def test_a_larger_min_comes_with_what_the_parent_has_to_guarantee() -> None:
    """Both want six of the ten that their parent lends; each is guaranteed four of its eight."""
    quotas = [quota(name, {GPU: 4}, {GPU: 10}, parent="org") for name in ("a", "b")]
    made = inner(8, 10, *quotas).add(of("p", "a", 6, created=100))
    both = f"min of quota a were 6 {GPU} (it is 4), and min of quota org were 10 {GPU} (it is 8)"
    found = misses(made)
    assert both in found and not [line for line in found if line == both.partition(", and ")[0]]
    raised = inner(10, 10, quota("a", {GPU: 6}, {GPU: 10}, parent="org"), quotas[1]).add(of("p", "a", 6, created=100))
    assert not raised.state.snapshot(EPOCH).quotas.tree.faults and "p" in bound(
        plan_round(raised.state.snapshot(EPOCH), QUIET)
    )


def test_no_limit_is_told_that_leaves_the_quotas_at_odds() -> None:
    """Whatever is told of quotas, done with the numbers as they are told, gives a tree without a fault."""
    told = 0
    for least_a in range(4):
        for least in range(least_a, 6):
            quotas = [quota("a", {GPU: least_a}, {GPU: 3}, parent="org"), quota("b", {}, {GPU: 9}, parent="org")]
            made = inner(least, 9, *quotas).add(of("p", "a", 4, created=100, rigid=True))
            for line in misses(made):
                found = re.findall(r"(min|max) of quota (\S+) were (\d+)", line)
                limits = {("min", "org"): least, ("max", "org"): 9, ("min", "a"): least_a, ("max", "a"): 3}
                limits |= {(side, name): int(amount) for side, name, amount in found}
                assert limits["min", "a"] <= min(limits["max", "a"], limits["min", "org"]), line
                assert limits["min", "org"] <= limits["max", "org"], line
                told += bool(found)
    assert told


def test_a_quota_that_an_earlier_unit_of_the_round_uses_up_is_named() -> None:
    made = world(quota("a", {}, {GPU: 4}), of("o", "a", 3), of("p", "a", 2, created=100))
    assert f"max of quota a were 5 {GPU} (it is 4)" in misses(made)
    assert helps(made, QUIET, quota("a", {}, {GPU: 5}))
    assert not helps(world(quota("a", {}, {GPU: 4}), of("o", "a", 3), of("p", "a", 2, created=100)), QUIET)


def test_the_largest_smaller_request_is_told() -> None:
    for free in range(1, 7):
        made = world(quota("a", {}, {GPU: 8}), of("r", "a", 8 - free, at="n1"), of("p", "a", 7))
        lines = [line for line in misses(made) if line.startswith("it requested")]
        assert lines == [f"it requested {free} {GPU} (it requests 7)"]
    gang = world(quota("a", {}, {GPU: 64}), node("n2:64", **gpus(8)), group("g", 4))  # two on each of two nodes
    gang.add(gang_pods("g", 4, requests=gpus(7), labels=belongs("a"), cpu="0"))
    assert f"each member requested 4 {GPU} (it requests 7)" in misses(gang, name="p-0")
