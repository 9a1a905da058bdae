# SPDX-License-Identifier: Apache-2.0
"""Settings at the edge of sense: a gang is held or planned, nothing breaks or hangs, and explain shows the same."""

import pytest

from koordpy.api import keys
from koordpy.api.field_faults import literal
from koordpy.api.objects import ObjectMeta, SchedulingGroup
from koordpy.api.pod_groups import (
    UpstreamConstraints,
    UpstreamGang,
    UpstreamPodGroup,
    UpstreamPodGroupSpec,
    UpstreamPolicy,
    UpstreamTopologyConstraint,
)
from koordpy.config.configuration import KoordpyConfiguration, Queue
from koordpy.explain.explanation import explain
from koordpy.plan.round_plan import GangStatus
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

DIGITS = "1" * 5000
"""More digits than the JSON reader takes for one number."""


@pytest.mark.parametrize("key", [keys.GANG_TOPOLOGY, keys.GANG_GROUPS])
def test_a_number_of_thousands_of_digits_makes_an_annotation_unreadable(key: str) -> None:
    plan = World().add(node("n1"), group("g", 1, {key: DIGITS}), pod("p-0", gang="g")).plan()
    assert messages(plan)["p-0"].startswith(f"gang default/g: annotation {key} cannot be read: ")
    assert plan.gangs[0].status is GangStatus.INVALID


def test_a_gang_may_have_a_name_of_hundreds_of_digits() -> None:
    said = {keys.GANG_NAME: f"g{DIGITS[:250]}", keys.GANG_MIN: "1"}
    other = {**said, keys.GANG_NAME: "g2"}
    plan = World().add(node("n1"), pod("p-0", annotations=said), pod("q-0", annotations=other)).plan()
    assert bound(plan) == {"q-0": "n1"}, "2 comes before so many ones"


def test_multiples_of_thousands_of_digits_hold_a_group_and_say_so() -> None:
    one, other = (f"1{'0' * 3998}{last}" for last in "13")
    world = World().add(node("n1:4"))
    for name, multiple in (("g", one), ("h", other)):
        asked = '{"gatherStrategy": [{"layer": "nodeLayer", "strategy": "PreferGather", "podCountMultiple": %s}]}'
        notes = {keys.GANG_TOPOLOGY: asked % multiple, keys.GANG_GROUPS: '["default/g", "default/h"]'}
        world.add(group(name, 1, notes), pod(f"{name}-0", gang=name))
    plan = world.plan()
    assert bound(plan) == {}
    assert f"needed 2, available in the cluster: 0; podCountMultiple nodeLayer={other}" in messages(plan)["g-0"]


def test_a_gang_that_waits_for_members_says_how_many_its_owner_expects() -> None:
    world = World().add(node("n1:9"), group("g", 3, {keys.GANG_TOTAL: "8"}), gang_pods("g", 2))
    text = "gang default/g: waiting for members, 2 of minMember 3 exist, 8 are expected"
    assert (set(messages(world.plan()).values()), world.plan().warnings) == ({text}, ())


def test_without_a_pod_group_the_oldest_pod_says_how_many_members_are_expected() -> None:
    said = {keys.GANG_NAME: "g", keys.GANG_MIN: "2"}
    first = pod("p-0", annotations={**said, keys.GANG_TOTAL: "4"}, created=1)
    late = pod("p-1", annotations={**said, keys.GANG_TOTAL: "5"}, created=2, scheduling_gates=[{"name": "later"}])
    world = World().add(node("n1:9"), late, first)
    assert messages(world.plan())["p-0"].endswith("1 of minMember 2 exist, 4 are expected")


@pytest.mark.parametrize("said", ["many", "", "0", "-3", "1.5", DIGITS])
def test_an_unreadable_number_of_expected_members_is_warned_of_and_decides_nothing(said: str) -> None:
    world = World().add(node("n1:9"), group("g", 2, {keys.GANG_TOTAL: said}), gang_pods("g", 2))
    plan = world.plan()
    assert bound(plan) == {"p-0": "n1", "p-1": "n1"}
    why = f"annotation {keys.GANG_TOTAL} cannot be read: {literal(said)} is no whole number above 0"
    assert plan.warnings == (("PodGroup/default/g", why),)


@pytest.mark.parametrize("layer", ["nodeLayer", "blockLayer", "spineLayer"])
def test_a_multiple_beyond_any_room_means_none_and_is_named_in_full(layer: str) -> None:
    k = 10**30
    world = World().add(TWO_LAYERS, nodes_of("s{b: n1:4 n2:4}"))
    world.add(group("g", 1, wish({layer: "Prefer"}, multiple={layer: k})), gang_pods("g", 3))
    text = messages(world.plan())["p-0"]
    assert text.endswith(
        f"gang default/g: needed 1, available in the cluster: 0; podCountMultiple {layer}={k} "
        f"(1 to 3 members are not a multiple of {k})."
        f" no new node would help: no number of its members is a multiple of {k}"
    )


def test_a_multiple_beyond_one_layer_only_leaves_the_others_to_count() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b: n1:4} t{b: n2:4 n3:4}"), pod("x", at="n3"))
    rules = wish({"spineLayer": "Must", "nodeLayer": "Must"}, multiple={"spineLayer": 8, "nodeLayer": 3})
    world.add(group("g", 2, rules), gang_pods("g", 3))
    text = messages(world.plan())["p-0"]
    assert "needed 2, available in nodeLayer: s/b/n1: 3, t/b/n2: 3, t/b/n3: 3; podCountMultiple" in text


def test_a_pipeline_longer_than_the_gang_is_one_group() -> None:
    world = World().add(TWO_LAYERS, nodes_of("s{b1: n1 n2; b2: n3}"), group("g", 3, wish(pp=10**30)))
    assert bound(world.add(gang_pods("g", 3)).plan()) == {"p-0": "n1", "p-1": "n2", "p-2": "n3"}


def test_a_gang_whose_minimum_is_bound_is_scheduled_though_its_group_waits_for_another() -> None:
    world = World().add(node("n1:9"), group("a", 1, {keys.GANG_GROUPS: '["default/b"]'}), group("b", 3))
    world.add(pod("a-0", gang="a", at="n1"), pod("a-1", gang="a"), pod("b-0", gang="b"))
    plan = world.plan()
    assert set(messages(plan).values()) == {"gang default/b: waiting for members, 1 of minMember 3 exist"}
    assert {report.name: report.status for report in plan.gangs} == {
        "default/a": GangStatus.SCHEDULED,
        "default/b": GangStatus.INCOMPLETE,
    }


def test_a_surplus_held_by_min_resources_leaves_its_gang_scheduled() -> None:
    world = World().add(node("n1:3"), group("g", 1, min_resources={"cpu": "4"}))
    plan = world.add(pod("p-0", gang="g", at="n1"), pod("p-1", gang="g")).plan()
    assert "minResources do not fit" in messages(plan)["p-1"]
    assert plan.gangs[0].status is GangStatus.SCHEDULED


def on_one(key: str, *more: str) -> UpstreamPodGroupSpec:
    """An upstream group of two whose members share the values of node labels."""
    return UpstreamPodGroupSpec(
        scheduling_policy=UpstreamPolicy(gang=UpstreamGang(min_count=2)),
        scheduling_constraints=UpstreamConstraints(topology=[UpstreamTopologyConstraint(key=k) for k in (key, *more)]),
    )


@pytest.mark.parametrize(
    ("wanted", "place"),
    [(("rack",), "rack: r10: 1, r2: 0"), (("rack", "zone"), "rack/zone: r10/z: 1"), (("row",), "the cluster: 0")],
)
def test_a_group_on_one_value_of_a_label_is_told_what_each_value_offers(wanted: tuple[str, ...], place: str) -> None:
    """A MustGather on the label; n3 has none and is never used."""
    world = World().add(node("n1", {"rack": "r10", "zone": "z"}), node("n2", {"rack": "r2"}), node("n3:9"))
    world.add(UpstreamPodGroup(metadata=ObjectMeta(name="u", namespace="default"), spec=on_one(*wanted)))
    world.add(pod("x", at="n2"))
    for i in range(2):
        world.add(pod(f"p-{i}", scheduling_group=SchedulingGroup(pod_group_name="u")))
    assert messages(world.plan())["p-0"].endswith(f" gang default/u: needed 2, available in {place}.")


def test_explain_chooses_among_upstream_domains_as_the_plan_does() -> None:
    spec = on_one("rack")
    world = World().add(hierarchy(("blockLayer", "block")))
    world.add(UpstreamPodGroup(metadata=ObjectMeta(name="u", namespace="default"), spec=spec))
    for name, rack, block in (("a1", "r1", "b1"), ("a2", "r1", "b2"), ("c1", "r2", "b3"), ("c2", "r2", "b3")):
        world.add(node(name, {"rack": rack, "block": block}))
    for i in range(2):
        world.add(pod(f"p-{i}", scheduling_group=SchedulingGroup(pod_group_name="u")))
    assert bound(world.plan()) == {"p-0": "c1", "p-1": "c2"}
    shown = explain(world.snapshot(), None, "default/p-0")
    assert [(d.layer, d.name) for d in shown.domains if d.chosen] == [("blockLayer", "b3")]


WAITING = f"annotation {keys.GANG_WAITING_TIME} cannot be read: '10' is no duration (as in 30s, 1h30m): 10m holds"


def test_settings_of_a_gang_that_count_as_absent_are_warned_of_where_they_stand() -> None:
    notes = {keys.GANG_WAITING_TIME: "10"}
    with_object = World().add(node("n1:9"), group("g", 2, notes), gang_pods("g", 2))
    assert with_object.plan().warnings == (("PodGroup/default/g", WAITING),)
    named = {keys.GANG_NAME: "g", keys.GANG_MIN: "2"}
    alone = World().add(node("n1:9"))
    alone.add(pod("p-1", annotations=named, created=2), pod("p-0", annotations={**named, **notes}, created=1))
    assert alone.plan().warnings == (("Pod/default/p-0", WAITING),)
    assert bound(alone.plan()) == {"p-0": "n1", "p-1": "n1"}


@pytest.mark.parametrize("minimum", [0, -1])
def test_a_pod_group_without_a_minimum_whose_pods_come_is_warned_of(minimum: int) -> None:
    world = World().add(node("n1:1"), group("g", minimum), group("empty", 0), gang_pods("g", 2))
    plan = world.plan()
    assert bound(plan) == {"p-0": "n1"}, "one by one"
    assert plan.warnings == (("PodGroup/default/g", f"spec.minMember is {minimum}: its pods start one by one"),)


def test_an_upstream_group_with_the_basic_policy_has_no_minimum_on_purpose() -> None:
    spec = UpstreamPodGroupSpec(scheduling_policy=UpstreamPolicy(basic={}))
    world = World().add(node("n1:1"), UpstreamPodGroup(metadata=ObjectMeta(name="g", namespace="default"), spec=spec))
    plan = world.add(pod("p", scheduling_group=SchedulingGroup(pod_group_name="g"))).plan()
    assert (bound(plan), plan.warnings) == ({"p": "n1"}, ())


@pytest.mark.parametrize(("multiple", "said"), [(0, True), (1, False)])
def test_a_multiple_of_nothing_is_warned_of(multiple: int, said: bool) -> None:
    notes = wish({"blockLayer": "Prefer"}, multiple={"blockLayer": multiple})
    world = World().add(TWO_LAYERS, nodes_of("s{b: n1}"), group("g", 1, notes), pod("p", gang="g"))
    text = "networkTopologyAware: gatherStrategy[0].podCountMultiple: 0 has no effect"
    assert world.plan().warnings == ((("PodGroup/default/g", text),) if said else ())


@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize("length", ["4 hours", "-1h"])
def test_a_runtime_that_cannot_be_read_is_warned_of_whether_or_not_anybody_counts_on_it(
    length: str, backfill: bool
) -> None:
    notes = {keys.MAX_RUNTIME: length}
    named = {keys.GANG_NAME: "g", keys.GANG_MIN: "2"}
    world = World().add(node("n1:9"), group("h", 1, notes), pod("h-0", gang="h"), pod("plain", annotations=notes))
    world.add(pod("p-0", annotations={**named, **notes}), pod("p-1", annotations=named, created=1))
    found = world.plan(config=KoordpyConfiguration(queue=Queue(backfill=backfill))).warnings
    assert sorted(name for name, _ in found) == ["Pod/default/p-0", "Pod/default/plain", "PodGroup/default/h"]
    (text,) = {text for _, text in found}
    assert text.startswith(f"annotation {keys.MAX_RUNTIME} cannot be read: {length!r} is ")
    assert text.endswith(": its end is not known")


def test_what_is_read_of_a_pod_depends_on_whether_it_is_in_a_gang_and_in_which() -> None:
    notes = wish({"blockLayer": "Prefer"})
    named = {keys.GANG_NAME: "g", keys.GANG_MIN: "1"}
    world = World().add(TWO_LAYERS, nodes_of("s{b: n1:9}"), group("h", 1, {keys.GANG_TOPOLOGY: "{}"}))
    world.add(pod("plain", annotations=notes), pod("named", annotations={**named, **notes}))
    world.add(pod("grouped", gang="h", annotations=notes))
    key = f"annotation {keys.GANG_TOPOLOGY} is not read"
    assert sorted(world.plan().warnings) == [
        ("Pod/default/grouped", f"{key} on a pod of a PodGroup: it is an annotation of a PodGroup"),
        ("Pod/default/plain", f"{key}: the pod is in no gang"),
    ]


def test_a_misspelt_label_of_a_pod_is_warned_of_by_its_plan_and_by_explain() -> None:
    wrong = "pod-group.scheduling.sig.k8s.io"
    world = World().add(node("n1:9"), group("g", 1), pod("p", labels={wrong: "g"}))
    told = (("Pod/default/p", f"label {wrong} is not read, did you mean label {keys.LABEL_POD_GROUP}?"),)
    assert (bound(world.plan()), world.plan().warnings) == ({"p": "n1"}, told)
    assert explain(world.snapshot(), None, "default/p").warnings == told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("null", "must be a list of gang names, not null"),
        ('{"default/h": 1}', "must be a list of gang names, not a mapping"),
        ('["default/h", null]', "[1]: null is not a gang name"),
        ('["default/h"', "invalid JSON, line 1 column 13"),
    ],
)
def test_a_list_of_gangs_that_cannot_be_read_says_why(text: str, why: str) -> None:
    world = World().add(node("n1:9"), group("g", 1, {keys.GANG_GROUPS: text}), gang_pods("g", 1))
    assert messages(world.plan()) == {"p-0": f"gang default/g: annotation {keys.GANG_GROUPS} cannot be read: {why}"}


def test_a_label_that_nearly_names_a_pod_group_is_told_of_by_explain() -> None:
    world = World().add(node("n1:9"), group("train", 1), gang_pods("trian", 1))
    assert explain(world.snapshot(), None, "default/p-0").would_fit_if == (
        "its PodGroup label named train (PodGroup default/train exists, default/trian does not)",
        "PodGroup default/trian existed with minMember 1",
    )


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (
            '{"gatherStratgy": [{"layer": "blockLayer", "strategy": "MustGather"}]}',
            "gatherStratgy: unknown field, did you mean gatherStrategy?",
        ),
        (
            '{"gatherStrategy": [{"layr": "blockLayer", "strategy": "MustGather"}]}',
            "gatherStrategy[0].layr: unknown field, did you mean layer?",
        ),
    ],
)
def test_a_misspelt_field_of_a_wish_holds_the_gang_as_a_misspelt_value_does(wish: str, said: str) -> None:
    world = World().add(hierarchy(("blockLayer", "block")), node("n1:9", {"block": "b"}))
    plan = world.add(group("g", 2, {keys.GANG_TOPOLOGY: wish}), gang_pods("g", 2)).plan()
    assert not plan.placements
    told = f"gang default/g: annotation {keys.GANG_TOPOLOGY} cannot be read: {said}"
    assert {one.message for one in plan.pending} == {told}
    assert plan.gangs[0].status is GangStatus.INVALID
    assert explain(world.snapshot(), None, "default/p-0").message == told


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("networkTopolgyAware", keys.GANG_TOPOLOGY),
        ("networktopologyaware", keys.GANG_TOPOLOGY),
        ("match-polcy", keys.GANG_MATCH_POLICY),
        ("group", keys.GANG_GROUPS),
        ("timeout", ""),
        ("repair", ""),
        ("colour", ""),
    ],
)
def test_a_misspelt_setting_of_a_gang_holds_it_and_a_foreign_key_does_not(key: str, meant: str) -> None:
    world = World().add(node("n1:9"), group("g", 2, {keys.GANG_PREFIX + key: "{}"}), gang_pods("g", 2))
    plan = world.plan()
    assert bool(plan.placements) == (not meant)
    told = f"gang default/g: annotation {keys.GANG_PREFIX}{key} is not read, did you mean annotation {meant}?"
    assert {one.message for one in plan.pending} == ({told} if meant else set())


@pytest.mark.parametrize(("nodes", "helps"), [(2, True), (1, False)])
def test_the_right_key_of_a_misspelt_setting_is_all_that_is_advised(nodes: int, helps: bool) -> None:
    """The gang may not be divided, nor lose its goal: its setting is named as it was meant, where it starts then."""
    wish = '{"gatherStrategy": [{"layer": "nodeLayer", "strategy": "MustGather"}]}'
    wrong = keys.GANG_PREFIX + "networkTopolgyAware"
    world = World().add(node(f"n1:{nodes}"), node("n2:1"), group("g", 2, {wrong: wish}), gang_pods("g", 2))
    found = explain(world.snapshot(), None, "default/p-0").would_fit_if
    assert found == ((f"annotation {wrong} were named {keys.GANG_TOPOLOGY}",) if helps else ())


def test_a_misspelt_setting_beside_the_right_one_holds_nothing() -> None:
    notes = {keys.GANG_PREFIX + "mod": "NonStrict", keys.GANG_MODE: "NonStrict"}
    world = World().add(node("n1:9"), group("g", 2, notes), gang_pods("g", 2))
    assert set(bound(world.plan())) == {"p-0", "p-1"}
