"""What of a manifest is readable and still not what its author meant: misspelt fields, words and numbers that an API
server refuses.

None of it is a fault (kube-parity.md section 7): unknown fields may be another version's, and the planner has a meaning
for every value. But whoever tries a manifest before submitting it wants to hear of it now. The same look finds whether
the quantities and times can be read, of which msgspec's conversion knows nothing.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any, cast

from msgspec import inspect

from koordpy.api.custom import ClusterNetworkTopologySpec, DeviceEntry, ElasticQuotaSpec, HierarchyEntry
from koordpy.api.dra import DeviceAttribute
from koordpy.api.faults import Fault, key_path, literal
from koordpy.api.fieldwalk import format_of
from koordpy.api.groups import PodGroupSpec
from koordpy.api.leafreaders import PERCENT, RFC3339, check_quantity
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
from koordpy.api.spelling import hint, meant
from koordpy.api.storage import PersistentVolumeClaimSpec, PersistentVolumeSpec, StorageClass

Look = Callable[[Any, str, list[Fault]], None]
"""(raw value, path, what was found)."""

MAX_DOUBTS = 100
"""Told of one object."""


def _one_of(*words: str) -> Look:
    def look(raw: Any, path: str, out: list[Fault]) -> None:
        if isinstance(raw, str) and raw and raw not in words:
            out.append(Fault(path, f"{literal(raw)} is none of {', '.join(words)}: an API server refuses it"))

    return look


def _each_of(*words: str) -> Look:
    look_at = _one_of(*words)

    def look(raw: Any, path: str, out: list[Fault]) -> None:
        for i, item in enumerate(raw if isinstance(raw, list) else ()):
            look_at(item, f"{path}[{i}]", out)

    return look


def _within(least: int, most: int | None = None) -> Look:
    said = f"not from {least} to {most}" if most is not None else f"less than {least}"

    def look(raw: Any, path: str, out: list[Fault]) -> None:
        value = raw.value if isinstance(raw, Number) else raw
        if isinstance(value, int) and not isinstance(value, bool) and not least <= value <= (most or value):
            out.append(Fault(path, f"{literal(raw)} is {said}: an API server refuses it"))

    return look


def _like(*words: str) -> Look:
    """For a word that others may choose, too: only one that is nearly ours is told of."""

    def look(raw: Any, path: str, out: list[Fault]) -> None:
        near = meant(raw, words) if isinstance(raw, str) else ""
        if near:
            out.append(Fault(path, f"{literal(raw)} is not read, did you mean {near}?"))

    return look


def _unread(instead: str) -> Look:
    """For a field of an older version that says what another one says now."""

    def look(raw: Any, path: str, out: list[Fault]) -> None:
        if raw is not None:
            out.append(Fault(path, f"is not read: koordpy reads {instead} instead"))

    return look


_UNREADABLE = Fault("", "a quantity or a time that cannot be read")
"""Stands in what was found for all of them: the walk of `koordpy.api.strict` has the words for each."""


def _read_by(check: Callable[[Any], object]) -> Look:
    """check: raises ValueError where the value cannot be read."""

    def look(raw: Any, path: str, out: list[Fault]) -> None:
        try:
            check(raw)
        except ValueError:
            if _UNREADABLE not in out:
                out.append(_UNREADABLE)

    return look


def _check_quantity(raw: Any) -> None:
    if raw is not None:
        check_quantity("", raw)


def _check_quantities(raw: Any) -> None:
    for resource, value in raw.items() if isinstance(raw, dict) else ():
        check_quantity(resource, value)


def _check_time(raw: Any) -> None:
    if raw and not (isinstance(raw, str) and RFC3339.fullmatch(raw) and datetime.fromisoformat(raw)):
        raise ValueError("no time")


def _check_percent(raw: Any) -> None:
    if isinstance(raw, str) and not PERCENT.fullmatch(raw):
        raise ValueError("no percentage")


_FORMATS: Mapping[str | None, Look] = {
    "quantity": _read_by(_check_quantity),
    "time": _read_by(_check_time),
    "int-or-string": _read_by(_check_percent),
}
_QUANTITIES = _read_by(_check_quantities)

_EFFECTS = _one_of("NoSchedule", "PreferNoSchedule", "NoExecute")
_POLICY = _one_of("Honor", "Ignore")
_PREEMPTION = _one_of("PreemptLowerPriority", "Never")
_MODES = {
    "accessModes": _each_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"),
    "volumeMode": _one_of("Filesystem", "Block"),
}
_VALUES: Mapping[type, Mapping[str, Look]] = MappingProxyType(
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

    def look(raw: Any, path: str, out: list[Fault]) -> None:
        out += [
            Fault(key_path(path, field), "is missing: an API server refuses it")
            for field in fields
            if _absent(raw.get(field))
        ]

    return look


def _values_of_operator(raw: Any, path: str, out: list[Fault]) -> None:
    operator, values = raw.get("operator"), raw.get("values") or []
    if not isinstance(values, list):
        return
    if operator in ("In", "NotIn") and not values:
        out.append(Fault(key_path(path, "values"), f"{operator} needs some: an API server refuses it"))
    elif operator in ("Exists", "DoesNotExist") and values:
        out.append(Fault(key_path(path, "values"), f"{operator} takes none: an API server refuses it"))
    elif operator in ("Gt", "Lt") and (len(values) != 1 or whole_number(str(values[0])) is None):
        out.append(Fault(key_path(path, "values"), f"{operator} takes one whole number: an API server refuses it"))


def _terms(raw: Any, path: str, out: list[Fault]) -> None:
    _wants("nodeSelectorTerms")(raw, path, out)
    terms = raw.get("nodeSelectorTerms")
    for i, term in enumerate(terms if isinstance(terms, list) else ()):
        if isinstance(term, dict) and _absent(term.get("matchExpressions")) and _absent(term.get("matchFields")):
            out.append(Fault(f"{key_path(path, 'nodeSelectorTerms')}[{i}]", "an empty term matches no node"))


def _spread(raw: Any, path: str, out: list[Fault]) -> None:
    _wants("topologyKey")(raw, path, out)
    if raw.get("minDomains") is not None and raw.get("whenUnsatisfiable") == "ScheduleAnyway":
        out.append(
            Fault(key_path(path, "minDomains"), "needs whenUnsatisfiable DoNotSchedule: an API server refuses it")
        )


_WHOLE: Mapping[type, tuple[Look, ...]] = MappingProxyType(
    {
        Requirement: (_wants("key", "operator"), _values_of_operator),
        NodeSelector: (_terms,),
        TopologySpreadConstraint: (_spread,),
    }
)
"""Struct -> what is looked at of its fields together."""

_CLOSED = (PodGroupSpec, ElasticQuotaSpec, ClusterNetworkTopologySpec, HierarchyEntry)
"""Parts whose every field is known: any other is told of, however far it is from a known one."""
_OPEN = (DeviceAttribute,)
"""Parts with fields of others that are nearly called like ours."""


def doubts(raw: Any, kind: type) -> list[Fault]:
    """What of an object's plain value is doubtful, by the path of the field; at most MAX_DOUBTS."""
    return look_through(raw, kind)[0]


def look_through(raw: Any, kind: type) -> tuple[list[Fault], bool]:
    """The doubts, and whether every quantity and time was seen and can be read."""
    out: list[Fault] = []
    look = _look_of(cast(Any, kind))
    if look is not None:
        look(raw, "", out)
    told = [one for one in out if one is not _UNREADABLE]
    return told[:MAX_DOUBTS], len(told) == len(out) < MAX_DOUBTS


@cache
def _look_of(kind: Any) -> Look | None:
    return _look(inspect.type_info(kind))


def _look(info: inspect.Type) -> Look | None:
    if isinstance(info, inspect.Metadata):
        return _FORMATS.get(format_of(info)) or _look(info.type)
    if isinstance(info, inspect.StructType):
        return _fields(info)
    if isinstance(info, inspect.UnionType):
        found = [look for part in info.types if (look := _look(part)) is not None]
        return found[0] if found else None
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        return _items(_look(info.item_type))
    if isinstance(info, inspect.DictType):
        return _QUANTITIES if format_of(info.value_type) == "quantity" else _entries(_look(info.value_type))
    return None


def _fields(info: inspect.StructType) -> Look:
    own, whole = _VALUES.get(info.cls, {}), _WHOLE.get(info.cls, ())
    names = tuple(part.encode_name for part in info.fields)
    looks = {**own, **{name: own.get(name) or _look(part.type) for name, part in zip(names, info.fields, strict=True)}}
    closed, tells = info.cls in _CLOSED, info.cls not in _OPEN

    def look(raw: Any, path: str, out: list[Fault]) -> None:
        if not isinstance(raw, dict):
            return
        for key, value in raw.items():
            inner = looks.get(key)
            if inner is not None:
                inner(value, key_path(path, key), out)
            elif key not in looks and tells and key not in _EVERYWHERE and len(out) < MAX_DOUBTS:
                near = hint(key, names, closed=closed)
                if near or closed:
                    out.append(Fault(key_path(path, key), f"unknown field, not read{near}"))
        for one in whole:
            one(raw, path, out)

    return look


_EVERYWHERE = ("apiVersion", "kind")


def _items(inner: Look | None) -> Look | None:
    if inner is None:
        return None

    def look(raw: Any, path: str, out: list[Fault]) -> None:
        for i, item in enumerate(raw if isinstance(raw, list) else ()):
            if len(out) < MAX_DOUBTS:
                inner(item, f"{path}[{i}]", out)

    return look


def _entries(inner: Look | None) -> Look | None:
    if inner is None:
        return None

    def look(raw: Any, path: str, out: list[Fault]) -> None:
        for key, value in raw.items() if isinstance(raw, dict) else ():
            if len(out) < MAX_DOUBTS:
                inner(value, key_path(path, key), out)

    return look
