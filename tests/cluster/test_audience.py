# SPDX-License-Identifier: Apache-2.0
"""Whom terms of pod affinity may speak of (pods/pod_ties.py): nobody whom they do speak of is left out."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpy.api.objects import LabelSelector, PodAffinityTerm, Requirement
from koordpy.plugins.interpod_affinity import term_matches
from koordpy.pods.pod_ties import audience_of

KEYS, VALUES = st.sampled_from("ab"), st.sampled_from(["1", "2", "x"])
LABELS = st.dictionaries(KEYS, VALUES, max_size=2)
REQUIREMENTS = st.builds(
    Requirement,
    key=KEYS,
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd"]),
    values=st.lists(VALUES, max_size=2),
)
SELECTORS = st.builds(LabelSelector, match_labels=LABELS, match_expressions=st.lists(REQUIREMENTS, max_size=2))
TERMS = st.builds(
    PodAffinityTerm,
    topology_key=st.just("zone"),
    label_selector=st.one_of(st.none(), SELECTORS),
    namespaces=st.lists(st.sampled_from(["own", "other"]), max_size=1),
    namespace_selector=st.one_of(st.none(), st.none(), SELECTORS),
)
NAMESPACES = {"own": {"a": "1"}, "other": {"b": "x"}}


EVERY_LABELS = [
    {key: value for key, value in zip("ab", pair, strict=True) if value}
    for pair in itertools.product(("", "1", "2", "x"), repeat=2)
]


@settings(max_examples=400, deadline=None)
@given(st.lists(TERMS, max_size=3))
def test_who_is_spoken_of_is_in_the_audience(terms: list[PodAffinityTerm]) -> None:
    audience = audience_of(terms)
    for namespace, labels in itertools.product(NAMESPACES, EVERY_LABELS):
        spoken = any(term_matches(term, "own", namespace, labels, NAMESPACES) for term in terms)
        assert not spoken or audience.may_have("own", namespace, labels)


def test_who_is_not_meant_is_told_without_reading_the_terms() -> None:
    listed = LabelSelector(match_expressions=[Requirement(key="app", operator="In", values=["web", "db"])])
    there = LabelSelector(match_expressions=[Requirement(key="gpu", operator="Exists")])
    terms = [PodAffinityTerm(topology_key="zone", label_selector=one) for one in (listed, there, None)]
    audience = audience_of(terms)
    for labels, meant in (({"app": "web"}, True), ({"app": "x"}, False), ({"gpu": "0"}, True), ({}, False)):
        assert audience.may_have("own", "own", labels) == meant
        assert not audience.may_have("own", "other", labels)
    assert audience_of([]).may_have("own", "own", {"app": "web"}) is False
