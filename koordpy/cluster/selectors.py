"""Label selectors and node selectors, as the API server's matching works (kube-parity.md 2.3, 2.7)."""

import re
from collections.abc import Mapping

from koordpy.api.objects import LabelSelector, NodeSelectorTerm, Requirement

Labels = Mapping[str, str]

_INT64 = re.compile(r"[+-]?[0-9]+", re.ASCII)


def int64(text: str) -> int | None:
    """A strict decimal 64-bit integer; None for anything else."""
    if not _INT64.fullmatch(text):
        return None
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > 19:
        return None
    value = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return value if -(2**63) <= value < 2**63 else None


def expression_matches(requirement: Requirement, labels: Labels) -> bool:
    """One expression of a label or node selector.

    What the API server would refuse matches nothing (kube-parity.md section 9, 6): an unknown operator, In and NotIn
    without values, Exists and DoesNotExist with some.
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
    """A label selector: absent matches nothing, an empty one everything."""
    if selector is None:
        return False
    for key, value in selector.match_labels.items():  # no generator: it is asked millions of times
        if labels.get(key) != value:
            return False
    return all(expression_matches(requirement, labels) for requirement in selector.match_expressions)


def field_valid(requirement: Requirement) -> bool:
    """matchFields knows metadata.name, In or NotIn, with exactly one value."""
    return (
        requirement.key == "metadata.name" and requirement.operator in ("In", "NotIn") and len(requirement.values) == 1
    )


def term_matches(term: NodeSelectorTerm, name: str, labels: Labels) -> bool:
    """One node selector term; an empty one and an invalid one match nothing."""
    if not term.match_expressions and not term.match_fields:
        return False
    for requirement in term.match_fields:
        if not field_valid(requirement) or (requirement.values[0] == name) != (requirement.operator == "In"):
            return False
    return all(expression_matches(requirement, labels) for requirement in term.match_expressions)
