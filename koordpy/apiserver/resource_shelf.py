# SPDX-License-Identifier: Apache-2.0
"""A shelf: the objects of one resource, their recent changes, and the watches on them.

Objects are never changed in place: a write stores a new entry. So a list, or an answer that is half sent, keeps its
state without a copy. An object is encoded once for all readers and watches, because encoding it for each watch would
take most of the time at 5,000 nodes and thousands of Bindings per second.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import orjson

from koordpy.apiserver.served_resources import Object, ServedResource

Key = tuple[str, str]
"""(namespace, name) of an object; the namespace is empty for a cluster-scoped object."""


class ShelfEntry:
    """An object at one version, with its JSON."""

    __slots__ = ("_raw", "obj", "version")

    def __init__(self, obj: Object, version: int) -> None:
        self.obj = obj
        self.version = version
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        """The object as JSON, encoded at the first request."""
        if self._raw is None:
            self._raw = orjson.dumps(self.obj)
        return self._raw


class Change:
    """A change of an object."""

    __slots__ = ("before", "entry", "kind")

    def __init__(self, kind: str, entry: ShelfEntry, before: ShelfEntry | None) -> None:
        """kind: ADDED, MODIFIED or DELETED. before: the entry that was replaced or removed; None for a new object."""
        self.kind = kind
        self.entry = entry
        self.before = before


class Watcher:
    """The changes that one watch has not sent yet.

    With more than `limit` changes the watch is too slow and is closed; its client then starts again.
    """

    __slots__ = ("_limit", "_news", "aborted", "closed", "pending")

    def __init__(self, limit: int) -> None:
        self.pending: list[Change] = []
        self.closed = False
        self.aborted = False
        """True if the connection must be aborted instead of ended."""

        self._limit = limit
        self._news = asyncio.Event()

    def push(self, change: Change) -> None:
        """Adds a change, or closes the watcher if it has too many."""
        if len(self.pending) >= self._limit:
            self.closed = True
        else:
            self.pending.append(change)
        self._news.set()

    def close(self, *, abort: bool = False) -> None:
        """Ends the watch. abort: True to abort its connection."""
        self.closed, self.aborted = True, abort
        self._news.set()

    async def wait(self) -> None:
        """Waits until there are pending changes, or the watcher is closed."""
        await self._news.wait()

    def take(self) -> list[Change]:
        """Returns the pending changes, and removes them from the watcher."""
        self._news.clear()
        taken, self.pending = self.pending, []
        return taken


class Shelf:
    """The objects of one resource. Version numbers are one sequence over all shelves of a store."""

    def __init__(self) -> None:
        self.entries: dict[Key, ShelfEntry] = {}
        self.horizon = 0
        """Version of the latest change that is no longer stored; 0 if all are."""
        self.history = 10_000
        """Maximum number of changes that are stored, so that a watch can start from an older version."""
        self._changes: deque[Change] = deque()  # the oldest first
        self._watchers: dict[Watcher, None] = {}
        self._ordered: list[tuple[Key, ShelfEntry]] | None = None  # sorted entries; None after a change

    def ordered(self) -> list[tuple[Key, ShelfEntry]]:
        """Returns every entry, sorted by namespace and name. The list is shared and must not be changed."""
        if self._ordered is None:
            self._ordered = sorted(self.entries.items(), key=lambda item: item[0])
        return self._ordered

    def put(self, key: Key, entry: ShelfEntry) -> Change:
        """Stores a new or changed object; returns the change."""
        before = self.entries.get(key)
        self.entries[key] = entry
        return self._record(Change("MODIFIED" if before else "ADDED", entry, before))

    def remove(self, key: Key, last: ShelfEntry) -> Change:
        """Removes an object; returns the change. last: the object's final state, with the version of its removal."""
        before = self.entries.pop(key)
        return self._record(Change("DELETED", last, before))

    def _record(self, change: Change) -> Change:
        """Stores a change for later watches, and passes it to all open watches."""
        self._ordered = None
        self._changes.append(change)
        while len(self._changes) > self.history:
            self.horizon = self._changes.popleft().entry.version
        for watcher in self._watchers:
            watcher.push(change)
        return change

    def since(self, version: int) -> list[Change] | None:
        """Returns the changes after a version; None if some of these changes are no longer stored."""
        if version < self.horizon:
            return None
        found = []
        for change in reversed(self._changes):
            if change.entry.version <= version:
                break
            found.append(change)
        found.reverse()
        return found

    def watch(self) -> Watcher:
        """Returns a watcher of all changes from now on. The caller must pass it to `unwatch` at the end."""
        watcher = Watcher(max(self.history, 1000))
        self._watchers[watcher] = None
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """Removes a watcher."""
        self._watchers.pop(watcher, None)

    def end_watches(self, *, abort: bool = False) -> int:
        """Closes every watch, and returns their number."""
        for watcher in self._watchers:
            watcher.close(abort=abort)
        return len(self._watchers)


ChangeListener = Callable[[str, Change], None]
"""Called after every change with the name of the shelf and the change."""


# -- versions ---------------------------------------------------------------------------------------------------------

# Events are written and read as core/v1 or events.k8s.io/v1, and stored as core/v1. A custom resource with several
# versions is stored as it was sent, and served in the requested version (conversion strategy None).
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
_EVENT_BLANKS: Object = {"eventTime": None, "firstTimestamp": None, "lastTimestamp": None, "source": {}}
"""Fields that kube-apiserver sets in every event; `kubectl get events --sort-by=.lastTimestamp` needs them."""


def stored(resource: ServedResource, obj: Object) -> Object:
    """Returns the object in its stored version; the same object if it has this version."""
    if resource.shelf != "events":
        return obj
    core = obj
    if resource.group == "events.k8s.io":
        core = {_TO_CORE.get(key, key): value for key, value in obj.items()} | {"apiVersion": "v1"}
    return core if core.keys() >= _EVENT_BLANKS.keys() else {**_EVENT_BLANKS, **core}


def served(resource: ServedResource, obj: Object) -> Object:
    """Returns a stored object in the version of a resource; the same object if it has this version."""
    if obj["apiVersion"] == resource.api_version:
        return obj
    if resource.group == "events.k8s.io":
        return {_FROM_CORE.get(key, key): value for key, value in obj.items()} | {"apiVersion": resource.api_version}
    return {**obj, "apiVersion": resource.api_version, "kind": resource.kind}


def encoded(resource: ServedResource, entry: ShelfEntry) -> bytes:
    """Returns a stored object in the version of a resource, as JSON."""
    if entry.obj["apiVersion"] == resource.api_version:
        return entry.raw
    return orjson.dumps(served(resource, entry.obj))
