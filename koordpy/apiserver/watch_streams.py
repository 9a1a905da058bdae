# SPDX-License-Identifier: Apache-2.0
"""Serves watches: a stream of JSON lines, one for each change since a version.

A watch has three stages. First it sends the existing objects as ADDED lines, if the client asks for them or states no
version; then the stored changes since the version; then new changes until the timeout. Bookmarks state the current
version between changes. If changes since the version are no longer stored, the only line is an error 410, and the
client lists again.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable

import orjson
from aiohttp import web

from koordpy.apiserver.api_calls import Call
from koordpy.apiserver.listing import matches_of
from koordpy.apiserver.object_store import Store
from koordpy.apiserver.resource_shelf import Change, Key, ShelfEntry, encoded
from koordpy.apiserver.served_resources import Object, ServedResource
from koordpy.apiserver.status_errors import StatusError
from koordpy.apiserver.table_documents import table_of

_INITIAL_END = {"k8s.io/initial-events-end": "true"}
"""Annotation of the bookmark after the existing objects."""
_DEFAULT_TIMEOUT_SECONDS = 3600
_BATCH = 500
"""Number of existing objects in one chunk."""


def _event(kind: str, obj: Object) -> bytes:
    return orjson.dumps({"type": kind, "object": obj}) + b"\n"


def _bookmark(resource: ServedResource, version: int, annotations: Object | None = None) -> bytes:
    meta: Object = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        meta["annotations"] = annotations
    return _event("BOOKMARK", {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta})


def _left(change: Change) -> ShelfEntry:
    """Returns the state of an object before a change after which the selectors no longer match it.

    A watch with selectors reports such an object as DELETED. The state has the version of the change.
    """
    assert change.before is not None
    obj = change.before.obj
    version = change.entry.version
    return ShelfEntry({**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}, version)


def _too_old(version: int, horizon: int) -> bytes:
    return _event("ERROR", StatusError(410, f"too old resource version: {version} ({horizon})").status())


class Stream:
    """The content of one watch, independent of HTTP. `chunks()` ends at the timeout, or when the store ends the watch.

    Every change is recorded from the creation of the stream until `close()`.
    """

    def __init__(self, store: Store, call: Call, *, bookmark_seconds: float) -> None:
        """Raises StatusError 400 for invalid selectors."""
        self._store, self._call, self._as_table = store, call, call.as_table
        self._matches = matches_of(call)
        query = call.query
        self._version = version = query.version()
        self._seconds = query.number("timeoutSeconds") or _DEFAULT_TIMEOUT_SECONDS
        self._shelf = shelf = store.shelf(call.resource)
        self._bookmarks = query.flag("allowWatchBookmarks")
        self._bookmark_seconds = bookmark_seconds if self._bookmarks else 0.0
        wants_initial = query.flag("sendInitialEvents") if query.text("sendInitialEvents") else not version
        self._watcher = shelf.watch()
        self._begun = store.version
        self._entries: list[tuple[Key, ShelfEntry]] = []  # existing objects to send
        self._missed: list[Change] | None = []  # changes since the requested version; None: no longer stored
        if wants_initial:
            self._entries = shelf.ordered()
        elif version:
            self._missed = shelf.since(version) if version <= self._begun else None

    @property
    def aborted(self) -> bool:
        """True if the connection must be aborted instead of ended."""
        return self._watcher.aborted

    def close(self) -> None:
        """Stops recording changes."""
        self._shelf.unwatch(self._watcher)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields complete lines; each chunk has all lines that are available."""
        entries = self._entries
        for at in range(0, len(entries), _BATCH):
            yield b"".join(self._initial(entry for _, entry in entries[at : at + _BATCH]))
        if self._bookmarks and self._call.query.flag("sendInitialEvents"):
            yield _bookmark(self._call.resource, self._begun, _INITIAL_END)
        if self._missed is None:
            yield _too_old(self._version or 0, max(self._shelf.horizon, 1))
            return
        if found := self._changes(self._missed):
            yield b"".join(found)
        loop, watcher = asyncio.get_running_loop(), self._watcher
        ends = loop.time() + self._seconds
        due = loop.time() + self._bookmark_seconds if self._bookmark_seconds else ends
        # `ends`: timeout of the watch; `due`: time of the next bookmark, or `ends` without bookmarks
        while not watcher.closed:
            if pending := watcher.take():
                if found := self._changes(pending):
                    yield b"".join(found)
                continue
            now = loop.time()
            if now >= ends:
                return
            if now >= due:
                yield _bookmark(self._call.resource, self._store.version)
                due = now + self._bookmark_seconds
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(due, ends)):
                    await watcher.wait()

    def _seen(self, entry: ShelfEntry) -> bool:
        return all(match(entry.obj) for match in self._matches)

    def _initial(self, entries: Iterable[ShelfEntry]) -> list[bytes]:
        """Returns an ADDED line for every object that matches."""
        return [self._line(Change("ADDED", entry, None)) for entry in entries if self._seen(entry)]

    def _changes(self, changes: Iterable[Change]) -> list[bytes]:
        """Returns the lines of changes.

        With selectors, an object that begins to match is ADDED, and an object that no longer matches is DELETED.
        """
        if not self._matches:
            return [self._line(change) for change in changes]
        lines = []
        for change in changes:
            after = change.kind != "DELETED" and self._seen(change.entry)
            before = change.before is not None and self._seen(change.before)
            if after:
                kind = "MODIFIED" if before else "ADDED"
                lines.append(self._line(change if kind == change.kind else Change(kind, change.entry, None)))
            elif before:
                gone = change if change.kind == "DELETED" else Change("DELETED", _left(change), None)
                lines.append(self._line(gone))
        return lines

    def _line(self, change: Change) -> bytes:
        """Returns one line of the stream."""
        kind, entry = change.kind, change.entry
        if self._as_table:
            meta = {"resourceVersion": str(entry.version)}
            return _event(kind, table_of(self._call, [entry], meta, now=self._store.seconds()))
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), encoded(self._call.resource, entry))


async def watch(request: web.BaseRequest, stream: Stream) -> web.StreamResponse:
    """Serves one watch until it ends, is aborted, or its connection is closed."""
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"})
    try:
        await response.prepare(request)
        await response.write(b"")  # sends the headers
        async with contextlib.aclosing(stream.chunks()) as chunks:
            async for chunk in chunks:
                await response.write(chunk)
        if stream.aborted and request.transport is not None:
            request.transport.abort()
        else:
            await response.write_eof()
    except ConnectionError:
        pass
    finally:
        stream.close()
    return response
