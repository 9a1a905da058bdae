# SPDX-License-Identifier: Apache-2.0
"""Priority between users, moves in its place, and tenants that consolidation leaves alone: tables of neighbours.

Source: docs/rules/preemption.md 3.1 and 3.4. One accelerator a pod unless said.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import OwnerReference, Pod
from koordpy.config.configuration import Consolidation, Fairness, KoordpyConfiguration, Preemption, Quota
from koordpy.devices.family_registry import make_state
from koordpy.explain.explanation import explain
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.planner.queue.tenant_shares import tenant_shares
from koordpy.simulation.simulated_rounds import simulate
from tests.scenarios.cluster import World, group, messages, node, pod
from tests.scenarios.quotas import belongs, quota

GPU = "nvidia.com/gpu"
OVER_SHARE = KoordpyConfiguration()
NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


def gpus(name: str, number: int, **labels: str) -> Any:
    return node(name, labels, cpu="64", **{GPU: str(number)})


def of(user: str, name: str, at: str = "", *, gpu: int = 1, priority: int = 0, leaf: str = "", **more: Any) -> Pod:
    """A pod of a user; with `at` it runs there. leaf: its quota."""
    asked = {GPU: str(gpu)} if gpu else {}
    more.setdefault("created", 10 if at else 3000)
    labels = belongs(leaf, user=user)
    return pod(name, at=at, cpu=more.pop("cpu", "0"), requests=asked, priority=priority, labels=labels, **more)


def some(number: int, user: str, prefix: str, at: str = "", **more: Any) -> list[Pod]:
    return [of(user, f"{prefix}-{i}", at, created=10 + i, **more) for i in range(number)]


def preempting(across: str, **fairness: Any) -> KoordpyConfiguration:
    return KoordpyConfiguration(
        preemption=Preemption(across_users=across),  # type: ignore[arg-type]
        fairness=Fairness(**fairness),
        quota=Quota(enable_runtime_quota=False),
    )


def outcome(plan: RoundPlan) -> dict[str, str]:
    """Evicted pod -> rule."""
    assert not plan.rejected
    return {one.pod_key.partition("/")[2]: one.rule for one in plan.evictions}


@dataclass(frozen=True)
class Case:
    """What one round does. evicted: names; said: parts of the message of the pod p."""

    name: str
    objects: Sequence[Any]
    evicted: set[str] = field(default_factory=set)
    config: KoordpyConfiguration = OVER_SHARE
    rule: str = "priority"
    said: tuple[str, ...] = ()


HALVES = [gpus("n1", 4), *some(2, "alice", "a", "n1"), *some(2, "bob", "b", "n1", priority=1000)]
WHOLE = [gpus("n1", 8), of("dev", "d", "n1", gpu=8)]
RULES = [
    Case(
        "a share is out of reach",
        [*HALVES, of("bob", "p", priority=1000)],
        said=("preemption: user alice uses 2, share 2; user bob would use 3, share 2.",),
    ),
    Case("any: priority decides", [*HALVES, of("bob", "p", priority=1000)], {"a-1"}, preempting("any")),
    Case(
        "never: not even what is above a share",
        [gpus("n1", 4), *some(4, "alice", "a", "n1"), of("bob", "p", priority=9)],
        config=preempting("never"),
    ),
    Case(
        "never: the own user's pods go",
        [gpus("n1", 4), *some(3, "alice", "a", "n1"), of("bob", "b", "n1"), of("bob", "p", priority=9)],
        {"b"},
        preempting("never"),
    ),
    Case(
        "one user",
        [gpus("n1", 4), *some(4, "bob", "b", "n1"), of("bob", "p", gpu=4, priority=9)],
        {"b-0", "b-1", "b-2", "b-3"},
    ),
    Case(
        "what is above the share goes",
        [gpus("n1", 4), *some(4, "alice", "a", "n1"), of("bob", "p", gpu=2, priority=9)],
        {"a-2", "a-3"},
    ),
    Case(
        "and no more than that",
        [gpus("n1", 4), *some(4, "alice", "a", "n1"), of("bob", "p", gpu=3, priority=9)],
        said=("preemption: user alice uses 4, share 2; user bob would use 3, share 2.",),
    ),
    Case("equal priority never", [gpus("n1", 4), *some(4, "alice", "a", "n1"), of("bob", "p", gpu=2)]),
    Case("an equal excess passes to the higher priority", [*WHOLE, of("prod", "p", gpu=8, priority=9)], {"d"}),
    Case(
        "a larger excess does not",
        [*WHOLE, gpus("n2", 8), of("prod", "b", "n2", priority=9), of("carol", "c", "n2", gpu=7, priority=9),
         of("prod", "p", gpu=8, priority=9)],
        said=("preemption: user dev uses 8, share 5; user prod would use 9, share 5.",),
    ),
    Case(
        "but where the own user gives up as much",
        [*WHOLE, gpus("n2", 8), of("dev", "x", "n2", gpu=2), of("prod", "b", "n2", gpu=2),
         of("carol", "c", "n2", gpu=4, priority=9), group("m", 2), of("prod", "p", gpu=8, priority=9, gang="m"),
         of("prod", "q", gpu=2, priority=9, gang="m")],
        {"d", "b"},
    ),
    Case(
        "other models of accelerators do not count",
        [gpus("n1", 4, model="a"), gpus("n2", 4, model="b"), *some(4, "alice", "a", "n1"),
         of("bob", "p", gpu=2, priority=9, node_selector={"model": "a"})],
        {"a-2", "a-3"},
    ),
    Case(
        "what a tenant holds elsewhere is not counted against it",
        [gpus("n1", 4, model="a"), gpus("n2", 4, model="b"), *some(2, "alice", "a", "n1"), *some(4, "alice", "x", "n2"),
         *some(2, "bob", "b", "n1"), of("bob", "p", priority=9, gpu=2, node_selector={"model": "a"})],
        {"b-0", "b-1"},
    ),
    Case(
        "nor what waits for other nodes alone",
        [gpus("n1", 4, model="a"), gpus("n2", 4, model="b"), *some(4, "alice", "a", "n1"),
         of("carol", "w", gpu=5, node_selector={"model": "b"}),
         of("bob", "p", priority=9, gpu=2, node_selector={"model": "a"})],
        {"a-2", "a-3"},
    ),
    Case(
        "nodes that are too small do not count",
        [gpus("n1", 4), gpus("n2", 2), *some(4, "alice", "a", "n1"), *some(2, "carol", "c", "n2"),
         of("bob", "p", gpu=3, priority=9)],
        said=("user alice uses 4, share 2; user bob would use 3, share 2",),
    ),
    Case(
        "between quotas their mins decide",
        [gpus("n1", 4), quota("q", {GPU: 1}, {GPU: 4}), quota("r", {GPU: 1}, {GPU: 4}),
         *[pod(f"a-{i}", at="n1", cpu="0", requests={GPU: "1"}, labels=belongs("q"), created=i) for i in range(4)],
         pod("p", cpu="0", requests={GPU: "3"}, labels=belongs("r"), priority=9, created=99)],
        {"a-1", "a-2", "a-3"},
        preempting("overShare", reclaim="off"),
    ),
    Case(
        "a user label makes it a question between users",
        [gpus("n1", 4), quota("q", {GPU: 1}, {GPU: 4}), quota("r", {GPU: 1}, {GPU: 4}),
         *some(4, "alice", "a", "n1", leaf="q"), of("", "p", gpu=3, leaf="r", priority=9)],
        config=preempting("overShare", reclaim="off"),
        said=("user alice uses 4, share 2; user r would use 3, share 2",),
    ),
    Case(
        "a guarantee comes before a share",
        [gpus("n1", 4), quota("r", {GPU: 3}, {GPU: 4}), *some(4, "alice", "a", "n1"),
         of("", "p", gpu=3, leaf="r", priority=9)],
        {"a-1", "a-2", "a-3"},
        preempting("overShare", reclaim="off"),
    ),
    Case(
        "above the guarantee it is a share again",
        [gpus("n1", 4), quota("r", {GPU: 2}, {GPU: 4}), *some(4, "alice", "a", "n1"),
         of("", "p", gpu=3, leaf="r", priority=9)],
        config=preempting("overShare", reclaim="off"),
    ),
    Case(
        "victims of the own quota bring it within the guarantee",
        [gpus("n1", 4), quota("r", {GPU: 2}, {GPU: 4}), *some(2, "alice", "a", "n1"), *some(2, "", "b", "n1", leaf="r"),
         of("", "p", gpu=3, leaf="r", priority=9)],
        config=preempting("overShare", reclaim="off"),
        said=("user alice uses 2, share 2; user r would use 5, share 2",),
    ),
    Case(
        "in one quota a guarantee says nothing between its users",
        [gpus("n1", 4), quota("r", {GPU: 4}, {GPU: 4}), *some(2, "alice", "a", "n1", leaf="r"),
         *some(2, "bob", "b", "n1", leaf="r", priority=9),
         of("bob", "p", leaf="r", priority=9)],
        config=preempting("overShare", reclaim="off"),
        said=("user alice uses 2, share 2",),
    ),
    Case(
        "system priorities are not asked",
        [gpus("n1", 4), *some(2, "alice", "a", "n1"), *some(2, "bob", "b", "n1", priority=9),
         of("bob", "p", priority=2_000_000_000)],
        {"a-1"},
    ),
    Case(
        "nor pods without accelerators",
        [node("n1", cpu="4", **{GPU: "4"}), *some(2, "alice", "a", "n1", cpu="2"),
         of("bob", "p", gpu=0, cpu="2", priority=9)],
        {"a-1"},
    ),
    Case(
        "nor any tenant in mode off",
        [*HALVES, of("bob", "p", priority=1000)],
        {"a-1"},
        preempting("overShare", mode="off"),
    ),
    Case(
        "exact: queues, and their resource",
        [*HALVES, of("bob", "p", priority=1000)],
        config=preempting("overShare", mode="exact"),
        said=(f"preemption: queue alice uses 2, share 2; queue bob would use 3, share 2 {GPU}.",),
    ),
    Case(
        "with shares reclaimed their own line holds",
        [*HALVES, of("bob", "p", priority=1000)],
        config=preempting("overShare", reclaim="all"),
        said=("user alice uses 2, share 2",),
    ),
    Case(
        "a gang above its share gives its surplus up",
        [gpus("n1", 4), group("g", 1), *some(4, "alice", "a", "n1", gang="g"), of("bob", "p", gpu=2, priority=9)],
        {"a-2", "a-3"},
    ),
    Case(
        "members bring back what their own tenant loses",
        [gpus("n1", 1), gpus("n2", 1), group("m", 2), of("alice", "a", "n1"),
         of("bob", "p", priority=9, gang="m"), of("alice", "q", priority=9, gang="m")],
        {"a"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.name)
def test_priority_between_users(case: Case) -> None:
    plan = World().add(*case.objects).plan(config=case.config)
    assert outcome(plan) == dict.fromkeys(case.evicted, case.rule)
    for text in case.said:
        assert text in messages(plan)["p"]


PIECES = [gpus("n1", 4), gpus("n2", 4), *some(2, "alice", "a", "n1"), *some(2, "alice", "c", "n2")]
BOBS = of("bob", "p", gpu=4, priority=10)


def noted(key: str, text: str, number: int = 4) -> list[Any]:
    """The pieces, the first of Alice's pods with an annotation."""
    return [
        replace(one, metadata=replace(one.metadata, annotations={key: text}))
        if isinstance(one, Pod) and one.metadata.name in ("a-0", "c-0")[:number]
        else one
        for one in PIECES
    ]


def moving(**settings: Any) -> KoordpyConfiguration:
    return KoordpyConfiguration(
        consolidation=Consolidation(enabled=True),
        preemption=Preemption(enabled=False),
        quota=Quota(enable_runtime_quota=False),
        fairness=Fairness(**settings),
    )


def held(leaf: str, name: str, at: str) -> Pod:
    return pod(name, at=at, cpu="0", requests={GPU: "1"}, labels=belongs(leaf), created=10)


def two_of(leaf: str, least: int) -> list[Any]:
    """Two nodes of 2 with a pod of a quota on each."""
    return [
        gpus("n1", 2), gpus("n2", 2), quota(leaf, {GPU: least}, {GPU: 4}), held(leaf, "a", "n1"), held(leaf, "c", "n2"),
    ]  # fmt: skip


MOVES = [
    Case("free pieces do not keep a priority waiting", [*PIECES, BOBS], {"c-0", "c-1"}),
    Case("never: they do", [*PIECES, BOBS], config=preempting("never")),
    Case("equal priority stays", [*PIECES, of("bob", "p", gpu=4)]),
    Case(
        "preemptionPolicy Never moves no pod",
        [*PIECES, of("bob", "p", gpu=4, priority=9, preemption_policy="Never")],
    ),
    Case(
        "a tenant within its share stays for one above its own",
        [*PIECES, gpus("n3", 4), of("bob", "b", "n3", gpu=4, priority=10), of("carol", "w", gpu=4), BOBS],
        said=("consolidation: user alice is within its share.",),
    ),
    Case(
        "a quota within its min stays for one without a guarantee",
        [*two_of("midq", 2), of("", "p", gpu=2)],
        config=moving(),
        said=("consolidation: quota midq is within its min.",),
    ),
    Case("one above its min moves", [*two_of("midq", 1), of("", "p", gpu=2)], {"c"}, moving()),
    Case(
        "a guarantee moves it too",
        [*two_of("midq", 2), quota("r", {GPU: 2}, {GPU: 2}), of("", "p", gpu=2, leaf="r")],
        {"c"},
        moving(),
    ),
    Case(
        "above the guarantee it stays",
        [*two_of("midq", 2), quota("r", {GPU: 1}, {GPU: 2}), of("", "p", gpu=2, leaf="r")],
        config=moving(),
        said=("consolidation: quota midq is within its min.",),
    ),
    Case(
        "a quota does not stay for its own pods",
        [*two_of("midq", 4), of("", "p", gpu=2, leaf="midq")],
        {"c"},
        moving(mode="off"),
    ),
    Case(
        "a system priority disturbs it",
        [*two_of("midq", 2), of("", "p", gpu=2, priority=2_000_000_000)],
        {"c"},
        moving(),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", MOVES, ids=lambda case: case.name)
def test_moves_in_place_of_evictions(case: Case) -> None:
    plan = World().add(*case.objects).plan(config=case.config)
    assert outcome(plan) == dict.fromkeys(case.evicted, "consolidation")
    for text in case.said:
        assert text in messages(plan)["p"]


@pytest.mark.parametrize(
    ("key", "text", "stays"),
    [
        (keys.SAFE_TO_CONSOLIDATE, "false", True),
        (keys.SAFE_TO_CONSOLIDATE, "true", False),
        (keys.DEFRAG, "never", True),
        (keys.DEFRAG, "always", False),
        (keys.SAFE_TO_EVICT, "false", True),
        (keys.SAFE_TO_EVICT, "true", False),
        (keys.DO_NOT_DISRUPT, "true", True),
        (keys.DO_NOT_DISRUPT, "false", False),
        (keys.PREFER_NO_EVICTION, "", True),
        ("example.com/else", "false", False),
    ],
)
def test_a_pod_that_says_so_is_not_moved(key: str, text: str, stays: bool) -> None:
    plan = World().add(*noted(key, text), BOBS).plan()
    assert bool(outcome(plan)) != stays
    alone = World().add(*noted(key, text, 1), BOBS).plan()
    assert {one.node for one in alone.evictions} == {"n2"}  # a-0 is on n1


def test_a_gang_is_not_moved_whose_group_says_so() -> None:
    for notes, stays in ((None, False), ({keys.DEFRAG: "never"}, True)):
        pods = [of("alice", f"g-{i}", at, gang="g", created=10 + i) for i, at in enumerate(("n1", "n1", "n2", "n2"))]
        plan = World().add(gpus("n1", 4), gpus("n2", 4), group("g", 1, notes), *pods, BOBS).plan()
        assert bool(outcome(plan)) != stays


def test_live_a_pod_without_a_controller_is_not_moved() -> None:
    owner = [OwnerReference(kind="Job", name="j", uid="u", controller=True)]
    owned = [
        replace(one, metadata=replace(one.metadata, owner_references=owner)) if isinstance(one, Pod) else one
        for one in PIECES
    ]
    for live, objects, moves in ((False, PIECES, True), (True, PIECES, False), (True, owned, True)):
        plan = World(make_state(live=live)).add(*objects, BOBS).plan()
        assert bool(outcome(plan)) == moves


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_two_users_who_start_together_keep_their_halves() -> None:
    bobs = [of("bob", f"b-{i}", priority=1000, created=100 + i) for i in range(6)]
    state = World().add(gpus("n1", 4), *bobs, *[of("alice", f"a-{i}", created=200 + i) for i in range(2)]).state
    result = simulate(state, OVER_SHARE, planner=plan_round_of, now=NOW, rounds=50)
    assert result.stable and not result.evictions
    assert {key for key, _ in result.final} == {"default/a-0", "default/a-1", "default/b-0", "default/b-1"}
    assert [(one.queue, one.used, one.share, one.usage) for one in result.shares] == [
        ("alice", 2, 2, None),
        ("bob", 2, 2, None),
    ]


def plan_round_of(snapshot: Any, config: KoordpyConfiguration) -> RoundPlan:
    return plan_round(snapshot, config)


def test_an_indivisible_node_passes_to_the_higher_priority_once() -> None:
    state = World().add(*WHOLE, of("prod", "p", gpu=8, priority=9)).state
    result = simulate(state, OVER_SHARE, planner=plan_round_of, now=NOW, rounds=50)
    assert result.stable and [one.eviction.pod_key for one in result.evictions] == ["default/d"]


# --- what is said -----------------------------------------------------------------------------------------------------

FULL = [gpus("n1", 4), *some(4, "bob", "b", "n1", priority=9)]
UNCLAIMED = "fairness: user alice uses 0, share 2; user bob uses 4, share 2; fairness.reclaim is {}."


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (OVER_SHARE, UNCLAIMED.format("quotas")),
        (preempting("overShare", reclaim="off"), UNCLAIMED.format("off")),
        (replace(OVER_SHARE, preemption=Preemption(enabled=False)), UNCLAIMED.format("quotas")),
        (
            preempting("overShare", mode="kai"),
            f"fairness: queue alice uses 0, share 2; queue bob uses 4, share 2 {GPU}; fairness.reclaim is quotas.",
        ),
        (preempting("overShare", mode="off"), ""),
    ],
)
def test_a_share_that_is_not_taken_back_is_told(config: KoordpyConfiguration, text: str) -> None:
    plan = World().add(*FULL, of("alice", "p", gpu=2)).plan(config=config)
    assert not plan.evictions
    assert messages(plan)["p"].endswith(text) if text else "fairness" not in messages(plan)["p"]


def test_nothing_is_told_of_a_tenant_that_would_end_above_its_share() -> None:
    assert "fairness" not in messages(World().add(*FULL, of("alice", "p", gpu=3)).plan())["p"]


def test_the_tenant_with_the_largest_excess_is_named() -> None:
    objects = [gpus("n1", 9), *some(5, "bob", "b", "n1", priority=9), *some(4, "ann", "c", "n1", priority=9)]
    text = messages(World().add(*objects, of("alice", "p", gpu=3)).plan())["p"]
    assert "user bob uses 5, share 3;" in text


def test_explain_has_tried_the_reclaim_of_shares() -> None:
    snapshot = World().add(*FULL, of("alice", "p", gpu=2)).snapshot()
    assert (
        "fairness.reclaim were all: pods of other quotas or users would be evicted"
        in explain(snapshot, OVER_SHARE, "default/p").would_fit_if
    )
    assert not [line for line in explain(snapshot, preempting("any"), "default/p").would_fit_if if "reclaim" in line]
    more = World().add(*FULL, of("alice", "p", gpu=3)).snapshot()
    assert not [line for line in explain(more, OVER_SHARE, "default/p").would_fit_if if "reclaim" in line]


def test_the_share_of_others_is_what_withholds_a_unit() -> None:
    kept = World().add(*HALVES, of("bob", "p", priority=1000)).plan()
    assert [one.withheld for one in kept.units] == [("share",)]
    full = World().add(gpus("n1", 2), *some(2, "bob", "b", "n1", priority=9), of("bob", "p")).plan()
    assert [one.withheld for one in full.units] == [()]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("gpu-count", [("alice", 2, 2), ("bob", 2, 2)]),
        (
            "exact",
            [
                ("alice", {GPU: 2}, {GPU: 2}),
                ("bob", {GPU: 2}, {GPU: 2}),
            ],
        ),
        ("off", []),
    ],
)
def test_shares_are_listed(mode: Any, wanted: list[object]) -> None:
    found = tenant_shares(World().add(*HALVES).snapshot(), Fairness(mode=mode))
    assert [(one.queue, one.used, one.share) for one in found] == wanted
