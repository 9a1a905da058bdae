"""The Table form of lists and watch events: what `kubectl get` prints.

Custom resources have the printer columns of their definition; as in kube-apiserver, a JSONPath that finds several
values shows the first.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from koordpy.sim.resources import Column, Object, ServedResource

Cells = list[Any]
Definition = tuple[str, str, int]
"""(name, type, priority)"""

_STEP = re.compile(
    r"\.?([A-Za-z0-9_\-/]+(?:\\\.[A-Za-z0-9_\-/]+)*)|\[\*\]|\[(\d+)\]|\['([^']+)'\]|\[\?\(@\.(\w+)==\"([^\"]*)\"\)\]"
)


def age(timestamp: str | None, now: float) -> str:
    """How long ago a time was, as kubectl shows ages; `<unknown>` without a time."""
    if not timestamp:
        return "<unknown>"
    seconds = int(now - datetime.fromisoformat(timestamp).astimezone(UTC).timestamp())
    if seconds < 0:
        return "0s"
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        rest = seconds % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        rest = hours % 24
        return f"{days}d{rest}h" if rest else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y"


def json_path(obj: Any, path: str) -> list[Any]:
    """What a simple JSONPath finds: names, `['a\\.b']`, `[0]`, `[*]` and `[?(@.type=="X")]`."""
    found = [obj]
    for step in _STEP.finditer(path):
        name, index, quoted, field, value = step.groups()
        key = (name or quoted or "").replace("\\.", ".")
        below: list[Any] = []
        for item in found:
            if key:
                if isinstance(item, dict) and key in item:
                    below.append(item[key])
            elif isinstance(item, list):
                if index is not None:
                    below += item[int(index) : int(index) + 1]
                elif field is not None:
                    below += [entry for entry in item if isinstance(entry, dict) and str(entry.get(field)) == value]
                else:
                    below += item
        found = below
    return found


def _cell(obj: Object, column: Column, now: float) -> Any:
    found, kind = json_path(obj, column.path), column.type
    if not found or found[0] is None:
        return column.absent
    value = found[0]
    if kind == "date":
        return age(value, now)
    if kind == "string":
        if isinstance(value, bool):
            return "true" if value else "false"
        return value if isinstance(value, str) else orjson.dumps(value).decode()
    if kind == "integer":
        return int(value) if isinstance(value, int | float) else None
    return value


def _pod_reason(pod: Object) -> str:
    meta, status = pod["metadata"], pod.get("status") or {}
    reason = str(status.get("reason") or status.get("phase") or "")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        for kind in ("waiting", "terminated"):
            if (state.get(kind) or {}).get("reason"):
                reason = state[kind]["reason"]
    return "Terminating" if "deletionTimestamp" in meta else reason


def _pod(pod: Object, now: float) -> Cells:
    spec, status = pod["spec"], pod.get("status") or {}
    statuses = status.get("containerStatuses") or []
    ready = f"{sum(bool(s.get('ready')) for s in statuses)}/{len(spec.get('containers') or ())}"
    restarts = str(sum(int(s.get("restartCount", 0)) for s in statuses))
    return [
        ready,
        _pod_reason(pod),
        restarts,
        age(pod["metadata"].get("creationTimestamp"), now),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>",
    ]


def _node(node: Object, now: float) -> Cells:
    status, labels = node.get("status") or {}, node["metadata"].get("labels") or {}
    ready = [c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"]
    state = "Unknown" if not ready else "Ready" if ready[0] == "True" else "NotReady"
    if (node.get("spec") or {}).get("unschedulable"):
        state += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = ",".join(sorted(key[len(prefix) :] for key in labels if key.startswith(prefix))) or "<none>"
    info = status.get("nodeInfo") or {}
    addresses = {a.get("type"): a.get("address") for a in status.get("addresses") or ()}
    return [
        state,
        roles,
        age(node["metadata"].get("creationTimestamp"), now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
    ]


def _event(event: Object, now: float) -> Cells:
    subject = event.get("involvedObject") or event.get("regarding") or {}
    series = event.get("series") or {}
    seen = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("deprecatedLastTimestamp")
    seen = seen or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    name = f"{str(subject.get('kind', '')).lower()}/{subject.get('name', '')}"
    message = str(event.get("message") or event.get("note") or "").strip()
    return [age(seen, now), event.get("type", ""), event.get("reason", ""), name, message]


_AGE: Definition = ("Age", "string", 0)
_NAME: Definition = ("Name", "string", 0)
_BUILT_IN: dict[str, tuple[Sequence[Definition], Callable[[Object, float], Cells]]] = {
    "pods": (
        [
            ("Ready", "string", 0),
            ("Status", "string", 0),
            ("Restarts", "string", 0),
            _AGE,
            ("IP", "string", 1),
            ("Node", "string", 1),
            ("Nominated Node", "string", 1),
            ("Readiness Gates", "string", 1),
        ],
        _pod,
    ),
    "nodes": (
        [
            ("Status", "string", 0),
            ("Roles", "string", 0),
            _AGE,
            ("Version", "string", 0),
            ("Internal-IP", "string", 1),
            ("OS-Image", "string", 1),
        ],
        _node,
    ),
}
_CREATED = Column("Age", "date", ".metadata.creationTimestamp")
_BY_PATH: dict[str, Sequence[Column]] = {
    "poddisruptionbudgets.policy": (
        Column("Min Available", "string", ".spec.minAvailable", absent="N/A"),
        Column("Max Unavailable", "string", ".spec.maxUnavailable", absent="N/A"),
        Column("Allowed Disruptions", "integer", ".status.disruptionsAllowed", absent=0),
        _CREATED,
    ),
    "priorityclasses.scheduling.k8s.io": (
        Column("Value", "integer", ".value"),
        Column("Global-Default", "boolean", ".globalDefault", absent=False),
        _CREATED,
        Column("PreemptionPolicy", "string", ".preemptionPolicy", absent=""),
    ),
    "namespaces": (Column("Status", "string", ".status.phase", absent=""), _CREATED),
    "leases.coordination.k8s.io": (Column("Holder", "string", ".spec.holderIdentity", absent=""), _CREATED),
}
_EVENTS: Sequence[Definition] = [
    ("Last Seen", "string", 0),
    ("Type", "string", 0),
    ("Reason", "string", 0),
    ("Object", "string", 0),
    ("Message", "string", 0),
]


def _by_path(resource: ServedResource) -> Sequence[Column]:
    """The columns of what has no cells of its own."""
    return (resource.columns if resource.custom else _BY_PATH.get(resource.shelf, ())) or (_CREATED,)


def columns(resource: ServedResource) -> list[Object]:
    """The column definitions of a resource."""
    definitions: Sequence[Definition]
    if resource.shelf == "events":
        definitions = _EVENTS
    elif resource.shelf in _BUILT_IN:
        definitions = [_NAME, *_BUILT_IN[resource.shelf][0]]
    else:
        definitions = [_NAME, *((column.name, column.type, column.priority) for column in _by_path(resource))]
    return [
        {
            "name": name,
            "type": kind,
            "format": "name" if name == "Name" else "",
            "description": "",
            "priority": priority,
        }
        for name, kind, priority in definitions
    ]


def row(resource: ServedResource, obj: Object, *, now: float, include: str = "Metadata") -> Object:
    """One object as a row; `include` as in the request: Metadata, Object or None."""
    if resource.shelf == "events":
        cells = _event(obj, now)
    elif resource.shelf in _BUILT_IN:
        cells = [obj["metadata"]["name"], *_BUILT_IN[resource.shelf][1](obj, now)]
    else:
        cells = [obj["metadata"]["name"], *(_cell(obj, column, now) for column in _by_path(resource))]
    found: Object = {"cells": cells}
    if include == "Object":
        found["object"] = obj
    elif include == "Metadata":
        found["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": obj["metadata"],
        }
    return found


def table(
    resource: ServedResource, objects: Sequence[Object], meta: Object, *, now: float, include: str = "Metadata"
) -> Object:
    """A Table of objects."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": columns(resource),
        "rows": [row(resource, obj, now=now, include=include) for obj in objects],
    }
