"""One stored object in the forms in which it is served.

Events are written through core/v1 or events.k8s.io/v1 and read through both; they are stored as core/v1. A custom
resource with several versions is stored as it came and served under the version asked for (conversion strategy None).
"""

import orjson

from koordpy.sim.resources import Object, ServedResource
from koordpy.sim.shelf import ShelfEntry

_TO_CORE = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_FROM_CORE = {core: other for other, core in _TO_CORE.items()}


def stored(resource: ServedResource, obj: Object) -> Object:
    """The form in which an object is stored; the object itself where that is the same."""
    if resource.group == "events.k8s.io":
        return {_TO_CORE.get(key, key): value for key, value in obj.items()} | {"apiVersion": "v1"}
    return obj


def served(resource: ServedResource, obj: Object) -> Object:
    """A stored object as the resource shows it; the object itself where that is the same."""
    if obj["apiVersion"] == resource.api_version:
        return obj
    if resource.group == "events.k8s.io":
        return {_FROM_CORE.get(key, key): value for key, value in obj.items()} | {"apiVersion": resource.api_version}
    return {**obj, "apiVersion": resource.api_version, "kind": resource.kind}


def encoded(resource: ServedResource, entry: ShelfEntry) -> bytes:
    """A stored object as the resource shows it, as JSON."""
    if entry.obj["apiVersion"] == resource.api_version:
        return entry.raw
    return orjson.dumps(served(resource, entry.obj))
