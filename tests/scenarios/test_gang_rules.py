# SPDX-License-Identifier: Apache-2.0
"""The sentences of gang-network.md sections 2, 3 and 6, each asked of the planner with a cluster of its own."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.custom_objects import ClusterNetworkTopology, ClusterNetworkTopologySpec, HierarchyEntry
from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    Pod,
    SchedulingGate,
    SchedulingGroup,
    TopologySpreadConstraint,
)
from koordpy.api.pod_groups import UpstreamGang, UpstreamPodGroup, UpstreamPodGroupSpec, UpstreamPolicy
from koordpy.explain.explanation import explain
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import GangStatus, Proof, RoundPlan
from tests.scenarios.cluster import (
    TWO_LAYERS,
    World,
    bound,
    gang_pods,
    group,
    hierarchy,
    messages,
    node,
    nodes_of,
    pod,
    wish,
)


def status(plan: RoundPlan) -> dict[str, GangStatus]:
    return {report.name.removeprefix("default/"): report.status for report in plan.gangs}


def notes(plan: RoundPlan, name: str) -> dict[str, str]:
    return next(dict(p.annotations) for p in plan.placements if p.pod_key == f"default/{name}")


def named(name: str, gang: str, minimum: str, *, created: int = 0, annotated: bool = False, **more: str) -> Any:
    """A pod of a gang without a PodGroup."""
    if annotated:
        return pod(name, created=created, annotations={keys.GANG_NAME: gang, keys.GANG_MIN: minimum, **more})
    labels = {keys.LABEL_GANG_NAME: gang, keys.LABEL_GANG_MIN: minimum}
    return pod(name, created=created, labels=labels, annotations=more)


# -- 2.1 membership ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotated", [False, True])
def test_the_oldest_pod_decides_and_later_ones_change_nothing(annotated: bool) -> None:
    world = World().add(node("n1:9"))
    world.add(named("late", "g", "3", created=9, annotated=annotated), named("old", "g", "2", annotated=annotated))
    assert set(bound(world.plan())) == {"late", "old"}


@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("minimum", ["two", "", "1.5", "1e3"])
def test_a_minimum_that_is_no_integer_holds_the_gang(minimum: str, annotated: bool) -> None:
    plan = World().add(node("n1:9"), named("a", "g", minimum, annotated=annotated)).plan()
    where = f"annotation {keys.GANG_MIN}" if annotated else f"label {keys.LABEL_GANG_MIN}"
    assert messages(plan)["a"] == f"gang default/g: {where} cannot be read: {minimum!r} is no whole number"
    assert status(plan) == {"g": GangStatus.INVALID}


@pytest.mark.parametrize("value", ["[1]", "{}", "a,b", "null", '"default/b"'])
def test_groups_that_are_no_list_of_strings_hold_the_gang(value: str) -> None:
    plan = World().add(node("n1:9"), group("g", 1, {keys.GANG_GROUPS: value}), pod("a", gang="g")).plan()
    assert messages(plan)["a"].startswith(f"gang default/g: annotation {keys.GANG_GROUPS} cannot be read: ")
    assert status(plan) == {"g": GangStatus.INVALID}


def test_the_first_hit_wins() -> None:
    both = pod("a", gang="g", labels={keys.LABEL_GANG_NAME: "h", keys.LABEL_GANG_MIN: "7"})
    plan = World().add(node("n1:9"), group("g", 1), both).plan()
    assert set(bound(plan)) == {"a"} and set(status(plan)) == {"g"}


def test_a_name_without_a_minimum_is_no_gang() -> None:
    world = World().add(node("n1:9"), pod("a", labels={keys.LABEL_GANG_NAME: "g"}))
    plan = world.add(pod("b", annotations={keys.GANG_NAME: "g"})).plan()
    assert set(bound(plan)) == {"a", "b"} and plan.gangs == ()


@pytest.mark.parametrize("label", [keys.LABEL_POD_GROUP, keys.LABEL_POD_GROUP_X])
def test_a_label_needs_its_pod_group(label: str) -> None:
    plan = World().add(node("n1:9"), pod("a", labels={label: "g"})).plan()
    assert messages(plan) == {"a": "gang default/g: PodGroup not found"}
    assert status(plan) == {"g": GangStatus.INCOMPLETE}


def upstream(name: str, **policy: Any) -> UpstreamPodGroup:
    spec = UpstreamPodGroupSpec(scheduling_policy=UpstreamPolicy(**policy))
    return UpstreamPodGroup(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)


def test_an_upstream_group_has_its_count_or_none_and_must_be_there() -> None:
    def member(name: str, of: str) -> Any:
        return pod(name, scheduling_group=SchedulingGroup(pod_group_name=of))

    world = World().add(node("n1:9"), upstream("g", gang=UpstreamGang(min_count=2)), upstream("h", basic={}))
    world.add(member("g-0", "g"), member("h-0", "h"), member("x-0", "x"))
    plan = world.plan()
    assert messages(plan) == {
        "g-0": "gang default/g: waiting for members, 1 of minMember 2 exist",
        "x-0": "gang default/x: PodGroup not found",
    }
    assert set(bound(plan)) == {"h-0"}


# -- 2.2 to 2.4 -------------------------------------------------------------------------------------------------------


def linked(*names: str) -> dict[str, str]:
    return {keys.GANG_GROUPS: json.dumps([f"default/{name}" for name in names])}


def test_gangs_are_linked_from_either_side_and_through_others() -> None:
    world = World().add(node("n1:9"), group("g10", 1, linked("g9")), group("g9", 1), group("g2", 1, linked("g10")))
    for name in ("g2", "g9", "g10"):
        world.add(pod(f"{name}-0", gang=name))
    plan = world.plan()
    assert {notes(plan, f"{name}-0")[keys.BIND_GROUP_ID] for name in ("g2", "g9", "g10")} == {
        "default/g2,default/g9,default/g10"
    }
    world = World().add(node("n1:2"), group("g10", 1, linked("g9")), group("g9", 1), group("g2", 1, linked("g10")))
    for name in ("g2", "g9", "g10"):
        world.add(pod(f"{name}-0", gang=name))
    assert messages(world.plan())["g9-0"].endswith(
        "gang default/g2,default/g9,default/g10: needed 3, available in the cluster: 2."
    )


def test_a_listed_gang_that_is_absent_holds_all() -> None:
    plan = World().add(node("n1:9"), group("g", 1, linked("gone")), pod("a", gang="g"), pod("b", gang="g")).plan()
    assert messages(plan) == dict.fromkeys(
        "ab", "gang default/gone: PodGroup not found, listed in groups of gang default/g"
    )
    assert status(plan) == {"g": GangStatus.INCOMPLETE}


def test_succeeded_pods_count_as_there_and_failed_gated_and_foreign_ones_do_not() -> None:
    world = World().add(node("n1:9"), group("g", 3), pod("a", gang="g"), pod("done", gang="g", phase="Succeeded"))
    world.add(pod("bad", gang="g", phase="Failed"), pod("theirs", gang="g", scheduler="default-scheduler"))
    world.add(pod("gated", gang="g", scheduling_gates=[SchedulingGate(name="x")]))
    assert messages(world.plan()) == {"a": "gang default/g: waiting for members, 2 of minMember 3 exist"}


def test_a_pod_that_another_scheduler_bound_is_a_member() -> None:
    world = World().add(node("n1:9"), group("g", 2), pod("a", gang="g"))
    plan = world.add(pod("theirs", gang="g", at="n1", scheduler="default-scheduler")).plan()
    assert set(bound(plan)) == {"a"} and plan.gangs[0].members == 2


@pytest.mark.parametrize(
    ("policy", "minimum", "running", "waiting", "placed"),
    [
        ("once-satisfied", 3, 2, 1, 1),
        ("", 3, 2, 1, 1),
        ("of-my-own", 3, 2, 1, 1),
        ("once-satisfied", 3, 0, 2, 0),
        ("once-satisfied", 3, 1, 1, 0),
        ("waiting-and-running", 3, 2, 1, 1),
        ("waiting-and-running", 3, 1, 2, 2),
        ("only-waiting", 3, 2, 2, 0),
        ("only-waiting", 3, 2, 3, 3),
        ("only-waiting", 0, 2, 1, 1),
    ],
)
def test_what_a_plan_needs(policy: str, minimum: int, running: int, waiting: int, placed: int) -> None:
    world = World().add(node("n1:9"), group("g", minimum, {keys.GANG_MATCH_POLICY: policy} if policy else {}))
    world.add([pod(f"r-{i}", gang="g", at="n1") for i in range(running)])
    plan = world.add([pod(f"w-{i}", gang="g") for i in range(waiting)]).plan()
    assert len(bound(plan)) == placed


def test_those_that_wait_with_only_waiting_are_told_that_they_are_too_few() -> None:
    world = World().add(node("n1:59"), group("g", 4, {keys.GANG_MATCH_POLICY: "only-waiting"}), pod("w", gang="g"))
    world.add([pod(f"r-{i}", gang="g", at="n1") for i in range(3)])
    told = {"w": "gang default/g: waiting for members, 1 of minMember 4 wait or have Succeeded (only-waiting)"}
    assert messages(world.plan()) == told
    world.add([pod(f"v-{i}", gang="g") for i in range(3)])
    assert len(bound(world.plan())) == 4


@pytest.mark.parametrize(
    ("policy", "live", "deleted", "waiting", "grace", "text"),
    [
        # the live and pending members that exist, and those that are being deleted, of a minimum of 3
        ("", 0, 1, 2, "", "2 of minMember 3 exist, 1 more is being deleted"),
        ("", 0, 3, 1, "", "1 of minMember 3 exist, 3 more are being deleted"),
        ("waiting-and-running", 1, 1, 1, "", "2 of minMember 3 exist, 1 more is being deleted"),
        ("waiting-and-running", 0, 2, 1, "", "1 of minMember 3 exist, 2 more are being deleted"),
        ("only-waiting", 0, 1, 2, "", "2 of minMember 3 wait or have Succeeded (only-waiting)"),
        # a stale gang, of which fewer members than it lacks would be evicted again
        ("", 1, 1, 1, "0s", "2 of minMember 3 exist, 1 more is being deleted"),
        # the terminating members are not needed
        ("", 0, 1, 3, "", ""),
        ("", 1, 1, 1, "", ""),
        ("waiting-and-running", 1, 1, 2, "", ""),
        ("only-waiting", 0, 1, 3, "", ""),
    ],
)
@pytest.mark.parametrize("linked_too", [False, True])
def test_a_gang_waits_for_those_that_come_for_members_that_are_being_deleted(
    policy: str, live: int, deleted: int, waiting: int, grace: str, text: str, linked_too: bool
) -> None:
    """No node helps a unit that has too few members for a plan (2.4); the pods of linked gangs hear the same."""
    own = {keys.GANG_MATCH_POLICY: policy, **({keys.GANG_STALE_GRACE: grace} if grace else {})}
    world = World().add(node("n1:59"), group("g", 3, {**own, **(linked("h") if linked_too else {})}))
    world.add([pod(f"r-{i}", gang="g", at="n1") for i in range(live)])
    world.add([leaving(pod(f"d-{i}", gang="g", at="n1")) for i in range(deleted)])
    world.add([pod(f"w-{i}", gang="g") for i in range(waiting)])
    if linked_too:
        world.add(group("h", 1), pod("h-0", gang="h"))
    plan = world.plan()
    pods = {*(f"w-{i}" for i in range(waiting)), *(["h-0"] if linked_too else [])}
    if not text:
        assert set(bound(plan)) == pods
        return
    assert messages(plan) == dict.fromkeys(pods, f"gang default/g: waiting for members, {text}")
    assert {one.reason for one in plan.pending} == {Reason.NOT_READY}
    assert not plan.placements


@pytest.mark.parametrize("policy", ["", "once-satisfied", "waiting-and-running", "only-waiting"])
def test_members_that_succeeded_count_for_a_linked_gang_after_their_pods_are_gone(policy: str) -> None:
    """A gang without pending members needs no more of them, so that the pods of the other gang are not held by it."""
    world = World().add(node("n1:9"), group("g", 2, {keys.GANG_MATCH_POLICY: policy, **linked("h")}), group("h", 1))
    done = [pod(f"g-{i}", gang="g", at="n1", phase="Succeeded") for i in range(2)]
    world.add(pod("g-2", gang="g", at="n1"), *done, pod("h-0", gang="h"))
    for one in done:
        world.state.delete(Pod, one.key)
    assert set(bound(world.plan())) == {"h-0"}


def leaving(one: Pod) -> Pod:
    """A pod that is being deleted."""
    return replace(one, metadata=replace(one.metadata, deletion_timestamp="1970-01-01T00:00:00Z"))


def test_one_bound_member_of_the_group_proves_that_all_its_gangs_once_fitted() -> None:
    world = World().add(node("n1:2"), group("a", 1, linked("b")), group("b", 3), pod("a-0", gang="a", at="n1"))
    world.add([pod(f"b-{i}", gang="b") for i in range(3)])
    assert set(bound(world.plan())) == {"b-0"}


# -- 2.5 to 2.8 -------------------------------------------------------------------------------------------------------


def test_ranks_follow_the_index_then_the_gang_then_the_name() -> None:
    world = World().add(node("n1:20"), group("g10", 1), group("g9", 1, linked("g10")))
    index = {keys.RANK_INDEX_LABEL: "0"}
    world.add(
        pod("z", gang="g10", labels=index),
        pod("a-7", gang="g10"),
        pod("q-3", gang="g10", annotations={keys.RANK_INDEX_ANNOTATION: "1"}),
        pod("none", gang="g10"),
        pod("b-7", gang="g9"),
        pod("c-2", gang="g9", labels={keys.JOB_COMPLETION_INDEX: "9"}),
        pod("also", gang="g9"),
    )
    plan = world.plan()
    ranks = {name: int(notes(plan, name)[keys.BOUND_RANK]) for name in bound(plan)}
    assert sorted(ranks, key=lambda name: ranks[name]) == ["z", "q-3", "b-7", "a-7", "c-2", "also", "none"]


def test_what_a_binding_carries() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b: n1 n2:2}"), group("g", 2, wish({"blockLayer": "Prefer"})))
    world.add(gang_pods("g", 2), group("plain", 1), pod("x-0", gang="plain"), pod("y"))
    plan = world.plan()
    assert notes(plan, "p-1") == {
        keys.BOUND_RANK: "1",
        keys.BOUND_DOMAIN: "s/b/n2",
        keys.BIND_GROUP_ID: "default/g",
        keys.BIND_MEMBER_COUNT: "2",
    }
    # no gather goal: no domain; one pod alone: no count; no gang: nothing
    assert notes(plan, "x-0") == {keys.BOUND_RANK: "0"} and messages(plan).keys() == {"y"}


def test_a_member_bound_alone_later_has_its_rank_and_the_domain_of_all() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1; b1: n2}"), group("g", 1, wish({"blockLayer": "Prefer"})))
    plan = world.add(pod("p-0", gang="g", at="n1"), pod("p-1", gang="g")).plan()
    assert notes(plan, "p-1") == {keys.BOUND_RANK: "1", keys.BOUND_DOMAIN: "s"}


def test_without_a_topology_object_there_is_no_domain() -> None:
    world = World().add(node("n1:2"), group("g", 2, wish({"nodeLayer": "Prefer"})), gang_pods("g", 2))
    plan = world.plan()
    assert keys.BOUND_DOMAIN not in notes(plan, "p-0") and plan.gangs[0].domain is None


def test_a_late_member_waits_where_its_siblings_are_in_two_domains_of_a_hard_layer() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1:2; b1: n2:2}"), group("g", 2, wish({"blockLayer": "Must"})))
    plan = world.add(pod("p-0", gang="g", at="n1"), pod("p-1", gang="g", at="n2"), pod("p-2", gang="g")).plan()
    first = "gang default/g: bound members are in two domains of blockLayer: s/b0, s/b1."
    count = "0/2 nodes are available: 2 node(s) cannot hold the whole gang."
    met = "gang default/g: minMember 2 met, 1 more waiting for room;"
    last = "no new node would help: bound members are in two domains of blockLayer"
    assert messages(plan)["p-2"] == f"{first} {count} {met} {first} {last}"


def test_strict_and_non_strict_place_alike() -> None:
    for mode in ("Strict", "NonStrict", "other"):
        world = World().add(node("n1:2"), group("g", 3, {keys.GANG_MODE: mode}), gang_pods("g", 3))
        assert bound(world.plan()) == {}


# -- 3 the tree -------------------------------------------------------------------------------------------------------


def entry(name: str, key: Any = None, up: str = "") -> HierarchyEntry:
    return HierarchyEntry(layer_name=name, label_key=key, parent_topology_layer=up)


def of(*entries: HierarchyEntry, name: str = "default") -> ClusterNetworkTopology:
    spec = ClusterNetworkTopologySpec(hierarchy=list(entries))
    return ClusterNetworkTopology(metadata=ObjectMeta(name=name), spec=spec)


def gathers(world: World, layer: str, size: int) -> tuple[dict[str, str], tuple[str, str] | None]:
    plan = world.add(group("g", size, wish({layer: "Must"})), gang_pods("g", size)).plan()
    return bound(plan), plan.gangs[0].domain


def test_only_the_object_named_default_is_read() -> None:
    world = World().add(
        of(entry("rack", "r"), name="other"), node("n1", {"r": "a"}), group("g", 1, wish({"rack": "Must"}))
    )
    plan = world.add(pod("p-0", gang="g")).plan()
    assert messages(plan)["p-0"] == 'gang default/g: unknown layer "rack", no ClusterNetworkTopology'


def test_of_a_list_of_labels_the_first_that_is_not_empty_counts() -> None:
    world = World().add(of(entry("rack", ["new", "old"])))
    world.add(node("n1", {"new": "a", "old": "x"}), node("n2", {"new": "", "old": "a"}), node("n3", {"old": "b"}))
    assert gathers(world, "rack", 2) == ({"p-0": "n1", "p-1": "n2"}, ("rack", "a"))


def test_blocks_of_one_name_below_two_spines_are_two() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s1{b: n1} s2{b: n2}"))
    placed, _ = gathers(world, "blockLayer", 2)
    assert placed == {}


def test_a_node_without_a_label_shares_the_layers_above_that_it_has_labels_for() -> None:
    world = World().add(TWO_LAYERS, node("n1", {"spine": "s"}), node("n2", {"spine": "s", "block": "b"}))
    # the private block is called n1, and s/b comes before s/n1
    assert gathers(world, "spineLayer", 2) == ({"p-0": "n2", "p-1": "n1"}, ("spineLayer", "s"))
    world = World().add(TWO_LAYERS, node("n1", {"spine": "s"}), node("n2", {"spine": "s"}))
    assert gathers(world, "blockLayer", 2)[0] == {}


def test_a_node_without_a_label_lies_in_its_own_domain_for_all_lower_layers() -> None:
    """Two nodes of block b, without spines: not one block, since each is in a spine of its own."""
    world = World().add(TWO_LAYERS, node("n1", {"block": "b"}), node("n2", {"block": "b"}))
    assert gathers(world, "blockLayer", 2)[0] == {}
    world = World().add(TWO_LAYERS, node("n1:2", {"block": "b"}))
    assert gathers(world, "blockLayer", 2) == ({"p-0": "n1", "p-1": "n1"}, ("nodeLayer", "n1/b/n1"))


def test_a_private_domain_is_equal_to_no_other_of_its_name() -> None:
    world = World().add(TWO_LAYERS, node("b", {"spine": "s"}), node("n2", {"spine": "s", "block": "b"}))
    assert gathers(world, "blockLayer", 2)[0] == {}


def test_the_cluster_layer_as_parent_is_the_top() -> None:
    world = World().add(of(entry("a", "x", keys.CLUSTER_LAYER), entry("mine", None, "a")), node("n1", {"x": "1"}))
    assert gathers(world, "mine", 1) == ({"p-0": "n1"}, ("mine", "1/n1"))


# -- 6 what is said ---------------------------------------------------------------------------------------------------


def test_five_domains_are_named_most_slots_first_and_the_rest_counted() -> None:
    blocks = "; ".join(f"b{i}: n{i}:{1 + i % 3}" for i in range(17))
    world = World().add(TWO_LAYERS, nodes_of("s{" + blocks + "}"))
    world.add(group("g", 9, wish({"blockLayer": "Must"})), gang_pods("g", 9))
    text = messages(world.plan())["p-0"]
    assert text == (
        "gang default/g: never fits: the largest blockLayer has room for 3 members, 9 are required. "
        "0/17 nodes are available: 17 node(s) cannot hold the whole gang. gang default/g: needed 9, available in "
        "blockLayer: s/b2: 3, s/b5: 3, s/b8: 3, s/b11: 3, s/b14: 3, 12 more."
    )


def test_domains_of_one_path_are_named_each() -> None:
    """Node b0 has no block: its own domain is called like the block of n1 and is another."""
    world = World().add(hierarchy(("blockLayer", "block")), node("b0:2"), node("n1", {"block": "b0"}))
    world.add(group("g", 3, wish({"blockLayer": "Must"})), gang_pods("g", 3))
    assert messages(world.plan())["p-0"].endswith(" needed 3, available in blockLayer: b0: 2, b0: 1.")


def test_with_bound_members_only_their_domain_is_named() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1 n2; b1: n3 n4}"), group("g", 1, wish({"blockLayer": "Must"})))
    world.add(pod("p-0", gang="g", at="n3"), pod("x", at="n4"), pod("p-1", gang="g"))
    assert messages(world.plan())["p-1"] == (
        "gang default/g: minMember 1 met, 1 more waiting for room; gang default/g: needed 1, available in blockLayer: "
        "s/b1: 0. 0/4 nodes are available: 2 Insufficient cpu, 2 node(s) cannot hold the whole gang."
    )


def test_reasons_are_each_pods_own_and_sorted() -> None:
    world = World().add(node("n1:4"), node("n2", memory="1Gi"), group("g", 2))
    world.add(pod("p-0", gang="g", cpu="9"), pod("p-1", gang="g", requests={"memory": "2Gi"}))
    said = messages(world.plan())
    first, last = (
        "gang default/g: never fits: the largest node has 4 cpu, 9 are required.",
        "gang default/g: needed 2, ",
    )
    assert said["p-0"].startswith(f"{first} 0/2 nodes are available: 2 Insufficient cpu. {last}")
    count = "0/2 nodes are available: 1 Insufficient memory, 1 node(s) cannot hold the whole gang."
    assert said["p-1"].startswith(f"{first} {count} {last}")


def test_gate_texts_stand_alone() -> None:
    plan = World().add(node("n1"), group("g", 2), pod("a", gang="g")).plan()
    assert messages(plan) == {"a": "gang default/g: waiting for members, 1 of minMember 2 exist"}
    assert plan.gangs[0].message == messages(plan)["a"] and plan.gangs[0].proof is Proof.UNKNOWN


def test_a_scheduled_gang_with_a_surplus_is_scheduled_and_its_waiting_members_are_told() -> None:
    world = World().add(node("n1:4"), group("g", 3), gang_pods("g", 6))
    plan = world.plan()
    assert status(plan) == {"g": GangStatus.SCHEDULED} and len(bound(plan)) == 4
    assert messages(plan)["p-5"].startswith(
        "gang default/g: minMember 3 met, 2 more waiting for room; gang default/g: needed 1, available in the cluster: "
        "0. 0/1 nodes are available: "
    )


def test_explain_names_every_domain_and_marks_exactly_the_chosen_one() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1 n2; b1: n3:2}"), group("g", 2, wish({"blockLayer": "Prefer"})))
    found = explain(world.add(gang_pods("g", 2)).snapshot(), None, "default/p-0")
    assert [(d.layer, d.name, d.slots, d.needed, d.chosen) for d in found.domains] == [
        (keys.CLUSTER_LAYER, "", 4, 2, False),
        ("spineLayer", "s", 4, 2, False),
        ("blockLayer", "s/b0", 2, 2, False),
        ("blockLayer", "s/b1", 2, 2, False),
        ("nodeLayer", "s/b1/n3", 2, 2, True),
    ]
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1; b1: n3}"), group("g", 2, wish({"blockLayer": "Must"})))
    found = explain(world.add(gang_pods("g", 2)).snapshot(), None, "default/p-0")
    assert not any(domain.chosen for domain in found.domains)


def test_explain_counts_slots_for_the_pods_that_the_plan_places() -> None:
    """p-0 fits nowhere and stays out; for the others the block has two slots, not none."""
    world = World().add(TWO_LAYERS, nodes_of("s{b0: n1 n2; b1: n3}"), group("g", 2, wish({"blockLayer": "Must"})))
    world.add(pod("p-0", gang="g", cpu="5"), pod("p-1", gang="g"), pod("p-2", gang="g"))
    found = explain(world.snapshot(), None, "default/p-1")
    blocks = [(d.name, d.slots, d.needed, d.chosen) for d in found.domains if d.layer == "blockLayer"]
    assert blocks == [("s/b0", 2, 2, True), ("s/b1", 1, 2, False)]


def test_the_last_proof_is_that_of_the_plan_that_bound() -> None:
    world = World().add(node("n1:2"), group("g", 3), gang_pods("g", 3))
    plan = world.plan()
    assert (plan.gangs[0].proof, plan.gangs[0].status) == (Proof.INFEASIBLE, GangStatus.UNSCHEDULABLE)


def test_a_gang_is_replaced_by_nothing_that_was_remembered() -> None:
    """After a restart everything follows from nodeName: a half-bound gang is completed, not begun anew."""
    world = World().add(node("n1:4"), group("g", 4), gang_pods("g", 4))
    first = world.plan()
    for placement in list(first.placements)[:2]:
        world.state.bind(placement.pod_key, placement.node, dict(placement.annotations))
    again = World()
    for info in world.state.pods():
        again.add(replace(info.pod))
    again.add(node("n1:4"), group("g", 4))
    assert set(bound(again.plan())) == {p.pod_key.partition("/")[2] for p in list(first.placements)[2:]}


# -- goal 2 among the pods that are planned ---------------------------------------------------------------------------


def test_pods_that_stay_pending_attract_nothing() -> None:
    """Goal 0 settles who is planned: p-0 alone, and only p-1's selector is on n2."""
    value = {keys.TOPOLOGY_SELECTOR: "j"}
    world = World().add(TWO_LAYERS, nodes_of("s{b: n1:1 n2:2}"), group("g", 1, wish({"nodeLayer": "Must"})))
    world.add(pod("other", at="n2", annotations=value))
    world.add(pod("p-0", gang="g"), pod("p-1", gang="g", annotations=value))
    assert bound(world.plan()) == {"p-0": "n1"}
    found = explain(world.snapshot(), None, "default/p-0")
    assert [domain.name for domain in found.domains if domain.chosen] == ["s/b/n1"]


def test_the_selector_of_a_planned_pod_attracts() -> None:
    value = {keys.TOPOLOGY_SELECTOR: "j"}
    world = World().add(TWO_LAYERS, nodes_of("s{b: n1:1 n2:2}"), group("g", 1, wish({"nodeLayer": "Must"})))
    world.add(pod("other", at="n2", annotations=value))
    world.add(pod("p-0", gang="g", annotations=value), pod("p-1", gang="g"))
    assert bound(world.plan()) == {"p-0": "n2"}


# -- what nodes have --------------------------------------------------------------------------------------------------


def test_a_node_with_less_than_nothing_of_a_resource_takes_pods_that_do_not_ask_for_it() -> None:
    """Others hold two of n2's one; p-2 is not to be where both others are."""
    fpga, app, spine = "example.com/fpga", {"app": "train"}, {"spine": "s"}
    apart = TopologySpreadConstraint(
        max_skew=1, topology_key="block", when_unsatisfiable="DoNotSchedule", label_selector=LabelSelector(app)
    )
    one, two = node("n1:4", spine | {"block": "y"}, **{fpga: "2"}), node("n2:4", spine | {"block": "x"}, **{fpga: "1"})
    world = World().add(TWO_LAYERS, one, two, group("g", 3, wish({"blockLayer": "Prefer"})))
    world.add(pod("other", at="n2", requests={fpga: "2"}), pod("p-0", gang="g", labels=app, requests={fpga: "1"}))
    world.add(pod("p-1", gang="g", labels=app), pod("p-2", gang="g", labels=app, topology_spread_constraints=[apart]))
    found = bound(world.plan())
    assert (found["p-0"], sorted(found.values())) == ("n1", ["n1", "n1", "n2"])


# -- a layer whose label no node has ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("blok", "no node has the label blok of blockLayer"),
        ("blocks", "no node has the label blocks of blockLayer, did you mean block?"),
        ("example.com/block", "no node has the label example.com/block of blockLayer, did you mean block?"),
        ("spine", ""),
    ],
)
def test_a_gang_that_gathers_by_a_label_that_no_node_has_is_told_so(key: str, says: str) -> None:
    world = World().add(*nodes_of("s1{b1: n1 n2; b2: n3 n4}"), hierarchy(("blockLayer", key)))
    world.add(group("g", 3, wish({"blockLayer": "Must"})), *gang_pods("g", 3))
    plan = world.plan()
    if not says:
        assert len(bound(plan)) == 3
    else:
        assert f"gang default/g: needed 3, {says}" in messages(plan)["p-0"]
        assert "n1" not in messages(plan)["p-0"]


def test_names_of_nodes_are_listed_only_where_other_nodes_have_the_label() -> None:
    some = nodes_of("s1{b1: n1 n2}")
    world = World().add(*some, node("n3"), hierarchy(("blockLayer", "block")))
    world.add(group("g", 3, wish({"blockLayer": "Must"})), *gang_pods("g", 3))
    assert "needed 3, available in blockLayer: b1: 2, n3: 1" in messages(world.plan())["p-0"]


def test_a_single_pod_is_told_of_room_and_a_late_member_of_the_label() -> None:
    world = World().add(node("n1"), node("n2:0"), hierarchy(("blockLayer", "block")))
    world.add(group("one", 1, wish({"blockLayer": "Must"})), pod("one-0", cpu="2", gang="one"))
    assert "needed 1, available in blockLayer: n1: 0, n2: 0" in messages(world.plan())["one-0"]
    world = World().add(node("n1"), node("n2"), hierarchy(("blockLayer", "block")))
    world.add(group("g", 1, wish({"blockLayer": "Must"})), pod("g-0", gang="g", at="n1"), pod("g-1", gang="g"))
    assert "needed 1, no node has the label block of blockLayer" in messages(world.plan())["g-1"]


@pytest.mark.parametrize("strategy", ["Must", "Prefer"])
def test_a_layer_whose_label_no_node_has_is_a_warning_where_a_gang_asks_for_it(strategy: str) -> None:
    world = World().add(*nodes_of("s1{b1: n1 n2}"), hierarchy(("blockLayer", "blocks"), ("spineLayer", "spine")))
    world.add(group("g", 1, wish({"spineLayer": "Must"})), pod("p-0", gang="g"))
    assert world.plan().warnings == ()
    world = World().add(*nodes_of("s1{b1: n1 n2}"), hierarchy(("blockLayer", "blocks"), ("spineLayer", "spine")))
    world.add(group("g", 1, wish({"blockLayer": strategy})), pod("p-0", gang="g"))
    text = "no node has the label blocks of blockLayer, did you mean block?"
    assert world.plan().warnings == (("ClusterNetworkTopology/default", text),)
