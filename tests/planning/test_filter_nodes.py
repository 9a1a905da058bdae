# SPDX-License-Identifier: Apache-2.0
"""Which nodes a pod may use by name, taints and labels, and in whose words it may not (kube-parity.md 2.1 and 2.3)."""

from typing import Any

import pytest
from msgspec.structs import replace

from koordpy.api.objects import (
    Affinity,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    NodeSpec,
    PreferredNodeTerm,
    Requirement,
    Taint,
    Toleration,
)
from koordpy.config.configuration import Filters, KoordpyConfiguration, NodeAffinityArgs, NodeResourcesFitArgs
from tests.planning.node_rules import asked, node, planned, pod, reasons

OTHER = "UU: node(s) didn't match Pod's node affinity/selector"
TAINTED = "UU: node(s) had untolerated taint(s)"
CLOSED = "UU: node(s) were unschedulable"
NOT_NAMED = "UU: node(s) didn't satisfy plugin(s) [NodeAffinity]"
CONFLICT = "UU: pod affinity terms conflict"


def tainted(*taints: Taint, closed: bool = False) -> Node:
    return replace(node("n1"), spec=NodeSpec(taints=list(taints), unschedulable=closed))


def expression(key: str, operator: str, *values: str) -> Requirement:
    return Requirement(key=key, operator=operator, values=list(values))


def labels(*expressions: Requirement) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=list(expressions))


def named(*fields: Requirement) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_fields=list(fields))


def is_in(*names: str) -> Requirement:
    return expression("metadata.name", "In", *names)


def wants(*terms: NodeSelectorTerm) -> Any:
    required = NodeSelector(node_selector_terms=list(terms))
    return pod("p", affinity=Affinity(node_affinity=NodeAffinity(required=required)))


FIVE = Taint(key="k", value="5", effect="NoSchedule")
BARE = Taint(key="k", effect="NoSchedule")


@pytest.mark.parametrize(
    ("taint", "toleration", "fits"),
    [
        (FIVE, Toleration(key="k", value="5"), True),
        (FIVE, Toleration(key="k", operator="Equal", value="05"), False),
        (FIVE, Toleration(key="K", operator="Exists"), False),
        (FIVE, Toleration(key="k", operator="Exists", effect="NoExecute"), False),
        (FIVE, Toleration(operator="Exists"), True),
        (BARE, Toleration(key="k"), True),
        (BARE, Toleration(operator="Equal"), False),
        (FIVE, Toleration(key="k", operator="Lt", value="6"), True),
        (FIVE, Toleration(key="k", operator="Lt", value="5"), False),
        (FIVE, Toleration(key="k", operator="Gt", value="-1"), True),
        (FIVE, Toleration(key="k", operator="Gt", value="four"), False),
        (Taint(key="k", value="9223372036854775808", effect="NoSchedule"), Toleration(key="k", operator="Gt"), False),
    ],
)
def test_a_taint_closes_a_node_to_all_but_those_that_tolerate_it(
    taint: Taint, toleration: Toleration, fits: bool
) -> None:
    assert reasons([tainted(taint), pod("p", tolerations=[toleration])]) == {"n1": "fits" if fits else TAINTED}


@pytest.mark.parametrize(("effect", "word"), [("NoExecute", TAINTED), ("PreferNoSchedule", "fits")])
def test_only_hard_effects_close_a_node(effect: str, word: str) -> None:
    assert reasons([tainted(Taint(key="k", effect=effect)), pod("p")]) == {"n1": word}


def test_a_closed_node_is_one_with_a_taint_and_says_so_first() -> None:
    key = "node.kubernetes.io/unschedulable"
    assert reasons([tainted(FIVE, closed=True), pod("p")]) == {"n1": CLOSED}
    every = pod("p", tolerations=[Toleration(key=key, operator="Exists"), Toleration(key="k", operator="Exists")])
    assert reasons([tainted(FIVE, closed=True), every]) == {"n1": "fits"}


@pytest.mark.parametrize(
    ("required", "fits"),
    [
        (expression("zone", "In", "b", "a"), True),
        (expression("zone", "In", "A"), False),
        (expression("zone", "In"), False),
        (expression("zone", "NotIn", "a"), False),
        (expression("rack", "NotIn", "a"), True),
        (expression("empty", "Exists"), True),
        (expression("empty", "DoesNotExist"), False),
        (expression("rack", "DoesNotExist"), True),
        (expression("size", "Gt", "4"), True),
        (expression("size", "Gt", "5"), False),
        (expression("size", "Lt", "6", "7"), False),
        (expression("size", "Gt", "4.0"), False),
        (expression("size", "Gt", "0_4"), False),
        (expression("zone", "Gt", "4"), False),
        (expression("rack", "Lt", "6"), False),
    ],
)
def test_an_expression_reads_the_label_strictly(required: Requirement, fits: bool) -> None:
    cluster = node("n1", {"zone": "a", "size": "5", "empty": ""})
    assert reasons([cluster, wants(labels(required))]) == {"n1": "fits" if fits else OTHER}


def test_terms_are_ored_their_parts_anded_and_empty_ones_match_nothing() -> None:
    cluster = [node("n1", {"zone": "a"}), node("n2", {"zone": "b"})]
    both = labels(expression("zone", "In", "a"), expression("zone", "In", "b"))
    assert reasons([*cluster, wants(both)]) == {"n1": OTHER, "n2": OTHER}
    assert reasons([*cluster, wants(both, NodeSelectorTerm(), labels(expression("zone", "In", "b")))]) == {
        "n1": OTHER,
        "n2": "fits",
    }
    assert reasons([*cluster, wants()]) == {"n1": OTHER, "n2": OTHER}


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ([named(is_in("n1"))], ["fits", NOT_NAMED, NOT_NAMED]),
        ([named(is_in("n1")), named(is_in("n3"))], ["fits", NOT_NAMED, "fits"]),
        ([named(is_in("n1"), is_in("n2"))], [CONFLICT, CONFLICT, CONFLICT]),
        ([named(is_in("n1"), is_in("n2")), named(is_in("n3"))], [NOT_NAMED, NOT_NAMED, "fits"]),
        ([named(is_in("n1")), labels(expression("zone", "Exists"))], ["fits", OTHER, OTHER]),
        ([named(expression("metadata.name", "NotIn", "n1"))], [OTHER, "fits", "fits"]),
        # a term with two values matches nothing, but names its nodes: kube-scheduler tries no others
        ([named(is_in("n1", "n2"))], [OTHER, OTHER, NOT_NAMED]),
        ([named(is_in("n1", "n2")), named(is_in("n2"))], [OTHER, "fits", NOT_NAMED]),
        ([named(expression("metadata.uid", "In", "n1"))], [OTHER, OTHER, OTHER]),
    ],
)
def test_where_every_term_names_nodes_only_these_are_tried(terms: list[NodeSelectorTerm], words: list[str]) -> None:
    found = reasons([node("n1"), node("n2"), node("n3"), wants(*terms)])
    assert found == dict(zip(("n1", "n2", "n3"), words, strict=True))


@pytest.mark.parametrize(
    ("ignored", "fits"),
    [("example.com/a", True), ("hugepages-2Mi", False), ("cpu", False), ("requests.kubernetes.io/a", False)],
)
def test_of_resources_only_extended_ones_can_be_left_out(ignored: str, fits: bool) -> None:
    """Others stand in the configuration without effect, as kube-scheduler takes them."""
    ignoring = NodeResourcesFitArgs(ignored_resources=(ignored,), ignored_resource_groups=("kubernetes.io",))
    config = KoordpyConfiguration(filters=Filters(node_resources_fit=ignoring))
    asking = pod("p", cpu="0", requests={ignored: "2"})
    assert bool(planned([node("n1:1"), asking], config).placements) == fits


def prefers(weight: int, term: NodeSelectorTerm) -> NodeAffinity:
    return NodeAffinity(preferred=[PreferredNodeTerm(weight=weight, preference=term)])


def test_preferred_terms_of_the_configuration_weigh_like_the_pods_own() -> None:
    added = NodeAffinityArgs(added_affinity=prefers(30, labels(expression("disk", "In", "ssd"))))
    config = KoordpyConfiguration(filters=Filters(node_affinity=added))
    cluster = [
        node("n1"),
        node("n2", {"zone": "a"}),
        node("n3", {"disk": "ssd"}),
        node("n4", {"zone": "a", "disk": "ssd"}),
    ]
    own = Affinity(node_affinity=prefers(10, labels(expression("zone", "In", "a"))))
    for affinity, shares in ((None, [0, 0, 100, 100]), (own, [0, 25, 75, 100])):
        found = asked([*cluster, pod("p", affinity=affinity)], config=config)
        assert [one.scores["NodeAffinity"] for one in found.nodes] == shares
