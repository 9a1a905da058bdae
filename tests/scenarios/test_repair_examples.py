# SPDX-License-Identifier: Apache-2.0
"""Worked examples of repair.md 1 to 7. Each node has one CPU in place of a GPU, and each pod requests one."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.custom_objects import (
    ClusterNetworkTopology,
    ClusterNetworkTopologySpec,
    HierarchyEntry,
    PodTemplateReference,
    ProvisioningRequest,
    ProvisioningRequestSpec,
    ProvisioningRequestStatus,
    RequestedPodSet,
)
from koordpy.api.objects import Condition, ObjectMeta, Pod, Wire
from koordpy.api.times import rfc3339
from koordpy.config.configuration import KoordpyConfiguration, StaleGangs
from koordpy.config.node_failures import Autoscaling, Provisioning
from koordpy.devices.family_registry import make_state
from koordpy.planner.planning_round import plan_round
from koordpy.simulation.failing_nodes import NodeFailure
from koordpy.simulation.simulated_rounds import simulate
from tests.scenarios.cluster import TWO_LAYERS, gang_pods, group, node, nodes_of, pod, wish
from tests.scenarios.quotas import belongs, quota

NOW = datetime(2026, 1, 2, tzinfo=UTC)
MUST = wish({"blockLayer": "Must"})
Document = dict[str, Any]


def run(*objects: Wire | list[Any], fail: str = "", **config: Any) -> Document:
    """The SimulationResult. fail: nodes that fail before round 2."""
    settings = KoordpyConfiguration(**config)
    state = make_state(repair=settings.repair)
    for one in objects:
        for obj in one if isinstance(one, list) else [one]:
            state.upsert(obj)
    failures = [NodeFailure(name, 2) for name in fail.split()]
    return simulate(state, settings, planner=plan_round, now=NOW, failures=failures).document()


def reasons(done: Document) -> dict[str, str]:
    return {one["pod"]: one["reason"] for one in done["pending"]}


def bound(done: Document) -> dict[str, str]:
    """Pod -> node of its last Binding."""
    return {one["pod"]: one["node"] for one in done["bindings"]}


def rules(done: Document) -> dict[str, str]:
    return {one["pod"]: one["rule"] for one in done["evictions"]}


def member(index: int, at: str = "", **settings: Any) -> Pod:
    return pod(f"g-{index}", gang="g", at=at, **settings)


def test_1_a_quota_and_a_gang_that_lacks_members() -> None:
    used = pod("used", at="n0", labels=belongs("q"))
    asking = pod("p", labels=belongs("q"))
    full = run(node("n0"), node("n1"), quota("q", 0, 1), used, asking)
    assert reasons(full) == {"p": "QuotaExceeded"}
    by_runtime = run(node("n0"), quota("q", 0, 4), used, asking)
    assert reasons(by_runtime) == {"p": "Unschedulable"}
    short = [node("n0"), group("g", 3), *gang_pods("g", 2, "g")]
    honest, upstream = run(*short), run(*short, autoscaling=Autoscaling(reasons="upstream"))
    assert reasons(honest) == dict.fromkeys(("g-0", "g-1"), "NotReadyForScheduling")
    assert reasons(upstream) == dict.fromkeys(("g-0", "g-1"), "Unschedulable")
    assert [one["message"] for one in honest["pending"]] == [one["message"] for one in upstream["pending"]]


def test_2_a_node_by_name_and_an_unknown_label() -> None:
    by_name = run(node("n1"), pod("x", at="n1"), pod("p", node_selector={"kubernetes.io/hostname": "n1"}))
    assert reasons(by_name) == {"p": "NodesCannotHelp"}
    assert by_name["pending"][0]["message"].endswith(" no new node would help: it asks for nodes by name")
    assert reasons(run(node("n1"), pod("p", node_selector={"gpu": "h200"}))) == {"p": "NeverFits"}


@pytest.mark.parametrize(("fixed", "reason"), [(("blockLayer",), "NodesCannotHelp"), ((), "Unschedulable")])
def test_3_a_block_without_further_nodes(fixed: tuple[str, ...], reason: str) -> None:
    # n2 is in use, but would have a place for g-2 in an empty cluster
    cluster = [TWO_LAYERS, nodes_of("s{b1: n0 n1 n2; b2: n3}"), pod("x", at="n2"), group("g", 3, MUST)]
    done = run(*cluster, member(0, "n0"), member(1, "n1"), member(2), autoscaling=Autoscaling(fixed_layers=fixed))
    assert reasons(done) == {"g-2": reason}
    text = " no new node would help: members must join blockLayer s/b1, which gets no further nodes"
    assert done["pending"][0]["message"].endswith(text) is bool(fixed)


def test_4_half_a_nominated_gang_reserves_nothing() -> None:
    nominated = member(0)
    nominated = replace(nominated, status=replace(nominated.status, nominated_node_name="n1"))
    done = run(node("n1"), node("n2"), pod("x", at="n2"), group("g", 2), nominated, member(1), pod("p", created=9))
    assert bound(done) == {"p": "n1"}
    assert reasons(done) == dict.fromkeys(("g-0", "g-1"), "Unschedulable")


@pytest.mark.parametrize(
    ("failed", "state", "name"),
    [(None, "Wanted", "koordpy-g-1"), (30, "BackOff", "koordpy-g-1"), (120, "Wanted", "koordpy-g-2")],
)
def test_5_one_request_for_the_whole_gang(failed: int | None, state: str, name: str) -> None:
    asks = Autoscaling(provisioning=Provisioning(mode="all"))
    cluster: list[Any] = [node("n0"), node("n1"), group("g", 3), *gang_pods("g", 3, "g")]
    if failed is not None:
        at = rfc3339(NOW.timestamp() - failed)
        notes = {keys.PROVISIONING_FOR: "default/g", keys.PROVISIONING_ATTEMPT: "1"}
        sets = [RequestedPodSet(pod_template_ref=PodTemplateReference(name="koordpy-g-1-0"), count=3)]
        cluster.append(
            ProvisioningRequest(
                metadata=ObjectMeta(name="koordpy-g-1", namespace="default", annotations=notes),
                spec=ProvisioningRequestSpec(pod_sets=sets, provisioning_class_name="c"),
                status=ProvisioningRequestStatus(
                    conditions=[Condition(type="Failed", status="True", last_transition_time=at)]
                ),
            )
        )
    done = run(*cluster, autoscaling=asks)
    assert reasons(done) == dict.fromkeys(("g-0", "g-1", "g-2"), "WaitingForProvisioning")
    [asked] = done["provisioning"]
    assert (asked["state"], asked["name"]) == (state, name)
    assert [one["count"] for one in asked["podSets"]] == [3]


@pytest.mark.parametrize(("priority", "hold", "place"), [(0, None, None), (1, None, "n3"), (0, "0s", "n3")])
def test_6_a_seat_for_a_member_that_does_not_exist(priority: int, hold: str | None, place: str | None) -> None:
    notes = {} if hold is None else {keys.GANG_SEAT_HOLD: hold}
    live = [member(i, f"n{i}") for i in range(3)]
    done = run([node(f"n{i}") for i in range(4)], group("g", 4, notes), live, pod("p", priority=priority))
    assert bound(done) == ({"p": place} if place else {})
    assert reasons(done) == ({} if place else {"p": "HeldBack"})
    repair = done["gangs"][0]["repair"]
    assert (repair["missing"], repair["ranks"]) == (1, [3])
    assert repair["seats"] == ({} if place else {"n3": 1})


def test_7_a_member_returns_to_its_block_with_its_rank() -> None:
    cluster = [TWO_LAYERS, nodes_of("s{b1: n0 n1 n2 n3 n4; b2: n5}"), group("g", 4, MUST), *gang_pods("g", 4, "g")]
    done = run(*cluster, fail="n2")
    [again] = [one for one in done["bindings"] if one["round"] == 2]
    assert (again["pod"], again["node"], again["annotations"][keys.BOUND_RANK]) == ("g-2", "n4", "2")
    assert done["failures"] == [{"node": "n2", "round": 2, "pods": ["default/g-2"]}]


@pytest.mark.parametrize(
    ("policy", "busy", "rule"),
    [
        ("replace", False, "stale-gang"),
        ("regather", False, "repair"),
        ("regather", True, "stale-gang"),
        ("wait", False, None),
    ],
)
def test_8_a_gang_without_a_place_in_its_block(policy: str, busy: bool, rule: str | None) -> None:
    # the grace of the policy `wait` is only configured, so it does not apply
    notes = {**MUST, keys.GANG_REPAIR: policy, **({} if policy == "wait" else {keys.GANG_STALE_GRACE: "0s"})}
    cluster = [TWO_LAYERS, nodes_of("s{b1: n0 n1; b2: n2 n3}"), group("g", 2, notes)]
    other = [pod("x", at="n3", priority=9)] if busy else []
    live = [member(0, "n0"), member(1, "n1")]
    done = run(*cluster, live, other, fail="n1", stale_gangs=StaleGangs(enabled=True, grace=0.0))
    assert rules(done) == ({"g-0": rule} if rule else {})
    assert bound(done) == ({"g-0": "n2", "g-1": "n3"} if rule and not busy else {})


@pytest.mark.parametrize("size", [16, 17])
def test_9_spares_of_a_rack(size: int) -> None:
    entry = HierarchyEntry(layer_name="rack", label_key="rack", parent_topology_layer=keys.CLUSTER_LAYER, spare_nodes=2)
    tree = ClusterNetworkTopology(
        metadata=ObjectMeta(name="default"), spec=ClusterNetworkTopologySpec(hierarchy=[entry])
    )
    nodes = [node(f"n{i}", {"rack": "r1"}) for i in range(1, 19)]
    done = run(tree, nodes, group("g", size), gang_pods("g", size, "g"), fail="n3" if size == 16 else "")
    if size == 17:
        assert set(reasons(done).values()) == {"HeldBack"} and not done["bindings"]
        return
    first = {one["pod"]: one["node"] for one in done["bindings"] if one["round"] == 1}
    assert set(first.values()) == {f"n{i}" for i in range(1, 17)}
    [lost] = [name for name, at in first.items() if at == "n3"]
    assert {one["pod"]: one["node"] for one in done["bindings"] if one["round"] == 2} == {lost: "n17"}


def test_10_no_pod_is_evicted_for_a_gang_that_stays_broken() -> None:
    blocks = [TWO_LAYERS, nodes_of("s{b1: n0 n1 n2 n3; b2: z0}")]
    gang = [group("g", 4, MUST), *(member(i, f"n{i}" if i < 2 else "", priority=5) for i in range(4))]
    whole = run(*blocks, *gang, pod("p", at="n3"))
    # p is created again, and takes the node in the other block
    assert rules(whole) == {"p": "priority"} and bound(whole) == {"g-2": "n2", "g-3": "n3", "p": "z0"}
    rounds = {one["pod"]: one["round"] for one in (*whole["bindings"], *whole["evictions"])}
    assert rounds["g-2"] == 1 and rounds["p"] == 2
    firm = pod("firm", at="n2", priority=5)
    broken = run(*blocks, *gang, pod("p", at="n3"), firm)
    assert broken["evictions"] == [] and broken["bindings"] == []
    report = broken["gangs"][0]
    assert (report["status"], report["repair"]["missing"]) == ("Degraded", 2)
