# SPDX-License-Identifier: Apache-2.0
"""The decision log: what of a round is logged, when, and in which words."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from koordpy.observe.decision_log import DecisionLog
from koordpy.plan.pending_reason import Reason
from koordpy.plan.round_plan import Eviction, PendingPod, Placement, Proof, RoundPlan, UnitReport

GANG = "gang:team-b/b1"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="koordpy.observe.decision_log")
    return caplog


def placed(unit: str = GANG, *, proof: Proof = Proof.OPTIMAL) -> RoundPlan:
    placements = (Placement("team-b/b1-0", "u", "n1", unit),)
    return RoundPlan(placements, (), (), (), (UnitReport(unit, ("team-b/b1-0",), 1, proof, "blockLayer"),))


def waits(message: str, *, proof: Proof = Proof.INFEASIBLE, gated: bool = False) -> RoundPlan:
    pending = (PendingPod("team-b/b1-0", GANG, "team-b/b1", Reason.UNSCHEDULABLE, message, gated=gated),)
    return RoundPlan((), (), pending, (), (UnitReport(GANG, ("team-b/b1-0",), 0, proof, None),))


def evicting(
    rules: Sequence[str], *, unit: str = GANG, beneficiary: str | None = "team-b/b1", to: int = 0, why: str = "why"
) -> RoundPlan:
    """A plan that evicts a pod by each rule, and has `to` members go to nodes of their own."""
    members = [f"team-b/b1-{i}" for i in range(to)]
    return RoundPlan(
        placements=tuple(Placement(key, "u", f"n{i}", unit) for i, key in enumerate(members)),
        evictions=tuple(
            Eviction(f"team-a/a{i}", "u", f"n{i}", rule, beneficiary, unit, message=why) for i, rule in enumerate(rules)
        ),
        pending=(),
        gangs=(),
        units=(UnitReport(unit, tuple(members), to, Proof.OPTIMAL, None),) if to else (),
        nominations=tuple(Placement(key, "u", f"n{i}", unit) for i, key in enumerate(members)),
    )


def messages(lines: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in lines.records]


def test_a_decision_says_where_and_why_and_repeats_itself_quietly(lines: pytest.LogCaptureFixture) -> None:
    decisions = DecisionLog()
    for number in range(3):
        decisions.record(waits(f"{number} of 9 members fit"), number=number, at=0.0)
    decisions.record(placed(), number=3, at=0.0)
    assert messages(lines) == [
        "gang:team-b/b1: 0 of 9 members fit (proof: infeasible)",
        "gang:team-b/b1: places 1 of 1 pod on n1, lowest common layer blockLayer (proof: optimal)",
    ]
    assert decisions.recent()[0]["placed"] == 1
    assert len(decisions.recent()) == 4
    assert {vars(record)["object"] for record in lines.records} == {GANG}


def test_a_line_does_not_end_in_a_proof_of_nothing(lines: pytest.LogCaptureFixture) -> None:
    DecisionLog().record(waits("no room", proof=Proof.UNKNOWN), number=1, at=0.0)
    assert messages(lines) == ["gang:team-b/b1: no room"]


def test_a_unit_whose_room_is_kept_is_not_said_to_be_infeasible(lines: pytest.LogCaptureFixture) -> None:
    plan = waits("waiting for terminating pods: capacity on n1 is reserved for it.")
    decisions = DecisionLog()
    decisions.record(replace(plan, awaiting_nominations=(Placement("team-b/b1-0", "u", "n1", GANG),)), number=1, at=0.0)
    assert messages(lines) == ["gang:team-b/b1: waiting for terminating pods: capacity on n1 is reserved for it."]
    (decision,) = decisions.last_decisions()
    assert [(one.pod, one.node) for one in decision.nominated] == [("team-b/b1-0", "n1")]


@pytest.mark.parametrize("plan", [placed(), waits("no room"), waits("members are missing", gated=True)])
def test_every_line_of_a_dry_run_is_marked(lines: pytest.LogCaptureFixture, plan: RoundPlan) -> None:
    real, dry = DecisionLog(), DecisionLog(dry_run=True)
    for log in (real, dry):
        log.record(plan, number=1, at=0.0)
    carried_out, not_carried_out = messages(lines)
    assert not_carried_out == f"dry run: {carried_out}"
    assert [one.dry_run for log in (real, dry) for one in log.last_decisions()] == [False, True]
    assert real.messages == dry.messages


@pytest.mark.parametrize(
    ("plan", "dry_run", "line"),
    [
        pytest.param(
            evicting(["priority"], to=1),
            False,
            "gang:team-b/b1: evicts 1 pod by rule priority for team-b/b1: team-a/a0 on n0; "
            "nominates 1 pod to n0 (proof: optimal)",
            id="one for one",
        ),
        pytest.param(
            evicting(["quota"] * 8, to=6),
            False,
            "gang:team-b/b1: evicts 8 pods by rule quota for team-b/b1: team-a/a0 on n0, team-a/a1 on n1,"
            " team-a/a2 on n2, team-a/a3 on n3 and 4 more; "
            "nominates 6 pods to n0, n1, n2, n3 and 2 more (proof: optimal)",
            id="more than are named",
        ),
        pytest.param(
            evicting(["fair-share", "consolidation", "fair-share"], to=1),
            False,
            "gang:team-b/b1: evicts 3 pods (2 by rule fair-share, 1 by rule consolidation) for team-b/b1: "
            "team-a/a0 on n0, team-a/a1 on n1, team-a/a2 on n2; nominates 1 pod to n0 (proof: optimal)",
            id="two rules",
        ),
        pytest.param(
            evicting(["stale-gang"], why="gang team-b/b1 has 2 of 4 members for 60s"),
            False,
            "gang:team-b/b1: evicts 1 pod by rule stale-gang for team-b/b1: team-a/a0 on n0;"
            " gang team-b/b1 has 2 of 4 members for 60s",
            id="a gang that gives up",
        ),
        pytest.param(
            evicting(["quota"], unit="", beneficiary=None, why="quota a uses 9 of 8 cpu"),
            False,
            "evicts 1 pod by rule quota: team-a/a0 on n0; quota a uses 9 of 8 cpu",
            id="a quota that gives back",
        ),
        pytest.param(
            evicting(["priority"], to=1),
            True,
            "dry run: gang:team-b/b1: would evict 1 pod by rule priority for team-b/b1: team-a/a0 on n0;"
            " would nominate 1 pod to n0 (proof: optimal)",
            id="a dry run",
        ),
    ],
)
def test_a_plan_with_victims_is_one_line_that_says_who_goes_by_which_rule_for_whom(
    lines: pytest.LogCaptureFixture, plan: RoundPlan, dry_run: bool, line: str
) -> None:
    decisions = DecisionLog()
    decisions.record(plan, number=1, at=0.0)
    assert messages(lines) == [], "not before they go"
    decisions.evicts(plan, plan.evictions[0].unit, dry_run=dry_run)
    assert messages(lines) == [line]


def test_the_decision_log_has_every_victim_and_every_nomination() -> None:
    decisions = DecisionLog()
    plan = evicting(["quota"] * 8, to=8, why="quota a uses 8 of 0")
    decisions.record(plan, number=7, at=3.5)
    decisions.evicts(plan, GANG, dry_run=False)
    (kept,) = decisions.recent()
    assert kept["victims"][7] == {"pod": "team-a/a7", "node": "n7", "rule": "quota"}
    assert [one["pod"] for one in kept["nominated"]] == [f"team-b/b1-{i}" for i in range(8)]
    assert (kept["round"], kept["at"], kept["beneficiary"], kept["placed"]) == (7, 3.5, "team-b/b1", 0)
    assert kept["message"] == "quota a uses 8 of 0"


def test_a_gang_that_is_complete_in_a_moment_is_not_said_to_wait_for_members(lines: pytest.LogCaptureFixture) -> None:
    decisions = DecisionLog(hold_seconds=1.0)
    decisions.record(waits("1 of minMember 2 exist", gated=True), number=1, at=10.0)
    assert decisions.next_due() == 11.0
    decisions.record(placed(), number=2, at=10.5)
    decisions.release(20.0)
    assert messages(lines) == [
        "gang:team-b/b1: places 1 of 1 pod on n1, lowest common layer blockLayer (proof: optimal)"
    ]
    assert decisions.next_due() is None
    assert len(decisions.recent()) == 2, "/debug/decisions has both"


def test_a_gang_that_goes_on_waiting_says_so_after_a_moment_as_it_is_then(lines: pytest.LogCaptureFixture) -> None:
    decisions = DecisionLog(hold_seconds=1.0)
    for at, exist in ((10.0, 1), (10.4, 2), (10.8, 3)):
        decisions.record(waits(f"{exist} of minMember 4 exist", gated=True, proof=Proof.UNKNOWN), number=exist, at=at)
    decisions.release(10.9)
    assert messages(lines) == []
    decisions.release(11.0)
    decisions.release(12.0)
    assert messages(lines) == ["gang:team-b/b1: 3 of minMember 4 exist"]


def test_a_gang_that_is_linked_meanwhile_is_not_said_to_wait_by_itself(lines: pytest.LogCaptureFixture) -> None:
    decisions = DecisionLog(hold_seconds=1.0)
    decisions.record(waits("1 of minMember 2 exist", gated=True), number=1, at=10.0)
    plan = placed()
    linked = f"{GANG},team-b/b2"
    units = tuple(replace(unit, unit=linked) for unit in plan.units)
    placements = tuple(replace(one, unit=linked) for one in plan.placements)
    decisions.record(replace(plan, units=units, placements=placements), number=2, at=10.5)
    decisions.release(20.0)
    (line,) = messages(lines)
    assert line.startswith(f"{linked}: places 1 of 1 pod on n1")


def test_a_thousand_gangs_that_wait_cost_a_line_each_to_look_through() -> None:
    """Counted in calls of functions: of each gang the others that wait are not looked at."""
    calls = 0

    def hear(frame: object, what: str, arg: object) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    decisions = DecisionLog(hold_seconds=100.0)
    plan = waits("1 of minMember 2 exist", gated=True)
    names = [f"gang:team-b/g{i},team-b/h{i}" for i in range(1000)]
    whole = replace(
        plan,
        pending=tuple(replace(plan.pending[0], unit=name) for name in names),
        units=tuple(replace(plan.units[0], unit=name) for name in names),
    )
    sys.setprofile(hear)
    try:
        for number in range(3):
            decisions.record(whole, number=number, at=1.0)
    finally:
        sys.setprofile(None)
    assert calls < 3 * 1000 * 60


def test_victims_of_a_plan_that_is_not_carried_out_are_not_logged(lines: pytest.LogCaptureFixture) -> None:
    decisions = DecisionLog()
    decisions.record(evicting(["quota"], to=1), number=1, at=0.0)
    decisions.record(placed(), number=2, at=0.0)
    assert messages(lines) == [
        "gang:team-b/b1: places 1 of 1 pod on n1, lowest common layer blockLayer (proof: optimal)"
    ]
