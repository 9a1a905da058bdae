# SPDX-License-Identifier: Apache-2.0
"""Lists and watches one resource, as client-go's reflector, and recovers from all failures (kube-parity.md 4.1).

No library is used, for two reasons. After a 410 (expired version), kopf sends no DELETED event for objects that were
deleted: their GPUs would count as used for ever. And kopf and kubernetes_asyncio take 2 ms per pod event; one typed
decode takes 30 us.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Generic

import msgspec

from koordpy.api.counted_nouns import count_noun
from koordpy.decoding.wire_json import Undecodable, unreadable
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_replies import reached
from koordpy.engine.client.api_resources import Resource
from koordpy.engine.client.backoff import Backoff
from koordpy.engine.watching.backlog import Backlog
from koordpy.engine.watching.object_mirror import Mirror, Sink, T, uid_of
from koordpy.engine.watching.object_substitutes import restriction_of, substitute_for
from koordpy.engine.watching.reflector_policy import DEFAULT_POLICY, ReflectorPolicy
from koordpy.engine.watching.unreadable_objects import Unreadable, log_unreadable
from koordpy.engine.watching.watch_lines import OBJECT_EVENTS, Malformed, Names, names_in, raw_event, refusal, typed

logger = logging.getLogger(__name__)


class Reflector(Generic[T]):
    """Keeps `objects` (by uid) and the sink equal to the objects of the API server.

    `run()` works until it is cancelled. All failures (see `_after_failure`) are logged and handled.
    """

    def __init__(
        self,
        client: ApiClient,
        resource: Resource,
        kind: type[T],
        sink: Sink[T],
        *,
        transform: Callable[[T], T | None] | None = None,
        knows: Callable[[str], bool] | None = None,
        on_applied: Callable[[str, float], None] = lambda name, seconds: None,
        on_unreadable: Callable[[Unreadable], None] = lambda found: None,
        on_access: Callable[[bool, str], None] | None = None,
        policy: ReflectorPolicy = DEFAULT_POLICY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """sink, transform: see `Mirror`. knows: see `Backlog`.

        on_applied: called after each batch with the resource's name and the seconds from the arrival of the batch until
        its last event was applied (koordpy_watch_lag_seconds). on_unreadable: called for an object that cannot be read,
        once for each reason; its substitute is defined in `object_substitutes.py`. on_access: given for an optional
        resource; called with True if it may be listed, else with False and the reason. A forbidden list is tried again
        every ten minutes.
        """
        self.resource = resource
        self.mirror = Mirror(resource.name, sink, transform, self._refused)
        self.objects = self.mirror.objects
        self.synced = asyncio.Event()
        """Set after the first complete list, or if the resource is not served (404) and so has no objects."""
        self.served = True
        self.unreadable: dict[str, Unreadable] = {}
        """uid -> record of an object with a current state that cannot be read."""
        self.events = 0
        """Number of watch events since the start."""
        self._kind = kind
        self._client, self._on_applied, self._on_unreadable = client, on_applied, on_unreadable
        self._on_access, self._knows = on_access, knows
        self._policy, self._clock = policy, clock
        self._item, self._event = typed(kind)
        self._version: str | None = None
        self._slice_began = clock()
        self._backoff = Backoff(policy.first_backoff_seconds, policy.most_backoff_seconds)
        self._replies: dict[str, T] | None = None
        """uid -> object that `take_new` got from a reply since the current list began; None while no list runs."""
        self._stuck = 0  # consecutive malformed lines
        self.trouble = ""
        """Error of the last try; empty once the server replies again."""

    @property
    def resource_version(self) -> str:
        """The last version seen; empty before the first list."""
        return self._version or ""

    async def run(self) -> None:
        """Lists and watches until cancelled; starts again after each failure."""
        while True:
            try:
                if self._version is None:
                    self._version = await self._list()
                await self._watch(self._version)
                continue
            except (ApiError, Unreachable, Malformed) as error:
                pause = self._after_failure(error)
            except Exception:
                # after an unknown error a fresh list is better than to stop watching the cluster
                logger.exception("%s: the reflector failed; listing again", self.resource.name)
                self._version = None
                pause = self._backoff.next()
            await asyncio.sleep(pause)

    async def list_once(self) -> None:
        """Lists once without a watch. Raises as the client does; a resource that is not served has no objects."""
        try:
            self._version = await self._list()
        except ApiError as error:
            if error.status == 404:
                self._not_served()
                return
            if error.status == 403 and self._on_access is not None:
                self._on_access(False, str(error))
            raise

    def take_new(self, obj: T) -> None:
        """Passes an object from the reply to a write to the sink, unless the watch has already delivered it or its
        deletion. A later list without the object deletes it.
        """
        uid, version = uid_of(obj.metadata), obj.metadata.resource_version
        if uid not in self.objects and not reached(self.resource_version, version):
            self.mirror.put(uid, obj, None)
            if self._replies is not None:
                self._replies[uid] = obj

    # -- failures -----------------------------------------------------------------------------------------------------

    def _after_failure(self, error: ApiError | Unreachable | Malformed) -> float:
        """Handles a failure: decides whether to list or watch next, and returns the pause before that in seconds."""
        name = self.resource.name
        if isinstance(error, ApiError) and error.status == 410:
            self._version = None
            logger.info("%s: the version to watch from has expired; listing again", name)
            return self._backoff.next()
        if isinstance(error, ApiError) and error.status == 404:
            if self._version is None:
                self._not_served()
                return self._policy.unserved_recheck_seconds * random.uniform(0.9, 1.1)
            self._version = None
            return self._backoff.next()
        if isinstance(error, ApiError) and error.status == 403 and self._on_access is not None:
            self._forget()
            self._version = None
            self.synced.set()
            self._on_access(False, str(error))
            return self._policy.forbidden_recheck_seconds
        if isinstance(error, Malformed):
            self._stuck += 1
            if self._stuck >= 3:
                # the same malformed line again: a watch cannot get past it, so list again
                self._version, self._stuck = None, 0
        pause = self._backoff.next()
        if isinstance(error, ApiError) and error.retry_after is not None:
            pause = max(pause, min(error.retry_after, self._policy.most_backoff_seconds))
        self._complain(error, pause)
        return pause

    def _complain(self, error: Exception, pause: float) -> None:
        """Logs a failure: a new failure at once, a repeated one at its 2nd, 4th, 8th ... try. Failures that all
        reflectors have in common are logged by the client (`client/complaints.py`)."""
        name = self.resource.name
        text, before = str(error), self.trouble
        self.trouble = text
        if self._client.complained(error, "list and watch", name):
            return
        tries = self._backoff.tries
        level = logging.WARNING if text != before or tries & (tries - 1) == 0 else logging.DEBUG
        logger.log(level, "%s: %s; try %d in %.1f s", name, text, tries + 1, pause)

    def _reset_failures(self) -> None:
        if self._backoff.tries:
            self._backoff.reset()
        self.trouble = ""
        self._stuck = 0

    def _not_served(self) -> None:
        """Handles a resource that the server does not know (a missing CRD): no objects, and no error."""
        if self.served:
            # at the start `feeds.py` reports required resources that are missing
            level = logging.WARNING if self.synced.is_set() else logging.DEBUG
            logger.log(level, "%s: not served by the API server; checked again periodically", self.resource.name)
        self.served = False
        self._forget()
        self.synced.set()

    def _forget(self) -> None:
        for uid in list(self.objects):
            self.mirror.drop(uid)
        self.unreadable.clear()

    # -- lists --------------------------------------------------------------------------------------------------------

    async def _list(self) -> str:
        """Lists everything, and passes the differences to the sink. Returns the version to watch from."""
        replies: dict[str, T] = {}
        self._replies = replies
        expired = 0
        while True:
            try:
                # after two expired continue tokens the list is read as one page, which cannot expire
                fresh, odd, version = await self._fetch(self._policy.page_limit if expired < 2 else 0)
                break
            except ApiError as error:
                if error.status != 410:
                    raise
                expired += 1
                logger.info("%s: the list expired between two pages; listing again", self.resource.name)
                await asyncio.sleep(self._backoff.next())
        same = (uid for uid in self.unreadable if uid in fresh and fresh[uid] is self.objects.get(uid))
        self.unreadable = {uid: self.unreadable[uid] for uid in same} | odd
        self._replies = None
        # objects that are newer than the list
        newer = {uid: obj for uid, obj in replies.items() if not reached(version, obj.metadata.resource_version)}
        await self._apply({**newer, **fresh})
        self.trouble = ""
        if not self.synced.is_set() or not self.served:
            logger.info("%s: in sync, %s", self.resource.name, count_noun(len(self.objects), "object"))
            self.synced.set()
        self.served = True
        if self._on_access is not None:
            self._on_access(True, "")
        return version

    async def _fetch(self, limit: int) -> tuple[dict[str, T], dict[str, Unreadable], str]:
        """Lists all pages. Returns (uid -> object to store, uid -> unreadable object, version to watch from)."""
        fresh: dict[str, T] = {}
        odd: dict[str, Unreadable] = {}
        path, token, version = self.resource.path(), "", ""
        while True:
            # raw items, so that one bad object does not fail the page
            page = await self._client.list_page(path, type=msgspec.Raw, limit=limit, continue_token=token)
            self._slice_began = self._clock()
            # all pages should have the same version; if they differ, a watch from that of the first page misses nothing
            version = version or page.metadata.resource_version
            for raw in page.items or ():
                self._take(raw, fresh, odd)
                await self._yield_control()
            token = page.metadata.continue_
            if not token:
                return fresh, odd, version

    def _take(self, raw: msgspec.Raw, fresh: dict[str, T], odd: dict[str, Unreadable]) -> None:
        """Decodes an item of a list into `fresh`. Records an unreadable item in `odd`, its substitute in `fresh`."""
        try:
            obj = self._item(raw)
        except Undecodable as error:
            found = self._found(names_in(raw), str(error))
            uid = uid_of(found.names)
            odd[uid] = found
            counting: T | None = substitute_for(self._kind, error, self.objects.get(uid))
            if counting is None:
                return
            obj = counting
        uid = uid_of(obj.metadata)
        known = self.objects.get(uid)
        if known is not None and known.metadata.resource_version == obj.metadata.resource_version:
            fresh[uid] = known
        elif (kept := self.mirror.reduce(obj)) is not None:
            fresh[uid] = kept

    async def _apply(self, fresh: dict[str, T]) -> None:
        began = self._slice_began = self._clock()
        for _ in self.mirror.become(fresh):
            await self._yield_control()
        self._on_applied(self.resource.name, self._clock() - began)

    # -- watches ------------------------------------------------------------------------------------------------------

    async def _watch(self, version: str) -> None:
        """Watches from a version until the server ends the watch. Lines are read while earlier ones are handled."""
        seconds = round(self._policy.watch_seconds * random.uniform(1.0, 1.5))
        batches = self._client.watch(
            self.resource.path(),
            resource_version=version,
            timeout_seconds=seconds,
            stall_seconds=seconds + self._policy.stall_grace_seconds,
        )
        opened, backlog = self._clock(), Backlog(self._knows, clock=self._clock)
        reading = asyncio.create_task(backlog.read(batches))
        try:
            while await backlog.wait():
                await self._handle_next(backlog)
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if self._clock() - opened < 1.0:
            # an error leads to a pause: a server that ends every watch at once would otherwise cause a busy loop
            raise Unreachable(f"watch {self.resource.path()}: ended as soon as it was opened")
        self._reset_failures()

    async def _handle_next(self, backlog: Backlog) -> None:
        """Handles the lines of one batch, and lines of new pods that overtake others (`Backlog`)."""
        before = self.events
        self._slice_began = self._clock()
        while (taken := backlog.take()) is not None:
            line, ahead = taken
            version = self._version
            self._handle(line)
            if ahead:
                # a new watch must start after the last line that was handled in order
                self._version = version
            await self._yield_control()
        self._reset_failures()
        arrived = backlog.done()
        if self.events > before:
            self._on_applied(self.resource.name, self._clock() - arrived)

    def _handle(self, line: bytes) -> None:
        if line.startswith(OBJECT_EVENTS):
            try:
                event = self._event(line)
            except ValueError:
                pass
            else:
                self._changed(event.type, event.object)
                return
        self._handle_odd(line)

    def _changed(self, what: str, obj: T) -> None:
        """Handles the event of a decoded object. what: ADDED, MODIFIED or DELETED."""
        self.events += 1
        self._version = obj.metadata.resource_version
        uid = uid_of(obj.metadata)
        if what == "DELETED":
            self.unreadable.pop(uid, None)
            self.mirror.drop(uid)
            return
        wrong = self.unreadable.get(uid)
        known = self.objects.get(uid)
        if known is not None and known.metadata.resource_version == obj.metadata.resource_version:
            return
        kept = self.mirror.reduce(obj)
        if kept is None:
            self.mirror.drop(uid)
        else:
            self.mirror.put(uid, kept, known)
        if wrong is not None and self.unreadable.get(uid) is wrong and not unreadable(obj.metadata):
            del self.unreadable[uid]

    def _refused(self, obj: T, why: str) -> None:
        """Records an object that can be decoded, but that the sink refuses, for example because it exceeds a limit of
        `koordpy/api/reading_limits.py`."""
        meta = obj.metadata
        found = self._found(Names(meta.name, meta.namespace, meta.uid, meta.resource_version), why)
        self.unreadable[uid_of(found.names)] = found

    def _handle_odd(self, line: bytes) -> None:
        """Handles bookmarks, errors, and objects that the fast decoder (`watch_lines.py`) could not decode."""
        event = raw_event(line)
        if event.type == "BOOKMARK":
            self._version = names_in(event.object).resource_version or self._version
        elif event.type == "ERROR":
            raise refusal(event.object)
        elif event.type in ("ADDED", "MODIFIED", "DELETED"):
            try:
                obj: T | None = self._item(event.object)
            except Undecodable as error:
                obj = self._changed_unreadably(event.type, event.object, error)
            if obj is not None:
                self._changed(event.type, obj)
        else:
            logger.warning("%s: unknown event type %r ignored", self.resource.name, event.type)

    def _changed_unreadably(self, what: str, raw: msgspec.Raw, error: Undecodable[T]) -> T | None:
        """Records an object of an event that cannot be read. Returns its substitute; None if there is none.

        what: as for `_changed`.
        """
        names = names_in(raw)
        uid = uid_of(names)
        self._version = names.resource_version or self._version
        counting: T | None = None
        if what == "DELETED":
            self.unreadable.pop(uid, None)
        else:
            self.unreadable[uid] = self._found(names, str(error))
            counting = substitute_for(self._kind, error, self.objects.get(uid))
        if counting is None:
            self.mirror.drop(uid)
        return counting

    def _found(self, names: Names, why: str) -> Unreadable:
        found = Unreadable(self.resource, names, why, restriction_of(self._kind).meaning)
        before = self.unreadable.get(uid_of(names))
        if before is None or before.why != why:
            log_unreadable(found)
            self._on_unreadable(found)
        return found

    async def _yield_control(self) -> None:
        if self._clock() - self._slice_began >= self._policy.slice_seconds:
            await asyncio.sleep(0)
            self._slice_began = self._clock()
