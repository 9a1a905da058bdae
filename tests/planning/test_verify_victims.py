# SPDX-License-Identifier: Apache-2.0
"""The independent check of victims: every rule that a plan breaks is found, and what it refuses is not carried out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs

from koordpy.api import keys
from koordpy.api.objects import (
    LabelSelector,
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import (
    Consolidation,
    Fairness,
    KoordpyConfiguration,
    MaxHarm,
    Preemption,
    Protection,
    Quota,
)
from koordpy.devices.family_registry import make_state
from koordpy.fairness.tenant_entitlements import entitlements_of
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups, Unit
from koordpy.observe.metrics import Metrics
from koordpy.plan.round_plan import Proof
from koordpy.planner.actions import give_back_overuse, release_stale_gangs
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.search import preemption_search
from koordpy.preemption.selection.disruption_budgets import snapshot_budgets
from koordpy.preemption.selection.preemption_names import EVERY_WAY, Way
from koordpy.verify.eviction_check import EvictedUnit, Round, check_given_back, check_stale
from koordpy.verify.plan_check import check_returns
from koordpy.verify.plan_fault import Check, PlanFault
from koordpy.verify.preemption_check import VictimCheck, check_moves, check_victims
from tests.planning.gpu.machines import device
from tests.planning.minimality import MinimalityProof
from tests.planning.test_filter_volumes import claim, disk, user
from tests.scenarios.cluster import TWO_LAYERS, World, group, node, pod, wish
from tests.scenarios.quotas import belongs, quota

GPU = "nvidia.com/gpu"
MOST = {GPU: 100}


def running(name: str, at: str, gpus: int, leaf: str = "", **settings: Any) -> Any:
    labels = {**belongs(leaf), **settings.pop("labels", {})}
    return pod(name, at=at, requests={GPU: str(gpus)}, cpu="0", labels=labels, **settings)


def cluster(world: World | None = None) -> World:
    """Two full nodes of 8: q1 holds 6 of min 4, q2 4 of min 4, a gang of three with minMember 2, and some that may not
    go; n3 is free for two. The beneficiaries are in q0."""
    world = (world or World()).add(TWO_LAYERS)
    for name, block in (("n1", "b1"), ("n2", "b1"), ("n3", "b2")):
        world.add(node(name, {"spine": "s1", "block": block}, cpu="64", **{GPU: "2" if name == "n3" else "8"}))
    world.add(quota("q0", {GPU: 4}, {GPU: 9}), quota("q1", {GPU: 4}, MOST), quota("q2", {GPU: 4}, MOST))
    world.add(running("a", "n1", 2, "q1"), running("b", "n1", 2, "q1"), running("c", "n1", 2, "q1"))
    world.add(running("rigid", "n1", 1, labels=belongs(rigid=True)), running("high", "n1", 1, priority=100))
    world.add(running("d", "n2", 2, "q2"), running("e", "n2", 2, "q2", labels={"app": "guarded"}))
    world.add(group("g", 2), *(running(f"g-{i}", "n2", 1, gang="g") for i in range(3)))
    world.add(running("other", "n2", 1, "q1", scheduler="someone-else"))
    world.add(
        PodDisruptionBudget(
            metadata=ObjectMeta(name="guard", namespace="default"),
            spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "guarded"})),
            status=PodDisruptionBudgetStatus(disruptions_allowed=0),
        )
    )
    world.add(pod("p", requests={GPU: "4"}, cpu="0", priority=10, labels=belongs("q0"), created=50))
    world.add(pod("small", requests={GPU: "1"}, cpu="0", priority=10, labels=belongs("q0"), created=50))
    tied = {"kubernetes.io/hostname": "n1"}
    world.add(
        pod("tied", requests={GPU: "1"}, cpu="0", priority=10, labels=belongs("q0"), created=50, node_selector=tied)
    )
    world.add(pod("large", requests={GPU: "8"}, cpu="0", priority=10, labels=belongs("q0"), created=50))
    world.add(pod("never", requests={GPU: "3"}, cpu="0", priority=10, preemption_policy="Never", created=50))
    return world


@dataclass(frozen=True)
class Case:
    """taken: names of pods that go together, and the rule. to: where the beneficiary goes."""

    name: str
    taken: Sequence[tuple[str, str]]
    check: Check | None
    text: str = ""
    who: str = "p"
    to: str = "n1"
    back: Mapping[str, str] = field(default_factory=dict)
    reclaim: str = "quotas"
    across: str = "overMin"
    enabled: bool = True
    consolidation: bool = False


CASES = [
    Case("two of q1 go by quota, the second carries it to its min", [("a", "quota"), ("b", "quota")], None, to="n1"),
    Case("the same by priority leave it less than its min", [("a", "priority"), ("b", "priority"), ("c", "priority")],
         Check.PRIORITY, "quota q1 would keep 1 of 4"),
    Case("three by quota are two beyond its min", [("a", "quota"), ("b", "quota"), ("c", "quota")], Check.RECLAIM,
         "quota q1 would lose more than one unit beyond its min"),
    Case("a quota within its min", [("d", "quota"), ("e", "quota")], Check.RECLAIM,
         "quota q2 would lose more", to="n2"),
    Case("who asks for more than its min", [("a", "quota"), ("b", "quota")], Check.RECLAIM,
         "quota q0 would use 8 of min 4", who="large"),
    Case("no guarantee at all", [("a", "quota")], Check.RECLAIM, "no guarantee", who="never"),
    Case("reclaim is off", [("a", "quota"), ("b", "quota")], Check.RECLAIM, "is off", reclaim="off"),
    Case("protected", [("rigid", "priority")], Check.VICTIMS, "rigid must not be evicted"),
    Case("as important", [("high", "priority"), ("a", "priority")], Check.PRIORITY,
         "high has priority 100, not below 10"),
    Case("preemptionPolicy Never", [("g-0", "priority")], Check.PRIORITY, "preemptionPolicy Never",
         who="never", to="n2"),
    Case("preemption is off", [("g-0", "priority")], Check.PRIORITY, "preemption is off", who="small", to="n2",
         enabled=False),
    Case("other quotas are out of reach", [("a", "priority")], Check.PRIORITY, "another quota", who="small",
         across="never"),
    Case("another scheduler's pod by quota", [("other", "quota")], Check.VICTIMS, "another scheduler",
         who="small", to="n2"),
    Case("twice", [("a", "quota"), ("a", "quota")], Check.VICTIMS, "evicted twice"),
    Case("for nobody", [("a", "quota")], Check.VICTIMS, "for no member", who=""),
    Case("a surplus pod, and another scheduler's by priority", [("d", "priority"), ("g-0", "priority"),
         ("other", "priority")], None, to="n2", across="any"),
    Case("a gang below its minimum", [("g-0", "priority"), ("g-1", "priority")], Check.UNITS, "keeps 1 of minMember 2",
         who="small", to="n2"),
    Case("a budget forbids reclaim", [("e", "quota")], Check.BUDGETS, "budget guard allows 0, 1 would be evicted",
         who="small", to="n2"),
    Case("fair share is not reclaimed", [("a", "fair-share")], Check.SHARES, "is off", who="small"),
    Case("fair share of a party below its share", [("d", "fair-share")], Check.SHARES, "q2", who="small", to="n2",
         reclaim="all"),
    Case("consolidation is off", [("a", "consolidation")], Check.CONSOLIDATION, "is off", who="small",
         back={"a": "n3"}),
    Case("a move without a return", [("a", "consolidation")], Check.VICTIMS, "has no new node", who="small",
         consolidation=True),
    Case("more important than who it moves for", [("high", "consolidation")], Check.CONSOLIDATION, "above 10",
         who="small", back={"high": "n3"}, consolidation=True),
    Case("a move", [("a", "consolidation")], None, who="tied", back={"a": "n3"}, consolidation=True),
    Case("a move beside an eviction", [("a", "consolidation"), ("b", "quota")], Check.VICTIMS, "some victims are moved",
         back={"a": "n3"}, consolidation=True),
    Case("a quota above its max", [("a", "quota"), ("b", "quota")], Check.QUOTAS, "quota q0 would use 12 of 9",
         who="p large"),
]  # fmt: skip

NEEDLESS = [
    Case("the whole gang is more than is needed", [("g-0 g-1 g-2", "priority")], None, "g-0",
         who="small", to="n3"),
    Case("somebody who frees nothing that is needed", [("a", "quota"), ("b", "quota"), ("g-0", "priority")], None,
         "g-0"),
    Case("there is room elsewhere", [("g-0", "priority")], None, "g-0", who="small", to="n2"),
    Case("a move to where the beneficiary could go", [("a", "consolidation")], None, "a",
         who="small", back={"a": "n3"}, consolidation=True),
    Case("a move beside one that is enough", [("a", "consolidation"), ("g-0", "consolidation")], None, "g-0",
         who="tied", back={"a": "n3", "g-0": "n2"}, consolidation=True),
]  # fmt: skip


Plan = tuple[Unit, list[EvictedUnit], dict[str, int], dict[str, int], Round]


def plan_of(case: Case, world: World | None = None) -> Plan:
    config = KoordpyConfiguration(
        preemption=Preemption(enabled=case.enabled, across_quotas=case.across),  # type: ignore[arg-type]
        fairness=Fairness(reclaim=case.reclaim),  # type: ignore[arg-type]
        consolidation=Consolidation(enabled=case.consolidation),
        quota=Quota(enable_runtime_quota=False),
        protection=Protection(max_harm=MaxHarm(consolidation=None)),
    )
    snapshot = (world or cluster()).snapshot()
    round_state = RoundState(Draft(snapshot), config)
    groups = Groups(snapshot)
    first = next(iter(case.who.split()), "p")
    unit = next(one for one in groups.units() if one.plain is not None and one.plain.name == first)
    lines = entitlements_of(snapshot, config.fairness) if case.reclaim == "all" else None
    at = Round(round_state, lines, snapshot_budgets(snapshot))
    taken = [
        EvictedUnit(tuple(snapshot.pods[f"default/{name}"] for name in text.split()), rule) for text, rule in case.taken
    ]
    nodes = {f"default/{name}": snapshot.index[case.to] for name in case.who.split()}
    back = {f"default/{name}": snapshot.index[to] for name, to in case.back.items()}
    return unit, taken, nodes, back, at


def checked(case: Case, world: World | None = None) -> list[PlanFault]:
    return check_victims(*plan_of(case, world))


def spared(case: Case, world: World | None = None, by: type[VictimCheck] = MinimalityProof) -> list[str]:
    """Names of the pods of a lawful plan that need not go."""
    unit, taken, nodes, back, at = plan_of(case, world)
    assert not check_victims(unit, taken, nodes, back, at)
    return [key.removeprefix("default/") for key in by(unit, nodes, back, at).needless(taken)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_rule_is_checked(case: Case) -> None:
    faults = checked(case)
    if case.check is None:
        assert not faults
    else:
        assert case.check in [one.check for one in faults], faults
        assert any(case.text in one for one in faults if one.check is case.check), faults


@pytest.mark.parametrize("case", NEEDLESS, ids=lambda case: case.name)
def test_who_goes_in_vain_is_lawful_and_not_minimal(case: Case) -> None:
    assert case.text in spared(case)
    elsewhere = case.back or case.name == "there is room elsewhere"
    assert (case.text in spared(case, by=VictimCheck)) == (not elsewhere), "where members stay, and nothing moves"


@pytest.mark.parametrize("by", [MinimalityProof, VictimCheck])
def test_a_minimal_plan_is_not_counted(by: type[VictimCheck]) -> None:
    assert not spared(CASES[0], by=by)


def test_a_plan_that_is_not_minimal_is_carried_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VictimCheck, "needless", lambda self, taken: [taken[0].pods[0].key])
    plan = full().plan()
    assert [one.pod_key for one in plan.evictions] == ["default/v2"]
    assert (plan.not_minimal, plan.rejected) == (("default/p",), ())
    metrics = Metrics()
    metrics.planned(plan, seconds=0.1)
    assert "koordpy_plans_not_minimal_total 1.0" in metrics.render().decode().splitlines()


def circling(*went: str) -> World:
    """bob's c holds more than his share of 7, alice's b may take it back. went: `ab`, a went for b."""
    world = World().add(node("n", {}, cpu="4", **{GPU: "8"}))
    world.add(pod("c", at="n", requests={GPU: "8"}, cpu="4", priority=9, labels=belongs("", user="bob")))
    world.add(pod("b", requests={GPU: "1"}, cpu="4", labels=belongs("", user="alice"), created=50))
    for loser, gainer in went:
        world.state.preemption_history.add(f"default/{loser}", f"default/{gainer}", 0.0)
    return world


@pytest.mark.parametrize(
    ("went", "fault"),
    [
        ((), []),
        (("cb", "ca"), []),
        (("bx", "yc"), []),
        (("bc",), ["default/b reclaims from default/c what it was evicted for"]),
        (("ba", "ac"), ["default/b reclaims from default/c what it was evicted for"]),
    ],
)
def test_who_went_takes_nothing_back_from_who_gained_by_it(went: Sequence[str], fault: list[str]) -> None:
    case = Case("", [("c", "fair-share")], None, who="b", to="n", reclaim="all")
    assert [str(one) for one in checked(case, circling(*went))] == fault
    plan = plan_round(circling(*went).snapshot(), KoordpyConfiguration(fairness=Fairness(reclaim="all")))
    assert [one.pod_key for one in plan.evictions] == ([] if fault else ["default/c"])
    if fault:
        text = "reclaim: pod default/c was placed by evicting this unit, which may not evict it for an hour."
        assert text in plan.pending[0].message


def crossing(*went: str, beside: int = 1) -> World:
    """c of 4 GPUs fills the node, and with others of its quota elsewhere that is above its min of 4; b of another quota
    has a guarantee. went: `ab`, a went for b. beside: GPUs of the others."""
    world = World().add(node("n", cpu="4", **{GPU: "4"}), node("m", cpu="4", **{GPU: "9"}))
    world.add(quota("theirs", {GPU: 4}, MOST), quota("own", {GPU: 4}, MOST))
    world.add(running("c", "n", 4, "theirs"), running("a", "m", beside, "theirs"))
    here = {"kubernetes.io/hostname": "n"}
    world.add(pod("b", requests={GPU: "3"}, cpu="1", labels=belongs("own"), created=50, node_selector=here))
    for loser, gainer in went:
        world.state.preemption_history.add(f"default/{loser}", f"default/{gainer}", 0.0)
    return world


@pytest.mark.parametrize(
    ("went", "beside", "fault"),
    [
        ((), 1, []),
        (("cb",), 1, []),
        (("bc",), 1, ["quota theirs would keep 1 of 4 nvidia.com/gpu"]),
        (("bx", "xc"), 1, ["quota theirs would keep 1 of 4 nvidia.com/gpu"]),
        (("bc",), 4, []),
    ],
)
def test_who_gained_is_taken_back_by_quota_only_where_its_quota_keeps_its_min(
    went: Sequence[str], beside: int, fault: list[str]
) -> None:
    case = Case("", [("c", "quota")], None, who="b", to="n")
    assert [str(one) for one in checked(case, crossing(*went, beside=beside))] == fault
    plan = plan_round(crossing(*went, beside=beside).snapshot(), KoordpyConfiguration())
    assert [one.pod_key for one in plan.evictions] == ([] if fault else ["default/c"])
    if fault:
        text = "reclaim: pod default/c was placed by evicting this unit, which may not evict it for an hour."
        assert text in plan.pending[0].message


@pytest.mark.parametrize(("reclaim", "owned", "known"), [("quotas", True, True), ("quotas", False, False),
                         ("all", False, True), ("off", True, False)])  # fmt: skip
def test_it_is_remembered_who_went_for_whom_where_somebody_reclaims(reclaim: str, owned: bool, known: bool) -> None:
    world = World().add(node("n", cpu="4", **{GPU: "1"}), running("low", "n", 1, "q" if owned else ""))
    world.add(*([quota("q", {GPU: 1}, MOST)] if owned else []))
    world.add(pod("high", requests={GPU: "1"}, priority=9, labels=belongs("q" if owned else ""), created=50))
    config = KoordpyConfiguration(fairness=Fairness(reclaim=reclaim))  # type: ignore[arg-type]
    [eviction] = plan_round(world.snapshot(), config).evictions
    assert (eviction.pod_key, eviction.victim_unit) == ("default/low", "default/low" if known else "")


def test_a_gang_that_moves_stays_together() -> None:
    world = World().add(TWO_LAYERS)
    for name, block in (("n1", "b1"), ("n2", "b1"), ("n3", "b2")):
        world.add(node(name, {"spine": "s1", "block": block}, cpu="64"))
    world.add(group("g", 2, wish({"blockLayer": "Must"})), pod("g-0", gang="g", at="n1"), pod("g-1", gang="g", at="n2"))
    snapshot = world.snapshot()
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration())
    unit = Groups(snapshot).unit(next(iter(snapshot.members)))
    assert not check_moves(unit, {"default/g-1": "n1"}, round_state)
    faults = check_moves(unit, {"default/g-1": "n3"}, round_state)
    assert [str(one) for one in faults] == [
        "gang default/g: its members would be further apart", "MustGather blockLayer: members in 2 domains",
    ]  # fmt: skip
    assert {one.check for one in faults} == {Check.RETURNS}


def test_a_move_needs_room_where_it_ends() -> None:
    snapshot = World().add(node("n1:1"), node("n2:1"), pod("a", at="n1"), pod("b", at="n2")).snapshot()
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration())
    round_state.draft.evict(snapshot.pods["default/a"])
    assert not check_returns([(snapshot.pods["default/a"], "n1")], round_state)
    [fault] = check_returns([(snapshot.pods["default/a"], "n2")], round_state)
    assert (fault.check, str(fault)) == (Check.RETURNS, "node n2: cpu 1000 + 1000 > 1000")


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_a_move_leaves_room_that_is_promised_to_who_is_no_less_important(priority: int) -> None:
    world = World().add(node("n1:1"), node("n2:2"), pod("a", at="n1", priority=1))
    coming = pod("b", cpu="2", priority=priority)
    world.add(structs.replace(coming, status=structs.replace(coming.status, nominated_node_name="n2")))
    snapshot = world.snapshot()
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration())
    round_state.draft.evict(snapshot.pods["default/a"])
    assert not check_returns([(snapshot.pods["default/a"], "n1")], round_state)
    faults = check_returns([(snapshot.pods["default/a"], "n2")], round_state)
    told = [(Check.RETURNS, "default/a: 2000 cpu of node n2 are reserved for other pods")] if priority else []
    assert [(fault.check, str(fault)) for fault in faults] == told


def lent() -> World:
    """Full of four pods of q0 and twelve of q1, a pod of 2 GPUs in q2 waits. Their parent may use 12 in all: one of q0
    goes only with enough of q1 that it ends within its min of 8."""
    world = World().add(node("n0", cpu="64", **{GPU: "8"}), node("n1", cpu="64", **{GPU: "8"}))
    world.add(quota("org", {GPU: 8}, {GPU: 12}, inner=True, forced=True), quota("q0", {GPU: 0}, MOST))
    world.add(quota("q1", {GPU: 0}, {GPU: 12}, parent="org"), quota("q2", {GPU: 2}, {GPU: 12}, parent="org"))
    world.add(*(running(f"a{i}", "n0", 1, "q0", created=60) for i in range(4)))
    world.add(*(running(f"b{i}", f"n{i % 3 > 0:d}", 1, "q1", created=i) for i in range(12)))
    return world.add(pod("p", requests={GPU: "2"}, cpu="0", labels=belongs("q2"), created=90))


LENT = KoordpyConfiguration(preemption=Preemption(enabled=False), quota=Quota(enable_runtime_quota=False))


@pytest.mark.parametrize("ways", [EVERY_WAY, (Way.GREEDY,)], ids=len)
def test_who_was_kept_by_a_victim_that_is_spared_is_spared_too(ways: Sequence[Way]) -> None:
    plan = plan_round(lent().snapshot(), LENT, ways=ways)
    assert len(plan.evictions) == 2
    assert not plan.rejected


def test_the_guarantee_of_who_shares_a_parent_is_no_reason_to_take_more() -> None:
    case = Case("three of q1", [("b1", "quota"), ("b2", "quota"), ("b4", "quota")], None, to="n1")
    for by in (MinimalityProof, VictimCheck):
        assert spared(case, lent(), by) == ["b1", "b2", "b4"]


@pytest.mark.parametrize(
    ("extra", "sharing", "fault"),
    [(["g-0"], False, ["g-0"]), (["g-0"], True, []), ([], False, [])],
    ids=["beside it", "with a volume of its own", "none"],
)
def test_nobody_goes_in_vain_for_a_pod_with_a_volume(extra: list[str], sharing: bool, fault: list[str]) -> None:
    """p asks for what a and b hold on n1."""
    world = cluster(World(make_state()))
    for name, at, of in (("v", "n1", "data"), ("w", "n2", "own")):
        world.add(disk(name, "5Gi", at, phase="Bound"), claim(of, volume=name))
    asks = {"requests": {GPU: "4"}, "cpu": "0", "priority": 10, "labels": belongs("q0"), "created": 50}
    world.add(user("p", "data", **asks))
    if sharing:
        world.add(user("g-0", "own", at="n2", requests={GPU: "1"}, cpu="0", gang="g"))
    going = [(name, "priority" if name == "g-0" else "quota") for name in dict.fromkeys(["a", "b", *extra])]
    for by in (MinimalityProof, VictimCheck):
        assert spared(Case("", going, None), world, by) == fault


# --- who leaves for nobody --------------------------------------------------------------------------------------------


def at_first(world: World) -> Round:
    snapshot = world.snapshot()
    budgets = snapshot_budgets(snapshot)
    return Round(RoundState(Draft(snapshot), KoordpyConfiguration()), None, budgets)


@pytest.mark.parametrize(
    ("taken", "check", "text"),
    [
        ("a", None, ""),
        ("b", None, ""),
        ("a b", Check.RECLAIM, "without default/a quota q1 is within its limit already"),
        ("d", Check.RECLAIM, "d is not in quota q1"),
        ("other", Check.VICTIMS, "another scheduler"),
        ("rigid", Check.VICTIMS, "rigid must not be evicted"),
        ("g-0 g-1", Check.UNITS, "keeps 1 of minMember 2"),
        ("e", Check.BUDGETS, "budget guard allows 0, 1 would be evicted"),
    ],
)
def test_what_a_quota_gives_back_is_checked(taken: str, check: Check | None, text: str) -> None:
    """q1 holds 7, and may hold 5."""
    at = at_first(cluster())
    pods = [EvictedUnit((at.round_state.snapshot.pods[f"default/{name}"],), "quota") for name in taken.split()]
    faults = check_given_back("q1", {GPU: 5}, pods, at)
    if check is None:
        assert not faults
    else:
        assert any(one.check is check and text in one for one in faults), faults


@pytest.mark.parametrize(
    ("least", "going", "text"),
    [
        (4, "g-0 g-1 g-2", ""),
        (3, "g-0 g-1 g-2", "gang default/g is not stale, with 3 of 3 members"),
        (4, "g-0 g-1", "g-2 stays"),
        (4, "g-0 g-1 g-2 a", "a is a member of another gang"),
    ],
)
def test_a_gang_that_gives_up_is_checked(least: int, going: str, text: str) -> None:
    at = at_first(cluster().add(group("g", least)))
    pods = [at.round_state.snapshot.pods[f"default/{name}"] for name in going.split()]
    unit = at.round_state.groups.unit(next(iter(at.round_state.snapshot.members)))
    faults = check_stale(unit.gangs, unit, pods, at)
    assert bool(faults) == bool(text)
    assert any(text in one for one in faults) or not text


def test_what_is_refused_of_them_stays_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    on_purpose = [PlanFault("on purpose", Check.UNITS)]
    world = World().add(node("n1", cpu="64"), quota("a", 2, 2), group("g", 3, {keys.GANG_STALE_GRACE: "0s"}))
    world.add(*(pod(f"p{i}", at="n1", labels=belongs("a")) for i in range(3)))
    world.add(*(pod(f"g-{i}", gang="g", at="n1") for i in range(2)))
    settings = KoordpyConfiguration(quota=Quota(monitor_all_quotas=True, delay_evict_time=0.0))
    rules = [str(one.rule) for one in plan_round(world.snapshot(), settings).evictions]
    assert rules == ["stale-gang", "stale-gang", "quota"]
    monkeypatch.setattr(give_back_overuse, "check_given_back", lambda *_: on_purpose)
    monkeypatch.setattr(release_stale_gangs, "check_stale", lambda *_: on_purpose)
    plan = plan_round(world.snapshot(), settings)
    assert not plan.evictions
    assert [one.unit for one in plan.rejected] == ["quota a", "gang:default/g"]
    assert [one.victims[0][1] for one in plan.rejected] == ["quota", "stale-gang"]


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    """The check refuses the first plans, whatever they are."""
    left = [times]
    known = preemption_search.check_victims

    def check(unit: Unit, *rest: Any) -> list[PlanFault]:
        left[0] -= 1
        return [PlanFault("on purpose", Check.UNITS)] if left[0] >= 0 else known(unit, *rest)

    monkeypatch.setattr(preemption_search, "check_victims", check)


def full() -> World:
    world = World().add(*(node(f"n{i}", cpu="64", **{GPU: "1"}) for i in range(3)))
    world.add(*(pod(f"v{i}", at=f"n{i}", requests={GPU: "1"}, created=i) for i in range(3)))
    return world.add(pod("p", requests={GPU: "1"}, priority=10, created=9))


def test_the_next_way_of_choosing_is_tried_and_the_verdict_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(monkeypatch, times=1)
    plan = full().plan()
    assert [one.pod_key for one in plan.evictions] == ["default/v2"]
    [rejected] = plan.rejected
    assert rejected.way == "counting"
    assert rejected.victims == (("default/v2", "priority"),)
    assert rejected.nodes == (("default/p", "n2"),)
    assert rejected.faults == (("units", "on purpose"),)
    assert plan.units[0].proof is Proof.FEASIBLE
    assert plan.benefits[0].message.endswith(
        ". Earlier in this round, a plan failed koordpy's own check and was not carried out (units): on purpose"
    )
    metrics = Metrics()
    metrics.planned(plan, seconds=0.1)
    assert 'koordpy_rejected_plans_total{check="units"} 1.0' in metrics.render().decode().splitlines()


def test_nothing_is_carried_out_that_no_check_lets_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(monkeypatch, times=99)
    plan = full().plan()
    assert not plan.evictions
    assert not plan.placements
    assert [one.way for one in plan.rejected] == ["counting", "model", "greedy"]
    assert (
        plan.pending[0].message
        == "internal error: a plan failed koordpy's own check and was not carried out: on purpose"
    )
    assert plan.units[0].proof is Proof.UNKNOWN


def test_a_verdict_on_gpus_with_victims_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World().add(node("n1:64", **{GPU: "2"}), device([[0, 50], [50, 0]], name="n1"))
    notes = {keys.DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": i} for i in range(2)]})}
    world.add(pod("v", at="n1", requests={GPU: "2"}, annotations=notes))
    world.add(pod("p", requests={GPU: "2"}, priority=10, created=9))
    assert [one.pod_key for one in world.plan().evictions] == ["default/v"]
    refused(monkeypatch, times=99)
    plan = plan_round(world.snapshot())
    assert not plan.evictions
    assert (
        plan.pending[0].message
        == "internal error: a plan failed koordpy's own check and was not carried out: on purpose"
    )
    assert plan.rejected
