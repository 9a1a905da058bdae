# SPDX-License-Identifier: Apache-2.0
"""Parts of a unit that each lie in one domain: gangs, and replicas, by themselves (gatherStrategy's scope)."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from koordpy.api.keys import GANG_TOPOLOGY
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import KoordpyConfiguration
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups
from koordpy.plan.round_plan import RoundPlan
from koordpy.planner.planning_round import plan_round
from koordpy.verify.plan_check import check_gathered
from tests.scenarios.cluster import World, bound, group, hierarchy, messages, node, pod

JOBSET = "jobset.sigs.k8s.io/"
TREE = hierarchy(("blockLayer", "block"), ("spineLayer", "spine"))


def must(*rules: tuple[str, str]) -> dict[str, str]:
    """MustGather of (layer, scope)."""
    entries = [f'{{"layer": "{layer}Layer", "strategy": "MustGather", "scope": "{scope}"}}' for layer, scope in rules]
    return {GANG_TOPOLOGY: f'{{"gatherStrategy": [{", ".join(entries)}]}}'}


def blocks(*rooms: int) -> list[Any]:
    """One-slot nodes: so many in each block, two blocks to a spine."""
    places = [(b, i) for b, room in enumerate(rooms) for i in range(room)]
    return [node(f"b{b}n{i}:1", {"block": f"b{b}", "spine": f"s{b // 2}"}) for b, i in places]


def replica(number: int, size: int, gang: str = "js", **more: Any) -> list[Any]:
    """The pods of one Job of a JobSet."""
    labels = {JOBSET + "jobset-name": "js", JOBSET + "replicatedjob-name": "w", JOBSET + "job-index": str(number)}
    return [pod(f"w{number}-{i}", gang=gang, labels=labels, **more) for i in range(size)]


def where(plan: RoundPlan, parts: int) -> list[set[str]]:
    """Per replica the blocks of its new pods."""
    nodes = bound(plan)
    return [{at[:2] for name, at in nodes.items() if name.startswith(f"w{number}-")} for number in range(parts)]


def test_each_replica_lies_in_one_block() -> None:
    world = World().add(TREE, *blocks(3, 2), group("js", 4, must(("block", "replica"))), *replica(0, 2), *replica(1, 2))
    assert sorted(map(sorted, where(plan_round(world.snapshot()), 2))) == [["b0"], ["b1"]]


def test_all_replicas_in_one_spine_each_in_one_block() -> None:
    rules = must(("spine", "group"), ("block", "replica"))
    world = World().add(TREE, *blocks(3, 1, 2, 2), group("js", 4, rules), *replica(0, 2), *replica(1, 2))
    assert sorted(map(sorted, where(plan_round(world.snapshot()), 2))) == [["b2"], ["b3"]]


def test_gangs_alone() -> None:
    links = {"gang.scheduling.koordinator.sh/groups": '["default/a", "default/b"]'}
    world = World().add(TREE, *blocks(2, 3), group("a", 2, must(("block", "gang")) | links))
    world.add(group("b", 3, must(("block", "gang")) | links))
    world.add(*(pod(f"{name}{i}", gang=name) for name, size in (("a", 2), ("b", 3)) for i in range(size)))
    nodes = bound(plan_round(world.snapshot()))
    assert {nodes[name][:2] for name in ("a0", "a1")} == {"b0"} and {nodes[f"b{i}"][:2] for i in range(3)} == {"b1"}


@pytest.mark.parametrize("free", [False, True])
def test_a_late_member_goes_where_its_replica_is(free: bool) -> None:
    world = World().add(TREE, *blocks(2 + free, 3), group("js", 2, must(("block", "replica"))))
    first, late = replica(0, 2)
    other = replica(1, 1)[0]
    world.add(replica(0, 1, at="b0n0"), late, replica(1, 1, at="b0n1"))
    assert first.metadata.name == "w0-0" and other.metadata.name == "w1-0"
    assert bound(plan_round(world.snapshot())) == ({"w0-1": "b0n2"} if free else {})


def test_members_of_a_replica_in_two_blocks_let_no_other_come() -> None:
    world = World().add(TREE, *blocks(3, 3), group("js", 2, must(("block", "replica"))))
    pods = replica(0, 3)
    labels = pods[0].metadata.labels
    world.add(*(pod(f"w0-{i}", gang="js", labels=labels, at=at) for i, at in ((0, "b0n0"), (1, "b1n0"))), pods[2])
    assert bound(plan_round(world.snapshot())) == {}


def test_victims_leave_room_for_each_replica() -> None:
    """Four places come free in b0 and b1 one by one; two go from one block for each replica."""
    world = World().add(TREE, *blocks(3, 3), group("js", 4, must(("block", "replica"))))
    world.add(*(pod(f"low{b}{i}", at=f"b{b}n{i}", priority=1) for b in range(2) for i in range(3)))
    world.add(*replica(0, 2, priority=9), *replica(1, 2, priority=9))
    plan = plan_round(world.snapshot())
    assert len(plan.evictions) == 4 and sorted(map(sorted, where(plan, 2))) == [["b0"], ["b1"]]


def test_what_is_refused_says_what_each_part_needs() -> None:
    world = World().add(TREE, *blocks(1, 1), group("js", 2, must(("block", "replica"))), *replica(0, 2))
    text = messages(plan_round(world.snapshot()))["w0-0"]
    assert "gang default/js: needed 2, available in the cluster: 2; each replica (largest 2) in one blockLayer" in text


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ('"strategy": "PreferGather", "scope": "replica"', 'gatherStrategy[0].scope: "replica" needs MustGather'),
        (
            '"strategy": "MustGather", "scope": "gang", "podCountMultiple": 2',
            'gatherStrategy[0].scope: "gang" does not go with podCountMultiple',
        ),
        ('"strategy": "MustGather", "scope": "pod"', 'gatherStrategy[0].scope: "pod" is none of group, gang, replica'),
    ],
)
def test_scopes_that_cannot_be_read_hold_the_gang(entry: str, text: str) -> None:
    notes = {GANG_TOPOLOGY: f'{{"gatherStrategy": [{{"layer": "blockLayer", {entry}}}]}}'}
    plan = plan_round(World().add(TREE, *blocks(2), group("js", 2, notes), *replica(0, 2)).snapshot())
    assert not plan.placements and text in messages(plan)["w0-0"]


def test_the_check_refuses_a_part_in_two_domains() -> None:
    world = World().add(TREE, *blocks(2, 2), group("js", 4, must(("block", "replica"))), *replica(0, 2), *replica(1, 2))
    snapshot = world.snapshot()
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration(), None)
    unit = Groups(snapshot).unit(next(iter(snapshot.pending)).gang)  # type: ignore[arg-type]
    split = {"default/w0-0": "b0n0", "default/w0-1": "b1n0", "default/w1-0": "b0n1", "default/w1-1": "b1n1"}
    assert check_gathered(unit, split, round_state) == ["MustGather blockLayer: a replica in 2 domains"] * 2
    right = {"default/w0-0": "b0n0", "default/w0-1": "b0n1", "default/w1-0": "b1n0", "default/w1-1": "b1n1"}
    assert check_gathered(unit, right, round_state) == []


def packings(sizes: list[int], rooms: list[int]) -> Iterator[list[int]]:
    """Every way to give each part a block of its own choice that has the room."""
    if not sizes:
        yield []
        return
    for block, room in enumerate(rooms):
        if room >= sizes[0]:
            left = [*rooms[:block], room - sizes[0], *rooms[block + 1 :]]
            yield from ([block, *more] for more in packings(sizes[1:], left))


@pytest.mark.parametrize("seed", range(60))
def test_whoever_can_be_packed_is_placed(seed: int) -> None:
    """Against every way to pack the parts: two shapes, bound members, whole spines."""
    random = Random(seed)
    rooms = [random.randint(0, 4) for _ in range(4)]
    sizes = [random.randint(1, 3) for _ in range(random.randint(1, 4))]
    in_one_spine = random.random() < 0.4
    rules = must(*((("spine", "group"),) if in_one_spine else ()), ("block", "replica"))
    world = World().add(TREE, *blocks(*rooms), group("js", sum(sizes), rules))
    for number, size in enumerate(sizes):
        world.add(*replica(number, size, priority=random.choice((0, 0, 3))))
    ways = [way for way in packings(sizes, rooms) if not in_one_spine or len({block // 2 for block in way}) == 1]
    plan = plan_round(world.snapshot())
    assert bool(plan.placements) == bool(ways)
    if plan.placements:
        assert len(plan.placements) == sum(sizes) and all(len(found) == 1 for found in where(plan, len(sizes)))
