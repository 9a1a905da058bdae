# SPDX-License-Identifier: Apache-2.0
"""Victims for jobs with switches or SuperPoDs (ascend.md 5.3): the general rules of preemption.md 1 to 6, whole gangs.

The least harmful set is compared with trying every set of victims, each by planning the cluster without it.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.config.configuration import KoordpyConfiguration, Preemption
from koordpy.plan.pending_reason import Reason
from tests.scenarios.cluster import World, bound, messages
from tests.scenarios.npus import SECOND, ascend, notes, npu_gang, npu_node, npu_pod, super_pods, switched

BIG = {keys.TOR_AFFINITY: "large-model-schema"}
COMMON = {keys.TOR_AFFINITY: "normal-schema"}


def running(name: str, nodes: Iterable[str], chips: int, priority: int = 0, **settings_: Any) -> list[Any]:
    """A whole gang that holds nodes; its name is the prefix of its pods."""
    places = list(nodes)
    group, *_ = npu_gang(name, len(places))
    held = [
        npu_pod(f"{name}-{i}", chips, gang=name, at=at, holds=range(chips), priority=priority, **settings_)
        for i, at in enumerate(places)
    ]
    return [group, *held]


def asking(count: int, chips: int, priority: int = 10, **settings_: Any) -> list[Any]:
    return npu_gang("g", count, chips, priority=priority, **settings_)


def evicted(plan: Any) -> set[str]:
    return {one.pod_key.partition("/")[2] for one in plan.evictions}


def test_a_superpod_job_gets_the_nodes_of_a_gang_of_lower_priority() -> None:
    world = World().add(*super_pods(2, 2), running("a", ["s0-0", "s1-0"], 16), running("b", ["s0-1", "s1-1"], 16, 1))
    plan = world.add(*asking(2, 16, annotations={keys.SP_BLOCK: "32"})).plan()
    assert evicted(plan) == {"a-0", "a-1", "b-0", "b-1"}, "no block fits beside either of them"
    assert bound(plan) == {"p-0": "s0-0", "p-1": "s0-1"}
    assert {own[keys.SUPER_POD_RANK] for own in notes(plan).values()} == {"0"}
    assert {e.rule for e in plan.evictions} == {"priority"}


def test_soft_blocks_need_fewer_victims() -> None:
    world = World().add(*super_pods(2, 2), running("a", ["s0-0", "s1-0"], 16), running("b", ["s0-1", "s1-1"], 16, 1))
    soft = {keys.SUPER_POD_AFFINITY: "soft"}
    plan = world.add(*asking(2, 16, annotations={keys.SP_BLOCK: "32"}, labels=soft)).plan()
    assert evicted(plan) == {"a-0", "a-1"}
    assert bound(plan) == {"p-0": "s0-0", "p-1": "s1-0"}


def test_one_leaf_is_freed_for_a_padding_job() -> None:
    world = World().add(*switched({"a": [0, 1], "b": [0, 1]}, 2))
    world.add(running("x", ["as0"], 8, 2), running("y", ["bs0"], 8, 1))
    plan = world.add(*asking(2, 8, labels=BIG)).plan()
    assert evicted(plan) == {"y-0"}, "the least important one, and one is enough"
    assert bound(plan) == {"p-0": "bs0", "p-1": "bs1"}


def test_the_uplinks_of_a_spanning_job_are_freed() -> None:
    """Servers are enough; it is another job's uplinks that stand in the way."""
    world = World().add(*switched({"a": [0, 1, 2], "b": [0, 1, 2]}, 3))
    world.add(running("x", ["as2", "bs2"], 8, labels=COMMON))
    plan = world.add(*asking(4, 8, labels=BIG)).plan()
    assert evicted(plan) == {"x-0", "x-1"}
    assert len(bound(plan)) == 4


def test_marks_of_leaves_are_those_after_the_evictions() -> None:
    world = World().add(*switched({"a": [0, 1], "b": [0, 1]}, 2), running("x", ["as1", "bs1"], 8, labels=COMMON))
    plan = world.add(*asking(4, 8, labels=BIG)).plan(config=SECOND)
    assert evicted(plan) == {"x-0", "x-1"}
    assert {own[keys.SHARED_TOR] for own in notes(plan).values()} == {"2"}


def test_a_foundation_model_takes_no_free_servers_under_a_common_jobs_leaves() -> None:
    """Four servers are free, two of them under leaves that the common job spans: it goes, and not in vain."""
    world = World().add(*switched({"a": [0, 1], "b": [0, 1, 2], "c": [0, 1, 2]}, 3))
    world.add(running("x", ["bs0", "bs1", "bs2", "cs0"], 8, labels=COMMON))
    plan = world.add(*asking(4, 8, labels=BIG)).plan(config=SECOND)
    assert evicted(plan) == {"x-0", "x-1", "x-2", "x-3"}
    assert len(bound(plan)) == 4


def test_a_slice_position_is_freed_for_a_column_of_its_own() -> None:
    """Four servers are free, at two slice positions: ranks 0 and 3, 1 and 2 need three."""
    world = World().add(*switched({"a": [0, 1, 2], "b": [0, 1, 2]}, 3))
    world.add(running("x", ["as2"], 8, 1), running("y", ["bs2"], 8))
    plan = world.add(*asking(4, 8, labels=BIG)).plan()
    assert evicted(plan) == {"y-0"}
    assert bound(plan) == {"p-0": "bs0", "p-1": "bs1", "p-2": "bs2", "p-3": "as0"}


@pytest.mark.parametrize("priority", [10, 11])
def test_nobody_of_the_same_priority_or_a_higher_one_goes(priority: int) -> None:
    world = World().add(*super_pods(2), running("a", ["s0-0", "s0-1"], 16, priority))
    plan = world.add(*asking(2, 16, annotations={keys.SP_BLOCK: "32"})).plan()
    assert not plan.evictions
    assert "SuperPoD affinity: required 1, total 0" in messages(plan)["p-0"]


Held = tuple[str, tuple[str, ...], int]
"""(gang, nodes, priority)."""


@st.composite
def crowded(draw: st.DrawFn) -> tuple[list[Any], list[Held], int, dict[str, Any], list[Any]]:
    """(cluster, running gangs, chips of a node, settings of the configuration, the job that asks)."""
    kind = draw(st.sampled_from(("hard", "soft", "first", "common", "second")))
    chips = 16 if kind in ("hard", "soft") else 8
    setting: dict[str, Any] = {"nslb_version": "2.0" if kind == "second" else "1.0"}
    if chips == 16:
        sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        cluster: list[Any] = super_pods(*sizes)
        free = [node.metadata.name for node in cluster]
        setting["reserve_nodes"] = draw(st.sampled_from((0, 2)))
    else:
        positions = draw(st.sampled_from((2, 3)))
        slices = st.sets(st.integers(0, positions - 1), min_size=1)
        leaves = {name: sorted(draw(slices)) for name in "abc"[: draw(st.integers(1, 3))]}
        cluster = switched(leaves, positions)
        free = [f"{leaf}s{at}" for leaf, own in leaves.items() for at in own]
    held: list[Held] = []
    left = draw(st.permutations(free))[draw(st.integers(0, 3)) :]
    while left and len(held) < 4:
        size = draw(st.integers(1, 3))
        held.append((f"v{len(held)}", tuple(left[:size]), draw(st.sampled_from((0, 0, 1, 20)))))
        left = left[size:]
    count = draw(st.integers(1, 4))
    block = {keys.SP_BLOCK: str(16 * draw(st.sampled_from([b for b in (1, 2) if count % b == 0])))}
    labels: dict[str, dict[str, str]] = {
        "hard": {},
        "soft": {keys.SUPER_POD_AFFINITY: "soft"},
        "first": BIG,
        "common": COMMON,
        "second": BIG,
    }
    asked = asking(count, chips, annotations=block if chips == 16 else {}, labels=labels[kind])
    return cluster, held, chips, setting, asked


def harm(gone: Iterable[Held]) -> tuple[int, int, int]:
    """Cost levels 2 to 5: highest priority, gangs broken, pods (each a whole node)."""
    units = list(gone)
    return max((one[2] for one in units), default=-1), len(units), sum(len(one[1]) for one in units)


@settings(max_examples=25, deadline=None)
@given(crowded())
def test_the_least_harmful_gangs_go(case: tuple[list[Any], list[Held], int, dict[str, Any], list[Any]]) -> None:
    cluster, held, chips, setting, job = case

    def world(gone: Iterable[Held] = ()) -> World:
        made = World().add(*cluster)
        for one in held:
            if one not in gone:
                made.add(running(one[0], one[1], chips, one[2]))
        return made.add(*job)

    config = ascend(**setting)
    quiet = KoordpyConfiguration(ascend=config.ascend, preemption=Preemption(enabled=False))
    weak = [one for one in held if one[2] < 10]
    sets = [gone for size in range(len(weak) + 1) for gone in combinations(weak, size)]
    enough = [gone for gone in sets if world(gone).plan(config=quiet).placements]
    plan = world().plan(config=config)
    assert bool(plan.placements) is bool(enough)
    names = evicted(plan)
    taken = [one for one in held if f"{one[0]}-0" in names]
    assert names == {f"{one[0]}-{i}" for one in taken for i in range(len(one[1]))}, "gangs go whole"
    if enough:
        assert harm(taken) == min(map(harm, enough))


def test_the_plan_holds_when_the_victims_are_gone() -> None:
    world = World().add(*super_pods(4), running("a", ["s0-0", "s0-1"], 16), running("b", ["s0-2"], 16, 1))
    world.add(*asking(2, 16, annotations={keys.SP_BLOCK: "32"}))
    plan = world.plan()
    for one in plan.evictions:
        world.state.delete(Pod, one.pod_key)
    assert bound(world.plan()) == bound(plan)


def test_no_victim_too_many_where_the_least_set_is_not_proven() -> None:
    """Gangs that span all leaves: the solver's time is over before it knows which uplinks to free."""
    leaves = {f"l{k}-": list(range(4)) for k in range(12)}
    gangs = {f"v{i}": [f"l{(i + 5 * at) % 12}-s{at}" for at in range(4)] for i in range(12)}

    def world(names: Iterable[str]) -> World:
        made = World().add(*switched(leaves, 4), *asking(8, 8, labels=BIG))
        return made.add(*(running(name, gangs[name], 8) for name in names))

    plan = world(gangs).plan(config=KoordpyConfiguration(preemption=Preemption(time_limit=0.001)))
    gone = {name.partition("-")[0] for name in evicted(plan)}
    assert len(bound(plan)) == 8
    quiet = KoordpyConfiguration(preemption=Preemption(enabled=False))
    assert world(gangs.keys() - gone).plan(config=quiet).placements
    for name in sorted(gone):
        kept = [other for other in gangs if other not in gone or other == name]
        assert not world(kept).plan(config=quiet).placements, f"{name} need not have gone"


@pytest.mark.parametrize(
    ("cluster", "nodes", "chips", "settings_"),
    [
        pytest.param(
            [npu_node("m0", product="module"), npu_node("m1", product="module")],
            ("m0", "m1"),
            8,
            {"node_selector": {keys.ACCELERATOR_TYPE: "module"}},
            id="chips",
        ),
        pytest.param(super_pods(2), ("s0-0", "s0-1"), 16, {"annotations": {keys.SP_BLOCK: "16"}}, id="blocks"),
        pytest.param(switched({"a": [0, 1]}, 2), ("as0", "as1"), 8, {"labels": COMMON}, id="switches"),
    ],
)
@pytest.mark.parametrize("surplus", ["pods", "any"])
def test_a_gang_breaks_another_for_its_minimum_alone(
    cluster: list[Any],
    nodes: tuple[str, ...],
    chips: int,
    settings_: dict[str, Any],
    surplus: Literal["pods", "any"],
) -> None:
    """preemption.md 3.7: the room of a broken gang is enough for both members, and the plan is for the core."""
    world = World().add(*cluster, running("x", nodes, chips), *asking(2, chips, minimum=1, **settings_))
    plan = world.plan(config=KoordpyConfiguration(preemption=Preemption(surplus_victims=surplus)))
    assert [one.message for one in plan.pending if one.reason == Reason.SCHEDULER_ERROR] == []
    assert evicted(plan) == {"x-0", "x-1"}
    assert list(bound(plan)) == (["p-0"] if surplus == "pods" else ["p-0", "p-1"])


@pytest.mark.parametrize(("last", "grows"), [(0, True), (20, False)])
def test_a_job_in_blocks_grows_by_a_block_or_not_at_all(last: int, grows: bool) -> None:
    """Its core is bound: two members of the next block need two nodes, one of which may be of higher priority."""
    world = World().add(*super_pods(4))
    world.add(npu_pod("x", 16, at="s0-2", holds=range(16)), npu_pod("y", 16, at="s0-3", holds=range(16), priority=last))
    block = {keys.SP_BLOCK: "32"}
    group, *members = asking(4, 16, minimum=2, annotations=block)
    marks = {**block, keys.SUPER_POD_RANK: "0"}
    core = [
        npu_pod(f"p-{i}", 16, gang="g", at=f"s0-{i}", holds=range(16), priority=10, annotations=marks) for i in (0, 1)
    ]
    plan = world.add(group, *core, *members[2:]).plan()
    assert evicted(plan) == ({"x", "y"} if grows else set())
    assert bound(plan) == ({"p-2": "s0-2", "p-3": "s0-3"} if grows else {})
