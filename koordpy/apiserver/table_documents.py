# SPDX-License-Identifier: Apache-2.0
"""The Table form of lists and watch events: the server computes the cells that `kubectl get` prints.

The columns of built-in resources are defined here; custom resources have the printer columns of their definition. If a
JSONPath has several values, the first value is shown, as in kube-apiserver.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from koordpy.api.times import seconds as seconds_of
from koordpy.apiserver.api_calls import Call
from koordpy.apiserver.resource_shelf import ShelfEntry, served
from koordpy.apiserver.served_resources import Column, Object

# one step of a JSONPath: `.name` (with escaped dots), `[*]`, `[0]`, `['name']`, `[?(@.field=="value")]`
_STEP = re.compile(
    r"\.?([A-Za-z0-9_\-/]+(?:\\\.[A-Za-z0-9_\-/]+)*)|\[\*\]|\[(\d+)\]|\['([^']+)'\]|\[\?\(@\.(\w+)==\"([^\"]*)\"\)\]"
)


def age(timestamp: str | None, now: float) -> str:
    """Returns the age of a timestamp in kubectl's format; `<unknown>` if it is None. now: seconds since the epoch."""
    if not timestamp:
        return "<unknown>"
    seconds = int(now - seconds_of(timestamp))
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
    """Returns the values of a simple JSONPath with names, `['a\\.b']`, `[0]`, `[*]` and `[?(@.type=="X")]`."""
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
    """Returns the value of a cell. now: seconds since the epoch, for ages."""
    found = [column.cell(obj)] if column.cell is not None else json_path(obj, column.path)
    if not found or found[0] is None:
        return column.absent
    value = found[0]
    if column.type == "date":
        return age(value, now)
    if column.type == "string":
        if isinstance(value, bool):
            return "true" if value else "false"
        return value if isinstance(value, str) else orjson.dumps(value).decode()
    if column.type == "integer":
        return int(value) if isinstance(value, int | float) else None
    return value


def _pod_ready(pod: Object) -> str:
    """Returns `READY/ALL` containers."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return f"{sum(bool(s.get('ready')) for s in statuses)}/{len(pod['spec'].get('containers') or ())}"


def _pod_restarts(pod: Object) -> str:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return str(sum(int(s.get("restartCount", 0)) for s in statuses))


def _pod_reason(pod: Object) -> str:
    """Returns the column STATUS of a pod, by the rules of kubectl."""
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


def _node_state(node: Object) -> str:
    ready = [c.get("status") for c in (node.get("status") or {}).get("conditions") or () if c.get("type") == "Ready"]
    state = "Unknown" if not ready else "Ready" if ready[0] == "True" else "NotReady"
    return f"{state},SchedulingDisabled" if (node.get("spec") or {}).get("unschedulable") else state


def _node_roles(node: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or "<none>"


def _event_seen(event: Object) -> str | None:
    """Returns when an event was last seen; None if unknown. The two API groups of events use different fields for
    it."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("deprecatedLastTimestamp"))
    found: str | None = next(filter(None, (*times, event.get("eventTime"))), event["metadata"].get("creationTimestamp"))
    return found


def _event_object(event: Object) -> str:
    subject = event.get("involvedObject") or event.get("regarding") or {}
    return f"{str(subject.get('kind', '')).lower()}/{subject.get('name', '')}"


def _event_message(event: Object) -> str:
    return str(event.get("message") or event.get("note") or "").strip()


_NAME = Column("Name", "string", ".metadata.name")
_CREATED = Column("Age", "date", ".metadata.creationTimestamp", absent="<unknown>")
_BUILT_IN: dict[str, Sequence[Column]] = {
    "pods": (
        _NAME,
        Column("Ready", "string", cell=_pod_ready),
        Column("Status", "string", cell=_pod_reason),
        Column("Restarts", "string", cell=_pod_restarts),
        _CREATED,
        Column("IP", "string", ".status.podIP", 1, "<none>"),
        Column("Node", "string", ".spec.nodeName", 1, "<none>"),
        Column("Nominated Node", "string", ".status.nominatedNodeName", 1, "<none>"),
        Column("Readiness Gates", "string", ".spec.readinessGates", 1, "<none>"),
    ),
    "nodes": (
        _NAME,
        Column("Status", "string", cell=_node_state),
        Column("Roles", "string", cell=_node_roles),
        _CREATED,
        Column("Version", "string", ".status.nodeInfo.kubeletVersion", absent=""),
        Column("Internal-IP", "string", '.status.addresses[?(@.type=="InternalIP")].address', 1, "<none>"),
        Column("OS-Image", "string", ".status.nodeInfo.osImage", 1, "<unknown>"),
    ),
    "events": (
        Column("Last Seen", "date", absent="<unknown>", cell=_event_seen),
        Column("Type", "string", ".type", absent=""),
        Column("Reason", "string", ".reason", absent=""),
        Column("Object", "string", cell=_event_object),
        Column("Message", "string", cell=_event_message),
    ),
    "poddisruptionbudgets.policy": (
        _NAME,
        Column("Min Available", "string", ".spec.minAvailable", absent="N/A"),
        Column("Max Unavailable", "string", ".spec.maxUnavailable", absent="N/A"),
        Column("Allowed Disruptions", "integer", ".status.disruptionsAllowed", absent=0),
        _CREATED,
    ),
    "priorityclasses.scheduling.k8s.io": (
        _NAME,
        Column("Value", "integer", ".value"),
        Column("Global-Default", "boolean", ".globalDefault", absent=False),
        _CREATED,
        Column("PreemptionPolicy", "string", ".preemptionPolicy", absent=""),
    ),
    "namespaces": (_NAME, Column("Status", "string", ".status.phase", absent=""), _CREATED),
    "leases.coordination.k8s.io": (_NAME, Column("Holder", "string", ".spec.holderIdentity", absent=""), _CREATED),
}


def table_of(call: Call, entries: Iterable[ShelfEntry], meta: Object, *, now: float) -> Object:
    """Returns entries in the Table form. Each row has the part of the object that includeObject requests.

    meta: metadata of the list. now: seconds since the epoch.
    """
    resource, include = call.resource, call.query.text("includeObject") or "Metadata"
    own = resource.columns if resource.custom else ()
    columns = (_NAME, *own) if own else _BUILT_IN.get(resource.shelf, (_NAME, _CREATED))
    objects = [served(resource, entry.obj) for entry in entries]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": "name" if column.name == "Name" else "",
                "description": "",
                "priority": column.priority,
            }
            for column in columns
        ],
        "rows": [
            {"cells": [_cell(obj, column, now) for column in columns], **_included(obj, include)} for obj in objects
        ],
    }


def _included(obj: Object, include: str) -> Object:
    """Returns the field `object` of a row. include: Metadata, Object or None."""
    if include == "Metadata":
        head = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
        return {"object": {**head, "metadata": obj["metadata"]}}
    return {"object": obj} if include == "Object" else {}
