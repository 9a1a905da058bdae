# SPDX-License-Identifier: Apache-2.0
"""Handles watch events of workloads (Job, JobSet, PyTorchJob and others) and of Volcano PodGroups.

If pods name no gang, koordpy derives their gang and its number of members from the workload that owns them. koordpy
never writes workloads. To save memory, only fields that affect gangs are stored: of pod templates the metadata,
schedulerName and PodGroup, of a status the fields in `_COUNTED`. Sources: workloads.md 1, 4, 5.1 and 11.
"""

import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from msgspec import json, to_builtins

from koordpy.api.owner_objects import WorkloadObject, read_part
from koordpy.cache.workload_book import WorkloadBook
from koordpy.engine.changes.change_hub import Hub
from koordpy.pods.object_book import object_key
from koordpy.workloads.kinds.kind_registry import WorkloadKind, workload_of
from koordpy.workloads.volcano_gangs import VolcanoGroup
from koordpy.workloads.workload_manifest import Head, Source, head_of

logger = logging.getLogger(__name__)

VOLCANO_VERSION = "scheduling.volcano.sh/v1beta1"
WATCHED, NOT_SERVED, FORBIDDEN = "watched", "not-served", "forbidden"
"""States of the watch of a kind. NOT_SERVED: the API server does not know the kind. FORBIDDEN: a list got 403."""
# the fields of a workload's metadata that are stored
_META = ("name", "namespace", "uid", "creationTimestamp", "labels", "annotations", "ownerReferences")
_ANY = ""
"""Key in `_COUNTED` that matches any field name."""
_COUNTED: Mapping[str, Any] = {
    **dict.fromkeys(("succeeded", "failedIndexes", "completedIndexes", "completionTime", "restarts", "updateRevision")),
    "conditions": dict.fromkeys(("type", "status")),
    "replicatedJobsStatus": dict.fromkeys(("name", "succeeded", "failed")),
    "replicaStatuses": {_ANY: {"succeeded": None}},
}
"""Status fields that say how many pods the workload needs and which of its runs they belong to. A value is None for the
whole field, or a mapping of the sub-fields."""


class WatchedKinds:
    """All kinds of workloads, with the state of their watches."""

    def __init__(self, book: WorkloadBook, wake: Callable[[], None]) -> None:
        """wake: called when gangs may have changed."""
        self.book, self.wake = book, wake
        self.seen: dict[str, bytes] = {}
        """uid of a workload -> digest of its stored fields, so that changes of all other fields are ignored."""
        self.states: dict[str, str] = {}
        """Kind -> WATCHED, NOT_SERVED or FORBIDDEN."""


class VolcanoChanges:
    """Sink of Volcano PodGroups."""

    def __init__(self, hub: Hub, wake: Callable[[], None]) -> None:
        """wake: called when gangs may have changed."""
        self._state, self._listeners, self._wake = hub.state, hub.listeners, wake
        self.groups: dict[str, WorkloadObject] = {}
        """`namespace/name` -> PodGroup as last seen."""

    def set_watch_state(self, state: str, why: str = "") -> None:
        """Records the state of the watch. why: error of a forbidden list. PodGroups are used only while WATCHED."""
        if state == FORBIDDEN:
            logger.warning("gangs.volcano: PodGroups of Volcano may not be listed (403): %s: they are ignored", why)
        self._state.read_volcano(state == WATCHED)
        self._wake()

    def upsert(self, obj: WorkloadObject, old: WorkloadObject | None) -> None:
        """Implements `Sink.upsert`. A change of spec or annotations updates the gang. Any other change only notifies
        the listeners."""
        key = object_key(obj)
        self.groups[key] = obj
        self._notify(key)
        if old is not None and (old.spec, old.metadata.annotations) == (obj.spec, obj.metadata.annotations):
            return
        source = Source(
            {
                "apiVersion": VOLCANO_VERSION,
                "kind": "PodGroup",
                "metadata": to_builtins(obj.metadata),
                "spec": read_part(obj.spec),
            }
        )
        self._state.put_volcano_group(key, VolcanoGroup.read(source, _head(source, obj)))
        self._wake()

    def delete(self, obj: WorkloadObject) -> None:
        """Implements `Sink.delete`. The pods of the deleted PodGroup get another gang, or become plain pods."""
        key = object_key(obj)
        self.groups.pop(key, None)
        self._notify(key)
        self._state.put_volcano_group(key, None)
        self._wake()

    def _notify(self, key: str) -> None:
        for listener in self._listeners.volcano_group:
            listener(key)


class WorkloadChanges:
    """Sink of workloads of one kind."""

    def __init__(self, kind: WorkloadKind, kinds: WatchedKinds) -> None:
        self.kind, self._kinds = kind, kinds

    def upsert(self, obj: WorkloadObject, old: WorkloadObject | None) -> None:
        """Records a created or changed workload. A workload that is being deleted counts as deleted, because its
        controller creates no more pods. Raises UnreadableError if it has more pods than are supported; then its last
        state remains in effect."""
        if obj.metadata.deletion_timestamp:
            self.delete(obj)
            return
        meta, version = to_builtins(obj.metadata), self.kind.versions[0]
        raw = {
            "apiVersion": f"{self.kind.group}/{version}" if self.kind.group else version,
            "kind": self.kind.kind,
            "metadata": {name: meta[name] for name in _META if name in meta},
            "spec": _slim(read_part(obj.spec)),
            "status": _counted(read_part(obj.status)),
        }
        said = sha256(json.encode([raw, obj.metadata.annotations_given])).digest()
        if self._kinds.seen.get(obj.metadata.uid) != said:
            source = Source(raw)
            self._kinds.book.put_workload(workload_of(source, _head(source, obj)))
            self._kinds.seen[obj.metadata.uid] = said
            self._kinds.wake()

    def set_watch_state(self, state: str, why: str = "") -> None:
        """Records the state of the watch, and logs it once. why: error of a forbidden list. If a kind is not WATCHED,
        its pods form gangs by their labels alone."""
        kind, states = self.kind, self._kinds.states
        if states.get(kind.kind) == state:
            return
        states[kind.kind] = state
        name = f"{kind.plural}.{kind.group}"
        if state == NOT_SERVED:
            logger.info("gangs.auto: %s is not served: its pods are grouped by labels", name)
        elif state == FORBIDDEN:
            logger.warning("gangs.auto: %s may not be listed (403): %s: its pods are grouped by labels", name, why)
        self._kinds.book.watch(frozenset(kind for kind, state in states.items() if state == WATCHED))
        self._kinds.wake()

    def delete(self, obj: WorkloadObject) -> None:
        """Removes a workload that was deleted or is being deleted."""
        if self._kinds.seen.pop(obj.metadata.uid, None) is not None:
            self._kinds.book.drop_workload(obj.metadata.uid)
            self._kinds.wake()


def _head(source: Source, obj: WorkloadObject) -> Head:
    return head_of(source, annotations_given=obj.metadata.annotations_given)


def _slim(value: Any) -> Any:
    """Returns a spec without the details of its containers."""
    if isinstance(value, Mapping):
        if isinstance(value.get("containers"), list):
            kept = {name: value[name] for name in ("schedulerName", "schedulingGroup") if name in value}
            return {"containers": [{}] if value["containers"] else [], **kept}
        return {name: _slim(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_slim(part) for part in value]
    return value


def _counted(value: Any, fields: Mapping[str, Any] | None = _COUNTED) -> Any:
    """Returns the status reduced to `fields`. Of conditions, only those with status True are returned."""
    if isinstance(value, list):
        return [_counted(one, fields) for one in value if not _is_not_so(one)]
    if not isinstance(value, Mapping) or fields is None:
        return value
    kept = {name: part for name, part in value.items() if name in fields or _ANY in fields}
    return {name: _counted(part, fields.get(name, fields.get(_ANY))) for name, part in kept.items()}


def _is_not_so(one: Any) -> bool:
    """Returns True for a condition with a status other than True."""
    return isinstance(one, Mapping) and one.get("status", "True") != "True"


def tell_access(sink: WorkloadChanges | VolcanoChanges, allowed: bool, why: str) -> None:
    """Sets the watch state of a sink: WATCHED if the list was allowed, FORBIDDEN if not (`on_access` of a reflector).

    why: error of the forbidden list.
    """
    sink.set_watch_state(WATCHED if allowed else FORBIDDEN, why)
