"""One reconciler for statuses: which objects are to be looked at, what each should say, and one way to write it.

Changes only mark an object. Once an interval everything marked is looked at, level by level as controllers do: `render`
says from what is known now how the status should be, and what differs from the API server's is patched. A write of ours
counts as what is there for as long as the watch may not have brought it; an object is looked at until it shows.
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
"""The objects of a kind."""
Said = TypeVar("Said")
"""What is compared of their statuses."""

TRUSTED_SECONDS = 10.0
"""How long a write of ours counts for more than what the watch says."""
RETRY_SECONDS = 5.0
"""A write that failed is tried again that much later, or with the next change of its object."""


class Reconciler(abc.ABC):
    """Objects by `namespace/name` that are to be looked at, gathered over `group_status_seconds`."""

    most_at_a_time = 4
    """Statuses that one writer sends at a time: Bindings are more urgent."""

    def __init__(self, context: Context) -> None:
        self.sent = 0
        self._context = context
        self._marked: dict[str, float] = {}
        """Object -> not before."""
        self.under_way: set[str] = set()
        """Those that are looked at now, or wait for their turn."""
        self._gate = Turnstile(self.most_at_a_time)

    def mark(self, key: str, due: float = 0.0) -> None:
        """Something changed that its status may follow from. due: not to be looked at before, on the clock."""
        self._marked[key] = due

    async def run(self) -> None:
        """Looks until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._pause()
                # what waits for thousands of one namespace holds up no other
                group.create_task(self.flush())

    async def _pause(self) -> None:
        await asyncio.sleep(self._context.settings.group_status_seconds)

    async def flush(self) -> None:
        """Looks at every object that is marked."""
        if not self._context.may_write():
            return
        for key in self._overdue():
            self.mark(key)
        now = self._context.clock()
        due = [key for key, at in self._marked.items() if at <= now and key not in self.under_way]
        for key in due:
            del self._marked[key]
        self.under_way.update(due)
        self._taken(due)

        line = ByTurns[str]()
        for key in due:
            line.add(_namespace(key), key)

        async def look_in_turn() -> None:
            while line:
                await self._look_once(line.next())

        try:
            # a task each would be megabytes where thousands wait
            await asyncio.gather(*(look_in_turn() for _ in range(min(len(due), self.most_at_a_time))))
        finally:
            while line:
                self.under_way.discard(line.next())

    async def _look_once(self, key: str) -> None:
        try:
            async with self._gate.turn(_namespace(key)):
                # asked before each: the lease may run out between two
                if not (self._context.may_write() and await self._look(key)):
                    self._marked.setdefault(key, 0.0)
        except Exception:
            # one object that cannot be told of holds up no other
            logger.exception("%s: its status was not written", key)
            self._marked.setdefault(key, self._context.clock() + RETRY_SECONDS)
        finally:
            self.under_way.discard(key)

    def _overdue(self) -> Iterable[str]:
        """Objects that are to be looked at though nothing marked them, as by time alone."""
        return ()

    def _taken(self, keys: Iterable[str]) -> None:
        """These are looked at now."""
        return

    def _forget(self, key: str) -> None:
        """The object is gone, or not ours to write."""
        return

    @abc.abstractmethod
    async def _look(self, key: str) -> bool:
        """Whether an object is as it should be, or was made so; else it is looked at again."""


def _namespace(key: str) -> str:
    return key.partition("/")[0]


class LastWrites(Generic[Said]):
    """What was written last of each object, by key and uid: the watch may not have brought it yet."""

    def __init__(self, clock: Callable[[], float], keep: float) -> None:
        """keep: seconds after which nobody asks for a write."""
        self._clock, self._keep = clock, keep
        self._known: OrderedDict[str, tuple[str, Said, float]] = OrderedDict()
        """The oldest first."""

    def note(self, key: str, uid: str, said: Said) -> None:
        """A write was accepted."""
        self._known[key] = uid, said, self._clock()
        self._known.move_to_end(key)
        self.forget_old()

    def last(self, key: str, uid: str) -> tuple[Said | None, float]:
        """What was written last, and how many seconds ago; None and endless where nothing was."""
        known = self._known.get(key)
        return (known[1], self._clock() - known[2]) if known is not None and known[0] == uid else (None, inf)

    def forget(self, key: str) -> None:
        """The object is gone."""
        self._known.pop(key, None)

    def forget_old(self) -> None:
        """Those that nobody asks for any more: a write may be answered when its object is gone."""
        while self._known and self._clock() - next(iter(self._known.values()))[2] > self._keep:
            self._known.popitem(last=False)


class StatusWriter(Reconciler, Generic[Seen, Said]):
    """Writes the statuses of one kind. What it says has to be pure in `render`; how it is sent, in `send`."""

    stands = False
    """Whether others may write over what is said, until something else is to be said."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        keep = inf if self.stands else max(TRUSTED_SECONDS, context.settings.wobble_hold_seconds)
        self._writes: LastWrites[Said] = LastWrites(context.clock, keep)
        self._unsure: set[str] = set()
        """Objects of which nobody knows what became of the last write."""

    async def _look(self, key: str) -> bool:
        found = self._find(key)
        if found is None:
            self._forget(key)
            return True
        obj, resource = found
        uid, seen, there = obj.metadata.uid, self._read(obj), self._there(key, obj)
        last, age = self._writes.last(key, uid)
        said = last if last is not None and self.stands else there
        wanted = self._render(key, obj if there is seen else self._with(obj, there), there)
        if wanted is None:
            return True
        if wanted == said and key not in self._unsure:
            # else not our last write, or undone by an earlier one that came late: looked at until the watch shows it
            return self.stands or seen == wanted
        if self._only_wobbles(said, wanted) and age < self._context.settings.wobble_hold_seconds:
            return False
        try:
            if not await self._send(obj, resource, wanted, there):
                return False  # gone, which the watch will tell; or others wrote it again and again
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

    def _there(self, key: str, obj: Seen) -> Said:
        """What its status says, as far as is known: the watch may not have brought our last write."""
        last, age = self._writes.last(key, obj.metadata.uid)
        return last if last is not None and age < TRUSTED_SECONDS else self._read(obj)

    def _forget(self, key: str) -> None:
        super()._forget(key)
        self._unsure.discard(key)
        self._writes.forget(key)

    @abc.abstractmethod
    def _find(self, key: str) -> tuple[Seen, Resource] | None:
        """The object as the watch has it; None where there is none, or it is not ours."""

    @abc.abstractmethod
    def _read(self, obj: Seen) -> Said:
        """What its status says."""

    def _with(self, obj: Seen, said: Said) -> Seen:
        """The object with what was said of it last."""
        return obj

    @abc.abstractmethod
    def _render(self, key: str, obj: Seen, there: Said) -> Said | None:
        """What its status should say; None where it stays as it is."""

    def _only_wobbles(self, said: Said, wanted: Said) -> bool:
        """Whether the two differ in nothing but counts, which may wait."""
        return False

    @abc.abstractmethod
    async def _send(self, obj: Seen, resource: Resource, wanted: Said, there: Said) -> bool:
        """Sends it; False where the object is gone. Raises as the client does."""

    def _written(self, key: str, said: Said, wanted: Said) -> None:
        """The API server has taken it."""
        return


Status = TypeVar("Status", bound=Wire)


class WholeStatusWriter(StatusWriter[Seen, Status]):
    """Of custom resources whose status is ours as a whole: what is said is the status itself."""

    def _read(self, obj: Seen) -> Status:
        status: Status = obj.status
        return status

    def _with(self, obj: Seen, said: Status) -> Seen:
        return msgspec.structs.replace(obj, status=said)

    async def _send(self, obj: Seen, resource: Resource, wanted: Status, there: Status) -> bool:
        return await patch_status(self._context.client, resource, obj.metadata, status_patch(wanted, there))
