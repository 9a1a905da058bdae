# SPDX-License-Identifier: Apache-2.0
"""Warnings about fields of a manifest that are readable, but probably not what the author meant, for offline commands.

The checks cover names, labels, missing fields and values that an API server would reject, and the values of koordpy's
own kinds. They are warnings and not faults (kube-parity.md section 7), because the planner accepts every value. There
is one exception: a fraction of a device in a NUMA zone is a fault. It is found here because another field names the
resource, which the reader of the amount does not see. Values of other Kubernetes fields are left to the API server
(`kubectl apply --dry-run=server`).

Two tables state the checks: `VALUES` for single fields, `WHOLE` for several fields of a struct. `strict_decoding.py`
calls them while it reads an object. Further tables say what an unknown field of a struct means: a fault in koordpy's
own custom resources (`PRUNED`), else a warning (`CLOSED`), or nothing (`OPEN`).
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from koordpy.api.claim_objects import (
    DeviceAttribute,
    DeviceClaim,
    DeviceRequest,
    DeviceTaint,
    DeviceToleration,
    ExactRequest,
    ResourcePool,
    ResourceSliceSpec,
    SliceDevice,
    SubRequest,
)
from koordpy.api.custom_objects import (
    ClusterNetworkTopology,
    ClusterNetworkTopologySpec,
    Device,
    DeviceEntry,
    DeviceMatrices,
    DeviceMatrix,
    DeviceSpec,
    DeviceTopology,
    ElasticQuota,
    ElasticQuotaSpec,
    HierarchyEntry,
    ZoneResource,
)
from koordpy.api.field_faults import FieldWalk, key_path, literal, shown
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
    PodGroup,
    PodGroupSpec,
    UpstreamConstraints,
    UpstreamGang,
    UpstreamPodGroupSpec,
    UpstreamPolicy,
    UpstreamTopologyConstraint,
)
from koordpy.api.quantity import is_extended
from koordpy.api.scalars import Number
from koordpy.api.spelling import meant
from koordpy.decoding.annotation_settings import whole_number
from koordpy.decoding.leaf_readers import check_quantity

Look = Callable[[Any, str, FieldWalk], None]
"""A check: function (raw value, path, walk) that adds warnings to the walk."""


def _one_of(*words: str) -> Look:
    """Returns a check for a field that must have one of the given words."""

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        if isinstance(raw, str) and raw and raw not in words:
            walk.doubt(path, f"{literal(raw)} is none of {', '.join(words)}: the API server would reject it")

    return look


def _within(least: int, most: int | None = None) -> Look:
    """Returns a check for a whole number between `least` and `most`. most: None for no upper bound."""
    said = f"not from {least} to {most}" if most is not None else f"less than {least}"

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        value = raw.value if isinstance(raw, Number) else raw
        if isinstance(value, int) and not isinstance(value, bool) and not least <= value <= (most or value):
            walk.doubt(path, f"{literal(raw)} is {said}: the API server would reject it")

    return look


def _similar_to(*words: str) -> Look:
    """Returns a check for a field that may also have words which koordpy does not read.

    Only a word that is similar to one of `words` gets a warning.
    """

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        near = meant(raw, words) if isinstance(raw, str) else ""
        if near:
            walk.doubt(path, f"{literal(raw)} is not read, did you mean {near}?")

    return look


def _unread(instead: str) -> Look:
    """Returns a check for a field of an older version that is not read. instead: the field that has replaced it."""

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        if raw is not None:
            walk.doubt(path, f"is not read: koordpy reads {instead} instead")

    return look


def _repeated(field: str) -> Look:
    """Returns a check for a list of objects that must have different names."""

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        names = set[str]()
        for i, item in enumerate(raw if isinstance(raw, list) else ()):
            name = item.get(field) if isinstance(item, dict) else None
            if isinstance(name, str) and name in names:
                walk.doubt(f"{path}[{i}].{field}", f"{literal(name)} is given twice: the API server would reject it")
            elif isinstance(name, str):
                names.add(name)

    return look


@lru_cache(1 << 14)
def _matches(pattern: str, text: str) -> bool:
    """Returns True if a pattern matches the whole text; cached, because labels repeat on thousands of pods."""
    return re.fullmatch(pattern, text) is not None


def _named(pattern: str, noun: str, most: int = 63) -> Look:
    """Returns a check for names. noun: what is named, for the warning. most: maximum length.

    Kubernetes allows 63 characters for a name, and 317 with a prefix (253 and `/`).
    """

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        if isinstance(raw, str) and raw and not (len(raw) <= most and _matches(pattern, raw)):
            walk.doubt(path, f"{literal(raw)} is not a valid {noun}: the API server would reject it")

    return look


def _pairs(*, values: bool) -> Look:
    """Returns a check for labels or annotations. values: True for labels, because their values are checked, too."""
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


def _no_admin(raw: Any, path: str, walk: FieldWalk) -> None:
    """Adds a warning for admin access of an alternative, which the API does not have."""
    if raw is not None:
        walk.doubt(path, "is not read: an alternative has no admin access")


_POLICY = _one_of("Honor", "Ignore")
_EFFECT = _similar_to("NoSchedule", "NoExecute", "None")
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
        DeviceEntry: {"type": _similar_to("gpu")},
        DeviceRequest: {"name": _named(CONTAINER_NAME, "name of a request (as in gpu)")},
        SubRequest: {"name": _named(CONTAINER_NAME, "name of a request (as in gpu)"), "adminAccess": _no_admin},
        DeviceTaint: {"effect": _EFFECT},
        DeviceToleration: {"effect": _EFFECT, "operator": _one_of("Exists", "Equal")},
        ResourcePool: {"generation": _within(0), "resourceSliceCount": _within(1)},
    }
)
"""Struct -> field -> check of its value."""


def _absent(raw: Any) -> bool:
    return raw is None or raw in ("", [], {})


def _requires(*fields: str) -> Look:
    """Returns a check for mandatory fields. Fields for which koordpy has a default are left out: dumps omit them."""

    def look(raw: Any, path: str, walk: FieldWalk) -> None:
        for field in fields:
            if _absent(raw.get(field)):
                walk.doubt(key_path(path, field), "is missing: the API server would reject it")

    return look


def _values_of_operator(raw: Any, path: str, walk: FieldWalk) -> None:
    """Checks that the number of values of a selector expression matches its operator."""
    operator, values = raw.get("operator"), raw.get("values") or []
    if not isinstance(values, list):
        return
    if operator in ("In", "NotIn") and not values:
        walk.doubt(key_path(path, "values"), f"{operator} needs some: the API server would reject it")
    elif operator in ("Exists", "DoesNotExist") and values:
        walk.doubt(key_path(path, "values"), f"{operator} takes none: the API server would reject it")
    elif operator in ("Gt", "Lt") and (len(values) != 1 or whole_number(str(values[0])) is None):
        walk.doubt(key_path(path, "values"), f"{operator} takes one whole number: the API server would reject it")


def _terms(raw: Any, path: str, walk: FieldWalk) -> None:
    """Checks the terms of a node selector: at least one, none empty."""
    _requires("nodeSelectorTerms")(raw, path, walk)
    terms = raw.get("nodeSelectorTerms")
    for i, term in enumerate(terms if isinstance(terms, list) else ()):
        if isinstance(term, dict) and _absent(term.get("matchExpressions")) and _absent(term.get("matchFields")):
            walk.doubt(f"{key_path(path, 'nodeSelectorTerms')}[{i}]", "an empty term matches no node")


def _spread(raw: Any, path: str, walk: FieldWalk) -> None:
    """Checks the fields of a topology spread constraint that depend on each other."""
    _requires("topologyKey")(raw, path, walk)
    if raw.get("minDomains") is not None and raw.get("whenUnsatisfiable") == "ScheduleAnyway":
        walk.doubt(
            key_path(path, "minDomains"), "needs whenUnsatisfiable DoNotSchedule: the API server would reject it"
        )


def _one_policy(raw: Any, path: str, walk: FieldWalk) -> None:
    """Checks that a PodGroup of scheduling.k8s.io has exactly one policy."""
    if (raw.get("basic") is None) == (raw.get("gang") is None):
        walk.doubt(path, "exactly one of basic and gang must be set: the API server would reject it")


def _config_of_requests(raw: Any, path: str, walk: FieldWalk) -> None:
    """Checks that each entry of a claim's configuration names requests of the claim."""
    requests, config = raw.get("requests"), raw.get("config")
    known = set[str]()
    for request in requests if isinstance(requests, list) else ():
        if isinstance(request, dict) and isinstance(name := request.get("name"), str):
            parts = request.get("firstAvailable")
            subs = [one.get("name") for one in parts if isinstance(one, dict)] if isinstance(parts, list) else []
            known |= {name, *(f"{name}/{one}" for one in subs)}
    for i, entry in enumerate(config if isinstance(config, list) else ()):
        at = f"{key_path(path, 'config')}[{i}].requests"
        names = entry.get("requests") if isinstance(entry, dict) else None
        if names is not None and not isinstance(names, list):
            walk.fault(at, f"must be a list, not {shown(names)}")
        for j, name in enumerate(names if isinstance(names, list) else ()):
            if not isinstance(name, str):
                walk.fault(f"{at}[{j}]", f"must be a string, not {shown(name)}")
            elif name not in known:
                walk.doubt(f"{at}[{j}]", f'no request is named "{name}": the API server would reject it')


def _whole_devices(raw: Any, path: str, walk: FieldWalk) -> None:
    """Adds a fault for each amount of an extended resource in a zone that is a quantity, but not a whole number."""
    name = raw.get("name")
    if not isinstance(name, str) or not is_extended(name):
        return
    for field in ("capacity", "allocatable", "available"):
        value = raw.get(field)
        text = value.text if isinstance(value, Number) else value
        try:
            check_quantity("", text)
        except ValueError:
            continue  # the reader of the field adds this fault
        try:
            check_quantity(name, text)
        except ValueError as fault:
            walk.fault(key_path(path, field), str(fault))


WHOLE: Mapping[type, tuple[Look, ...]] = MappingProxyType(
    {
        Requirement: (_requires("key", "operator"), _values_of_operator),
        NodeSelector: (_terms,),
        UpstreamPolicy: (_one_policy,),
        TopologySpreadConstraint: (_spread,),
        PodAffinityTerm: (_requires("topologyKey"),),
        PodSpec: (_requires("containers"),),
        Container: (_requires("name"),),
        ZoneResource: (_whole_devices,),
        DeviceClaim: (_config_of_requests,),
        DeviceRequest: (_requires("name"),),
        ExactRequest: (_requires("deviceClassName"),),
        SubRequest: (_requires("name", "deviceClassName"),),
        DeviceTaint: (_requires("key", "effect"),),
        ResourceSliceSpec: (_requires("driver", "pool"),),
        ResourcePool: (_requires("name"),),
        SliceDevice: (_requires("name"),),
    }
)
"""Struct -> checks of several fields together."""

PRUNED: Mapping[type, tuple[str, ...]] = MappingProxyType(
    {
        PodGroup: (),
        PodGroupSpec: (),
        ElasticQuota: (),
        ElasticQuotaSpec: (),
        ClusterNetworkTopology: (),
        ClusterNetworkTopologySpec: (),
        HierarchyEntry: (),
        Device: (),
        DeviceSpec: (),
        DeviceEntry: ("moduleID", "labels", "vfGroups", "conditions"),
        DeviceTopology: (),
        DeviceMatrices: (),
        DeviceMatrix: (),
    }
)
"""Struct of koordpy's custom resources (without status) -> further fields that are valid, although koordpy does not
read them.

The API server drops or rejects any other field. `vfGroups` and `conditions` are only in Koordinator's definition; they
are valid because dumps of clusters with Koordinator have them.
"""
CLOSED = (
    UpstreamPodGroupSpec, UpstreamPolicy, UpstreamGang, UpstreamConstraints, UpstreamTopologyConstraint,
)  # fmt: skip
"""Structs of other projects that declare all fields: every other field gets a warning, whatever its name."""
OPEN = (DeviceAttribute,)
"""Structs in which unknown fields get no warning, because Kubernetes has more fields than are declared, with similar
names."""
