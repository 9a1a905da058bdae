# SPDX-License-Identifier: Apache-2.0
"""Members of a gang by required affinity, anti-affinity and spread among themselves, all in place in the end.

Sources: gang-network.md 5 (hard rules), kube-parity.md 2.6 and 2.7.
"""

from collections import Counter
from typing import Any

import pytest

from koordpy.api import keys
from koordpy.api.objects import LabelSelector, TopologySpreadConstraint
from koordpy.cache.plan_draft import Draft
from koordpy.config.configuration import Filters, KoordpyConfiguration, PodTopologySpreadArgs
from koordpy.feasibility.round_state import RoundState
from koordpy.gangs.queue_units import Groups
from koordpy.plan.round_plan import Proof
from koordpy.verify.plan_check import check_plan
from tests.planning.node_rules import anti, near, node, planned, pod, states, term
from tests.scenarios.cluster import bound, group, messages

WEB, MASTER = {"app": "web"}, {"app": "master"}
# Names in natural order change zone with every node.
TURNS = [node(f"n{i}:1", {"zone": "ab"[i % 2], "rack": f"r{i // 2}"}) for i in range(8)]


def spread(key: str, skew: int = 1, **more: Any) -> list[TopologySpreadConstraint]:
    selector = LabelSelector(match_labels=WEB)
    return [TopologySpreadConstraint(max_skew=skew, topology_key=key, label_selector=selector, **more)]


def gang(count: int, **settings: Any) -> list[Any]:
    members = [pod(f"p-{i}", gang="g", labels=WEB, **settings) for i in range(count)]
    return [group("g", count), *members]


def values(plan: Any, objects: list[Any], key: str) -> Counter[str]:
    labels = {one.metadata.name: one.metadata.labels.get(key, "") for one in objects if hasattr(one, "status")}
    return Counter(labels[at] for at in bound(plan).values())


def wide(zones: str, room: int = 8) -> list[Any]:
    return [node(f"{zone}:{room}", {"zone": zone}) for zone in zones]


def test_four_members_spread_over_two_zones_by_two() -> None:
    plan = planned([*wide("ab"), *gang(4, topology_spread_constraints=spread("zone"))])
    assert Counter(bound(plan).values()) == {"a": 2, "b": 2}
    assert plan.gangs[0].proof is Proof.OPTIMAL


def test_pods_that_run_count_in_the_spread_of_a_gang() -> None:
    there = [pod(f"w-{i}", at="a", labels=WEB) for i in range(2)]
    plan = planned([*wide("ab"), *there, *gang(4, topology_spread_constraints=spread("zone"))])
    assert Counter(bound(plan).values()) == {"a": 1, "b": 3}


def test_a_zone_without_room_keeps_a_spread_gang_waiting() -> None:
    objects = [node("a:8", {"zone": "a"}), node("b:1", {"zone": "b"})]
    plan = planned([*objects, *gang(4, topology_spread_constraints=spread("zone"))])
    assert bound(plan) == {}
    text = messages(plan)["p-0"]
    assert text.startswith(
        "gang default/g: never fits: the cluster has room for 2 members, 4 are required. 0/2 nodes are available: "
        "2 node(s) cannot hold the whole gang. gang default/g: needed 4"
    )


def test_too_few_zones_let_each_take_as_many_as_the_skew() -> None:
    constraints = spread("zone", min_domains=3)
    assert bound(planned([*wide("ab"), *gang(3, topology_spread_constraints=constraints)])) == {}
    plan = planned([*wide("ab"), *gang(2, topology_spread_constraints=constraints)])
    assert set(bound(plan).values()) == {"a", "b"}


def test_what_a_spread_gang_cannot_place_whole_it_places_in_part() -> None:
    members = gang(4, topology_spread_constraints=spread("zone"))
    plan = planned([node("a:8", {"zone": "a"}), node("b:1", {"zone": "b"}), group("g", 2), *members[1:]])
    assert bound(plan) == {"p-0": "a", "p-1": "a", "p-2": "b"}


def test_configured_spread_holds_among_members_without_constraints() -> None:
    args = PodTopologySpreadArgs(defaulting_type="List", default_constraints=tuple(spread("zone")))
    config = KoordpyConfiguration(filters=Filters(pod_topology_spread=args))
    plan = planned([*wide("ab"), *gang(4)], config)
    assert Counter(bound(plan).values()) == {"a": 2, "b": 2}


def test_members_that_shun_each_other_per_rack_take_one_rack_each() -> None:
    plan = planned([*TURNS, *gang(4, affinity=anti(term("rack", WEB)))])
    assert values(plan, TURNS, "rack") == {f"r{i}": 1 for i in range(4)}


def test_more_members_than_racks_cannot_shun_each_other() -> None:
    plan = planned([*TURNS, *gang(5, affinity=anti(term("rack", WEB)))])
    assert bound(plan) == {}
    assert messages(plan)["p-0"].startswith(
        "gang default/g: never fits: anti-affinity over rack: 4 domains, 5 are required. "
        "0/8 nodes are available: 8 node(s) cannot hold "
        "the whole gang. gang"
    )


def test_nodes_without_the_rack_label_conflict_with_nobody() -> None:
    plan = planned([node("x:9"), *gang(3, affinity=anti(term("rack", WEB)))])
    assert set(bound(plan).values()) == {"x"}


def test_a_master_shuns_the_zone_of_its_workers_and_they_do_not_shun_each_other() -> None:
    master = pod("m-0", gang="g", labels=MASTER, affinity=anti(term("zone", WEB)))
    plan = planned([*wide("ab"), group("g", 4), master, *gang(3)[1:]])
    where = bound(plan)
    assert len(where) == 4 and {where[f"p-{i}"] for i in range(3)} == {"b"} and where["m-0"] == "a"


@pytest.mark.parametrize("members", [2, 3, 4, 5])
def test_members_that_want_their_own_kind_near_open_one_zone(members: int) -> None:
    plan = planned([*TURNS, *gang(members, affinity=near(term("zone", WEB)))])
    assert list(values(plan, TURNS, "zone").values()) == ([members] if members < 5 else [])


def test_three_members_that_want_their_own_kind_gather_in_one_zone() -> None:
    plan = planned([*TURNS, *gang(3, affinity=near(term("zone", WEB)))])
    assert bound(plan) == {"p-0": "n0", "p-1": "n2", "p-2": "n4"}


def test_a_kind_that_runs_somewhere_draws_the_gang_there() -> None:
    plan = planned([*wide("abc"), pod("w", at="c", labels=WEB), *gang(2, affinity=near(term("zone", WEB)))])
    assert set(bound(plan).values()) == {"c"}


def test_a_master_stands_near_its_workers_wherever_they_fit() -> None:
    nodes = [node("a:9", {"zone": "a"}), node("b1:2", {"zone": "b"}), node("b2:1", {"zone": "b"})]
    master = pod("m-0", gang="g", labels=MASTER, affinity=near(term("zone", WEB)))
    workers = [pod(f"p-{i}", gang="g", labels=WEB, node_selector={"zone": "b"}) for i in range(2)]
    plan = planned([*nodes, group("g", 3), master, *workers])
    assert set(bound(plan).values()) == {"b1", "b2"}
    assert plan.gangs[0].proof is Proof.OPTIMAL


def test_a_master_whose_workers_fit_elsewhere_only_is_not_placed() -> None:
    nodes = [node("a:9", {"zone": "a"}), node("b:2", {"zone": "b"})]
    master = pod("m-0", gang="g", labels=MASTER, affinity=near(term("zone", WEB)), node_selector={"zone": "a"})
    workers = [pod(f"p-{i}", gang="g", labels=WEB, node_selector={"zone": "b"}) for i in range(2)]
    plan = planned([*nodes, group("g", 3), master, *workers])
    assert bound(plan) == {}
    assert messages(plan)["m-0"].startswith(
        "gang default/g: never fits: no placement on the empty cluster; affinity over zone. "
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) didn't match pod affinity rules. gang default/g: needed 3"
    )


def test_a_late_member_joins_its_bound_siblings() -> None:
    sibling = pod("p-0", gang="g", labels=WEB, at="b")
    late = pod("p-1", gang="g", labels=WEB, affinity=near(term("zone", WEB)))
    assert bound(planned([*wide("ab"), group("g", 2), sibling, late])) == {"p-1": "b"}


FAULTS: dict[str, tuple[Any, dict[str, str], str]] = {
    "lonely": ({"affinity": near(term("zone", WEB))}, {"p-0": "a", "p-1": "b"}, "placed in several domains of zone"),
    "crowded": ({"affinity": anti(term("zone", WEB))}, {"p-0": "a", "p-1": "a"}, "its anti-affinity excludes"),
    "skewed": ({"topology_spread_constraints": spread("zone")}, {"p-0": "a", "p-1": "a"}, "more than the fewest"),
    "without the key": ({"topology_spread_constraints": spread("zone")}, {"p-0": "a", "p-1": "x"}, "is in no domain"),
    "without the label": ({"affinity": near(term("zone", WEB))}, {"p-0": "a", "p-1": "x"}, "lacks a label"),
}


@pytest.mark.parametrize(("settings", "nodes", "fault"), FAULTS.values(), ids=FAULTS)
def test_the_check_of_a_plan_finds_what_members_break(settings: Any, nodes: dict[str, str], fault: str) -> None:
    snapshot = states([*wide("ab"), node("x:8"), *gang(2, **settings)]).snapshot(0.0)
    round_state = RoundState(Draft(snapshot), KoordpyConfiguration())
    unit = next(iter(Groups(snapshot).units()))
    found = check_plan(unit, {f"default/{name}": at for name, at in nodes.items()}, round_state)
    assert any(fault in one for one in found)


def test_members_left_over_are_told_how_they_stand_to_those_just_placed() -> None:
    """The core is placed in this round; the other member, of another kind, wants none of it in its zone."""
    apart = pod("p-1", gang="g", affinity=anti(term("zone", WEB)))
    objects = [*wide("a", 2), group("g", 1), pod("p-0", gang="g", cpu="2", labels=WEB), apart]
    plan = planned(objects)
    assert bound(plan) == {"p-0": "a"}
    assert messages(plan)["p-1"] == (
        "gang default/g: minMember 1 met, 1 more waiting for room; gang default/g: needed 1, available in the cluster: "
        "0. 0/1 nodes are available: 1 Insufficient cpu."
    )


NO_ZONE: dict[str, tuple[list[Any], str]] = {
    "zone": ([term("zone", WEB)], "zone: a: 4, b: 2"),
    "zone and host": (
        [term("zone", WEB), term("kubernetes.io/hostname", WEB)],
        "zone/kubernetes.io/hostname: a/a: 4, b/b: 2",
    ),
}


@pytest.mark.parametrize(("terms", "place"), NO_ZONE.values(), ids=NO_ZONE)
def test_a_gang_that_no_domain_holds_is_told_what_each_offers(terms: list[Any], place: str) -> None:
    nodes = [node("a:4", {"zone": "a"}), node("b:2", {"zone": "b"}), node("x:9")]
    said = messages(planned([*nodes, *gang(5, affinity=near(*terms))]))
    never = "never fits: no placement on the empty cluster; affinity over zone"
    lacks = f"needed 5, available in {place}"
    assert {text.partition(".")[0] for text in said.values()} == {f"gang default/g: {never}"}
    assert {text.rpartition("gang default/g: ")[2] for text in said.values()} == {f"{lacks}; affinity over zone."}


LATE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "siblings that match": ({"labels": WEB}, {"b"}),
    "siblings that do not": ({"labels": MASTER}, {"a"}),
    "siblings that match in two zones": ({"labels": WEB, "other": "c"}, {"b", "c"}),
}


@pytest.mark.parametrize(("bound_ones", "zones"), LATE.values(), ids=LATE)
def test_late_members_join_siblings_that_match_and_open_no_other_zone(bound_ones: Any, zones: set[str]) -> None:
    """Zone a has room for all; b and c for two each."""
    nodes = [node("a:9", {"zone": "a"}), node("b:3", {"zone": "b"}), node("c:3", {"zone": "c"})]
    siblings = [pod("p-0", gang="g", at="b", labels=bound_ones["labels"])]
    if "other" in bound_ones:
        siblings.append(pod("p-1", gang="g", at=bound_ones["other"], labels=bound_ones["labels"]))
    own = near(term("zone", WEB))
    late = [pod(f"p-{i}", gang="g", labels=WEB, affinity=own) for i in range(len(siblings), len(siblings) + 4)]
    placed = bound(planned([*nodes, group("g", 1), *siblings, *late]))
    assert set(placed.values()) == zones
    assert len(placed) == (4 if zones != {"b"} else 2)


def test_a_plan_with_victims_opens_one_zone_and_victims_are_no_matches() -> None:
    """Victims that match leave zone b; the gang stands in one zone, whichever it is."""
    nodes = [node("a:3", {"zone": "a"}), node("b:4", {"zone": "b"})]
    old = [pod(f"old-{i}", at="b", labels=WEB, priority=0) for i in range(4)]
    members = [pod(f"p-{i}", gang="g", labels=WEB, affinity=near(term("zone", WEB)), priority=9) for i in range(4)]
    plan = planned([*nodes, *old, group("g", 4), *members])
    assert {one.node for one in plan.nominations} == {"b"}
    assert len(plan.evictions) == 4


def test_gangs_of_one_group_that_match_each_other_open_one_rack() -> None:
    nodes = [node(f"{rack}{i}:1", {"rack": rack}) for rack, size in (("r", 2), ("s", 2), ("t", 4)) for i in range(size)]
    links = {keys.GANG_GROUPS: '["default/g", "default/h"]'}
    pods = [
        pod(f"{name}-{i}", gang=name, labels=WEB, affinity=near(term("rack", WEB))) for name in "gh" for i in range(2)
    ]
    plan = planned([*nodes, *(group(name, 2, links) for name in "gh"), *pods])
    assert {at[0] for at in bound(plan).values()} == {"t"}


def test_roles_that_require_each_other_are_one_set() -> None:
    nodes = [node(f"{rack}{i}:1", {"rack": rack}) for rack, size in (("r", 2), ("s", 3)) for i in range(size)]
    master = pod("m-0", gang="g", labels=MASTER, affinity=near(term("rack", WEB)))
    workers = [pod(f"p-{i}", gang="g", labels=WEB, affinity=near(term("rack", MASTER))) for i in range(2)]
    plan = planned([*nodes, group("g", 3), master, *workers])
    assert {at[0] for at in bound(plan).values()} == {"s"} and len(bound(plan)) == 3
