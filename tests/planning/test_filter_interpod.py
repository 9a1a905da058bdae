# SPDX-License-Identifier: Apache-2.0
"""InterPodAffinity, filter and score (kube-parity.md 2.7 and 3)."""

from typing import Any

import pytest

from koordpy.api.objects import (
    Affinity,
    LabelSelector,
    Namespace,
    ObjectMeta,
    PodAffinity,
    WeightedPodAffinityTerm,
)
from koordpy.config.configuration import Filters, InterPodAffinityArgs, KoordpyConfiguration
from tests.planning.node_rules import anti, asked, elsewhere, leaving, near, node, planned, pod, reasons, term
from tests.scenarios.cluster import bound, group, messages

NOT_NEAR = "UU: node(s) didn't match pod affinity rules"
SHUNNED = "U: node(s) didn't match pod anti-affinity rules"
CLOSED = "U: node(s) didn't satisfy existing pods anti-affinity rules"

ZONES = [node("a1:4", {"zone": "a"}), node("a2:4", {"zone": "a"}), node("b1:4", {"zone": "b"}), node("x:4")]


def words(a1: str, a2: str, b1: str, x: str) -> dict[str, str]:
    return {"a1": a1, "a2": a2, "b1": b1, "x": x}


WEB = {"app": "web"}
ANY = Affinity

AFFINITY: dict[str, tuple[list[Any], Any, dict[str, str]]] = {
    "a pod in the domain": (
        [pod("w", at="a1", labels=WEB)],
        near(term("zone", WEB)),
        words("fits", "fits", NOT_NEAR, NOT_NEAR),
    ),
    "nobody anywhere": ([], near(term("zone", WEB)), words(*[NOT_NEAR] * 4)),
    "pods with one label each do not add up": (
        [pod("w", at="a1", labels={"a": "1"}), pod("v", at="a1", labels={"b": "2"})],
        near(term("zone", {"a": "1"}), term("zone", {"b": "2"})),
        words(*[NOT_NEAR] * 4),
    ),
    "one pod with both does": (
        [pod("w", at="a1", labels={"a": "1", "b": "2"})],
        near(term("zone", {"a": "1"}), term("zone", {"b": "2"})),
        words("fits", "fits", NOT_NEAR, NOT_NEAR),
    ),
    "every key is needed": (
        [pod("w", at="a1", labels=WEB)],
        near(term("zone", WEB), term("rack", WEB)),
        words(*[NOT_NEAR] * 4),
    ),
    "a terminating pod counts": (
        [leaving(pod("w", at="a1", labels=WEB))],
        near(term("zone", WEB)),
        words("fits", "fits", NOT_NEAR, NOT_NEAR),
    ),
    "a finished pod does not": (
        [pod("w", at="a1", labels=WEB, phase="Succeeded")],
        near(term("zone", WEB)),
        words(*[NOT_NEAR] * 4),
    ),
    "a pod of another namespace does not": (
        [elsewhere(pod("w", at="a1", labels=WEB), "other")],
        near(term("zone", WEB)),
        words(*[NOT_NEAR] * 4),
    ),
    "an absent selector matches no pod": ([pod("w", at="a1")], near(term("zone", None)), words(*[NOT_NEAR] * 4)),
    "an empty selector matches every pod": (
        [pod("w", at="b1")],
        near(term("zone", {})),
        words(NOT_NEAR, NOT_NEAR, "fits", NOT_NEAR),
    ),
    "own anti-affinity closes the domain, a node without the key cannot conflict": (
        [pod("w", at="a1", labels=WEB), pod("v", at="x", labels=WEB)],
        anti(term("zone", WEB)),
        words(SHUNNED, SHUNNED, "fits", "fits"),
    ),
    "any term of anti-affinity is enough": (
        [pod("w", at="a1", labels=WEB), pod("v", at="b1", labels={"app": "db"})],
        anti(term("zone", WEB), term("zone", {"app": "db"})),
        words(SHUNNED, SHUNNED, SHUNNED, "fits"),
    ),
    "affinity speaks before anti-affinity": (
        [pod("w", at="a1", labels=WEB)],
        Affinity(
            pod_affinity=PodAffinity(required=[term("zone", WEB)]),
            pod_anti_affinity=PodAffinity(required=[term("kubernetes.io/hostname", WEB)]),
        ),
        words(SHUNNED, "fits", NOT_NEAR, NOT_NEAR),
    ),
}


@pytest.mark.parametrize(("there", "affinity", "want"), AFFINITY.values(), ids=AFFINITY)
def test_required_terms(there: list[Any], affinity: Affinity, want: dict[str, str]) -> None:
    assert reasons([*ZONES, *there, pod("p", affinity=affinity)]) == want


FIRST: dict[str, tuple[list[Any], dict[str, str], dict[str, str]]] = {
    "the first of its own kind may go wherever the keys are": ([], WEB, words("fits", "fits", "fits", NOT_NEAR)),
    "a pod that its own terms do not match may not": ([], {"app": "db"}, words(*[NOT_NEAR] * 4)),
    "once one stands the others follow it": (
        [pod("w", at="b1", labels=WEB)],
        WEB,
        words(NOT_NEAR, NOT_NEAR, "fits", NOT_NEAR),
    ),
    "a match without the key is in no domain": (
        [pod("w", at="x", labels=WEB)],
        WEB,
        words("fits", "fits", "fits", NOT_NEAR),
    ),
}


@pytest.mark.parametrize(("there", "labels", "want"), FIRST.values(), ids=FIRST)
def test_the_first_pod_of_its_kind(there: list[Any], labels: dict[str, str], want: dict[str, str]) -> None:
    assert reasons([*ZONES, *there, pod("p", labels=labels, affinity=near(term("zone", WEB)))]) == want


SYMMETRY: dict[str, tuple[Any, dict[str, str], dict[str, str]]] = {
    "its whole domain is closed": (
        pod("w", at="a1", affinity=anti(term("zone", WEB))),
        WEB,
        words(CLOSED, CLOSED, "fits", "fits"),
    ),
    "pods it does not speak of pass": (
        pod("w", at="a1", affinity=anti(term("zone", WEB))),
        {"app": "db"},
        words(*["fits"] * 4),
    ),
    "its node needs the key": (pod("w", at="x", affinity=anti(term("zone", WEB))), WEB, words(*["fits"] * 4)),
    "required affinity is not symmetric": (
        pod("w", at="a1", labels=WEB, affinity=near(term("zone", WEB))),
        WEB,
        words(*["fits"] * 4),
    ),
}


@pytest.mark.parametrize(("there", "labels", "want"), SYMMETRY.values(), ids=SYMMETRY)
def test_anti_affinity_of_pods_that_run(there: Any, labels: dict[str, str], want: dict[str, str]) -> None:
    assert reasons([*ZONES, there, pod("p", labels=labels)]) == want


NAMESPACES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "neither list nor selector is the own one": ({}, "default", True),
    "the own one alone": ({}, "blue", False),
    "a list": ({"namespaces": ["blue"]}, "blue", True),
    "a list does not add the own one": ({"namespaces": ["blue"]}, "default", False),
    "an empty selector is every namespace": ({"namespace_selector": LabelSelector()}, "unknown", True),
    "a selector by the namespace's labels": (
        {"namespace_selector": LabelSelector(match_labels={"team": "blue"})},
        "blue",
        True,
    ),
    "a selector that does not match": (
        {"namespace_selector": LabelSelector(match_labels={"team": "blue"})},
        "red",
        False,
    ),
    "list and selector are united": (
        {"namespaces": ["red"], "namespace_selector": LabelSelector(match_labels={"team": "blue"})},
        "red",
        True,
    ),
}


@pytest.mark.parametrize(("settings", "namespace", "matched"), NAMESPACES.values(), ids=NAMESPACES)
def test_namespaces_of_a_term(settings: dict[str, Any], namespace: str, matched: bool) -> None:
    spaces = [Namespace(metadata=ObjectMeta(name=name, labels={"team": name})) for name in ("blue", "red", "default")]
    there = elsewhere(pod("w", at="n1", labels=WEB), namespace)
    shy = anti(term("kubernetes.io/hostname", WEB, **settings))
    objects = [node("n1:4"), *spaces, there]
    assert reasons([*objects, pod("p", affinity=shy)]) == {"n1": SHUNNED if matched else "fits"}
    if namespace == "default":
        wall = pod("w", at="n1", affinity=shy)
        assert reasons([node("n1:4"), *spaces, wall, pod("p", labels=WEB)]) == {"n1": CLOSED if matched else "fits"}


def test_pods_that_differ_in_a_label_someone_looks_for_are_not_one_shape() -> None:
    shy = pod("w", at="n1", affinity=anti(term("kubernetes.io/hostname", WEB)))
    plan = planned([pod("a", labels=WEB), pod("b", labels={"app": "db"}), node("n1:4"), shy])
    assert bound(plan) == {"b": "n1"}


def test_placements_of_the_round_count() -> None:
    shy = anti(term("kubernetes.io/hostname", WEB))
    pods = [pod(f"p-{i}", labels=WEB, affinity=shy, created=i) for i in range(3)]
    plan = planned([node("n1:4"), node("n2:4"), *pods])
    assert sorted(bound(plan).values()) == ["n1", "n2"]
    assert messages(plan) == {"p-2": "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."}


def test_a_placed_pod_closes_its_node_to_plain_pods_it_shuns() -> None:
    shy = pod("a", cpu="2", affinity=anti(term("kubernetes.io/hostname", WEB)))
    plan = planned([node("n1:4"), shy, pod("b", labels=WEB, created=1), pod("c", created=2)])
    assert bound(plan) == {"a": "n1", "c": "n1"}
    assert messages(plan)["b"] == (
        "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."
    )


def test_a_pod_that_leans_on_a_later_one_follows_it_in_the_same_round() -> None:
    leaning = pod("a", affinity=near(term("zone", WEB)))
    plan = planned([*ZONES, leaning, pod("w", labels=WEB, created=1, node_selector={"zone": "b"})])
    assert bound(plan) == {"a": "b1", "w": "b1"}


# -- members of a gang -------------------------------------------------------------------------------------------------

SELF = anti(term("kubernetes.io/hostname", WEB))


@pytest.mark.parametrize(("nodes", "placed"), [(3, 3), (2, 0)])
def test_members_that_shun_each_other_on_a_node_need_a_node_each(nodes: int, placed: int) -> None:
    members = [pod(f"p-{i}", gang="g", labels=WEB, affinity=SELF) for i in range(3)]
    plan = planned([*(node(f"n{i}:8") for i in range(nodes)), group("g", 3), *members])
    assert len(set(bound(plan).values())) == placed


def test_a_master_that_shuns_all_members_stands_alone() -> None:
    master = pod("m-0", gang="g", labels=WEB, affinity=SELF)
    workers = [pod(f"w-{i}", gang="g", labels=WEB) for i in range(1, 4)]
    plan = planned([node("n1:8"), node("n2:8"), group("g", 4), master, *workers])
    where = bound(plan)
    assert len(where) == 4
    assert all(where[f"w-{i}"] != where["m-0"] for i in range(1, 4))


def test_terms_that_speak_of_others_alone_are_filters_like_any_other() -> None:
    members = [pod(f"p-{i}", gang="g", affinity=near(term("zone", WEB))) for i in range(2)]
    plan = planned([*ZONES, group("g", 2), *members, pod("w", at="b1", labels=WEB)])
    assert set(bound(plan).values()) == {"b1"}


# -- the score ---------------------------------------------------------------------------------------------------------


def weighted(weight: int, key: str, labels: dict[str, str]) -> list[WeightedPodAffinityTerm]:
    return [WeightedPodAffinityTerm(weight=weight, pod_affinity_term=term(key, labels))]


def scores(objects: list[Any], config: KoordpyConfiguration | None = None) -> dict[str, float]:
    return {one.node: one.scores["InterPodAffinity"] for one in asked(objects, config=config).nodes if one.feasible}


LIKES = Affinity(pod_affinity=PodAffinity(preferred=weighted(10, "zone", WEB)))
DISLIKES = Affinity(pod_anti_affinity=PodAffinity(preferred=weighted(10, "zone", WEB)))

SCORES: dict[str, tuple[list[Any], Any, tuple[int, int, int, int]]] = {
    "own wish": ([pod("w", at="a1", labels=WEB)], pod("p", affinity=LIKES), (100, 100, 0, 0)),
    "own dislike": ([pod("w", at="a1", labels=WEB)], pod("p", affinity=DISLIKES), (0, 0, 100, 100)),
    "more pods weigh more": (
        [pod("w", at="a1", labels=WEB), pod("v", at="a2", labels=WEB), pod("u", at="b1", labels=WEB)],
        pod("p", affinity=LIKES),
        (100, 100, 50, 0),
    ),
    "wish of a pod that runs": ([pod("w", at="b1", affinity=LIKES)], pod("p", labels=WEB), (0, 0, 100, 0)),
    "dislike of a pod that runs": ([pod("w", at="b1", affinity=DISLIKES)], pod("p", labels=WEB), (100, 100, 0, 100)),
    "required affinity of a pod that runs": (
        [pod("w", at="b1", affinity=near(term("zone", WEB)))],
        pod("p", labels=WEB),
        (0, 0, 100, 0),
    ),
    "nobody wishes anything": ([pod("w", at="b1", labels=WEB)], pod("p"), (0, 0, 0, 0)),
}


@pytest.mark.parametrize(("there", "incoming", "want"), SCORES.values(), ids=SCORES)
def test_soft_terms_score(there: list[Any], incoming: Any, want: tuple[int, ...]) -> None:
    assert scores([*ZONES, *there, incoming]) == dict(zip(("a1", "a2", "b1", "x"), want, strict=True))


def test_wishes_of_existing_pods_can_be_ignored_and_hard_terms_weighed_anew() -> None:
    there = [pod("w", at="b1", affinity=near(term("zone", WEB)))]
    for args in (
        InterPodAffinityArgs(hard_pod_affinity_weight=0),
        InterPodAffinityArgs(ignore_preferred_terms_of_existing_pods=True),
    ):
        config = KoordpyConfiguration(filters=Filters(inter_pod_affinity=args))
        assert set(scores([*ZONES, *there, pod("p", labels=WEB)], config).values()) == {0}


def test_a_wish_decides_where_a_plain_pod_goes() -> None:
    plan = planned([*ZONES, pod("w", at="b1", labels=WEB), pod("p", affinity=LIKES)])
    assert bound(plan) == {"p": "b1"}
