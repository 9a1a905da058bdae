# SPDX-License-Identifier: Apache-2.0
"""Gangs with NPUs and without a gather goal (ascend.md 3), against trying every node and every set of chips.

Pods go in rank order, each to the best node from which the rest can still be placed.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import LabelSelector, Node, Pod, TopologySpreadConstraint
from koordpy.devices.ascend.tables.chip_costs import affinity
from koordpy.devices.ascend.tables.chip_division import Demand, servable
from koordpy.devices.ascend.tables.npu_presets import PRESETS, Preset
from tests.scenarios.cluster import TWO_LAYERS, World, bound, group, pod, wish
from tests.scenarios.npus import NPU, chips, npu_gang, npu_node, npu_pod, super_pods, switched

TRAIN = {"app": "train"}
BY_NAME = {preset.name: preset for preset in PRESETS}


def world_of(preset: Preset, free: list[set[int]], requests: list[int]) -> World:
    """Nodes n0, n1, ... with these chips free, and a gang g whose pods ask so."""
    world = World()
    for i, own in enumerate(free):
        world.add(npu_node(f"n{i}", preset.size, preset.labels[0] if preset.labels else "", resource=preset.resource))
        held = sorted(set(range(preset.size)) - own)
        if held:
            world.add(npu_pod(f"x{i}", len(held), at=f"n{i}", holds=held, resource=preset.resource))
    policy = {keys.SCHEDULE_POLICY: preset.policies[0]} if preset.resource == NPU else {}
    group, *_ = npu_gang("g", len(requests), annotations=policy)
    pods = [npu_pod(f"p-{i}", n, gang="g", resource=preset.resource) for i, n in enumerate(requests)]
    return world.add(group, *pods)


Division = tuple[tuple[Demand, ...], ...]
"""What is put on each node."""


def feasible(demands: list[Demand], free: tuple[int, ...], begun: Division | None = None) -> bool:
    """Whether pods can be put on nodes at all, beside those begun with: every way to spread them, each node exact."""
    nodes = begun or ((),) * len(free)
    if not demands:
        return True
    for node, own in enumerate(nodes):
        more = (*own, demands[0])
        if servable(more, free[node]) and feasible(demands[1:], free, (*nodes[:node], more, *nodes[node + 1 :])):
            return True
    return False


@st.composite
def gangs(draw: st.DrawFn) -> tuple[Preset, list[set[int]], list[int]]:
    names = ("910-module", "910b-x8", "910b-x16", "310p", "mesh-x8", "mesh-x16")
    preset = BY_NAME[draw(st.sampled_from(names))]
    own = st.sets(st.integers(0, preset.size - 1), min_size=1, max_size=10)
    free = draw(st.lists(own, min_size=1, max_size=3))
    sizes = sorted(n for n in preset.legal if n <= 6)
    return preset, free, draw(st.lists(st.sampled_from(sizes), min_size=2, max_size=4))


@settings(max_examples=60, deadline=None)
@given(gangs())
def test_each_pod_is_on_the_best_node_from_which_the_rest_can_be_placed(
    case: tuple[Preset, list[set[int]], list[int]],
) -> None:
    preset, free, requests = case
    plan = world_of(preset, free, requests).plan()
    demands = [Demand(preset, request, True) for request in requests]
    left = tuple(sum(1 << k for k in own) for own in free)
    assert bool(plan.placements) is feasible(demands, left)
    if not plan.placements:
        return
    where, given_ = bound(plan), chips(plan, preset.resource)
    for i, demand in enumerate(demands):
        node = int(where[f"p-{i}"][1:])
        own = sum(1 << k for k in given_[f"p-{i}"])
        assert own & ~left[node] == 0, "free chips only"
        worth = [affinity(preset, demand.request, mask, preset.size, True) for mask in left]
        for other, value in enumerate(worth):
            if value is None or value <= (worth[node] or 0):
                continue
            begun = tuple((demand,) if at == other else () for at in range(len(left)))
            assert not feasible(demands[i + 1 :], left, begun), f"p-{i} belongs on n{other}"
        left = (*left[:node], left[node] & ~own, *left[node + 1 :])


def spread(one: Pod) -> Pod:
    apart = TopologySpreadConstraint(
        max_skew=1, topology_key="block", when_unsatisfiable="DoNotSchedule", label_selector=LabelSelector(TRAIN)
    )
    return replace(one, spec=replace(one.spec, topology_spread_constraints=[apart]))


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_pod_that_is_spread_stays_so_when_the_others_have_come(minimum: int) -> None:
    """p-1 would be best beside p-0, which asks that it is not; p-2 fits nowhere."""
    first, second = (npu_pod(f"p-{i}", n, gang="g", labels=TRAIN) for i, n in enumerate((4, 2)))
    world = World().add(npu_node("a", labels={"block": "x"}), npu_node("b", labels={"block": "y"}))
    world.add(group("g", minimum), spread(first), second, pod("p-2", gang="g", cpu="99"))
    assert bound(world.plan()) == {"p-0": "a", "p-1": "b"}


def test_a_pod_that_is_spread_may_stand_where_it_may_not_before_the_others() -> None:
    world = World().add(
        npu_node("a", labels={"block": "x"}), npu_node("b", 0, "", labels={"block": "y"}), group("g", 3)
    )
    world.add(pod("p-2", gang="g", at="a", labels=TRAIN), spread(npu_pod("p-0", 2, gang="g", labels=TRAIN)))
    assert bound(world.add(pod("p-1", gang="g", labels=TRAIN)).plan()) == {"p-0": "a", "p-1": "b"}


def test_chips_are_divided_so_that_the_whole_gang_fits() -> None:
    """By the ring table a pod of two takes from the ring of four, which the pod of four needs that comes with it."""
    module = BY_NAME["910-module"]
    plan = world_of(module, [{0, 1, 2, 4, 5, 6, 7}], [2, 4]).plan()
    assert chips(plan) == {"p-0": [0, 1], "p-1": [4, 5, 6, 7]}
    alone = world_of(module, [{0, 1, 2, 4, 5, 6, 7}], [2, 2]).plan()
    assert chips(alone) == {"p-0": [4, 5], "p-1": [6, 7]}, "where nobody is stranded the table decides"


def test_a_pod_goes_elsewhere_where_no_chips_of_the_best_node_leave_room() -> None:
    module = BY_NAME["910-module"]
    plan = world_of(module, [{0, 1}, {0, 1, 2, 3}], [2, 4]).plan()
    assert bound(plan) == {"p-0": "n0", "p-1": "n1"}
    plan = world_of(module, [{0, 1, 2, 3}, {0, 1}], [4, 2]).plan()
    assert bound(plan) == {"p-0": "n0", "p-1": "n1"}
    plan = world_of(module, [{0, 1, 2, 3}, {0, 1, 2}], [2, 4]).plan()
    assert bound(plan) == {"p-0": "n1", "p-1": "n0"}, "the ring of four scores higher, and is needed"


def test_a_gang_with_a_gather_goal_shares_the_chips_of_a_node_as_well() -> None:
    at = {"block": "b1", "spine": "s1"}
    node_ = npu_node("n0", product="module", labels=at)
    group, *_ = npu_gang("g", 2, annotations=wish({"blockLayer": "Prefer"}))
    members = [npu_pod("p-0", 2, gang="g"), npu_pod("p-1", 4, gang="g")]
    plan = World().add(TWO_LAYERS, node_, npu_pod("x", 1, at="n0", holds=(3,)), group, *members).plan()
    assert chips(plan) == {"p-0": [0, 1], "p-1": [4, 5, 6, 7]}


LEAVES = switched({"a": [0, 1, 2, 3]})
JOBS: dict[str, tuple[list[Any], int, dict[str, Any]]] = {
    # nodes, chips of a pod, what makes it a job with rules
    "no NPUs": (LEAVES, 0, {}),
    "rank order": (LEAVES, 8, {}),
    "one leaf": (LEAVES, 8, {"labels": {keys.TOR_AFFINITY: "large-model-schema"}}),
    "common": (LEAVES, 8, {"labels": {keys.TOR_AFFINITY: "normal-schema"}}),
    "blocks": (super_pods(4), 16, {"annotations": {keys.SP_BLOCK: "16"}}),
}
NEEDS: list[tuple[str, int, int, bool]] = [
    # match-policy, minMember, live members, the gang with a member that is being deleted has no pending member
    ("", 3, 0, False),
    ("once-satisfied", 3, 1, False),
    ("waiting-and-running", 3, 1, False),
    ("", 1, 0, True),
]


@pytest.mark.parametrize(("policy", "minimum", "live", "linked"), NEEDS)
@pytest.mark.parametrize("job", JOBS)
def test_a_member_that_is_being_deleted_counts_in_no_minimum(
    job: str, policy: str, minimum: int, live: int, linked: bool
) -> None:
    """Fewer pending members than the need have no plan (gang-network.md 2.4): the search counts as the check does."""
    nodes, asked, settings_ = JOBS[job]
    names = [one.metadata.name for one in nodes if isinstance(one, Node)]
    own, *members = npu_gang("g", minimum, asked, **settings_)
    links = {keys.GANG_GROUPS: '["default/h"]'} if linked else {}
    notes = {**own.metadata.annotations, keys.GANG_MATCH_POLICY: policy, **links}
    world = World().add(*nodes, replace(own, metadata=replace(own.metadata, annotations=notes)))
    if linked:
        world.add(*npu_gang("h", 2, asked, prefix="q", **settings_))
    there = [npu_pod(f"p-{i}", asked, gang="g", at=names[i], **settings_) for i in range(live + 1)]
    leaving = replace(there[0].metadata, deletion_timestamp="1970-01-01T00:00:00Z")
    plan = world.add(replace(there[0], metadata=leaving), *there[1:], *members[live + 1 :]).plan()
    assert not plan.rejected and not plan.evictions
    assert len(plan.placements) == (policy == "once-satisfied"), "a live member satisfies it once"
