"""Workloads as the API server shows them, one after the other.

What cannot change a gang is let go: of pod templates all but their metadata and scheduler, of a status all but what is
counted by.
Sources: workloads.md 4, 5.1 and 11.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from msgspec import json

from koordpy.workloads.book import DerivedBook
from koordpy.workloads.kinds.registry import WorkloadKind, workload_of
from koordpy.workloads.source import Source, head_of

_ANY = ""
"""Of fields whatever their names."""
_COUNTED: Mapping[str, Any] = {
    **dict.fromkeys(("succeeded", "failedIndexes", "completedIndexes", "restarts", "updateRevision")),
    "conditions": dict.fromkeys(("type", "status")),
    "replicatedJobsStatus": dict.fromkeys(("name", "succeeded", "failed")),
    "replicaStatuses": {_ANY: {"succeeded": None}},
}
"""Fields of a status, and in these, that decide how many pods are wanted, and which run they are of."""


class WatchedWorkloads:
    """Objects in, workloads on to a book."""

    def __init__(self, book: DerivedBook) -> None:
        self._book = book
        self._seen: dict[str, bytes] = {}
        """uid -> digest of what was read of the object."""

    def put(
        self, kind: WorkloadKind, meta: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]
    ) -> bool:
        """Takes an object as it is now; False where nothing changed that counts. Raises UnreadableError for one that
        makes more than is read: it counts as it was.

        One that is being deleted counts as gone: its controller makes nothing more.
        """
        uid = str(meta.get("uid"))
        if meta.get("deletionTimestamp"):
            return self.drop(uid)
        raw = {
            "apiVersion": f"{kind.group}/{kind.versions[0]}" if kind.group else kind.versions[0],
            "kind": kind.kind,
            "metadata": {name: meta[name] for name in _META if name in meta},
            "spec": _slim(spec),
            "status": _counted(status),
        }
        said = sha256(json.encode(raw)).digest()
        if self._seen.get(uid) == said:
            return False
        source = Source(raw)
        self._book.put_workload(workload_of(source, head_of(source)))
        self._seen[uid] = said
        return True

    def drop(self, uid: str) -> bool:
        """Forgets an object; whether it was known."""
        if self._seen.pop(uid, None) is None:
            return False
        self._book.drop_workload(uid)
        return True


_META = ("name", "namespace", "uid", "creationTimestamp", "labels", "annotations", "ownerReferences")


def _slim(value: Any) -> Any:
    """A spec without what its pods' containers are."""
    if isinstance(value, Mapping):
        if isinstance(value.get("containers"), list):
            kept: dict[str, Any] = {"containers": [{}] if value["containers"] else []}
            return {**kept, "schedulerName": value["schedulerName"]} if "schedulerName" in value else kept
        return {name: _slim(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_slim(part) for part in value]
    return value


def _counted(value: Any, fields: Mapping[str, Any] | None = _COUNTED) -> Any:
    """Of a status, or a part of it, the fields that decide; of conditions those that hold."""
    if isinstance(value, list):
        return [_counted(one, fields) for one in value if not _is_not_so(one)]
    if not isinstance(value, Mapping) or fields is None:
        return value
    kept = {name: part for name, part in value.items() if name in fields or _ANY in fields}
    return {name: _counted(part, fields.get(name, fields.get(_ANY))) for name, part in kept.items()}


def _is_not_so(one: Any) -> bool:
    """Whether it is a condition that does not hold."""
    return isinstance(one, Mapping) and one.get("status", "True") != "True"
