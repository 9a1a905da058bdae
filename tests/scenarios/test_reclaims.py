# SPDX-License-Identifier: Apache-2.0
"""The worked examples 6 to 10 of preemption.md 10, and sentences of sections 1 to 5, in whole simulations."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import (
    Condition,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    LabelSelector,
    ObjectMeta,
    Pod,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
    PodStatus,
    SchedulingGroup,
)
from koordpy.api.pod_groups import PodGroupStatus, UpstreamGang, UpstreamPodGroup, UpstreamPodGroupSpec, UpstreamPolicy
from koordpy.config.configuration import Consolidation, Fairness, KoordpyConfiguration, Preemption, Queue, StaleGangs
from koordpy.planner.planning_round import plan_round
from koordpy.preemption.selection.preemption_names import EVERY_WAY, Way
from koordpy.simulation.simulated_rounds import SimulationResult, simulate
from tests.planning.node_rules import anti, term
from tests.scenarios.cluster import World, group, node, pod, wish
from tests.scenarios.quotas import GPU, belongs, quota

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
ALL = Fairness(reclaim="all")
QUOTAS = Fairness(reclaim="quotas")


def gpus(name: str, number: int) -> Any:
    return node(name, {}, cpu="64", **{GPU: str(number)})


def one(name: str, gpu: int = 1, *, at: str = "", age: int = 0, owner: str = "", user: str = "", **more: Any) -> Pod:
    """A pod; a larger `age` is younger."""
    asked = {GPU: str(gpu)}
    return pod(name, at=at, cpu="0", requests=asked, created=age, labels=belongs(owner, user=user), **more)


def share(name: str, least: int, **settings: Any) -> Any:
    return quota(name, {GPU: least}, {GPU: 1000}, **settings)


def run(objects: Sequence[Any], **settings: Any) -> SimulationResult:
    state = World().add(*objects).state
    return simulate(state, KoordpyConfiguration(**settings), planner=plan_round, now=NOW, rounds=50)


def went(result: SimulationResult) -> list[tuple[str, str]]:
    """(pod, rule) of the evictions, in their order."""
    return [(one.eviction.pod_key.partition("/")[2], one.eviction.rule) for one in result.evictions]


def final(result: SimulationResult) -> dict[str, str]:
    return {key.partition("/")[2]: at for key, at in result.final}


def waiting(result: SimulationResult) -> dict[str, str]:
    return {one.pod_key.partition("/")[2]: one.message for one in result.pending}


# --- the worked examples ---------------------------------------------------------------------------------------------


def test_6_the_last_unit_may_cross_the_line_and_does_not_come_back() -> None:
    result = run([gpus("n", 2), share("a", 1), share("b", 1), one("old", 2, at="n", owner="b"), one("new", owner="a")])
    assert went(result) == [("old", "quota")]
    assert final(result) == {"new": "n"}
    assert result.stable
    assert sorted(waiting(result)) == ["old"]
    assert waiting(result)["old"].endswith(f"exceedDimensions: [{GPU}]. reclaim: quota b would use 2 of min 1 {GPU}.")


@pytest.mark.parametrize(("room", "other"), [(1, 1), (2, 1), (8, 1), (8, 8)])
def test_a_pod_that_its_quota_refuses_takes_from_the_least_important_pod_of_that_quota(room: int, other: int) -> None:
    """Also where a node has room for it without anybody's leaving."""
    running = [one("old", at="m", owner="a"), one("young", at="n", owner="a", age=1)]
    mine = quota("a", {GPU: 0}, {GPU: 2})
    objects = [gpus("n", room), gpus("m", other), mine, *running, one("new", owner="a", age=9, priority=5)]
    result = run(objects, fairness=Fairness(reclaim="off"))
    assert went(result) == [("young", "priority")]
    assert final(result).keys() == {"old", "new"} and result.stable


def test_7_one_accelerator_rather_than_two() -> None:
    running = [
        one("a1", at="n0", owner="a"),
        one("b2", 2, at="n1", owner="b", age=1),
        one("b1", at="n0", owner="b", age=2),
    ]
    result = run([gpus("n0", 2), gpus("n1", 2), share("a", 2), share("b", 2), *running, one("new", owner="a", age=9)])
    assert went(result) == [("b1", "quota")]
    assert final(result) == {"a1": "n0", "b2": "n1", "new": "n0"}
    assert result.stable


@pytest.mark.parametrize("ways", [EVERY_WAY, (Way.MODEL,)], ids=lambda ways: "+".join(ways))
def test_fewer_pods_go_though_their_quota_falls_further_below_its_min(ways: Sequence[Way]) -> None:
    """Level 5 before level 6, however many accelerators its quota will lack."""
    twos = [one(f"b{i}", 2, at="n1", owner="b", gang="twos") for i in range(2)]
    ones = [one(f"c{i}", at="n2", owner="c", gang="ones", age=9) for i in range(4)]
    objects = [
        gpus("n1", 4), gpus("n2", 4), gpus("n3", 1), share("a", 4), share("b", 4), share("c", 0), group("twos", 2),
        group("ones", 4), *twos, *ones, one("b2", at="n3", owner="b"), one("new", 4, owner="a", age=10),
    ]  # fmt: skip
    plan = plan_round(World().add(*objects).snapshot(), ways=ways)
    assert {victim.pod_key for victim in plan.evictions} == {"default/b0", "default/b1"}


def pdb(name: str) -> PodDisruptionBudget:
    """Of pods labelled app: x; it allows one eviction."""
    spec = PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "x"}))
    status = PodDisruptionBudgetStatus(disruptions_allowed=1)
    return PodDisruptionBudget(metadata=ObjectMeta(name=name, namespace="default"), spec=spec, status=status)


@pytest.mark.parametrize(
    ("settings", "priority"),
    [
        ({}, 0),
        ({"fairness": ALL}, 0),
        ({"consolidation": Consolidation(enabled=True), "fairness": Fairness(reclaim="off")}, 0),
        ({"fairness": Fairness(reclaim="off")}, 9),
    ],
    ids=["quota", "fair-share", "consolidation", "priority"],
)
def test_nobody_whom_two_budgets_cover_is_taken_by_a_rule_that_evicts(settings: Any, priority: int) -> None:
    """The eviction API refuses it: whoever went for the same unit would go in vain. Priority deletes."""
    covered = one("old", 2, at="n1", owner="b", user="bob")
    covered = replace(covered, metadata=replace(covered.metadata, labels={**covered.metadata.labels, "app": "x"}))
    new = one("new", 3, owner="a", user="alice", priority=priority)
    objects = [gpus("n1", 3), gpus("n2", 2), share("a", 3), share("b", 0), covered, new]
    [rule] = {rule for _, rule in went(run(objects, **settings))}
    assert went(run([*objects, pdb("one")], **settings)) == [("old", rule)]
    kept = run([*objects, pdb("one"), pdb("two")], **settings)
    assert went(kept) == ([("old", rule)] if rule == "priority" else [])


def test_priority_leaves_a_user_his_share_of_what_its_own_victims_hold() -> None:
    """`low` goes by priority, and its budget keeps it from any other rule; `cores` by fair share. He has less of cpu
    than his share, of which `low` holds nothing."""
    running = [
        one("low", at="n1", user="bob"),
        pod("cores", at="n1", cpu="1", requests={GPU: "1"}, priority=5, labels=belongs(user="bob")),
        pod("also", at="n2", cpu="1", requests={GPU: "1"}, labels=belongs(user="bob")),
        pod("kept", at="n2", cpu="1", requests={GPU: "1"}, priority=5, labels=belongs(user="bob", rigid=True)),
    ]
    running[0] = replace(running[0], metadata=replace(running[0].metadata, labels=belongs(user="bob") | {"app": "x"}))
    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="x", namespace="default"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "x"})),
        status=PodDisruptionBudgetStatus(disruptions_allowed=0),
    )
    objects = [gpus("n1", 2), gpus("n2", 2), budget, *running, one("new", 2, user="alice", priority=5, age=9)]
    plan = plan_round(
        World().add(*objects).snapshot(), KoordpyConfiguration(fairness=Fairness(mode="exact", reclaim="all"))
    )
    assert {one.pod_key.partition("/")[2]: one.rule for one in plan.evictions} == {
        "low": "priority",
        "cores": "fair-share",
    }


def bob_and_alice() -> list[Any]:
    bob = [one(f"b{i}", at="n", user="bob", age=i) for i in range(4)]
    return [gpus("n", 4), *bob, *[one(f"a{i}", user="alice", age=10 + i) for i in range(2)]]


def test_8_users_end_at_their_shares() -> None:
    result = run(bob_and_alice(), fairness=ALL)
    assert sorted(went(result)) == [("b2", "fair-share"), ("b3", "fair-share")]
    assert sorted(final(result)) == ["a0", "a1", "b0", "b1"]
    assert sorted(waiting(result)) == ["b2", "b3"]
    assert result.stable


def test_8_only_where_shares_are_reclaimed() -> None:
    result = run(bob_and_alice(), fairness=QUOTAS)
    assert not went(result)
    assert sorted(waiting(result)) == ["a0", "a1"]


def test_nobody_gives_up_a_pod_of_his_own_to_be_below_a_line() -> None:
    # Four users of four GPUs deserve one each. v has one in quota a and wants one in b, which is full: with v's own
    # pod gone v could take u's two by fair share, u's priority would take them back, and so on for ever.
    objects = [
        *(gpus("n0", 4), share("a", 0), quota("b", {GPU: 3}, {GPU: 6}), group("g", 1), group("h", 3)),
        one("v-own", at="n0", owner="a", user="v"),
        *(one(f"g-{i}", owner="b", user="v", gang="g", age=1 + i) for i in range(2)),
        one("u", 2, at="n0", owner="b", user="u", priority=1, age=3),
        one("other", at="n0", owner="b", priority=1, age=4),
        *(one(f"h-{i}", 3, owner="a", gang="h", age=5 + i) for i in range(3)),
    ]
    result = run(objects, fairness=ALL)
    assert result.stable
    assert went(result) == []


@pytest.mark.parametrize("moves", [True, False])
def test_9_the_younger_runner_moves_next_to_the_other(moves: bool) -> None:
    running = [one("r0", at="n0", age=1), one("r1", at="n1", age=2)]
    result = run(
        [gpus("n0", 2), gpus("n1", 2), *running, one("new", 2, age=9)], consolidation=Consolidation(enabled=moves)
    )
    if not moves:
        assert sorted(waiting(result)) == ["new"]
        return
    assert went(result) == [("r1", "consolidation")]
    assert final(result) == {"new": "n1", "r0": "n0", "r1": "n0"}
    assert result.stable


@pytest.mark.parametrize(
    ("others", "of"),
    [
        ([], {"gang": "absent"}),
        ([group("g", 1, wish({"rackLayer": "Must"}))], {"gang": "g"}),
        ([quota("org", {}, {GPU: 4}, inner=True)], {"owner": "org"}),
    ],
    ids=["no PodGroup", "an unknown layer", "an inner quota"],
)
def test_nobody_moves_who_would_be_held_once_it_waits(others: list[Any], of: dict[str, str]) -> None:
    """It would be refused before planning, and so lose its place (preemption.md 3.4: otherwise nothing is moved)."""
    running = [one("r0", at="n0", age=1, priority=1), one("r1", at="n1", age=2, **of)]
    objects = [gpus("n0", 2), gpus("n1", 2), *others, *running, one("new", 2, age=9)]
    result = run(objects, consolidation=Consolidation(enabled=True))
    assert went(result) == []
    assert sorted(waiting(result)) == ["new"]


@pytest.mark.parametrize("tied_first", [True, False])
def test_who_may_move_does_not_depend_on_who_is_looked_at_first(tied_first: bool) -> None:
    """A pod with a rule about others stays, one without moves (3.4), in whatever order they are listed."""
    tied = one("tied", at="n0", age=1, affinity=anti(term("kubernetes.io/hostname", {"app": "nobody"})))
    free = one("free", at="n1", age=2)
    running = [tied, free] if tied_first else [free, tied]
    result = run(
        [gpus("n0", 2), gpus("n1", 2), *running, one("new", 2, age=9)], consolidation=Consolidation(enabled=True)
    )
    assert went(result) == [("free", "consolidation")]
    assert final(result) == {"free": "n0", "new": "n1", "tied": "n0"}


def failed(name: str, gang: str, finished: str, *, age: int = 0) -> Pod:
    state = ContainerState(terminated=ContainerStateTerminated(finished_at=finished))
    made = one(name, gang=gang, phase="Failed", age=age)
    return replace(made, status=replace(made.status, container_statuses=[ContainerStatus(name="main", state=state)]))


@pytest.mark.parametrize(("finished", "gone"), [("2026-01-01T00:58:59Z", True), ("2026-01-01T00:59:01Z", False)])
def test_10_a_gang_that_lost_a_member_gives_up_after_its_grace(finished: str, gone: bool) -> None:
    members = [one("g-0", at="n", gang="g"), failed("g-1", "g", finished)]
    asked = StaleGangs(enabled=True)
    result = run([gpus("n", 2), group("g", 2), *members, one("other", at="n")], stale_gangs=asked)
    [(report, _)] = result.gangs
    if gone:
        assert went(result) == [("g-0", "stale-gang")]
        assert result.evictions[0].eviction.beneficiary == "default/g"
        assert result.evictions[0].eviction.message == "gang default/g has 1 of 2 members for 61s"
        return
    assert not went(result)
    assert report.status != "Scheduled"
    assert report.message.startswith("1 of 2 members")


@pytest.mark.parametrize(("finished", "gone"), [("2026-01-01T00:59:00Z", True), ("2026-01-01T00:59:01Z", False)])
def test_of_manifests_without_times_of_creation_the_grace_counts_from_the_end_of_the_failed_member(
    finished: str, gone: bool
) -> None:
    """They are made up as just before the run, which is after that end."""
    members = [one("g-0", at="n", gang="g", age=3598), failed("g-1", "g", finished, age=3599)]
    result = run([gpus("n", 1), group("g", 2), *members], stale_gangs=StaleGangs(enabled=True))
    assert went(result) == ([("g-0", "stale-gang")] if gone else [])


@pytest.mark.parametrize(
    ("group_made", "since", "gone"),
    [
        ("2026-01-01T00:59:57Z", "2026-01-01T00:59:00Z", True),  # made up: no condition is older than its object
        ("2026-01-01T00:59:57Z", "2026-01-01T00:59:01Z", False),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z", False),  # said of an earlier run of the gang
    ],
)
def test_the_condition_says_since_when_a_gang_is_stale(group_made: str, since: str, gone: bool) -> None:
    """Not before its present run began, unless manifests leave out when it did."""
    made = group("g", 2)
    said = PodGroupStatus(
        scheduled=2, conditions=[Condition(type="Stale", status="True", last_transition_time=since, reason="Lost")]
    )
    made = replace(made, metadata=replace(made.metadata, creation_timestamp=group_made), status=said)
    objects = [gpus("n", 1), made, one("g-0", at="n", gang="g", age=3599)]
    result = run(objects, stale_gangs=StaleGangs(enabled=True))
    assert went(result) == ([("g-0", "stale-gang")] if gone else [])


def lost_one(least: int, *more: Any, group_notes: dict[str, str] | None = None) -> list[Any]:
    """A gang of which a member failed an hour ago, and none takes its place."""
    members = [one("g-0", at="n", gang="g"), failed("g-1", "g", "2026-01-01T00:00:00Z")]
    return [gpus("n", 2), group("g", least, group_notes), *members, one("other", at="n"), *more]


@pytest.mark.parametrize(
    ("notes", "asked", "gone"),
    [
        ({}, False, False),
        ({}, True, True),
        ({keys.GANG_STALE_GRACE: "60s"}, False, True),
        ({keys.GANG_STALE_GRACE: "2h"}, True, False),
        ({keys.GANG_STALE_GRACE: "-1"}, True, False),
        ({keys.GANG_STALE_GRACE: "soon"}, False, False),
        ({keys.GANG_STALE_GRACE: "soon"}, True, True),
    ],
)
def test_a_gang_that_lost_members_is_evicted_only_where_somebody_asked(
    notes: dict[str, str], asked: bool, gone: bool
) -> None:
    result = run(lost_one(2, group_notes=notes), stale_gangs=StaleGangs(enabled=asked))
    assert bool(went(result)) == gone


@pytest.mark.parametrize(
    ("scheduled", "succeeded", "gone"),
    [
        (0, 0, True),  # nothing says what it had
        (1, 0, False),  # it has what it had: the minimum was raised
        (2, 0, True),
        (1, 1, False),  # the pod of one that has Succeeded was deleted
    ],
)
def test_a_gang_is_stale_only_for_members_that_were_lost(scheduled: int, succeeded: int, gone: bool) -> None:
    least = 2 if succeeded else 4
    objects = [gpus("n", 2), one("g-0", at="n", gang="g"), one("other", at="n")]
    status = PodGroupStatus(scheduled=scheduled, succeeded=succeeded)
    objects.append(replace(group("g", least, {keys.GANG_STALE_GRACE: "0s"}), status=status))
    assert bool(went(run(objects))) == gone


# --- beside promises -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "grace", "bound", "gone"),
    [
        (3, "0s", [], ["g-1"]),  # one of two would fit, to leave again as stale; nor does it begin anew with a part
        (4, "0s", ["g-1", "g-2", "g-3"], []),
        (3, "-1", ["g-1", "g-2"], []),
    ],
)
def test_a_gang_whose_grace_is_over_gets_all_that_it_misses_or_nobody(
    room: int, grace: str, bound: list[str], gone: list[str]
) -> None:
    members = [one("g-0", gang="g", phase="Succeeded"), one("g-1", at="n", gang="g")]
    members += [one(name, gang="g") for name in ("g-2", "g-3")]
    result = run([gpus("n", room), group("g", 4, {keys.GANG_STALE_GRACE: grace}), *members, one("other", at="n")])
    assert went(result) == [(name, "stale-gang") for name in gone]
    assert sorted(final(result)) == [*bound, "other"]


def timed(name: str, at: str, hours: int, began: int) -> list[Any]:
    """A gang of one that runs for so many hours, begun so many minutes after midnight."""
    made = one(f"{name}-0", at=at, gang=name)
    start = f"2026-01-01T00:{began:02}:00Z"
    return [
        group(name, 1, {keys.MAX_RUNTIME: f"{hours}h"}),
        replace(made, status=PodStatus(phase="Running", start_time=start)),
    ]


@pytest.mark.parametrize(("preempts", "promise"), [(False, "2026-01-01T01:10:00Z"), (True, "2026-01-01T03:00:00Z")])
def test_a_promised_start_moves_when_a_higher_priority_takes_the_room(preempts: bool, promise: str) -> None:
    """A promise is no guarantee against priority: who is evicted for another leaves nothing behind for it."""
    objects = [gpus("n1", 1), gpus("n2", 1), *timed("short", "n1", 1, 10), *timed("long", "n2", 3, 0)]
    objects += [group("patient", 1), one("patient-0", gang="patient", age=1200)]
    if preempts:
        objects.append(one("urgent", priority=9, age=1300))
    state = World().add(*objects).state
    config = KoordpyConfiguration(queue=Queue(backfill=True))
    plan = plan_round(state.snapshot(NOW.timestamp() - 1800), config)
    assert [(evicted.pod_key, evicted.rule) for evicted in plan.evictions] == [
        ("default/short-0", "priority")
    ] * preempts
    assert {placed.pod_key: placed.node for placed in plan.placements} == ({"default/urgent": "n1"} if preempts else {})
    [message] = [pending.message for pending in plan.pending if pending.pod_key == "default/patient-0"]
    assert f"start promised at {promise}" in message
    assert plan.reservation is not None and plan.reservation.unit == "gang:default/patient"


# --- where time is short ---------------------------------------------------------------------------------------------


def test_no_time_for_a_proof_is_no_reason_for_no_answer() -> None:
    """The greedy plan: the cheapest go, and none that can be spared."""
    old = [one(f"v{i}", at=f"n{i % 3}", age=i, priority=i % 2) for i in range(12)]
    mixed = [group("g", 2), one("g-0", 2, gang="g", priority=9), one("g-1", 3, gang="g", priority=9)]
    config = KoordpyConfiguration(preemption=Preemption(time_limit=1e-6))
    plan = plan_round(World().add([gpus(f"n{i}", 4) for i in range(3)], old, mixed).snapshot(), config)
    assert len(plan.placements) == 2
    assert len(plan.evictions) == 5
    [report] = plan.gangs
    assert report.proof == "feasible"
    [benefit] = plan.benefits
    assert "best found: 5 pods, bound 5" in benefit.message


def test_a_group_that_is_disrupted_as_one_has_no_surplus() -> None:
    """kube-parity.md 6: disruptionMode all makes one victim unit of a group."""
    modes: list[tuple[dict[str, Any] | None, set[str]]] = [({"all": {}}, {"u-0", "u-1", "u-2"}), (None, {"u-2"})]
    for mode, gone in modes:
        spec = UpstreamPodGroupSpec(
            scheduling_policy=UpstreamPolicy(gang=UpstreamGang(min_count=1)), disruption_mode=mode
        )
        group_ = UpstreamPodGroup(metadata=ObjectMeta(name="u", namespace="default"), spec=spec)
        link = SchedulingGroup(pod_group_name="u")
        members = [one(f"u-{i}", at="n", age=i, scheduling_group=link) for i in range(3)]
        plan = World().add(gpus("n", 3), group_, members, one("new", priority=5)).plan()
        assert {evicted.pod_key.partition("/")[2] for evicted in plan.evictions} == gone


@pytest.mark.parametrize("absurd", [{GPU: str(10**18)}, {GPU: "1", "memory": "9Ei"}, {GPU: "1", "cpu": "9e18"}])
@pytest.mark.parametrize("rules", [QUOTAS, ALL])
def test_absurd_amounts_of_running_pods_leave_sums_within_64_bits(absurd: dict[str, str], rules: Fairness) -> None:
    """Nobody's kubelet admits such pods, but where it is down they stay on their node."""
    settings: Any = {"cpu": "0", "priority": 0, "at": "n0", "labels": belongs("b")}
    running = [pod(f"x{i}", requests=absurd, created=i, **settings) for i in range(4)]
    gang = [
        pod("g-0", gang="g", cpu="0", requests={GPU: "4"}, priority=9, created=9, labels=belongs("a")),
        pod("g-1", gang="g", cpu="1", requests={GPU: "2"}, priority=9, created=9, labels=belongs("a")),
    ]
    objects = [gpus("n0", 8), gpus("n1", 4), share("a", 8), share("b", 0), group("g", 2), *running, *gang]
    result = run([*objects, one("y", 4, at="n1", age=5)], fairness=rules)
    assert {name: at for name, at in final(result).items() if name.startswith("g-")} == {"g-0": "n0", "g-1": "n0"}


def test_a_circle_of_priority_and_fair_share_goes_round_once() -> None:
    # one of them can run: a is before b by priority, b takes from c what bob holds above his share, c is before a
    def alone(name: str, gpu: int, priority: int, user: str, at: str = "") -> Pod:
        asked = {GPU: str(gpu)} if gpu else {}
        return pod(name, at=at, cpu="4", requests=asked, priority=priority, labels=belongs("", user=user))

    room = node("n", {}, cpu="4", **{GPU: "8"})
    jobs = [alone("a", 0, 5, "alice"), alone("b", 1, 1, "alice", "n"), alone("c", 8, 9, "bob")]
    result = run([room, *jobs], fairness=ALL)
    turns = sorted((one.round, one.eviction.pod_key, one.eviction.rule) for one in result.evictions)
    assert turns == [(1, "default/b", "priority"), (2, "default/a", "priority")]
    assert result.stable
    assert final(result) == {"c": "n"}
    assert waiting(result)["b"].endswith(
        "reclaim: pod default/c was placed by evicting this unit, which may not evict it for an hour."
    )
