# SPDX-License-Identifier: Apache-2.0
"""Matches label selectors and node selectors with labels, with the results of the API server (kube-parity.md 2.3, 2.7).

The functions match one object; the class `LabelColumns` matches one node selector term with all nodes at once.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koordpy.api.objects import LabelSelector, NodeSelectorTerm, Requirement

Labels = Mapping[str, str]

_INT64 = re.compile(r"[+-]?[0-9]+", re.ASCII)


def int64(text: str) -> int | None:
    """Returns the value of a strict decimal 64-bit integer; None for any other text."""
    if not _INT64.fullmatch(text):
        return None
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > 19:  # above 2^63, which has 19 digits
        return None
    value = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return value if -(2**63) <= value < 2**63 else None


def expression_matches(requirement: Requirement, labels: Labels) -> bool:
    """Returns True if one expression of a label or node selector matches.

    An expression that the API server would reject matches nothing (kube-parity.md section 9, 6): an unknown operator,
    In or NotIn without values, Exists or DoesNotExist with values.
    """
    value = labels.get(requirement.key)
    if bool(requirement.values) == (requirement.operator in ("Exists", "DoesNotExist")):
        return False
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            if value is None or len(requirement.values) != 1:
                return False
            have, want = int64(value), int64(requirement.values[0])
            if have is None or want is None:
                return False
            return have > want if requirement.operator == "Gt" else have < want
    return False


def selector_matches(selector: LabelSelector | None, labels: Labels) -> bool:
    """Returns True if a label selector matches labels.

    An absent selector (None) matches no labels; an empty selector matches all labels.
    """
    if selector is None:
        return False
    for key, value in selector.match_labels.items():  # no generator: this is called millions of times
        if labels.get(key) != value:
            return False
    return all(expression_matches(requirement, labels) for requirement in selector.match_expressions)


def field_valid(requirement: Requirement) -> bool:
    """Returns True if an expression of matchFields is valid: metadata.name, In or NotIn, exactly one value."""
    return (
        requirement.key == "metadata.name" and requirement.operator in ("In", "NotIn") and len(requirement.values) == 1
    )


def term_matches(term: NodeSelectorTerm, name: str, labels: Labels) -> bool:
    """Returns True if a node selector term matches a node, given by its name and labels.

    An empty or invalid term matches no node.
    """
    if not term.match_expressions and not term.match_fields:
        return False
    for requirement in term.match_fields:
        if not field_valid(requirement) or (requirement.values[0] == name) != (requirement.operator == "In"):
            return False
    return all(expression_matches(requirement, labels) for requirement in term.match_expressions)


class LabelColumns:
    """Matches node selector terms with many nodes at once.

    The values of each label key are numbered once. So an expression is evaluated for each distinct value, not for each
    node; In and NotIn are evaluated only for the listed values.
    """

    def __init__(self, names: Sequence[str], labels: Sequence[Labels]) -> None:
        """names, labels: name and labels of each node, in the order of the results."""
        self._names, self._labels = names, labels
        self._known: dict[str | None, tuple[dict[str | None, int], NDArray[np.int64]]] = {}
        """Key (None for the node name) -> (value -> its number, [nodes] number of each node's value)."""

    def matches(self, term: NodeSelectorTerm) -> NDArray[np.bool_]:
        """Returns [nodes]: the result of `term_matches` for each node."""
        out = np.full(len(self._names), bool(term.match_expressions or term.match_fields))
        for requirement in term.match_fields:
            out &= field_valid(requirement) and self._expression(requirement, None)
        for requirement in term.match_expressions:
            out &= self._expression(requirement, requirement.key)
        return out

    def _expression(self, requirement: Requirement, key: str | None) -> NDArray[np.bool_]:
        """Returns [nodes]: True if one expression matches. key: key of the label; None for the name of the node."""
        if key not in self._known:
            given = self._names if key is None else [labels.get(key) for labels in self._labels]
            index = {value: i for i, value in enumerate(dict.fromkeys(given))}
            self._known[key] = index, np.array([index[value] for value in given], dtype=np.int64)
        index, numbers = self._known[key]
        # three cases: by the listed values (In, NotIn), by presence, and by each distinct value (Gt, Lt, invalid ones)
        if requirement.operator in ("In", "NotIn") and requirement.values:
            answers = np.zeros(len(index), dtype=bool)
            answers[[index[value] for value in requirement.values if value in index]] = True
            return np.asarray(answers[numbers] == (requirement.operator == "In"))
        if requirement.operator in ("Exists", "DoesNotExist") and not requirement.values:
            return np.asarray((numbers == index.get(None, -1)) == (requirement.operator == "DoesNotExist"))
        each = ({} if value is None else {requirement.key: value} for value in index)
        return np.array([expression_matches(requirement, one) for one in each])[numbers]
