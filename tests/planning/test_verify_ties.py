# SPDX-License-Identifier: Apache-2.0
"""The independent check of a plan finds pods that may not stand together, however they came there."""

from typing import Any

import pytest

from koordpy.api.objects import GceDisk, LabelSelector, TopologySpreadConstraint, Volume
from koordpy.cache.plan_draft import Draft
from koordpy.verify.tie_check import check_ties
from tests.planning.node_rules import anti, node, pod, states, term
from tests.planning.test_filter_ports import with_port

WEB = {"app": "web"}
HOST = "kubernetes.io/hostname"
NODES = [node("n1:8", {"zone": "a"}), node("n2:8", {"zone": "a"}), node("n3:8")]


def disk(name: str, read_only: bool = False, **settings: Any) -> Any:
    source = GceDisk(pd_name="d", read_only=read_only)
    return pod(name, volumes=[Volume(name="v", gce_persistent_disk=source)], **settings)


PAIRS: dict[str, tuple[Any, Any, dict[str, str], str]] = {
    "one port, one node": (
        with_port("a", ("TCP", 80, "")),
        with_port("b", ("TCP", 80, "10.0.0.1")),
        {"a": "n1", "b": "n1"},
        "both use port 80/TCP of node n1",
    ),
    "one port, two nodes": (
        with_port("a", ("TCP", 80, "")),
        with_port("b", ("TCP", 80, "")),
        {"a": "n1", "b": "n2"},
        "",
    ),
    "two addresses": (
        with_port("a", ("TCP", 80, "10.0.0.2")),
        with_port("b", ("TCP", 80, "10.0.0.1")),
        {"a": "n1", "b": "n1"},
        "",
    ),
    "shunned in the zone": (
        pod("a", affinity=anti(term("zone", WEB))),
        pod("b", labels=WEB),
        {"a": "n1", "b": "n2"},
        "its anti-affinity excludes default/b on n2",
    ),
    "shunning from either side": (
        pod("b", labels=WEB),
        pod("a", affinity=anti(term("zone", WEB))),
        {"a": "n1", "b": "n2"},
        "its anti-affinity excludes default/b on n2",
    ),
    "no zone, no conflict": (
        pod("a", affinity=anti(term("zone", WEB))),
        pod("b", labels=WEB),
        {"a": "n1", "b": "n3"},
        "",
    ),
    "one disk": (disk("a"), disk("b", True), {"a": "n1", "b": "n1"}, "both mount disk d on node n1"),
    "one disk, both reading": (disk("a", True), disk("b", True), {"a": "n1", "b": "n1"}, ""),
}


@pytest.mark.parametrize(("one", "two", "where", "fault"), PAIRS.values(), ids=PAIRS)
def test_members_of_a_plan(one: Any, two: Any, where: dict[str, str], fault: str) -> None:
    snapshot = states([*NODES, one, two]).snapshot(0.0)
    placed = [(snapshot.pods[f"default/{name}"], at) for name, at in where.items()]
    found = check_ties(placed, Draft(snapshot))
    assert (fault in found[0]) if fault else not found


@pytest.mark.parametrize("how", ["running", "placed before"])
def test_pods_that_hold_the_node_already(how: str) -> None:
    there = with_port("a", ("TCP", 80, ""), at="n1" if how == "running" else "")
    snapshot = states([*NODES, there, with_port("b", ("TCP", 80, ""))]).snapshot(0.0)
    draft = Draft(snapshot)
    if how == "placed before":
        draft.assign(snapshot.pods["default/a"], snapshot.index["n1"])
    placed = [(snapshot.pods["default/b"], "n1")]
    assert check_ties(placed, draft) != []
    assert check_ties([(snapshot.pods["default/b"], "n2")], draft) == []


@pytest.mark.parametrize("how", ["running", "placed before", "evicted"])
def test_members_that_say_nothing_are_shunned_by_pods_elsewhere(how: str) -> None:
    there = pod("a", affinity=anti(term("zone", WEB)), at="" if how == "placed before" else "n1")
    snapshot = states([*NODES, there, pod("b", labels=WEB), pod("c", labels=WEB)]).snapshot(0.0)
    draft = Draft(snapshot)
    if how == "placed before":
        draft.assign(snapshot.pods["default/a"], snapshot.index["n1"])
    elif how == "evicted":
        draft.evict(snapshot.pods["default/a"])
    placed = [(snapshot.pods["default/b"], "n2"), (snapshot.pods["default/c"], "n3")]
    fault = "default/a on n1: its anti-affinity excludes default/b on n2 (zone)"
    assert set(check_ties(placed, draft)) == (set() if how == "evicted" else {fault})
    assert set(check_ties(placed[:1], draft, whole=True)) == (set() if how == "evicted" else {fault})


def test_a_pod_by_itself_is_held_against_all_others_where_that_is_asked_for() -> None:
    spread = TopologySpreadConstraint(
        max_skew=1, topology_key="zone", when_unsatisfiable="DoNotSchedule", label_selector=LabelSelector(WEB)
    )
    here = [pod(name, labels=WEB, at="n1") for name in "ac"]
    far = node("n4:8", {"zone": "b"})
    snapshot = states([*NODES, far, *here, pod("b", topology_spread_constraints=[spread])]).snapshot(0.0)
    placed = [(snapshot.pods["default/b"], "n2")]
    assert check_ties(placed, Draft(snapshot)) == []
    assert check_ties(placed, Draft(snapshot), whole=True) != []
