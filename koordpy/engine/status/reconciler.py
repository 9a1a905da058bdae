# SPDX-License-Identifier: Apache-2.0
"""Base classes of the writers of status: a level-triggered reconciler, as in Kubernetes controllers.

A change only marks an object. Once per interval, `_render` computes the wanted status of each marked object from the
cache, and the status is patched if it differs from that on the API server. So any number of changes within an interval
causes one write, and a lost write is repeated. Until the watch shows the last write of this process, that write counts
as the current status, and the object stays marked.

`Reconciler` marks and processes objects. `StatusWriter` adds the comparison and the write. `WholeStatusWriter` writes
custom resources whole, because this process alone owns their status.
"""

import abc
import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Generic, TypeVar

import msgspec

from koordpy.api.objects import Wire
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_resources import Resource
from koordpy.engine.engine_context import Context
from koordpy.engine.planning_turns import ByTurns, Turnstile
from koordpy.engine.status.status_patches import patch_status, status_patch

logger = logging.getLogger(__name__)

Seen = TypeVar("Seen", bound=Any)
"""Type of the objects of a kind."""
Said = TypeVar("Said")
"""Type of the part of a status that a writer compares and writes. This module calls that part "the status"."""

TRUSTED_SECONDS = 10.0
"""Seconds for which the last write of this process takes precedence over the watch."""
RETRY_SECONDS = 5.0
"""Seconds until a failed write is tried again, unless its object changes earlier."""


class Reconciler(abc.ABC):
    """Processes marked objects, by `namespace/name`, once per `group_status_seconds`."""

    most_at_a_time = 4
    """Maximum number of parallel status writes of one writer: Bindings are more urgent."""

    def __init__(self, context: Context) -> None:
        self.sent = 0
        """Number of writes that the API server accepted."""
        self._context = context
        self._marked: dict[str, float] = {}
        """Key of a marked object -> clock time before which it is not processed."""
        self.under_way: set[str] = set()
        """Keys of objects that the current flush processes, or will process."""
        self._gate = Turnstile(self.most_at_a_time)

    def mark(self, key: str, due: float = 0.0) -> None:
        """Marks an object after a change that may affect its status. due: earliest clock time to process it."""
        self._marked[key] = due

    async def run(self) -> None:
        """Processes marked objects until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._pause()
                # a task per flush, so that a namespace with thousands of objects does not delay others
                group.create_task(self.flush())

    async def _pause(self) -> None:
        await asyncio.sleep(self._context.settings.group_status_seconds)

    async def flush(self) -> None:
        """Processes every object that is marked and due."""
        if not self._context.may_write():
            return
        for key in self._overdue():
            self.mark(key)
        now = self._context.clock()
        due = [key for key, at in self._marked.items() if at <= now and key not in self.under_way]
        for key in due:
            del self._marked[key]
        self.under_way.update(due)
        self._begins(due)

        line = ByTurns[str]()
        for key in due:
            line.add(_namespace(key), key)

        async def look_in_turn() -> None:
            # processes one object after the other; several of these run in parallel
            while line:
                await self._look_once(line.next())

        try:
            # one task per object would need megabytes for thousands of objects
            await asyncio.gather(*(look_in_turn() for _ in range(min(len(due), self.most_at_a_time))))
        finally:
            while line:
                self.under_way.discard(line.next())

    async def _look_once(self, key: str) -> None:
        """Processes one object. Marks it again if it must be processed again, or if this process may not write now."""
        try:
            async with self._gate.turn(_namespace(key)):
                # checked before each write, because the lease may expire between two writes
                if not (self._context.may_write() and await self._look(key)):
                    self._marked.setdefault(key, 0.0)
        except Exception:
            # an error of one object must not delay the others
            logger.exception("%s: its status was not written", key)
            self._marked.setdefault(key, self._context.clock() + RETRY_SECONDS)
        finally:
            self.under_way.discard(key)

    def _overdue(self) -> Iterable[str]:
        """Returns objects that must be processed although they are not marked, for example because a time limit has
        passed."""
        return ()

    def _begins(self, keys: Iterable[str]) -> None:
        """Called with the objects that are processed now."""
        return

    def _forget(self, key: str) -> None:
        """Called for an object that was deleted or that this writer does not write."""
        return

    @abc.abstractmethod
    async def _look(self, key: str) -> bool:
        """Updates one object. Returns False if it must be processed again."""


def _namespace(key: str) -> str:
    return key.partition("/")[0]


class LastWrites(Generic[Said]):
    """The last write of each object, by key and uid, until the watch shows it."""

    def __init__(self, clock: Callable[[], float], keep: float) -> None:
        """keep: seconds after which a write is forgotten."""
        self._clock, self._keep = clock, keep
        self._known: OrderedDict[str, tuple[str, Said, float]] = OrderedDict()
        """Key -> (uid, status, clock time of the write); the oldest first."""

    def note(self, key: str, uid: str, said: Said) -> None:
        """Records a write that the API server accepted."""
        self._known[key] = uid, said, self._clock()
        self._known.move_to_end(key)
        self.forget_old()

    def last(self, key: str, uid: str) -> tuple[Said | None, float]:
        """Returns the last write and its age in seconds; None and infinity if there is none."""
        known = self._known.get(key)
        return (known[1], self._clock() - known[2]) if known is not None and known[0] == uid else (None, inf)

    def forget(self, key: str) -> None:
        """Forgets the last write of a deleted object."""
        self._known.pop(key, None)

    def forget_old(self) -> None:
        """Forgets writes that are older than `keep`. A reply may arrive after its object was deleted, so `forget` is
        not enough."""
        while self._known and self._clock() - next(iter(self._known.values()))[2] > self._keep:
            self._known.popitem(last=False)


class StatusWriter(Reconciler, Generic[Seen, Said]):
    """Writes the statuses of one kind. `_render` must be a pure function of the state; `_send` writes."""

    keeps_foreign_changes = False
    """False: a status that another writer has changed is written again. True: such a change remains until this writer
    wants another status than in its last write."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        keep = inf if self.keeps_foreign_changes else max(TRUSTED_SECONDS, context.settings.wobble_hold_seconds)
        self._writes: LastWrites[Said] = LastWrites(context.clock, keep)
        """The last write of each object. With `keeps_foreign_changes` it is remembered without a time limit."""
        self._unsure: set[str] = set()
        """Keys of objects with a last write of unknown outcome: their status is written even if it does not
        differ."""

    async def _look(self, key: str) -> bool:
        """Writes the status of one object if it differs. Returns False if the object must be processed again."""
        found = self._find(key)
        if found is None:
            self._forget(key)
            return True
        # seen: status by the watch. there: current status, with our last write. said: status to compare `wanted` with.
        obj, resource = found
        uid, seen, there = obj.metadata.uid, self._read(obj), self._current(key, obj)
        last, age = self._writes.last(key, uid)
        said = last if last is not None and self.keeps_foreign_changes else there
        rendered = self._render(key, obj if there is seen else self._with_status(obj, there), there)
        if rendered is None:
            return True
        wanted = self._storable(rendered, self._context.absent(resource))
        if wanted == said and key not in self._unsure:
            # the watch does not show our write yet, or shows an earlier write that arrived late: process it again
            return self.keeps_foreign_changes or seen == wanted
        wobbles = wanted != said and self._differ_in_numbers_only(said, wanted)
        if wobbles and age < self._context.settings.wobble_hold_seconds:
            return False
        try:
            # after a write of unknown outcome every field may differ, so all are written
            if not await self._send(obj, resource, wanted, None if key in self._unsure else there):
                return False  # the object is deleted, which the watch will show, or other writers keep changing it
        except (ApiError, Unreachable) as error:
            if not self._context.client.complained(error, "patch", f"{resource.name}/status"):
                logger.warning("%s %s: its status was not written: %s", resource.kind, key, error)
            self._unsure.add(key)
            self._marked.setdefault(key, self._context.clock() + RETRY_SECONDS)
            return True
        self.sent += 1
        self._unsure.discard(key)
        self._writes.note(key, uid, wanted)
        self._written(key, said, wanted)
        return True

    def _current(self, key: str, obj: Seen) -> Said:
        """Returns the current status: this writer's last write while it is recent, else the status by the watch.

        A write of unknown outcome may have replaced the last write, so the watch is read then.
        """
        last, age = self._writes.last(key, obj.metadata.uid)
        is_trusted = age < TRUSTED_SECONDS and key not in self._unsure
        return last if last is not None and is_trusted else self._read(obj)

    def _forget(self, key: str) -> None:
        super()._forget(key)
        self._unsure.discard(key)
        self._writes.forget(key)

    @abc.abstractmethod
    def _find(self, key: str) -> tuple[Seen, Resource] | None:
        """Returns the object as the watch shows it; None if it does not exist or is not written by this writer."""

    @abc.abstractmethod
    def _read(self, obj: Seen) -> Said:
        """Returns the compared part of an object's status."""

    def _with_status(self, obj: Seen, said: Said) -> Seen:
        """Returns the object with the status that was written last."""
        return obj

    @abc.abstractmethod
    def _render(self, key: str, obj: Seen, there: Said) -> Said | None:
        """Returns the wanted status; None if the status stays as it is. there: the current status."""

    def _storable(self, wanted: Said, absent: frozenset[str]) -> Said:
        """Returns the status without the fields that the API server drops. absent: these fields as they are written."""
        return wanted

    def _differ_in_numbers_only(self, said: Said, wanted: Said) -> bool:
        """Returns True if two statuses differ only in numbers within messages, so that the write may be delayed."""
        return False

    @abc.abstractmethod
    async def _send(self, obj: Seen, resource: Resource, wanted: Said, there: Said | None) -> bool:
        """Writes the status. Returns False if the object does not exist any more. Raises as the client does.

        there: the current status; None if it is not known, so that each field must be written.
        """

    def _written(self, key: str, said: Said, wanted: Said) -> None:
        """Called after the API server has accepted a write. said: the status before."""
        return


Status = TypeVar("Status", bound=Wire)


class WholeStatusWriter(StatusWriter[Seen, Status]):
    """Writer for custom resources that compares the whole status; by default this process owns all of it."""

    def _read(self, obj: Seen) -> Status:
        status: Status = obj.status
        return status

    def _with_status(self, obj: Seen, said: Status) -> Seen:
        return msgspec.structs.replace(obj, status=said)

    def _storable(self, wanted: Status, absent: frozenset[str]) -> Status:
        if not absent:
            return wanted
        empty = {one.name: one.default for one in msgspec.structs.fields(wanted) if one.encode_name in absent}
        return msgspec.structs.replace(wanted, **empty)

    async def _send(self, obj: Seen, resource: Resource, wanted: Status, there: Status | None) -> bool:
        return await patch_status(self._context.client, resource, obj.metadata, status_patch(wanted, there))
