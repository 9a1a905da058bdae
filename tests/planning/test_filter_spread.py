# SPDX-License-Identifier: Apache-2.0
"""PodTopologySpread, filter and score (kube-parity.md 2.6 and 3)."""

from math import log
from typing import Any

import pytest

from koordpy.api.objects import (
    Affinity,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
    TopologySpreadConstraint,
)
from koordpy.config.configuration import Filters, KoordpyConfiguration, PodTopologySpreadArgs
from tests.planning.node_rules import asked, elsewhere, leaving, node, planned, pod, reasons
from tests.scenarios.cluster import bound, group, messages

SKEWED = "U: node(s) didn't match pod topology spread constraints"
NO_KEY = "UU: node(s) didn't match pod topology spread constraints (missing required label)"
HOST = "kubernetes.io/hostname"
WEB = {"app": "web"}


def spread(key: str = HOST, skew: int = 1, labels: dict[str, str] | None = None, **more: Any) -> Any:
    """One constraint as a list, on pods labelled app=web."""
    selector = LabelSelector(match_labels=WEB if labels is None else labels)
    return [TopologySpreadConstraint(max_skew=skew, topology_key=key, label_selector=selector, **more)]


def running(**counts: int) -> list[Any]:
    """So many app=web pods on each node."""
    return [pod(f"{at}-{i}", at=at, labels=WEB, cpu="100m") for at, count in counts.items() for i in range(count)]


def nodes(*names: str) -> list[Any]:
    return [node(f"{name}:9") for name in names]


FOUR = [*nodes("a", "b", "c", "d"), *running(a=2, b=1, d=3)]

CASES: dict[str, tuple[list[Any], Any, str]] = {
    "example 8: only the third": (FOUR, pod("p", labels=WEB, topology_spread_constraints=spread()), "c"),
    "example 8: outside its own selector the second and third": (
        FOUR,
        pod("p", topology_spread_constraints=spread()),
        "bc",
    ),
    "a wider skew": (FOUR, pod("p", labels=WEB, topology_spread_constraints=spread(skew=2)), "bc"),
    "too few domains: the minimum is 0": (
        [*nodes("a", "b"), *running(a=1, b=1)],
        pod("p", labels=WEB, topology_spread_constraints=spread(min_domains=3)),
        "",
    ),
    "enough domains: the real minimum": (
        [*nodes("a", "b"), *running(a=1, b=1)],
        pod("p", labels=WEB, topology_spread_constraints=spread(min_domains=2)),
        "ab",
    ),
    "no selector matches nothing": (
        [*nodes("a", "b"), *running(a=3)],
        pod("p", labels=WEB, topology_spread_constraints=[TopologySpreadConstraint(topology_key=HOST)]),
        "ab",
    ),
    "an empty selector matches all": (
        [*nodes("a", "b"), pod("x", at="a")],
        pod("p", topology_spread_constraints=spread(labels={})),
        "b",
    ),
    "other namespaces do not count": (
        [*nodes("a", "b"), *(elsewhere(one, "other") for one in running(a=2))],
        pod("p", labels=WEB, topology_spread_constraints=spread()),
        "ab",
    ),
    "pods being deleted do not count": (
        [*nodes("a", "b"), *map(leaving, running(a=2))],
        pod("p", labels=WEB, topology_spread_constraints=spread()),
        "ab",
    ),
    "matchLabelKeys: own values only, absent keys are ignored": (
        [*nodes("a", "b"), pod("x", at="a", labels={**WEB, "v": "1"}), pod("y", at="b", labels={**WEB, "v": "2"})],
        pod("p", labels={**WEB, "v": "2"}, topology_spread_constraints=spread(match_label_keys=["v", "absent"])),
        "a",
    ),
    "ScheduleAnyway does not filter": (
        [*nodes("a", "b"), *running(a=3)],
        pod("p", labels=WEB, topology_spread_constraints=spread(when_unsatisfiable="ScheduleAnyway")),
        "ab",
    ),
}


@pytest.mark.parametrize(("objects", "incoming", "fit"), CASES.values(), ids=CASES)
def test_skew_is_held(objects: list[Any], incoming: Any, fit: str) -> None:
    words = reasons([*objects, incoming])
    assert words == {name: "fits" if name in fit else SKEWED for name in words}


def test_every_constraint_holds_and_a_node_without_a_key_is_out_for_good() -> None:
    labelled = [node("a:9", {"zone": "z1"}), node("b:9", {"zone": "z1"}), node("c:9", {"zone": "z2"}), node("x:9")]
    both = [*spread(), *spread("zone")]
    words = reasons([*labelled, *running(a=1), pod("p", labels=WEB, topology_spread_constraints=both)])
    assert words == {"a": SKEWED, "b": SKEWED, "c": "fits", "x": NO_KEY}


def test_pods_on_nodes_without_all_keys_are_not_counted() -> None:
    labelled = [node("a:9", {"zone": "z1"}), node("c:9", {"zone": "z2"}), node("x:9")]
    incoming = pod("p", labels=WEB, topology_spread_constraints=spread("zone"))
    assert reasons([*labelled, *running(x=5), incoming]) == {"a": "fits", "c": "fits", "x": NO_KEY}


def affine(operator: str, *names: str) -> Affinity:
    expression = Requirement(key=HOST, operator=operator, values=list(names))
    selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[expression])])
    return Affinity(node_affinity=NodeAffinity(required=selector))


@pytest.mark.parametrize(("policy", "b"), [("Honor", "fits"), ("Ignore", SKEWED)])
def test_the_pods_node_affinity_makes_the_domains_unless_ignored(policy: str, b: str) -> None:
    objects = [*nodes("a", "b"), *running(b=1)]
    incoming = pod(
        "p",
        labels=WEB,
        affinity=affine("In", "b"),
        topology_spread_constraints=spread(node_affinity_policy=policy),
    )
    assert reasons([*objects, incoming])["b"] == b


@pytest.mark.parametrize(
    ("policy", "tolerations", "b"),
    [("Ignore", [], SKEWED), ("Honor", [], "fits"), ("Honor", [Toleration(key="k", operator="Exists")], SKEWED)],
)
def test_taints_make_the_domains_only_where_honoured(policy: str, tolerations: Any, b: str) -> None:
    from msgspec.structs import replace

    tainted = node("a:9")
    tainted = replace(tainted, spec=replace(tainted.spec, taints=[Taint(key="k", effect="NoSchedule")]))
    incoming = pod(
        "p",
        labels=WEB,
        tolerations=tolerations,
        topology_spread_constraints=spread(node_taints_policy=policy),
    )
    assert reasons([tainted, *nodes("b"), *running(b=1), incoming])["b"] == b


def test_placements_of_the_round_count() -> None:
    pods = [pod(f"p-{i}", labels=WEB, topology_spread_constraints=spread(), created=i) for i in range(4)]
    plan = planned([node("a:9"), node("b:1"), *pods])
    assert sorted(bound(plan).values()) == ["a", "a", "b"]
    assert messages(plan) == {
        "p-3": "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod topology spread constraints."
    }


def test_members_that_spread_over_others_alone_are_filtered() -> None:
    members = [pod(f"p-{i}", gang="g", topology_spread_constraints=spread()) for i in range(2)]
    plan = planned([*nodes("a", "b"), *running(a=2), group("g", 2), *members])
    assert set(bound(plan).values()) == {"b"}


# -- the score ---------------------------------------------------------------------------------------------------------


def soft(**settings: Any) -> Any:
    return spread(when_unsatisfiable="ScheduleAnyway", **settings)


def scores(objects: list[Any], config: KoordpyConfiguration | None = None) -> dict[str, float]:
    return {one.node: one.scores["PodTopologySpread"] for one in asked(objects, config=config).nodes if one.feasible}


def test_fewer_matching_pods_are_better() -> None:
    objects = [*nodes("a", "b", "c"), *running(a=2, b=1)]
    incoming = pod("p", labels=WEB, topology_spread_constraints=soft())
    # Raw: 2, 1 and 0 times ln(3 nodes + 2), rounded.
    raw = [round(count * log(5)) for count in (2, 1, 0)]
    want = [100 * (max(raw) + min(raw) - value) // max(raw) for value in raw]
    assert scores([*objects, incoming]) == dict(zip("abc", want, strict=True))
    assert want == [0, 33, 100]


def test_domains_of_a_zone_are_counted_and_nodes_without_the_key_get_nothing() -> None:
    objects = [node("a:9", {"zone": "z1"}), node("b:9", {"zone": "z1"}), node("c:9", {"zone": "z2"}), node("x:9")]
    incoming = pod("p", labels=WEB, topology_spread_constraints=soft(key="zone", skew=3))
    # Raw: z1 2 * ln(2 + 2) + 2, z2 0 + 2.
    high, low = round(2 * log(4) + 2), 2
    want = {"a": 100 * low // high, "b": 100 * low // high, "c": 100, "x": 0}
    assert scores([*objects, *running(a=2, x=9), incoming]) == want


def test_pods_without_constraints_score_nothing() -> None:
    assert set(scores([*nodes("a", "b"), *running(a=2), pod("p", labels=WEB)]).values()) == {0}


def test_nobody_to_count_is_full_marks() -> None:
    assert scores([*nodes("a", "b"), pod("p", labels=WEB, topology_spread_constraints=soft())]) == {"a": 100, "b": 100}


# -- configured constraints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "labels", "a"),
    [([], WEB, SKEWED), ([], {"app": "db"}, "fits"), (spread(skew=9), WEB, "fits")],
    ids=["without constraints", "not spoken of", "own constraints instead"],
)
def test_listed_constraints_hold_for_pods_without_any(own: Any, labels: dict[str, str], a: str) -> None:
    args = PodTopologySpreadArgs(defaulting_type="List", default_constraints=tuple(spread()))
    config = KoordpyConfiguration(filters=Filters(pod_topology_spread=args))
    incoming = pod("p", labels=labels, topology_spread_constraints=own)
    said = asked([*nodes("a", "b"), *running(a=1), incoming], config=config)
    assert [one.feasible for one in said.nodes] == [a == "fits", True]
