"""Watches: a stream of changes from a version on, with bookmarks, or 410 where that version is forgotten."""

import asyncio
import time
from collections.abc import Callable, Iterable

import orjson
from aiohttp import web

from koordpy.sim import errors, views
from koordpy.sim.listing import matcher, wants_table
from koordpy.sim.resources import Object, Resource
from koordpy.sim.routes import Query
from koordpy.sim.selectors import Match
from koordpy.sim.shelf import Change, Entry, Key, Watcher
from koordpy.sim.store import Store
from koordpy.sim.tables import table

_INITIAL_END = {"k8s.io/initial-events-end": "true"}
_DEFAULT_TIMEOUT_SECONDS = 3600
_BATCH = 500

Encode = Callable[[str, Entry], bytes]


def _event(kind: str, obj: Object) -> bytes:
    return orjson.dumps({"type": kind, "object": obj}) + b"\n"


def _bookmark(resource: Resource, version: int, annotations: Object | None = None) -> bytes:
    meta: Object = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        meta["annotations"] = annotations
    return _event("BOOKMARK", {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta})


def _encoder(resource: Resource, query: Query, accept: str) -> Encode | None:
    """How an event is written; None = as it lies in the history, encoded once for all."""
    if wants_table(accept):
        include = query.text("includeObject") or "Metadata"

        def as_table(kind: str, entry: Entry) -> bytes:
            obj = views.served(resource, entry.obj)
            meta = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            return _event(kind, table(resource, [obj], meta, now=time.time(), include=include))

        return as_table
    if resource.group == "events.k8s.io" or resource.custom:
        return lambda kind, entry: b'{"type":"%b","object":%b}\n' % (kind.encode(), views.encoded(resource, entry))
    return None


def _left(change: Change) -> Entry:
    """The last state that a selector matched, under the version at which it matched no longer."""
    assert change.before is not None
    obj = change.before.obj
    version = change.entry.version
    return Entry({**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}, version)


class Lines:
    """The lines that one watch sends for changes: its namespace, selectors and form."""

    def __init__(self, resource: Resource, namespace: str, query: Query, accept: str) -> None:
        self._namespace = namespace
        self._match: Match | None = matcher(resource, query)
        self._encode = _encoder(resource, query, accept)

    def _seen(self, entry: Entry) -> bool:
        if self._namespace and entry.obj["metadata"].get("namespace") != self._namespace:
            return False
        return self._match is None or self._match(entry.obj)

    def initial(self, entries: Iterable[Entry]) -> list[bytes]:
        """ADDED for every object there is."""
        return [self._line(Change("ADDED", entry, None)) for entry in entries if self._seen(entry)]

    def changes(self, changes: Iterable[Change]) -> list[bytes]:
        if self._match is None and not self._namespace:
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
        return change.line if self._encode is None else self._encode(change.kind, change.entry)


def _too_old(version: int, horizon: int) -> bytes:
    return _event("ERROR", errors.expired(f"too old resource version: {version} ({horizon})").status())


async def watch(
    store: Store,
    request: web.BaseRequest,
    resource: Resource,
    namespace: str,
    query: Query,
    *,
    accept: str,
    bookmark_seconds: float,
) -> web.StreamResponse:
    """Serve one watch until its timeout, a closed connection or a dropped watcher. ApiError 400 for bad selectors."""
    lines = Lines(resource, namespace, query, accept)
    version = query.version()
    seconds = query.number("timeoutSeconds") or _DEFAULT_TIMEOUT_SECONDS
    shelf = store.shelf(resource)
    bookmarks = query.flag("allowWatchBookmarks")
    wants_initial = query.flag("sendInitialEvents") if query.text("sendInitialEvents") else not version
    watcher = shelf.watch()
    begun = store.version
    entries: list[tuple[Key, Entry]] = []
    missed: list[Change] | None = []
    if wants_initial:
        entries = shelf.ordered()
    elif version:
        missed = shelf.since(version) if version <= begun else None
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"})
    try:
        await response.prepare(request)
        await response.write(b"")  # sends the headers
        for at in range(0, len(entries), _BATCH):
            await response.write(b"".join(lines.initial(entry for _, entry in entries[at : at + _BATCH])))
        if bookmarks and query.flag("sendInitialEvents"):
            await response.write(_bookmark(resource, begun, _INITIAL_END))
        if missed is None:
            await response.write(_too_old(version or 0, max(shelf.horizon, 1)))
        else:
            await response.write(b"".join(lines.changes(missed)))
            every = bookmark_seconds if bookmarks else 0.0
            await _stream(store, resource, watcher, lines, response, timeout_seconds=seconds, bookmark_seconds=every)
        if watcher.aborted and request.transport is not None:
            request.transport.abort()
        else:
            await response.write_eof()
    except ConnectionError:
        pass
    finally:
        shelf.unwatch(watcher)
    return response


async def _stream(
    store: Store,
    resource: Resource,
    watcher: Watcher,
    lines: Lines,
    response: web.StreamResponse,
    *,
    timeout_seconds: float,
    bookmark_seconds: float,
) -> None:
    loop = asyncio.get_running_loop()
    ends = loop.time() + timeout_seconds
    due = loop.time() + bookmark_seconds if bookmark_seconds else ends
    timer = loop.call_at(min(due, ends), watcher.wake)
    try:
        while not watcher.closed:
            pending = watcher.take()
            if pending:
                found = lines.changes(pending)
                if found:
                    await response.write(b"".join(found))
                continue
            now = loop.time()
            if now >= ends:
                return
            if now >= due:
                await response.write(_bookmark(resource, store.version))
                due = now + bookmark_seconds
            if timer.when() <= now:
                timer = loop.call_at(min(due, ends), watcher.wake)
            if not watcher.pending:
                await watcher.wait()
    finally:
        timer.cancel()
