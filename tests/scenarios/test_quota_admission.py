# SPDX-License-Identifier: Apache-2.0
"""May a job start (quota-fairness.md 5, 6 and 8), through a whole round."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.config.configuration import Fairness, KoordpyConfiguration, Preemption, Quota
from koordpy.explain.explanation import explain
from koordpy.plan.round_plan import GangStatus, Proof, RoundPlan
from tests.scenarios.cluster import World, bound, gang_pods, group, messages, node, pod
from tests.scenarios.quotas import GPU, belongs, quota
from tests.scenarios.witness import Witness


def config(**settings_: Any) -> KoordpyConfiguration:
    alone = Preemption(enabled=False), Fairness(reclaim="off")  # nobody is evicted
    return KoordpyConfiguration(preemption=alone[0], fairness=alone[1], quota=Quota(**settings_))


def plan(world: World, **settings_: Any) -> RoundPlan:
    return world.plan(config=config(**settings_))


def test_a_pod_is_refused_with_the_numbers_of_its_quota() -> None:
    world = World().add(node("n1:32"), quota("team-a", 2, 7))
    world.add(pod("r", labels=belongs("team-a"), cpu="6", at="n1"), pod("p", labels=belongs("team-a"), cpu="2"))
    done = plan(world)
    assert bound(done) == {}
    assert messages(done)["p"] == (
        "0/1 nodes are available: Insufficient quotas, quotaName: team-a, runtime: cpu=7, used: cpu=6, "
        "request: cpu=2, exceedDimensions: [cpu]."
    )
    assert done.pending[0].plugins == ("ElasticQuota",)


def test_max_stands_for_the_runtime_where_runtimes_are_off() -> None:
    world = World().add(node("n1:4"), quota("a", 0, 6), quota("b", 0, 9))
    world.add(pod("r", labels=belongs("a"), cpu="5", at="n1"), pod("p", labels=belongs("a"), cpu="2"))
    assert "max: cpu=6, used: cpu=5, request: cpu=2" in messages(plan(world, enable_runtime_quota=False))["p"]


def test_the_first_quota_that_refuses_from_the_leaf_up_is_named_with_the_path() -> None:
    world = World().add(node("n1:32"), quota("org", 3, 7, inner=True), quota("team", 3, 20, parent="org"))
    world.add(pod("r", labels=belongs("team"), cpu="6", at="n1"), pod("p", labels=belongs("team"), cpu="2"))
    # the leaf's runtime is cut to what its parent has
    assert "quotaName: team, quotaNameTopo: [org team], runtime: cpu=7" in messages(plan(world))["p"]
    off = messages(plan(world, enable_runtime_quota=False))["p"]
    assert "quotaName: org, quotaNameTopo: [org team], max: cpu=7, used: cpu=6" in off


@pytest.mark.parametrize("members", [("1", "1"), ("1", "2")], ids=["alike", "of two kinds"])
def test_what_others_use_beyond_a_limit_stops_no_gang_that_does_not_ask_for_it(members: tuple[str, str]) -> None:
    """Non-preemptible pods beyond min (min was lowered, say) are no business of a preemptible gang."""
    world = World().add(node("n1:32"), quota("team", 1, 20))
    world.add(pod("r", labels=belongs("team", rigid=True), cpu="4", at="n1"), group("g", 1))
    world.add(*(pod(f"g-{i}", gang="g", labels=belongs("team"), cpu=cpu) for i, cpu in enumerate(members)))
    assert set(bound(plan(world))) == {"g-0", "g-1"}


def test_siblings_count_against_their_parent() -> None:
    world = World().add(node("n1:32"), quota("org", 0, 7, inner=True))
    world.add(quota("a", 0, 7, parent="org"), quota("b", 0, 7, parent="org"))
    world.add(pod("r", labels=belongs("b"), cpu="5", at="n1"), pod("p", labels=belongs("a"), cpu="3"))
    assert "quotaName: org" in messages(plan(world, enable_runtime_quota=False))["p"]


def test_resources_are_listed_sorted_and_only_those_that_are_exceeded() -> None:
    most = {"memory": "4Gi", GPU: 1, "cpu": 64}
    world = World().add(node("n1:64", **{GPU: "8"}), quota("a", 0, most))
    world.add(pod("p", labels=belongs("a"), cpu="1", requests={GPU: "2", "memory": "6Gi"}))
    assert (
        f"runtime: memory=4Gi,{GPU}=1, used: memory=0,{GPU}=0, request: memory=6Gi,{GPU}=2, "
        f"exceedDimensions: [memory {GPU}]." in messages(plan(world))["p"]
    )


def test_11_non_preemptible_pods_are_held_against_min() -> None:
    world = World().add(node("n1:32"), quota("team-a", 5, 10))
    world.add(pod("r", labels=belongs("team-a", rigid=True), cpu="4", at="n1"))
    world.add(pod("p", labels=belongs("team-a", rigid=True), cpu="2"), pod("q", labels=belongs("team-a"), cpu="2"))
    done = plan(world)
    assert bound(done) == {"q": "n1"}
    assert messages(done)["p"] == (
        "0/1 nodes are available: Insufficient non-preemptible quotas, quotaName: team-a, min: cpu=5, used: cpu=4, "
        "request: cpu=2, exceedDimensions: [cpu]."
    )


def test_min_of_every_ancestor_holds_non_preemptible_pods_and_a_key_that_it_lacks_is_0() -> None:
    world = World().add(node("n1:32", **{GPU: "4"}))
    world.add(quota("org", {"cpu": 3}, {"cpu": 9, GPU: 4}, inner=True, forced=True))
    world.add(quota("a", {"cpu": 4}, {"cpu": 9, GPU: 4}, parent="org"))
    world.add(pod("p", labels=belongs("a", rigid=True), cpu="4"))
    assert "Insufficient non-preemptible quotas, quotaName: org" in messages(plan(world))["p"]
    world.add(pod("p", labels=belongs("a", rigid=True), cpu="1", requests={GPU: "1"}))
    assert f"quotaName: a, quotaNameTopo: [org a], min: {GPU}=0" in messages(plan(world))["p"]
    world.add(pod("p", labels={keys.QUOTA_NAME: "a", keys.DISABLE_PREEMPTIBLE: "true"}, cpu="4"))
    assert "Insufficient non-preemptible" in messages(plan(world))["p"]


def test_keys_that_max_does_not_name_are_free() -> None:
    world = World().add(node("n1:32"), quota("a", {}, {GPU: 0}))
    assert bound(plan(world.add(pod("p", labels=belongs("a", rigid=True), cpu="20")))) == {"p": "n1"}


def test_a_pod_in_a_parent_quota_stays_pending() -> None:
    told = "0/1 nodes are available: quota org is a parent: use one of its leaves."
    never = "never fits: quota org allows at most 9 cpu, 10 are required."
    world = World().add(node("n1:32"), quota("org", 9, 9, inner=True), pod("p", labels=belongs("org")))
    assert messages(plan(world))["p"] == told
    # no room in it is the lesser fault
    world.add(pod("p", labels=belongs("org"), cpu="10"))
    assert messages(plan(world))["p"] == f"{told} {never}"
    assert explain(world.snapshot(), None, "default/p").message == f"{never} {told}"


def test_an_unknown_quota_is_none_and_told() -> None:
    world = World().add(node("n1:32"), quota("default", 0, 0), pod("p", labels=belongs("typo")), pod("q"))
    done = plan(world)
    assert bound(done) == {"p": "n1"}
    assert done.warnings == (
        (
            "Pod/default/p",
            f"label {keys.QUOTA_NAME}: there is no ElasticQuota typo: this pod counts in quota {keys.DEFAULT_QUOTA}",
        ),
    )


def test_an_unknown_quota_of_a_gang_is_told_once() -> None:
    world = World().add(node("n1:32"), quota("types", 0, 0), group("g", 3), gang_pods("g", 3, labels=belongs("typos")))
    ((about, text),) = plan(world).warnings
    assert about == "Pod/default/p-0"
    counted = f"This pod and 2 more pods of its gang count in quota {keys.DEFAULT_QUOTA}"
    assert text == f"label {keys.QUOTA_NAME}: there is no ElasticQuota typos, did you mean types? {counted}"


def test_12_the_need_of_a_gang_is_admitted_whole() -> None:
    gpu = {"requests": {GPU: "1"}}

    def world(minimum: int) -> World:
        made = World().add(node("n1:32", **{GPU: "8"}), quota("a", 0, {GPU: 3}), group("g", minimum))
        return made.add(gang_pods("g", 4, labels=belongs("a"), **gpu))

    done = plan(world(4))
    assert bound(done) == {}
    assert set(messages(done).values()) == {
        f"gang default/g: never fits: quota a allows at most 3 {GPU}, 4 are required. "
        f"0/1 nodes are available: Insufficient quotas, quotaName: a, runtime: {GPU}=3, used: {GPU}=0, "
        f"request: {GPU}=4, exceedDimensions: [{GPU}], gang default/g needs 4 members, quota has room for 3. "
        "gang default/g: needed 4, quota a has room for 3."
    }
    assert (done.gangs[0].status, done.gangs[0].proof) == (GangStatus.UNSCHEDULABLE, Proof.INFEASIBLE)
    done = plan(world(2))
    assert bound(done) == {"p-0": "n1", "p-1": "n1", "p-2": "n1"}
    first = (
        "gang default/g: minMember 2 met, 1 more waiting for room; gang default/g: needed 1, quota a has room for 0."
    )
    assert messages(done)["p-3"].startswith(f"{first} 0/1 nodes are available: Insufficient quotas, ")
    assert "gang default/g needs 1 member, quota has room for 0" in messages(done)["p-3"]
    assert (done.gangs[0].status, done.gangs[0].proof) == (GangStatus.SCHEDULED, Proof.OPTIMAL)


def test_bound_members_are_in_used_already() -> None:
    world = World().add(node("n1:32"), quota("a", 0, 5), group("g", 2))
    world.add(gang_pods("g", 2, prefix="r", labels=belongs("a"), at="n1", cpu="2"))
    world.add(gang_pods("g", 2, labels=belongs("a"), cpu="1"))
    assert bound(plan(world)) == {"p-0": "n1"}


def test_the_needs_of_a_gang_group_pass_together() -> None:
    links = {keys.GANG_GROUPS: '["default/g", "default/h"]'}
    world = World().add(node("n1:32"), quota("a", 0, 3), quota("b", 0, 9))
    world.add(group("g", 2, links), group("h", 2, links))
    world.add(gang_pods("g", 2, "g", labels=belongs("a")), gang_pods("h", 2, "h", labels=belongs("a")))
    done = plan(world)
    assert bound(done) == {}
    assert "gang default/g,default/h needs 4 members, quota has room for 3" in messages(done)["h-1"]
    world.add(gang_pods("h", 2, "h", labels=belongs("b")))
    assert len(bound(plan(world))) == 4


def test_a_core_of_others_may_start_where_the_first_is_too_much() -> None:
    world = World().add(node("n1:32"), quota("a", 0, 3), group("g", 2))
    world.add(pod("p-0", gang="g", labels=belongs("a"), cpu="4"))
    world.add(*(pod(f"p-{i}", gang="g", labels=belongs("a")) for i in (1, 2)))
    done = plan(world)
    assert bound(done) == {"p-1": "n1", "p-2": "n1"}
    assert "request: cpu=4" in messages(done)["p-0"]


def test_placements_of_the_round_count() -> None:
    world = World().add(node("n1:32"), quota("a", 0, 3))
    world.add(*(pod(f"p-{i}", labels=belongs("a"), created=i) for i in range(5)))
    done = plan(world)
    assert bound(done) == {"p-0": "n1", "p-1": "n1", "p-2": "n1"}
    assert "used: cpu=3, request: cpu=1" in messages(done)["p-4"]


def test_a_refused_job_does_not_speak_for_those_of_another_quota() -> None:
    world = World().add(node("n1:32"), quota("a", 0, 0), quota("b", 0, 9))
    world.add(pod("p", labels=belongs("a")), pod("q", labels=belongs("b"), created=1))
    world.add(pod("r", labels=belongs("b", rigid=True), created=2), pod("s", labels=belongs("b"), created=3))
    assert bound(plan(world)) == {"q": "n1", "s": "n1"}


def test_explain_says_what_the_quota_lacks() -> None:
    world = World().add(node("n1:32"), quota("team-a", 2, 7))
    world.add(pod("r", labels=belongs("team-a"), cpu="6", at="n1"), pod("p", labels=belongs("team-a"), cpu="2"))
    found = explain(world.snapshot(), config(), "default/p")
    assert found.message.startswith("0/1 nodes are available: Insufficient quotas, quotaName: team-a")
    lines = (
        "pod default/r completed and released what it uses of quota team-a",
        "max of quota team-a were 8 cpu (it is 7)",
    )
    assert (found.feasible_nodes, found.would_fit_if) == (1, lines)


@pytest.mark.parametrize("members", [("2", "2"), ("2", "3")], ids=["alike", "of two kinds"])
def test_explain_says_so_of_surplus_members_too(members: tuple[str, str]) -> None:
    """Members that differ are known to be refused only once no core of them passes."""
    world = World().add(node("n1:32"), quota("team-a", 2, 7), group("g", 1))
    world.add(pod("g-9", gang="g", labels=belongs("team-a"), cpu="6", at="n1"))
    world.add(*(pod(f"g-{i}", gang="g", labels=belongs("team-a"), cpu=cpu) for i, cpu in enumerate(members)))
    found = explain(world.snapshot(), config(), "default/g-1")
    assert messages(plan(world))["g-1"] == found.message
    assert (found.domains, found.would_fit_if) == ((), ("max of quota team-a were 8 cpu (it is 7)",))


@pytest.mark.parametrize("runtime", [True, False])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_limit_is_exceeded_at_any_ancestor(runtime: bool, data: st.DataObject) -> None:
    """Invariants I3 and I10, over rounds until nothing moves."""
    draw = data.draw
    world = World().add(node("n1:12"), node("n2:6"))
    names = []
    for i in range(draw(st.integers(1, 5))):
        inner = draw(st.booleans())
        most = draw(st.integers(0, 12))
        parent = draw(st.sampled_from(["", *(name for name, is_inner in names if is_inner)]))
        world.add(quota(f"q{i}", draw(st.integers(0, most)), most, parent=parent, inner=inner, forced=True))
        names.append((f"q{i}", inner))
    leaves = [name for name, inner in names if not inner]
    for g in range(draw(st.integers(0, 3))):
        count = draw(st.integers(1, 4))
        world.add(group(f"g{g}", draw(st.integers(0, count))))
        for i in range(count):
            labels = belongs(draw(st.sampled_from([*leaves, ""])), rigid=draw(st.booleans()))
            cpu = str(draw(st.integers(1, 4)))
            world.add(pod(f"g{g}-{i}", gang=f"g{g}", labels=labels, cpu=cpu))
    for i in range(draw(st.integers(0, 4))):
        labels = belongs(draw(st.sampled_from([*leaves, ""])), rigid=draw(st.booleans()))
        world.add(pod(f"p{i}", labels=labels, cpu=str(draw(st.integers(1, 4)))))
    witness = Witness()
    for _ in range(3):
        done = witness(world.snapshot(), config(enable_runtime_quota=runtime))
        assert witness.faults == []
        assert not [p for p in done.pending if "failed koordpy's own check" in p.message]
        for eviction in done.evictions:
            world.state.delete(Pod, eviction.pod_key)
        for placement in done.placements:
            world.state.bind(placement.pod_key, placement.node, dict(placement.annotations))
        after = world.snapshot().quotas
        for name, one in after.tree.quotas.items():
            used = after.used.get(name, {}).get("cpu", 0)
            assert used <= one.max["cpu"]
            assert after.rigid_used.get(name, {}).get("cpu", 0) <= one.least("cpu")
        if not done.placements:
            break


def test_room_in_a_quota_is_kept_for_nominated_pods_of_the_same_or_a_higher_priority() -> None:
    from msgspec.structs import replace

    world = World().add(node("n1:1"), node("n2:8"), quota("a", 0, 3))
    going = pod("going", at="n1", cpu="1")
    world.add(replace(going, metadata=replace(going.metadata, deletion_timestamp="1970-01-01T00:00:00Z")))
    coming = pod("coming", labels=belongs("a"), cpu="1", node_selector={"kubernetes.io/hostname": "n1"}, priority=5)
    world.add(replace(coming, status=replace(coming.status, nominated_node_name="n1")))
    world.add(*(pod(f"p-{i}", labels=belongs("a"), created=i) for i in range(3)))
    assert sorted(bound(plan(world))) == ["p-0", "p-1"]
    world.add(pod("urgent", labels=belongs("a"), cpu="3", priority=9))
    assert sorted(bound(plan(world))) == ["urgent"]


def test_use_beyond_a_limit_stops_only_those_that_ask_for_more_of_it() -> None:
    world = World().add(node("n1:32", **{GPU: "8"}), quota("a", {}, {"cpu": 9, GPU: 2}))
    world.add(pod("r", labels=belongs("a"), cpu="1", requests={GPU: "3"}, at="n1"))
    world.add(pod("p", labels=belongs("a"), cpu="1"), pod("q", labels=belongs("a"), cpu="1", requests={GPU: "1"}))
    done = plan(world)
    assert bound(done) == {"p": "n1"}
    assert f"runtime: {GPU}=2, used: {GPU}=3, request: {GPU}=1, exceedDimensions: [{GPU}]" in messages(done)["q"]
