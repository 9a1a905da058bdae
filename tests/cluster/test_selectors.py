# SPDX-License-Identifier: Apache-2.0
"""Expressions of node and label selectors, the invalid ones among them (kube-parity.md 2.3 and 9, 6)."""

import random
from collections.abc import Sequence

import pytest

from koordpy.api.label_selectors import LabelColumns, expression_matches, term_matches
from koordpy.api.objects import NodeSelectorTerm, Requirement
from tests.cluster.test_hostile import calls_of

LABELS = {"zone": "a", "tier": "5", "odd": "5.0"}

CASES = [
    ("zone", "In", ["a", "b"], True),
    ("zone", "In", [], False),
    ("zone", "NotIn", ["b"], True),
    ("zone", "NotIn", [], False),
    ("missing", "NotIn", ["b"], True),
    ("zone", "Exists", [], True),
    ("zone", "Exists", ["a"], False),
    ("missing", "DoesNotExist", [], True),
    ("missing", "DoesNotExist", ["a"], False),
    ("tier", "Gt", ["4"], True),
    ("tier", "Gt", ["4", "3"], False),
    ("tier", "Gt", [], False),
    ("tier", "Lt", ["1_0"], False),
    ("tier", "Lt", ["9223372036854775808"], False),
    ("tier", "Gt", ["-9223372036854775808"], True),
    ("tier", "Gt", ["0" * 5000 + "4"], True),
    ("tier", "Lt", ["9" * 5000], False),
    ("odd", "Gt", ["4"], False),
    ("missing", "Lt", ["4"], False),
    ("zone", "Like", ["a"], False),
]


@pytest.mark.parametrize(("key", "operator", "values", "matches"), CASES)
def test_an_expression(key: str, operator: str, values: list[str], matches: bool) -> None:
    assert expression_matches(Requirement(key=key, operator=operator, values=values), LABELS) is matches


def test_one_invalid_expression_makes_its_term_match_nothing() -> None:
    good = Requirement(key="zone", operator="In", values=["a"])
    bad = Requirement(key="zone", operator="Exists", values=["a"])
    assert term_matches(NodeSelectorTerm(match_expressions=[good]), "n", LABELS)
    assert not term_matches(NodeSelectorTerm(match_expressions=[good, bad]), "n", LABELS)


WORDS = ("a", "b", "7", "12", "x")


def _requirement(rng: random.Random, keys: Sequence[str]) -> Requirement:
    values = tuple(rng.choices(WORDS, k=rng.choice((0, 1, 1, 2, 4))))
    operators = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd", "")
    return Requirement(key=rng.choice(keys), operator=rng.choice(operators), values=values)


@pytest.mark.parametrize("seed", range(300))
def test_terms_asked_of_many_nodes_at_once_say_of_each_what_they_say_of_it_alone(seed: int) -> None:
    rng = random.Random(seed)
    names = [rng.choice(WORDS) for _ in range(8)]
    labels = [{key: rng.choice(WORDS) for key in rng.sample(("k", "l", "m"), rng.randrange(4))} for _ in names]
    columns = LabelColumns(names, labels)
    for _ in range(10):
        term = NodeSelectorTerm(
            match_expressions=[_requirement(rng, ("k", "l", "m", "n")) for _ in range(rng.randrange(3))],
            match_fields=[_requirement(rng, ("metadata.name", "other")) for _ in range(rng.choice((0, 0, 1, 2)))],
        )
        alone = [term_matches(term, name, own) for name, own in zip(names, labels, strict=True)]
        assert columns.matches(term).tolist() == alone, term


def test_terms_are_asked_of_no_node_by_itself() -> None:
    operators = [("In", WORDS), ("NotIn", WORDS), ("Exists", ()), ("DoesNotExist", ())]
    terms = [
        NodeSelectorTerm(match_expressions=[Requirement(key="host", operator=operator, values=values)])
        for operator, values in operators * 50
    ]
    labels = [{"host": f"n{i}"} for i in range(2000)]
    columns = LabelColumns([f"n{i}" for i in range(2000)], labels)
    assert calls_of(lambda: [columns.matches(term) for term in terms]) < 2000 + 40 * len(terms) + 10_000
