# SPDX-License-Identifier: Apache-2.0
"""A gather strategy of the configuration serves the gangs that say nothing themselves, as if each of them said it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api import keys
from koordpy.api.objects import ObjectMeta, SchedulingGroup
from koordpy.api.pod_groups import (
    UpstreamConstraints,
    UpstreamGang,
    UpstreamPodGroup,
    UpstreamPodGroupSpec,
    UpstreamPolicy,
    UpstreamTopologyConstraint,
)
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import GangDefaults, GangNamespace, Gangs, GatherEntry, KoordpyConfiguration
from koordpy.explain.explanation import explain
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.verify.plan_check import check_plan
from tests.scenarios.cluster import TWO_LAYERS, World, bound, gang_pods, group, node, nodes_of, pod, wish

PREFER_BLOCK = GatherEntry(layer="blockLayer", strategy="PreferGather")
MUST_BLOCK = GatherEntry(layer="blockLayer", strategy="MustGather")
NAMED = {keys.GANG_NAME: "g", keys.GANG_MIN: "2"}
SCATTERED = "s1{b1: n1} s2{b2: n2} s3{b3: n3 n4}"
"""Two equal pods without a goal take n1 and n2; in one block only n3 and n4 are."""


def configured(*gather: GatherEntry, **namespaces: Any) -> KoordpyConfiguration:
    spaces = {name: GangNamespace(gather=rules) for name, rules in namespaces.items()}
    return KoordpyConfiguration(gangs=Gangs(defaults=GangDefaults(gather=gather), namespaces=spaces))


def scattered(*objects: Any) -> World:
    return World().add(TWO_LAYERS, nodes_of(SCATTERED), *objects)


def gathered(plan: RoundPlan) -> bool:
    return set(bound(plan).values()) == {"n3", "n4"}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Any], list[tuple[str, int]], list[GatherEntry]]:
    """Objects, gangs by name and minimum, and the gather strategy of all of them."""
    two = st.integers(0, 1)
    objects: list[Any] = [TWO_LAYERS]
    objects += [
        node(f"n{i}:{draw(st.integers(1, 3))}", {"spine": f"s{draw(two)}", "block": f"b{draw(two)}"})
        for i in range(draw(st.integers(1, 7)))
    ]
    gangs = []
    for g in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 4))
        gangs.append((f"g{g}", draw(st.integers(0, size))))
        cpus = st.sampled_from(["1", "2"]) if draw(st.booleans()) else st.just("1")
        priority = draw(st.integers(0, 1))
        objects += [pod(f"g{g}-{i}", gang=f"g{g}", cpu=draw(cpus), created=i, priority=priority) for i in range(size)]
        if draw(st.booleans()):
            objects.append(pod(f"g{g}-run", gang=f"g{g}", at=f"n{draw(two)}"))
    objects += [pod(f"run-{i}", at=f"n{i}", priority=-1) for i in range(draw(st.integers(0, 2)))]
    objects += [pod(f"plain-{i}") for i in range(draw(st.integers(0, 2)))]
    layers = draw(st.lists(st.sampled_from(["nodeLayer", "blockLayer", "spineLayer"]), min_size=1, unique=True))
    gather = [
        GatherEntry(
            layer=layer,
            strategy=draw(st.sampled_from(["PreferGather", "PreferGather", "MustGather"])),
            pod_count_multiple=draw(st.sampled_from([0, 0, 1, 2])),
        )
        for layer in layers
    ]
    return objects, gangs, gather


@settings(max_examples=40)
@given(clusters(), st.booleans())
def test_a_default_places_as_the_same_annotation_would(
    made: tuple[list[Any], list[tuple[str, int]], list[GatherEntry]], linked: bool
) -> None:
    objects, gangs, gather = made
    notes = wish(
        {rule.layer: rule.strategy.removesuffix("Gather") for rule in gather},
        multiple={rule.layer: rule.pod_count_multiple for rule in gather if rule.pod_count_multiple},
    )
    links = {keys.GANG_GROUPS: '["default/g0"]'} if linked else {}
    told = World().add(objects, [group(name, minimum, {**notes, **links}) for name, minimum in gangs])
    meant = World().add(objects, [group(name, minimum, links) for name, minimum in gangs])
    by_annotation = plan_round(told.snapshot(), KoordpyConfiguration())
    for config in (configured(*gather), configured(default=tuple(gather))):
        assert replace(plan_round(meant.snapshot(), config), warnings=()) == replace(by_annotation, warnings=())
    waiting = min((p.pod_key for p in by_annotation.pending), default=None)
    if waiting is not None:
        alike = explain(told.snapshot(), None, waiting), explain(meant.snapshot(), configured(*gather), waiting)
        assert len({repr(replace(one, warnings=())) for one in alike}) == 1


@pytest.mark.parametrize(
    ("objects", "config", "together"),
    [
        pytest.param([group("g", 2), *gang_pods("g", 2)], configured(), False, id="off by default"),
        pytest.param([group("g", 2), *gang_pods("g", 2)], configured(PREFER_BLOCK), True, id="a PodGroup"),
        pytest.param(
            [pod(f"p-{i}", annotations=NAMED) for i in range(2)], configured(PREFER_BLOCK), True, id="a gang by name"
        ),
        pytest.param([pod("p-0"), pod("p-1")], configured(PREFER_BLOCK), False, id="plain pods"),
        pytest.param(
            [group("g", 2, {keys.GANG_TOPOLOGY: "{}"}), *gang_pods("g", 2)],
            configured(PREFER_BLOCK),
            False,
            id="a wish for nothing",
        ),
        pytest.param(
            [group("g", 2, {keys.GANG_TOPOLOGY_ALIAS: "{}"}), *gang_pods("g", 2)],
            configured(PREFER_BLOCK),
            False,
            id="a wish for nothing by the alias",
        ),
        pytest.param(
            [group("g", 2), *gang_pods("g", 2)], configured(PREFER_BLOCK, default=()), False, id="none in a namespace"
        ),
        pytest.param(
            [group("g", 2), *gang_pods("g", 2)], configured(default=(PREFER_BLOCK,)), True, id="of a namespace alone"
        ),
        pytest.param(
            [group("g", 2), *gang_pods("g", 2)],
            configured(PREFER_BLOCK, default=None, other=()),
            True,
            id="a namespace that leaves it as it is",
        ),
        pytest.param(
            [
                group("g", 1, {keys.GANG_GROUPS: '["default/h"]'}),
                pod("p-0", gang="g"),
                group("h", 1, {keys.GANG_TOPOLOGY: "{}"}),
                pod("p-1", gang="h"),
            ],
            configured(PREFER_BLOCK),
            False,
            id="another gang of the group says what it asks",
        ),
    ],
)
def test_a_default_serves_gangs_that_say_nothing(
    objects: list[Any], config: KoordpyConfiguration, together: bool
) -> None:
    plan = scattered(objects).plan(config=config)
    assert len(plan.placements) == 2
    assert gathered(plan) is together


def test_constraints_of_an_upstream_group_stand_before_a_default() -> None:
    def upstream(name: str, *topology: str) -> UpstreamPodGroup:
        constraints = UpstreamConstraints(topology=[UpstreamTopologyConstraint(key=key) for key in topology])
        policy = UpstreamPolicy(gang=UpstreamGang(min_count=2))
        spec = UpstreamPodGroupSpec(scheduling_policy=policy, scheduling_constraints=constraints)
        return UpstreamPodGroup(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)

    members = [pod(f"p-{i}", scheduling_group=SchedulingGroup(pod_group_name="g")) for i in range(2)]
    wide = [node("n1", {"spine": "s", "block": "b1"}), node("n2", {"spine": "s", "block": "b2"})]
    for topology, placed in ((["spine"], 2), ([], 0)):
        world = World().add(TWO_LAYERS, wide, members, upstream("g", *topology))
        assert len(world.plan(config=configured(MUST_BLOCK)).placements) == placed


@pytest.mark.parametrize("strategy", ["PreferGather", "MustGather"])
@pytest.mark.parametrize("multiple", [0, 2])
def test_a_layer_of_a_default_that_the_tree_lacks_is_skipped_with_one_warning(strategy: Any, multiple: int) -> None:
    rack = GatherEntry(layer="rackLayer", strategy=strategy, pod_count_multiple=multiple)
    world = scattered(group("g", 2), gang_pods("g", 2), group("h", 3), gang_pods("h", 2, prefix="q"))
    plan = world.plan(config=configured(rack, PREFER_BLOCK))
    assert gathered(plan)
    assert plan.warnings == (("configuration", 'gangs.defaults.gather[0].layer: unknown layer "rackLayer" is ignored'),)


def test_the_place_of_a_skipped_layer_names_the_namespace() -> None:
    rack = GatherEntry(layer="rackLayer", strategy="MustGather")
    plan = scattered(group("g", 2), gang_pods("g", 2)).plan(config=configured(default=(PREFER_BLOCK, rack)))
    text = 'gangs.namespaces.default.gather[1].layer: unknown layer "rackLayer" is ignored'
    assert plan.warnings == (("configuration", text),)


def test_a_skipped_layer_is_not_told_where_every_gang_says_what_it_asks() -> None:
    rack = GatherEntry(layer="rackLayer", strategy="MustGather")
    world = scattered(group("g", 2, wish({"blockLayer": "Prefer"})), gang_pods("g", 2), pod("plain"))
    assert world.plan(config=configured(rack)).warnings == ()


def test_a_must_of_a_default_that_no_domain_can_meet_holds_as_an_annotation_would() -> None:
    plan = scattered(group("g", 3), gang_pods("g", 3)).plan(config=configured(MUST_BLOCK))
    assert bound(plan) == {}
    assert "needed 3, available in blockLayer: s3/b3: 2, s1/b1: 1, s2/b2: 1" in plan.pending[0].message


def test_the_check_of_a_plan_knows_the_default() -> None:
    snapshot, config = scattered(group("g", 2), gang_pods("g", 2)).snapshot(), configured(MUST_BLOCK)
    (unit,) = Groups(snapshot, config.gangs).units()
    round_state = RoundState(Draft(snapshot), config)
    assert check_plan(unit, {"default/p-0": "n3", "default/p-1": "n4"}, round_state) == []
    apart = check_plan(unit, {"default/p-0": "n1", "default/p-1": "n2"}, round_state)
    assert apart == ["MustGather blockLayer: members in 2 domains"]


def test_the_search_for_victims_knows_the_default() -> None:
    """Evicting one pod of n1 and one of n2 would do for the number; in one block both of n3 and n4 have to go."""
    low = [pod(f"run-{i}", at=f"n{i}", priority=-1) for i in range(1, 5)]
    world = scattered(low, group("g", 2), gang_pods("g", 2))
    plan = world.plan(config=configured(MUST_BLOCK))
    assert {eviction.node for eviction in plan.evictions} == {"n3", "n4"}


def told(plan: RoundPlan) -> dict[str, bool]:
    """Gang -> whether its report says that the network was not looked at."""
    return {report.name: report.remark.startswith("topology ignored: no gather goal set") for report in plan.gangs}


@pytest.mark.parametrize(
    ("objects", "config", "said"),
    [
        pytest.param([group("g", 2), *gang_pods("g", 2)], None, True, id="it starts"),
        pytest.param([pod(f"p-{i}", annotations=NAMED) for i in range(2)], None, True, id="a gang by name starts"),
        pytest.param([group("g", 9), *gang_pods("g", 9)], None, False, id="it waits"),
        pytest.param([group("g", 1), *gang_pods("g", 1)], None, False, id="one pod is near itself"),
        pytest.param(
            [group("g", 1), *gang_pods("g", 2), pod("r", gang="g", at="n1")], None, False, id="it runs already"
        ),
        pytest.param([group("g", 2), *gang_pods("g", 2)], configured(PREFER_BLOCK), False, id="a default"),
        pytest.param(
            [group("g", 2, {keys.GANG_TOPOLOGY: "{}"}), *gang_pods("g", 2)], None, False, id="it asks for nothing"
        ),
        pytest.param(
            [group("g", 2, wish({"blockLayer": "Prefer"})), *gang_pods("g", 2)], None, False, id="it has a goal"
        ),
    ],
)
def test_a_gang_that_starts_without_a_goal_is_told(
    objects: list[Any], config: KoordpyConfiguration | None, said: bool
) -> None:
    plan = scattered(objects).plan(config=config)
    assert told(plan) == {"default/g": said}
    assert all(report.message == "" for report in plan.gangs if report.bound)


def test_no_gang_is_told_of_a_goal_where_there_is_no_tree() -> None:
    world = World().add(nodes_of(SCATTERED), group("g", 2), gang_pods("g", 2))
    assert told(world.plan()) == {"default/g": False}


def test_each_gang_of_a_group_is_told_unless_one_of_them_has_a_goal() -> None:
    links = {keys.GANG_GROUPS: '["default/g", "default/h"]'}
    for more, said in (({}, True), (wish({"blockLayer": "Prefer"}), False)):
        world = scattered(group("g", 1, links), pod("p-0", gang="g"), group("h", 1, {**links, **more}))
        assert told(world.add(pod("p-1", gang="h")).plan()) == {"default/g": said, "default/h": said}
