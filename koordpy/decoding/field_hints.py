"""Hints on the fields of a manifest: what is readable, and probably not what its author meant.

Hints are given on misspelt fields, on names, labels and required fields that an API server refuses, and on values of
our own kinds and of the configuration. None is a fault (kube-parity.md section 7): an unknown field may be of another
version, and the planner has a meaning for every value. Values of other Kubernetes fields are left to the API server
(`kubectl apply --dry-run=server`). The walk of `koordpy.decoding.strict_decoding` asks for the hints of each struct.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from koordpy.api.claim_objects import DeviceAttribute
from koordpy.api.custom_objects import ClusterNetworkTopologySpec, DeviceEntry, ElasticQuotaSpec, HierarchyEntry
from koordpy.api.field_faults import FieldWalk, key_path, literal
from koordpy.api.object_names import CONTAINER_NAME, LABEL_KEY, LABEL_VALUE
from koordpy.api.objects import (
    Container,
    NodeSelector,
    ObjectMeta,
    PodAffinityTerm,
    PodSpec,
    Requirement,
    SchedulingGate,
    TopologySpreadConstraint,
)
from koordpy.api.pod_groups import (
    PodGroupSpec,
    UpstreamConstraints,
    UpstreamGang,
    UpstreamPodGroupSpec,
    UpstreamPolicy,
    UpstreamTopologyConstraint,
)
from koordpy.api.scalars import Number
from koordpy.api.spelling import meant
from koordpy.decoding.annotation_settings import whole_number

Look = Callable[[Any, str, FieldWalk], None]
"""(raw value, path, walk): doubts go to the walk."""


def _one_of(*words: str) -> Look:
    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        if isinstance(raw, str) and raw and raw not in words:
            walk.doubt(path, f"{literal(raw)} is none of {', '.join(words)}: an API server refuses it")

    return look


def _within(least: int, most: int | None = None) -> Look:
    said = f"not from {least} to {most}" if most is not None else f"less than {least}"

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        value = raw.value if isinstance(raw, Number) else raw
        if isinstance(value, int) and not isinstance(value, bool) and not least <= value <= (most or value):
            walk.doubt(path, f"{literal(raw)} is {said}: an API server refuses it")

    return look


def _like(*words: str) -> Look:
    """For a word that others may choose, too: only one that is nearly ours is told of."""

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        near = meant(raw, words) if isinstance(raw, str) else ""
        if near:
            walk.doubt(path, f"{literal(raw)} is not read, did you mean {near}?")

    return look


def _unread(instead: str) -> Look:
    """For a field of an older version that says what another one says now."""

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        if raw is not None:
            walk.doubt(path, f"is not read: koordpy reads {instead} instead")

    return look


def _repeated(field: str) -> Look:
    """For a list of objects of different names."""

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        names = set[str]()
        for i, item in enumerate(raw if isinstance(raw, list) else ()):
            name = item.get(field) if isinstance(item, dict) else None
            if isinstance(name, str) and name in names:
                walk.doubt(f"{path}[{i}].{field}", f"{literal(name)} is given twice: an API server refuses it")
            elif isinstance(name, str):
                names.add(name)

    return look


@lru_cache(1 << 14)
def _is(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def _named(pattern: str, noun: str, most: int = 63) -> Look:
    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        if isinstance(raw, str) and raw and not (len(raw) <= most and _is(pattern, raw)):
            walk.doubt(path, f"{literal(raw)} is no {noun}: an API server refuses it")

    return look


def _pairs(*, values: bool) -> Look:
    """values: whether the values are those of labels, too."""
    key_of, value_of = _named(LABEL_KEY, "name of a label", 317), _named(LABEL_VALUE, "value of a label")
    if not values:
        key_of = _named(LABEL_KEY, "name of an annotation", 317)

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        for key, value in raw.items() if isinstance(raw, dict) else ():
            if isinstance(key, str):
                at = key_path(path, key)
                key_of(key if values else key.lower(), at, walk)
                if values:
                    value_of(value, at, walk)

    return look


_POLICY = _one_of("Honor", "Ignore")
VALUES: Mapping[type, Mapping[str, Look]] = MappingProxyType(
    {
        Requirement: {"operator": _one_of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")},
        TopologySpreadConstraint: {
            "maxSkew": _within(1),
            "minDomains": _within(1),
            "whenUnsatisfiable": _one_of("DoNotSchedule", "ScheduleAnyway"),
            "nodeAffinityPolicy": _POLICY,
            "nodeTaintsPolicy": _POLICY,
        },
        PodSpec: {
            "workloadRef": _unread("schedulingGroup"),
            "nodeSelector": _pairs(values=True),
            "containers": _repeated("name"),
            "schedulingGates": _repeated("name"),
            "volumes": _repeated("name"),
            "resourceClaims": _repeated("name"),
        },
        Container: {"name": _named(CONTAINER_NAME, "name of a container (as in worker)")},
        SchedulingGate: {"name": _named(LABEL_KEY, "name of a gate (as in example.com/quota)", 317)},
        ObjectMeta: {"labels": _pairs(values=True), "annotations": _pairs(values=False)},
        PodGroupSpec: {"minMember": _within(0)},
        UpstreamGang: {"minCount": _within(1)},
        DeviceEntry: {"type": _like("gpu")},
    }
)
"""Struct -> field -> what is looked at in its value."""


def _absent(raw: Any) -> bool:
    return raw is None or raw in ("", [], {})


def _wants(*fields: str) -> Look:
    """For fields without which nothing is said. What has a default of ours is not asked for: dumps leave it out."""

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        for field in fields:
            if _absent(raw.get(field)):
                walk.doubt(key_path(path, field), "is missing: an API server refuses it")

    return look


def _values_of_operator(raw: Any, path: str, walk: FieldWalk) -> None:
    operator, values = raw.get("operator"), raw.get("values") or []
    if not isinstance(values, list):
        return
    if operator in ("In", "NotIn") and not values:
        walk.doubt(key_path(path, "values"), f"{operator} needs some: an API server refuses it")
    elif operator in ("Exists", "DoesNotExist") and values:
        walk.doubt(key_path(path, "values"), f"{operator} takes none: an API server refuses it")
    elif operator in ("Gt", "Lt") and (len(values) != 1 or whole_number(str(values[0])) is None):
        walk.doubt(key_path(path, "values"), f"{operator} takes one whole number: an API server refuses it")


def _terms(raw: Any, path: str, walk: FieldWalk) -> None:
    _wants("nodeSelectorTerms")(raw, path, walk)
    terms = raw.get("nodeSelectorTerms")
    for i, term in enumerate(terms if isinstance(terms, list) else ()):
        if isinstance(term, dict) and _absent(term.get("matchExpressions")) and _absent(term.get("matchFields")):
            walk.doubt(f"{key_path(path, 'nodeSelectorTerms')}[{i}]", "an empty term matches no node")


def _spread(raw: Any, path: str, walk: FieldWalk) -> None:
    _wants("topologyKey")(raw, path, walk)
    if raw.get("minDomains") is not None and raw.get("whenUnsatisfiable") == "ScheduleAnyway":
        walk.doubt(key_path(path, "minDomains"), "needs whenUnsatisfiable DoNotSchedule: an API server refuses it")


def _one_policy(raw: Any, path: str, walk: FieldWalk) -> None:
    if (raw.get("basic") is None) == (raw.get("gang") is None):
        walk.doubt(path, "exactly one of basic and gang must be set: an API server refuses it")


WHOLE: Mapping[type, tuple[Look, ...]] = MappingProxyType(
    {
        Requirement: (_wants("key", "operator"), _values_of_operator),
        NodeSelector: (_terms,),
        UpstreamPolicy: (_one_policy,),
        TopologySpreadConstraint: (_spread,),
        PodAffinityTerm: (_wants("topologyKey"),),
        PodSpec: (_wants("containers"),),
        Container: (_wants("name"),),
    }
)
"""Struct -> what is looked at of its fields together."""

CLOSED = (
    PodGroupSpec, UpstreamPodGroupSpec, UpstreamPolicy, UpstreamGang, UpstreamConstraints, UpstreamTopologyConstraint,
    ElasticQuotaSpec, ClusterNetworkTopologySpec, HierarchyEntry,
)  # fmt: skip
"""Parts whose every field is known: any other is told of, however far it is from a known one."""
OPEN = (DeviceAttribute,)
"""Parts with fields of others that are nearly called like ours."""
