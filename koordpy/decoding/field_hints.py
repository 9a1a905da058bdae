"""What of a manifest is readable and still not what its author meant: misspelt fields, words and numbers that an API
server refuses.

None of it is a fault (kube-parity.md section 7): unknown fields may be another version's, and the planner has a meaning
for every value. But whoever tries a manifest before submitting it wants to hear of it now. The walk of
`koordpy.api.strict` looks here what is doubtful of each struct.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from koordpy.api.custom import ClusterNetworkTopologySpec, DeviceEntry, ElasticQuotaSpec, HierarchyEntry
from koordpy.api.dra import DeviceAttribute
from koordpy.api.faults import FieldWalk, key_path, literal
from koordpy.api.groups import PodGroupSpec
from koordpy.api.objects import (
    ContainerPort,
    NodeSelector,
    PodSpec,
    PodStatus,
    PreferredNodeTerm,
    PriorityClass,
    Requirement,
    Taint,
    Toleration,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from koordpy.api.scalars import Number
from koordpy.api.settings import whole_number
from koordpy.api.spelling import meant
from koordpy.api.storage import PersistentVolumeClaimSpec, PersistentVolumeSpec, StorageClass

Look = Callable[[Any, str, FieldWalk], None]
"""(raw value, path, walk): doubts go to the walk."""


def _one_of(*words: str) -> Look:
    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        if isinstance(raw, str) and raw and raw not in words:
            walk.doubt(path, f"{literal(raw)} is none of {', '.join(words)}: an API server refuses it")

    return look


def _each_of(*words: str) -> Look:
    look_at = _one_of(*words)

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        for i, item in enumerate(raw if isinstance(raw, list) else ()):
            look_at(item, f"{path}[{i}]", walk)

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


_EFFECTS = _one_of("NoSchedule", "PreferNoSchedule", "NoExecute")
_POLICY = _one_of("Honor", "Ignore")
_PREEMPTION = _one_of("PreemptLowerPriority", "Never")
_MODES = {
    "accessModes": _each_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"),
    "volumeMode": _one_of("Filesystem", "Block"),
}
VALUES: Mapping[type, Mapping[str, Look]] = MappingProxyType(
    {
        Requirement: {"operator": _one_of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")},
        Toleration: {"operator": _one_of("Equal", "Exists", "Lt", "Gt"), "effect": _EFFECTS},
        Taint: {"effect": _EFFECTS},
        PreferredNodeTerm: {"weight": _within(1, 100)},
        WeightedPodAffinityTerm: {"weight": _within(1, 100)},
        TopologySpreadConstraint: {
            "maxSkew": _within(1),
            "minDomains": _within(1),
            "whenUnsatisfiable": _one_of("DoNotSchedule", "ScheduleAnyway"),
            "nodeAffinityPolicy": _POLICY,
            "nodeTaintsPolicy": _POLICY,
        },
        ContainerPort: {
            "protocol": _one_of("TCP", "UDP", "SCTP"),
            "containerPort": _within(1, 65535),
            "hostPort": _within(0, 65535),
        },
        PodSpec: {"preemptionPolicy": _PREEMPTION, "workloadRef": _unread("schedulingGroup")},
        PodGroupSpec: {"minMember": _within(0)},
        PodStatus: {"phase": _one_of("Pending", "Running", "Succeeded", "Failed", "Unknown")},
        PriorityClass: {"preemptionPolicy": _PREEMPTION},
        StorageClass: {"volumeBindingMode": _one_of("Immediate", "WaitForFirstConsumer")},
        PersistentVolumeClaimSpec: _MODES,
        PersistentVolumeSpec: _MODES,
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


WHOLE: Mapping[type, tuple[Look, ...]] = MappingProxyType(
    {
        Requirement: (_wants("key", "operator"), _values_of_operator),
        NodeSelector: (_terms,),
        TopologySpreadConstraint: (_spread,),
    }
)
"""Struct -> what is looked at of its fields together."""

CLOSED = (PodGroupSpec, ElasticQuotaSpec, ClusterNetworkTopologySpec, HierarchyEntry)
"""Parts whose every field is known: any other is told of, however far it is from a known one."""
OPEN = (DeviceAttribute,)
"""Parts with fields of others that are nearly called like ours."""
