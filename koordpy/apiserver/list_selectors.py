# SPDX-License-Identifier: Apache-2.0
"""Parses the query parameters labelSelector and fieldSelector of a list or watch into functions that match objects."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from koordpy.api.label_selectors import selector_matches
from koordpy.api.objects import LabelSelector, Requirement
from koordpy.apiserver.served_resources import Object, ServedResource
from koordpy.apiserver.status_errors import StatusError

Match = Callable[[Object], bool]
"""Returns True if an object is selected."""

_SET = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_FIELDS: dict[str, frozenset[str]] = {
    "pods": frozenset(
        (
            "spec.nodeName", "spec.schedulerName", "spec.restartPolicy", "spec.serviceAccountName",
            "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
        )
    ),
    "nodes": frozenset(("spec.unschedulable",)),
    "namespaces": frozenset(("status.phase",)),
    "secrets": frozenset(("type",)),
    "jobs.batch": frozenset(("status.successful",)),
    "resourceslices.resource.k8s.io": frozenset(("spec.nodeName", "spec.driver")),
    "events": frozenset(
        (
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
            "type", "source", "reportingComponent",
        )
    ),
}  # fmt: skip
# resource -> fields that a fieldSelector may name, as in kube-apiserver
_EVENT_FIELDS = {"regarding": "involvedObject", "reportingController": "reportingComponent"}


def _split(text: str) -> list[str]:
    """Splits a selector at commas outside of parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _label_requirement(part: str) -> Requirement:
    """Returns one requirement, such as `a in (x,y)`, `a=x`, `!a` or `a`. Raises StatusError 400."""
    found = _SET.fullmatch(part)
    if found:
        key, operator, raw = found.groups()
        values = tuple(value.strip() for value in raw.split(","))
        return Requirement(key=key, operator="In" if operator == "in" else "NotIn", values=values)
    for sign in ("!=", "==", "="):
        key, hit, value = part.partition(sign)
        if hit:
            operator = "NotIn" if sign == "!=" else "In"
            return Requirement(key=key.strip(), operator=operator, values=(value.strip(),))
    if part.startswith("!"):
        return Requirement(key=part[1:].strip(), operator="DoesNotExist")
    if re.search(r"[\s()]", part):
        raise StatusError(400, f"unable to parse requirement: {part!r}")
    return Requirement(key=part, operator="Exists")


def label_matches(text: str) -> list[Match]:
    """Parses a labelSelector. Returns a list with its match function; an empty list for an empty selector.

    Raises StatusError 400.
    """
    wanted = tuple(_label_requirement(part) for part in _split(text))
    return [_labels_match(LabelSelector(match_expressions=wanted))] if wanted else []


def _labels_match(selector: LabelSelector) -> Match:
    return lambda obj: selector_matches(selector, obj["metadata"].get("labels") or {})


def _value(obj: Object, path: tuple[str, ...]) -> str:
    """Returns the value of a field as text; empty if it is absent."""
    found: Any = obj
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if found is None:
        return "false" if path == ("spec", "unschedulable") else ""
    if isinstance(found, bool):
        return "true" if found else "false"
    if path == ("source",):
        return str(found.get("component", ""))
    return str(found)


def _field_match(path: tuple[str, ...], value: str, equal: bool) -> Match:
    return lambda obj: (_value(obj, path) == value) is equal


def field_matches(resource: ServedResource, text: str) -> list[Match]:
    """Returns one match function for each part of a fieldSelector; an object must satisfy all of them.

    Raises StatusError 400 for a field that the resource does not support.
    """
    tests = []
    for part in _split(text):
        name, sign, value = part.partition("!=")
        if not sign:
            name, sign, value = part.partition("==")
        if not sign:
            name, sign, value = part.partition("=")
        if not sign:
            raise StatusError(400, f"invalid selector: {text!r}; can't understand {part!r}")
        name = name.strip()
        head, dot, rest = name.partition(".")
        if resource.shelf == "events" and head in _EVENT_FIELDS:
            name = _EVENT_FIELDS[head] + dot + rest
        allowed = _FIELDS.get(resource.shelf, frozenset())
        if (
            name != "metadata.name"
            and name not in allowed
            and not (name == "metadata.namespace" and resource.namespaced)
        ):
            raise StatusError(400, f"field label not supported: {name}")
        tests.append(_field_match(tuple(name.split(".")), value.strip(), sign != "!="))
    return tests


def object_selector_match(selector: Object | None) -> Match:
    """Returns the match function of a LabelSelector object. None matches no object; {} matches every object."""
    if selector is None:
        return lambda obj: False
    return _labels_match(msgspec.convert(selector, LabelSelector))
