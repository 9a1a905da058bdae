"""Expressions of node and label selectors, the invalid ones among them (kube-parity.md 2.3 and 9, 6)."""

import pytest

from koordpy.api.objects import NodeSelectorTerm, Requirement
from koordpy.cluster.selectors import expression_matches, term_matches

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
