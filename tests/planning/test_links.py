# SPDX-License-Identifier: Apache-2.0
"""Which gangs go together: gang-network.md 2.2 and 2.2a, against the closure that the rule describes."""

import json
import random

import pytest
from msgspec.structs import replace

from koordpy.api import keys
from koordpy.api.objects import Pod
from koordpy.api.pod_groups import PodGroup
from koordpy.gangs.gang_links import NAMED_BY_OTHERS, ONE_SIDED, Named, links_of
from koordpy.gangs.queue_units import Groups
from koordpy.planner.planning_round import plan_round
from koordpy.pods.gang_refs import GangRef
from tests.cluster.test_hostile import calls_of
from tests.scenarios.cluster import World, bound, group, messages, node, pod


def naming(*names: str) -> dict[str, str]:
    return {keys.GANG_GROUPS: json.dumps(list(names))}


def there(space: str, one: PodGroup | Pod) -> PodGroup | Pod:
    """The object, in another namespace."""
    return replace(one, metadata=replace(one.metadata, namespace=space))


def test_gangs_that_all_name_the_same_are_looked_for_once() -> None:
    names = [f"g{i}" for i in range(400)]
    world = World().add(node("n1:9"), *(group(name, 2, naming(*names)) for name in names), pod("p", gang="g0"))
    snapshot = world.snapshot()
    assert calls_of(lambda: plan_round(snapshot)) < 6 * 400 * 400


def closure(named: dict[str, list[str]]) -> dict[str, set[str]]:
    """Gang -> its group: the links that hold, followed until nothing is new."""
    holds = {
        frozenset((one, other))
        for one, others in named.items()
        for other in others
        if other in named and (one[0] == other[0] or one in named[other])
    }
    out = {}
    for start in named:
        group = {start}
        while more := {end for link in holds if link & group for end in link} - group:
            group |= more
        out[start] = group
    return out


def test_groups_are_the_closure_of_the_links_that_hold() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        names = [f"{space}/g{i}" for space in "ab" for i in range(4)]
        named = {one: rng.sample([*names, "a/gone", "c/gone"], rng.choice((0, 0, 1, 2))) for one in names}
        refs = {one: GangRef(*one.split("/")) for one in names}
        linkers = [refs[one] for one in names if named[one]]
        found = links_of(linkers, lambda ref, named=named: Named.from_names(ref.namespace, named[ref.key]), refs)  # type: ignore[misc]
        for one, whole in closure(named).items():
            assert {ref.key for ref in found.groups.get(refs[one], (refs[one],))} == whole, (seed, one)
        for one in names:
            own = [key for key in named[one] if key[0] == one[0] or (key in named and one in named[key])]
            assert list(found.binding.get(refs[one], ())) == own, (seed, one)


def test_where_no_gang_names_another_no_gang_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World().add(node("n1:9"), group("train", 1), pod("t-0", gang="train"), pod("alone"))
    monkeypatch.setattr(Groups, "every", lambda _: pytest.fail("every gang of the cluster was read"))
    assert sorted(unit.id for unit in Groups(world.snapshot()).units()) == ["default/alone", "gang:default/train"]


def test_a_gang_of_another_namespace_is_not_held_by_one_that_it_does_not_name() -> None:
    world = World().add(node("n1:9"), group("train", 1), pod("t-0", gang="train"))
    world.add(there("evil", group("squat", 5, naming("default/train"))))
    plan = world.plan()
    assert bound(plan) == {"t-0": "n1"}
    assert ("PodGroup/default/train", NAMED_BY_OTHERS) in plan.warnings


def test_a_one_sided_link_does_not_hold_its_author_either_and_is_told() -> None:
    world = World().add(node("n1:9"), group("train", 3), pod("t-0", gang="train"))
    world.add(there("evil", group("own", 1, naming("default/train", "no/where"))))
    world.add(there("evil", pod("o-0", gang="own")))
    plan = world.plan()
    assert bound(plan) == {"o-0": "n1"}
    assert messages(plan)["t-0"] == "gang default/train: waiting for members, 1 of minMember 3 exist"
    assert ("PodGroup/evil/own", ONE_SIDED) in plan.warnings


def test_gangs_of_two_namespaces_that_name_each_other_go_together_or_not_at_all() -> None:
    world = World().add(node("n1:9"), group("train", 1, naming("b/rest")), pod("t-0", gang="train"))
    world.add(there("b", group("rest", 2, naming("default/train"))), there("b", pod("r-0", gang="rest")))
    assert messages(world.plan())["t-0"] == "gang b/rest: waiting for members, 1 of minMember 2 exist"
    assert set(bound(world.add(there("b", pod("r-1", gang="rest"))).plan())) == {"t-0", "r-0", "r-1"}


def test_more_gangs_than_a_group_may_have_are_refused_by_their_number() -> None:
    world = World().add(node("n1:9"), group("g", 1, naming(*(f"g{i}" for i in range(1001)))), pod("p-0", gang="g"))
    said = f"gang default/g: annotation {keys.GANG_GROUPS} cannot be read: 1001 gangs, at most 1000 are read"
    assert messages(world.plan()) == {"p-0": said}


def test_a_chain_of_gangs_longer_than_a_group_may_be_is_refused() -> None:
    world = World().add(node("n1:2000"))
    for i in range(1001):
        world.add(group(f"g{i}", 1, naming(f"g{i - 1}") if i else {}), pod(f"p{i}-0", gang=f"g{i}"))
    said = set(messages(world.plan()).values())
    assert said == {"gang default/g0: its GangGroup has 1001 gangs, at most 1000 are read"}
