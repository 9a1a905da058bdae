# SPDX-License-Identifier: Apache-2.0
"""Queues the lines of a watch between reading and handling, so that one tenant's updates do not delay new pods.

A watch delivers the events of all namespaces in one order. Large and frequent updates of one tenant would delay the new
pods of all other tenants. Therefore the watch is read while earlier lines are handled, and the lines of new pending
pods overtake all other lines; their namespaces are served in turn. This is safe, because a pending pod neither uses nor
frees capacity, and because no earlier line is about the same pod.
"""

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable

from koordpy.engine.planning_turns import ByTurns

MOST_BYTES = 16 << 20
"""Size of the backlog in bytes above which the watch is not read further."""
_NAMES = re.compile(
    rb'\{"type":"(ADDED|MODIFIED|DELETED)","object":\{[^{}]{0,80}"metadata":'
    rb'\{"name":"([^"]{1,253})",(?:"generateName":"[^"]{0,253}",)?"namespace":"([^"]{1,63})"'
)
"""Beginning of an event line as API servers write it. A line with another beginning never overtakes."""


class Backlog:
    """The lines of one watch that wait to be handled. Owned by the event loop."""

    def __init__(
        self, knows: Callable[[str], bool] | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """knows: returns True if an object with this `namespace/name` is in the cache, so that its lines stay in order.
        None: all lines stay in order, as for all resources except pods."""
        self._knows, self._clock = knows, clock
        self._batches: deque[tuple[float, deque[tuple[str, bytes]]]] = deque()
        """Batches in order: clock time of arrival, and lines, each with the `namespace/name` of its object."""
        self._turns: ByTurns[tuple[str, bytes]] = ByTurns()
        """Lines that overtake others."""
        self._new: set[str] = set()
        """`namespace/name` of the pods with lines that overtake others."""
        self._due = 0
        """Number of overtaking lines to handle before the next line in order. After one overtaking line of each
        namespace, one line in order is handled: a tenant that keeps creating pods does not delay other updates."""
        self._waiting: dict[str, int] = {}
        """`namespace/name` -> number of waiting lines about it."""
        # bytes of all waiting lines; events: a batch has arrived or the watch has ended, and the reader may continue;
        # a flag that is True after the end of the watch
        self._bytes = 0
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._ended = False

    async def read(self, batches: AsyncGenerator[list[bytes], None]) -> None:
        """Reads lines until the watch ends. Raises the watch's errors."""
        try:
            async with contextlib.aclosing(batches):
                async for lines in batches:
                    self.put(lines)
                    while self._bytes > MOST_BYTES:
                        self._room.clear()
                        await self._room.wait()
        finally:
            self._ended = True
            self._changed.set()

    def put(self, lines: list[bytes]) -> None:
        """Adds a batch of lines."""
        batch: deque[tuple[str, bytes]] = deque()
        for line in filter(None, lines):
            self._bytes += len(line)
            key, is_new = self._about(line)
            self._waiting[key] = self._waiting.get(key, 0) + 1
            if is_new:
                self._new.add(key)
                self._turns.add(key.partition("/")[0], (key, line))
            else:
                batch.append((key, line))
        self._batches.append((self._clock(), batch))
        self._changed.set()

    async def wait(self) -> bool:
        """Waits for lines. Returns False if the watch has ended and no line is left."""
        while not self._batches and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        return bool(self._batches)

    def take(self) -> tuple[bytes, bool] | None:
        """Returns the next line, and True if it overtakes others; None if the current batch is finished."""
        # An overtaking line is next if it is its turn, if the batch is empty, or if the next line in order is of an
        # unknown object or of a new pod that still waits to overtake: that pod's first line must come before it.
        batch = self._batches[0][1]
        if self._turns.lines and (self._due or not batch or not batch[0][0] or batch[0][0] in self._new):
            self._due = max(0, self._due - 1)
            key, line = self._turns.next()
            self._new.remove(key)
            return self._remove_line(key, line), True
        self._due = len(self._turns.lines)
        return (self._remove_line(*batch.popleft()), False) if batch else None

    def done(self) -> float:
        """Removes the finished batch. Returns the clock time of its arrival."""
        return self._batches.popleft()[0]

    def _remove_line(self, key: str, line: bytes) -> bytes:
        """Takes a line out of all counts, and returns it."""
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]
        self._bytes -= len(line)
        if self._bytes <= MOST_BYTES:
            self._room.set()
        return line

    def _about(self, line: bytes) -> tuple[str, bool]:
        """Returns the `namespace/name` of a line (empty if unknown), and True for a new pending pod."""
        if self._knows is None or (found := _NAMES.match(line)) is None:
            return "", False
        key = f"{found[3].decode()}/{found[2].decode()}"
        waits = found[1] == b"ADDED" and b'"nodeName"' not in line
        # the lines of a pod that was created again under its name must follow the deletion of the old pod
        return key, waits and key not in self._waiting and not self._knows(key)
