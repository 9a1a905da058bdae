# SPDX-License-Identifier: Apache-2.0
"""Capacity that is kept for missing members: seats of a broken gang, and spare nodes (repair.md 4.4 and 6)."""

from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.custom_objects import ClusterNetworkTopology, ClusterNetworkTopologySpec, HierarchyEntry
from koordpy.api.objects import Condition, Node, NodeSpec, ObjectMeta, OwnerReference, Pod, Wire
from koordpy.api.times import rfc3339
from koordpy.config.configuration import Consolidation, KoordpyConfiguration, Queue
from koordpy.config.node_failures import Repair
from koordpy.devices.family_registry import make_state
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.topology.topology_layers import read_layers
from tests.scenarios.cluster import group, node, pod, wish

NOW = 2_000_000_000.0


def planned(*objects: Wire, **config: Any) -> RoundPlan:
    settings = KoordpyConfiguration(**config)
    state = make_state(repair=settings.repair)
    for one in objects:
        state.upsert(one)
    return plan_round(state.snapshot(NOW), settings)


def bound(plan: RoundPlan) -> dict[str, str]:
    return {one.pod_key.partition("/")[2]: one.node for one in plan.placements}


def reasons(plan: RoundPlan) -> dict[str, Reason]:
    return {one.pod_key.partition("/")[2]: one.reason for one in plan.pending}


def seats(plan: RoundPlan, gang: str = "g") -> dict[str, int]:
    told = next(one for one in plan.gangs if one.name == f"default/{gang}").repair
    return dict(told.seats) if told is not None else {}


def member(index: int, at: str = "", gang: str = "g", **settings: Any) -> Pod:
    return pod(f"{gang}-{index}", gang=gang, at=at, **settings)


NODES = [node(f"n{i}") for i in range(4)]
LIVE = [member(i, at=f"n{i}") for i in range(3)]


def test_a_filler_of_the_same_priority_does_not_take_the_place_of_a_missing_member() -> None:
    plan = planned(*NODES, group("g", 4), *LIVE, pod("p"))
    assert bound(plan) == {} and reasons(plan) == {"p": Reason.HELD_BACK} and seats(plan) == {"n3": 1}
    until = rfc3339(NOW + 300)
    text = f"room on 1 node is held for gang default/g, which lacks 1 of 4 members, until {until}"
    assert text in plan.pending[0].message


def test_seats_are_open_to_a_higher_priority_and_to_the_gang_itself() -> None:
    assert bound(planned(*NODES, group("g", 4), *LIVE, pod("p", priority=1))) == {"p": "n3"}
    assert bound(planned(*NODES, group("g", 4), *LIVE, member(3), pod("p"))) == {"g-3": "n3"}
    low = [member(i, at=f"n{i}", priority=5) for i in range(3)]
    assert bound(planned(*NODES, group("g", 4), *low, pod("p", priority=5))) == {}


def test_a_seat_that_a_higher_priority_takes_is_no_seat_any_more() -> None:
    plan = planned(*NODES, group("g", 4), *LIVE, pod("p", priority=1), pod("q"))
    assert bound(plan) == {"p": "n3"} and seats(plan) == {}
    assert "is held for" not in plan.pending[0].message


@pytest.mark.parametrize(
    ("hold", "kept"), [("0s", False), ("1s", True), ("10m", True), ("later", True), ("-1m", True), (None, True)]
)
def test_the_annotation_says_how_long(hold: str | None, kept: bool) -> None:
    notes = {} if hold is None else {keys.GANG_SEAT_HOLD: hold}
    plan = planned(*NODES, group("g", 4, notes), *LIVE, pod("p"))
    assert (bound(plan) == {}) is kept and bool(seats(plan)) is kept
    full = planned(*NODES[:3], group("g", 4, notes), *LIVE, member(3))
    assert any(keys.GANG_SEAT_HOLD in text for _, text in full.warnings) is (hold in ("later", "-1m"))


@pytest.mark.parametrize(
    ("kind", "ago", "kept"), [("Degraded", 299, True), ("Degraded", 300, False), ("Stale", 301, False)]
)
def test_seats_end_after_their_time(kind: str, ago: int, kept: bool) -> None:
    said = Condition(type=kind, status="True", reason="MembersMissing", last_transition_time=rfc3339(NOW - ago))
    told = group("g", 4)
    told = replace(told, status=replace(told.status, conditions=[said]))
    assert bool(seats(planned(*NODES, told, *LIVE))) is kept


def test_gangs_without_a_promise_of_a_whole_keep_no_seats() -> None:
    assert seats(planned(*NODES, group("g", 4, {keys.GANG_MODE: "NonStrict"}), *LIVE)) == {}
    assert seats(planned(*NODES, group("g", 4, {keys.GANG_MATCH_POLICY: "only-waiting"}), *LIVE)) == {}
    assert seats(planned(*NODES, group("g", 4), *LIVE, repair=Repair(seat_hold=0.0))) == {}


@pytest.mark.parametrize(("foreign", "kept"), [(1, {"n3": 1}), (3, {})])
def test_a_gang_of_which_another_scheduler_has_bound_a_member_keeps_seats(foreign: int, kept: dict[str, int]) -> None:
    live = [member(i, at=f"n{i}", scheduler="other" if i < foreign else keys.DEFAULT_SCHEDULER_NAME) for i in range(3)]
    assert seats(planned(*NODES, group("g", 4), *live)) == kept


def test_two_gangs_do_not_hold_one_seat() -> None:
    others = [member(0, at="m0", gang="h"), node("m0")]
    plan = planned(*NODES, *others, group("g", 4), group("h", 2), *LIVE)
    assert [seats(plan, name) for name in ("g", "h")] == [{"n3": 1}, {}]
    plan = planned(*NODES, node("n4"), *others, group("g", 4), group("h", 2), *LIVE)
    assert [seats(plan, name) for name in ("g", "h")] == [{"n3": 1}, {"n4": 1}]


def test_a_message_names_three_gangs_and_counts_the_others() -> None:
    names = [f"g{i}" for i in range(5)]
    nodes = [node(f"{name}-{side}") for name in names for side in ("live", "free")]
    gangs = [one for name in names for one in (group(name, 2), member(0, at=f"{name}-live", gang=name))]
    [pending] = planned(*nodes, *gangs, pod("p")).pending
    assert pending.message.count("is held for gang default/g") == 3
    assert " room is held for 2 other gangs." in pending.message


def test_a_broken_gang_may_use_the_seats_of_another() -> None:
    others = [member(0, at="m0", gang="h"), node("m0"), member(1, gang="h")]
    assert bound(planned(*NODES, *others, group("g", 4), group("h", 2), *LIVE)) == {"h-1": "n3"}


@pytest.mark.parametrize("backfill", [True, False])
@pytest.mark.parametrize("waiting", [[member(1, cpu="2")], []], ids=["pending", "not created"])
def test_room_that_ends_in_time_is_kept_for_units_that_end_before(backfill: bool, waiting: list[Pod]) -> None:
    ends = {keys.MAX_RUNTIME: "60s"}
    running = pod("s", at="n1", annotations=ends)
    running = replace(running, status=replace(running.status, start_time=rfc3339(NOW)))
    cluster = [node("n0:2"), node("n1:2"), group("g", 2), running, member(0, at="n0", cpu="2")]
    plan = planned(
        *cluster,
        *waiting,
        pod("p"),
        pod("quick", annotations={keys.MAX_RUNTIME: "30s"}),
        queue=Queue(backfill=backfill),
    )
    assert bound(plan) == {"quick": "n1"} and seats(plan) == {"n1": 1}


def test_the_capacity_of_moved_pods_holds_younger_units_back() -> None:
    """n0 has room for p once b, which is to return there, is left out."""
    cluster = [node("n0:2"), node("n1:2"), pod("a", at="n0"), owned(pod("b", at="n1"))]
    settings = {"consolidation": Consolidation(enabled=True)}
    plan = planned(
        *cluster, pod("big", cpu="2", created=1), pod("p", created=2), pod("q", cpu="2", created=3), **settings
    )
    assert bound(plan) == {"big": "n1"} and [one.returns_to for one in plan.evictions] == ["n0"]
    assert reasons(plan) == {"p": Reason.HELD_BACK, "q": Reason.UNSCHEDULABLE}


def owned(made: Pod) -> Pod:
    """The pod with a controller, which creates it again."""
    owner = OwnerReference(kind="ReplicaSet", name="r", uid="r", controller=True)
    return replace(made, metadata=replace(made.metadata, owner_references=[owner]))


def topology(*spares: object) -> ClusterNetworkTopology:
    entries = [
        HierarchyEntry(layer_name="block", label_key="b", parent_topology_layer="spine", spare_nodes=spares[0]),
        HierarchyEntry(layer_name="spine", label_key="s", spare_nodes=spares[1] if len(spares) > 1 else 0),
    ]
    return ClusterNetworkTopology(
        metadata=ObjectMeta(name="default"), spec=ClusterNetworkTopologySpec(hierarchy=entries)
    )


def in_block(name: str, block: str = "b1", spare: str | None = None, spec: NodeSpec | None = None) -> Node:
    labels = {"b": block, "s": "s1", **({keys.SPARE: spare} if spare is not None else {})}
    made = node(name, labels if block else {"s": "s1"})
    return replace(made, spec=spec) if spec is not None else made


@pytest.mark.parametrize(
    ("nodes", "spares"),
    [
        ([in_block("n1"), in_block("n2"), in_block("n10")], ("n10",)),
        ([in_block("n1"), in_block("n2", spare="true")], ("n2",)),
        ([in_block("n1", spare="true"), in_block("n2", spare="true")], ("n1", "n2")),
        ([in_block("n1"), in_block("n2", spare="false")], ("n1",)),
        ([in_block("n1"), in_block("n2", spare="maybe")], ("n2",)),
        ([in_block("n1"), in_block("n2", spec=NodeSpec(unschedulable=True))], ("n1",)),
        ([in_block("n1"), in_block("n2", "b2")], ("n1", "n2")),
        ([in_block("n1", "")], ()),
    ],
)
def test_the_last_free_nodes_of_each_domain_are_spares(nodes: list[Node], spares: tuple[str, ...]) -> None:
    assert planned(topology(1), *nodes).spares == spares


def test_a_node_in_use_is_no_spare_and_no_pod_is_moved_to_refill() -> None:
    plan = planned(topology(1), in_block("n1"), in_block("n2"), pod("x", at="n2"))
    assert plan.spares == ("n1",) and not plan.evictions
    assert planned(topology(1), in_block("n1"), pod("x", at="n1")).spares == ()


def test_spares_are_closed_to_all_but_repairs_and_system_pods() -> None:
    plan = planned(topology(1), in_block("n1"), in_block("n2"), pod("p"), pod("q"))
    assert bound(plan) == {"p": "n1"} and reasons(plan) == {"q": Reason.HELD_BACK}
    assert "1 node(s) are spares" in plan.pending[0].message and plan.pending[0].message.endswith("1 spare node.")
    agent = pod("p")
    owner = OwnerReference(kind="DaemonSet", name="d", uid="d", controller=True)
    agent = replace(agent, metadata=replace(agent.metadata, owner_references=[owner]))
    for able in (pod("p", priority=2_000_000_000), agent, pod("p", annotations={keys.MIRROR: "x"})):
        assert bound(planned(topology(1), in_block("n1"), able)) == {"p": "n1"}
    broken = [group("g", 2), member(0, at="n0"), member(1)]
    assert bound(planned(topology(1), in_block("n0"), in_block("n1"), *broken)) == {"g-1": "n1"}


@pytest.mark.parametrize(
    ("free", "starts"), [((), {"a-1": "s0"}), (("n2",), {"a-1": "s0", "b-1": "n2"})], ids=["no-room", "room"]
)
def test_late_members_beside_a_broken_gang_use_no_spares(free: tuple[str, ...], starts: dict[str, str]) -> None:
    """The gangs of a GangGroup are planned together, and only one of them is broken."""
    linked = {keys.GANG_GROUPS: '["default/a", "default/b"]'}
    spares = [node(name, {keys.SPARE: "true"}) for name in ("s0", "s1")]
    gangs = [group("a", 2, linked), group("b", 1, linked)]
    pods = [member(i, at, gang) for gang, own in (("a", "n0"), ("b", "n1")) for i, at in enumerate((own, ""))]
    plan = planned(*map(node, ("n0", "n1", *free)), *spares, *gangs, *pods)
    assert bound(plan) == starts and not plan.rejected


def test_broken_gangs_are_tried_before_gangs_that_lack_none() -> None:
    """A gang with a Succeeded member is not broken with one live member less than its minimum."""
    ended = member(2, phase="Succeeded", priority=9)
    whole = [
        group("g", 3),
        member(0, at="n0", priority=9),
        member(1, at="n1", priority=9),
        ended,
        member(3, priority=9),
    ]
    broken = [group("h", 2), member(0, at="n2", gang="h"), member(1, gang="h")]
    assert bound(planned(*NODES, *whole, *broken, pod("p", priority=9))) == {"h-1": "n3"}


def test_a_gang_that_needs_spares_is_held_back() -> None:
    nodes = [in_block(f"n{i}") for i in range(18)]
    must = wish({"block": "Must"})
    members = [member(i) for i in range(17)]
    assert len(bound(planned(topology(2), *nodes, group("g", 16, must), *members[:16]))) == 16
    plan = planned(topology(2), *nodes, group("g", 17, must), *members)
    assert set(reasons(plan).values()) == {Reason.HELD_BACK}
    assert "available in block: s1/b1: 16; 2 spare nodes" in plan.pending[0].message


@pytest.mark.parametrize(
    ("cpu", "reason", "text"),
    [
        ("1", "HeldBack", " 1 spare node."),
        ("9", "NeverFits", " never fits: all nodes that match it are spares."),
    ],
)
def test_a_pod_for_which_only_spares_are_left_is_not_told_that_no_node_matches(
    cpu: str, reason: str, text: str
) -> None:
    [pending] = planned(topology(1), in_block("n1"), pod("p", cpu=cpu)).pending
    assert pending.offline_reason == reason and pending.message.endswith(text)
    assert ("never fits" in pending.message) == (reason == "NeverFits")


@pytest.mark.parametrize(
    ("spares", "fault"),
    [
        ((1, 2), "spec.hierarchy[1].spareNodes: only one layer may keep spares"),
        ((-1,), "spec.hierarchy[0].spareNodes: must be an integer of 0 or more"),
        (("two",), "spec.hierarchy[0].spareNodes: must be an integer of 0 or more"),
        ((True,), "spec.hierarchy[0].spareNodes: must be an integer of 0 or more"),
    ],
)
def test_faults_of_the_topology(spares: tuple[object, ...], fault: str) -> None:
    layers, faults = read_layers(topology(*spares))
    assert layers is None and [str(one) for one in faults] == [fault]


def test_the_node_layer_keeps_no_spares() -> None:
    entries = [
        HierarchyEntry(layer_name="nodeLayer", parent_topology_layer="block", spare_nodes=1),
        HierarchyEntry(layer_name="block", label_key="b"),
    ]
    spec = ClusterNetworkTopologySpec(hierarchy=entries)
    _, faults = read_layers(ClusterNetworkTopology(metadata=ObjectMeta(name="default"), spec=spec))
    assert [str(one) for one in faults] == ["spec.hierarchy[0].spareNodes: the node layer keeps no spares"]


def test_an_unreadable_label_counts_as_absent_and_is_told() -> None:
    plan = planned(in_block("n1", spare="maybe"), pod("p"))
    assert bound(plan) == {"p": "n1"}
    text = f"label {keys.SPARE} cannot be read: 'maybe' is neither true nor false: it counts as absent"
    assert ("Node/n1", text) in plan.warnings
