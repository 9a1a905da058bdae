# SPDX-License-Identifier: Apache-2.0
"""Broken gangs: who counts, where the missing members go, with which ranks, and what each policy does (repair.md 4)."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Node, NodeSpec, Pod, Taint, Toleration, Wire
from koordpy.cache.cluster_state import ClusterState
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration, StaleGangs
from koordpy.config.node_failures import Repair
from koordpy.devices.family_registry import make_state
from koordpy.fairness.tenant_entitlements import entitlements_of
from koordpy.feasibility.round_state import RoundState
from koordpy.plan.round_plan import GangReport, GangStatus, RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.rules.usable_shares import TenantShares
from tests.scenarios.cluster import TWO_LAYERS, group, node, nodes_of, pod, wish

MUST = wish({"blockLayer": "Must"})
NOW = 1_000_000.0


def state_of(*objects: Wire, repair: Repair | None = None) -> ClusterState:
    state = make_state(repair=repair or Repair())
    for one in objects:
        state.upsert(one)
    return state


def planned(*objects: Wire, **config: Any) -> RoundPlan:
    settings = KoordpyConfiguration(**config)
    return plan_round(state_of(*objects, repair=settings.repair).snapshot(NOW), settings)


def member(index: int, at: str = "", rank: int | None = None, name: str = "", **settings: Any) -> Pod:
    notes = {} if rank is None else {keys.BOUND_RANK: str(rank)}
    return pod(name or f"g-{index}", gang="g", at=at, annotations=notes, **settings)


def unreachable(name: str, labels: dict[str, str] | None = None) -> Node:
    made = node(name, labels)
    taint = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")
    return replace(made, spec=NodeSpec(taints=[taint]))


def gang_of(plan: RoundPlan) -> GangReport:
    return next(one for one in plan.gangs if one.name == "default/g")


def bound(plan: RoundPlan) -> dict[str, tuple[str, str]]:
    """Pod -> (node, rank)."""
    ranks = {one.pod_key: one.annotations.get(keys.BOUND_RANK, "") for one in plan.placements}
    return {one.pod_key.partition("/")[2]: (one.node, ranks[one.pod_key]) for one in plan.placements}


THREE = [member(i, at=f"n{i}", rank=i) for i in range(3)]


def test_a_member_on_a_lost_node_is_no_member_and_its_successor_gets_its_rank() -> None:
    cluster = [*(node(f"n{i}") for i in range(3)), unreachable("n3"), node("n4"), group("g", 4)]
    plan = planned(*cluster, *THREE, member(3, at="n3", rank=3), member(3, name="g-3b", labels={}))
    assert bound(plan) == {"g-3b": ("n4", "3")}
    told = gang_of(plan)
    assert (told.status, told.members, told.bound) == (GangStatus.SCHEDULED, 4, 4)
    assert told.repair is not None and told.repair.missing == 0
    assert [(one.pod_key, one.node, one.cause) for one in told.repair.lost] == [("default/g-3", "n3", "NodeTaint")]


def test_a_member_that_tolerates_the_taint_for_ever_stays_live() -> None:
    forever = [Toleration(key="node.kubernetes.io/unreachable", operator="Exists")]
    cluster = [*(node(f"n{i}") for i in range(3)), unreachable("n3"), group("g", 4)]
    told = gang_of(planned(*cluster, *THREE, member(3, at="n3", rank=3, tolerations=forever)))
    assert (told.status, told.bound, told.repair) == (GangStatus.SCHEDULED, 4, None)


def test_a_node_that_comes_back_makes_its_members_live_again() -> None:
    state = state_of(*(node(f"n{i}") for i in range(4)), group("g", 4), *THREE, member(3, at="n3", rank=3))
    ref = next(iter(state.snapshot(NOW).members))

    def live() -> int:
        snapshot = state.snapshot(NOW)
        return sum(one.bound and not one.lost for one in snapshot.members[ref])

    held = state.snapshot(NOW).quotas.usage
    assert live() == 4
    state.upsert(unreachable("n3"))
    assert live() == 3 and state.snapshot(NOW).quotas.usage != held
    state.upsert(node("n3"))
    assert live() == 4 and state.snapshot(NOW).quotas.usage == held
    state.delete(Node, "n3")
    assert live() == 3
    state.upsert(node("n3"))
    assert live() == 4


def test_a_lost_member_keeps_the_capacity_of_its_node() -> None:
    lost = replace(unreachable("n3"), status=node("n3").status)
    anywhere = [Toleration(operator="Exists")]
    plan = planned(lost, group("g", 4), *THREE, *map(node, ("n0", "n1", "n2")), member(3, at="n3"),
                   pod("p", tolerations=anywhere))  # fmt: skip
    assert not plan.placements


def test_the_missing_go_to_the_block_of_the_live_ones() -> None:
    cluster = nodes_of("s1{b0: a0; b1: n0 n1 n2 n4}")
    prefer = group("g", 4, wish({"blockLayer": "Prefer"}))
    assert bound(planned(TWO_LAYERS, *cluster, prefer, *THREE, member(3))) == {"g-3": ("n4", "3")}


@pytest.mark.parametrize(
    ("live", "pending", "ranks"),
    [
        # explicit indexes equal to the ranks: a free index is the rank
        ([("a-0", 0, "0"), ("a-1", 1, "1")], [("a-7", "7")], {"a-7": "7"}),
        # no explicit index: the lowest free rank, or the number at the end of the name if it is one of them
        ([("a", 0, None), ("c", 2, None)], [("x", None)], {"x": "1"}),
        ([("a", 0, None), ("b", 3, None)], [("x-2", None), ("x-9", None)], {"x-2": "2", "x-9": "1"}),
        # an index of a live member differs from its rank: indexes do not count
        ([("a-0", 1, "0"), ("a-1", 0, "1")], [("a-7", "7")], {"a-7": "2"}),
        # an index that is taken is not free
        ([("a-0", 0, "0"), ("a-1", 1, "1")], [("b-1", "1")], {"b-1": "2"}),
    ],
)
def test_ranks_of_live_members_stay_and_the_missing_get_the_free_ones(
    live: list[tuple[str, int, str | None]], pending: list[tuple[str, str | None]], ranks: dict[str, str]
) -> None:
    def made(name: str, index: str | None, at: str = "", rank: int | None = None) -> Pod:
        labels = {keys.RANK_INDEX_LABEL: index} if index is not None else {}
        return member(0, at=at, rank=rank, name=name, labels=labels)

    minimum = len(live) + len(pending)
    pods = [made(name, index, f"n{i}", rank) for i, (name, rank, index) in enumerate(live)]
    waiting = [made(name, index) for name, index in pending]
    plan = planned(*(node(f"n{i}") for i in range(minimum)), group("g", minimum), *pods, *waiting)
    assert {name: rank for name, (_, rank) in bound(plan).items()} == ranks


def test_no_pod_is_evicted_for_a_gang_that_stays_broken() -> None:
    low = pod("x", at="n4", priority=0)
    cluster = [*map(node, ("n0", "n1", "n4")), group("g", 4), low]
    live = [member(i, at=f"n{i}", rank=i, priority=10) for i in range(2)]
    plan = planned(*cluster, *live, member(2, priority=10), member(3, priority=10))
    assert not plan.evictions and not plan.nominations and gang_of(plan).status is GangStatus.DEGRADED
    plan = planned(*cluster, node("n5"), *live, member(2, priority=10), member(3, priority=10))
    assert bound(plan) == {"g-2": ("n5", "2")} and not plan.evictions
    plan = planned(*cluster, *live, member(2, at="n0", rank=2, priority=10), member(3, priority=10))
    assert [(one.pod_key, one.rule) for one in plan.evictions] == [("default/x", "priority")]


@pytest.mark.parametrize(("policy", "evicts"), [("replace", True), ("regather", True), ("wait", False), ("x", True)])
def test_a_gang_that_waits_has_no_victims(policy: str, evicts: bool) -> None:
    cluster = [*map(node, ("n0", "n1")), group("g", 2, {keys.GANG_REPAIR: policy}), pod("x", at="n1", priority=0)]
    plan = planned(*cluster, member(0, at="n0", priority=10), member(1, priority=10))
    assert bool(plan.evictions) is evicts
    bar = "preemption: not eligible due to repair policy wait."
    assert [bar in one.message for one in plan.pending] == ([] if evicts else [True])
    warned = [text for _, text in plan.warnings if keys.GANG_REPAIR in text]
    assert warned == ([f"annotation {keys.GANG_REPAIR} cannot be read: 'x' is none of replace, regather, wait: replace"
                       " holds"] if policy == "x" else [])  # fmt: skip


@pytest.mark.parametrize(
    ("live", "told"), [(1, ["'x' is none of replace, regather, wait: replace holds", "'y' is no duration"]), (2, [])]
)
def test_settings_of_a_broken_gang_without_pending_members_are_read_with_warnings(live: int, told: list[str]) -> None:
    notes = {keys.GANG_REPAIR: "x", keys.GANG_SEAT_HOLD: "y"}
    members = [member(i, at=f"n{i}") for i in range(live)]
    texts = [text for _, text in planned(*map(node, ("n0", "n1")), group("g", 2, notes), *members).warnings]
    assert len(texts) == len(told) and all(part in text for part, text in zip(told, sorted(texts), strict=True))


Moved = tuple[list[tuple[str, str, str]], dict[str, tuple[str, str]]]


def moved(policy: str, *objects: Wire, grace: str | None = "0s", **config: Any) -> Moved:
    """((pod, rule, returns to) of evictions, placements): g-0 on n0 is live, g-1 has no place in block b1."""
    notes = {**MUST, keys.GANG_REPAIR: policy, **({keys.GANG_STALE_GRACE: grace} if grace is not None else {})}
    plan = planned(TWO_LAYERS, *objects, group("g", 2, notes), member(0, at="n0", rank=0), member(1), **config)
    evicted = [(one.pod_key.partition("/")[2], one.rule, one.returns_to) for one in plan.evictions]
    return evicted, bound(plan)


BLOCKS = nodes_of("s1{b1: n0; b2: z0 z1}")


def test_regather_moves_the_gang_as_a_whole_or_not_at_all() -> None:
    assert moved("regather", *BLOCKS) == ([("g-0", "repair", "z0")], {"g-1": ("z1", "1")})
    assert moved("replace", *BLOCKS) == ([("g-0", "stale-gang", "")], {})
    assert moved("wait", *BLOCKS) == ([("g-0", "stale-gang", "")], {})  # an own grace
    assert moved("regather", *BLOCKS, pod("x", at="z0")) == ([("g-0", "stale-gang", "")], {})


@pytest.mark.parametrize("priority", [0, 9])
def test_a_gang_moves_as_a_whole_before_other_units_take_its_new_nodes(priority: int) -> None:
    """Broken gangs come first, whatever the priority of the others (quota-fairness.md 2)."""
    fillers = [pod(f"x-{i}", priority=priority, created=i) for i in range(2)]
    evicted, placements = moved("regather", *BLOCKS, *fillers)
    assert evicted == [("g-0", "repair", "z0")]
    assert placements["g-1"] == ("z1", "1")


def test_the_grace_of_regather_runs_without_stale_gangs_and_that_of_wait_needs_an_own_one() -> None:
    at_once = StaleGangs(enabled=False, grace=0.0)
    assert moved("regather", *BLOCKS, grace=None, stale_gangs=at_once)[0] == [("g-0", "repair", "z0")]
    assert moved("replace", *BLOCKS, grace=None, stale_gangs=at_once)[0] == []
    assert moved("regather", *BLOCKS, grace="-1", stale_gangs=at_once)[0] == []
    assert moved("regather", *BLOCKS, grace="10m", stale_gangs=at_once)[0] == []
    enabled = StaleGangs(enabled=True, grace=0.0)
    assert moved("replace", *BLOCKS, grace=None, stale_gangs=enabled)[0] == [("g-0", "stale-gang", "")]
    assert moved("wait", *BLOCKS, grace=None, stale_gangs=enabled)[0] == []
    by_config = {"stale_gangs": enabled, "repair": Repair(policy="wait")}
    assert moved("unread", *BLOCKS, grace=None, **by_config)[0] == []


@pytest.mark.parametrize(
    ("graces", "others", "rules"),
    [
        (("0s", None), 2, ["stale-gang"] * 3),
        (("0s", "10m"), 2, ["stale-gang"] * 3),
        (("0s", None), 1, []),  # gang h is broken, too, and its own grace never ends
        (("0s", "10m"), 1, []),
        (("0s", "0s"), 1, ["stale-gang"] * 2),
        ((None, "0s"), 2, []),
    ],
)
def test_a_stale_gang_takes_its_gang_group_if_all_its_broken_gangs_are_stale(
    graces: tuple[str | None, str | None], others: int, rules: list[str]
) -> None:
    """g has 1 of 2 members, h has `others` of 2; block b1 has no more nodes."""
    notes: list[dict[str, str]] = [
        {**MUST, keys.GANG_GROUPS: '["default/g", "default/h"]', **({keys.GANG_STALE_GRACE: grace} if grace else {})}
        for grace in graces
    ]
    nodes = nodes_of("s1{b1: n0 n1 n2}")[: 1 + others]
    cluster = [TWO_LAYERS, *nodes, group("g", 2, notes[0]), group("h", 2, notes[1])]
    second = [pod(f"h-{i}", gang="h", at=f"n{i + 1}" if i < others else "") for i in range(2)]
    plan = planned(*cluster, member(0, at="n0"), member(1), *second)
    assert [one.rule for one in plan.evictions] == rules
    assert {one.pod_key for one in plan.evictions} == (
        {"default/g-0", *(f"default/h-{i}" for i in range(others))} if rules else set()
    )
    stale = {"default/g"} if others == 2 else {"default/g", "default/h"}
    assert {one.beneficiary for one in plan.evictions} == (stale if rules else set())
    assert len({one.unit for one in plan.evictions}) == bool(rules)


def test_a_protected_member_keeps_the_gang_where_it_is() -> None:
    notes = {**MUST, keys.GANG_REPAIR: "regather", keys.GANG_STALE_GRACE: "0s"}
    held = member(0, at="n0", rank=0, labels={keys.QUOTA_PREEMPTIBLE: "false"})
    plan = planned(TWO_LAYERS, *BLOCKS, group("g", 2, notes), held, member(1))
    assert not plan.evictions and not plan.placements


def test_a_lost_node_that_may_come_back_costs_no_gang() -> None:
    notes = {**MUST, keys.GANG_STALE_GRACE: "0s"}
    cluster = [*nodes_of("s1{b1: n0; b2: z0 z1}"), unreachable("n1", {"block": "b1", "spine": "s1"})]
    pods = [group("g", 2, notes), member(0, at="n0", rank=0), member(1, at="n1", rank=1), member(1, name="g-1b")]
    assert not planned(TWO_LAYERS, *cluster, *pods).evictions
    gone = replace(pods[2], metadata=replace(pods[2].metadata, deletion_timestamp="1970-01-12T13:00:00Z"))
    plan = planned(TWO_LAYERS, *cluster, pods[0], pods[1], gone, pods[3])
    assert [(one.pod_key, one.rule) for one in plan.evictions] == [("default/g-0", "stale-gang")]


def test_a_degraded_gang_says_how_many_it_has() -> None:
    plan = planned(*map(node, ("n0", "n1", "n2")), group("g", 4), *THREE)
    told = gang_of(plan)
    assert told.status is GangStatus.DEGRADED and told.message.startswith("3 of 4 members; ")
    assert told.repair is not None and (told.repair.missing, told.repair.ranks) == (1, (3,))


@pytest.mark.parametrize(
    ("surplus", "evicted"),
    [
        pytest.param(0, {"v-0", "v-1"}, id="the-missing-member-evicts-a-gang"),
        pytest.param(1, set(), id="a-member-above-the-minimum-evicts-none"),
    ],
)
def test_lost_members_make_their_successor_no_surplus(surplus: int, evicted: set[str]) -> None:
    """The plan check counts members as the search does (preemption.md 3.7)."""
    cluster = [
        *(node(f"n{i}") for i in range(2)),
        unreachable("n2"),
        node("n3:2"),
        group("g", 3 - surplus),
        group("v", 2),
    ]
    others = [pod(f"v-{i}", gang="v", at="n3") for i in range(2)]
    members = [*(member(i, at=f"n{i}", priority=9) for i in range(3)), member(2, name="g-2b", priority=9)]
    plan = planned(*cluster, *members, *others)
    assert not plan.rejected
    assert {one.pod_key.partition("/")[2] for one in plan.evictions} == evicted


@pytest.mark.parametrize("near", [("n0", "n1"), ("n0", "n1", "n3"), ("n2",), ("n2", "n3")])
def test_lost_members_are_in_no_share_on_some_of_the_nodes(near: tuple[str, ...]) -> None:
    """Usage on some nodes is added up, or subtracted from the whole: either way without what is lost."""
    cluster = [*(node(f"n{i}") for i in range(2)), unreachable("n2"), node("n3"), group("g", 3)]
    snapshot = state_of(*cluster, *(member(i, at=f"n{i}") for i in range(3))).snapshot(NOW)
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration())
    mins = entitlements_of(snapshot, KoordpyConfiguration().fairness, snapshot.quotas)
    assert mins is not None
    here = np.array([one.name in near for one in snapshot.nodes])
    found = TenantShares(round_state, mins)._quotas_on(here)
    assert sum(sums["pods"] for sums in found.usage.values()) == len({"n0", "n1"}.intersection(near))
