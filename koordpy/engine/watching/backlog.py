"""Lines of a watch that were read and not handled yet: pods that are new go ahead, namespaces by turns.

A watch tells of all namespaces in one order. What one tenant writes, large and often, would hold up every pod that
others make meanwhile for as long as it takes to read; so the watch is read on while its lines are handled, and those of
new pods are looked for. A pod that waits takes no room and frees none: nothing that was told before it speaks of it.
"""

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable

from koordpy.engine.planning_turns import ByTurns

MOST_BYTES = 16 << 20
"""Nothing more is read of the watch while so much waits."""
_NAMES = re.compile(
    rb'\{"type":"(ADDED|MODIFIED|DELETED)","object":\{[^{}]{0,80}"metadata":'
    rb'\{"name":"([^"]{1,253})",(?:"generateName":"[^"]{0,253}",)?"namespace":"([^"]{1,63})"'
)
"""As an API server begins a line; what begins otherwise keeps its place behind all that came before it."""


class Backlog:
    """Lines in the order in which they are to be handled."""

    def __init__(
        self, knows: Callable[[str], bool] | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """knows: whether there is an object of this `namespace/name`, which may have to go first; without it all lines
        stay in their order."""
        self._knows, self._clock = knows, clock
        self._batches: deque[tuple[float, deque[tuple[str, bytes]]]] = deque()
        """Since when those are there that came together, each with the `namespace/name` that it is about."""
        self._turns: ByTurns[tuple[str, bytes]] = ByTurns()
        """Those that go ahead."""
        self._new: set[str] = set()
        """What these are about."""
        self._due = 0
        """Lines that go ahead of the next one in order: each namespace has a turn, and then the order has one, so that
        who goes on making pods holds up no news of others."""
        self._waiting: dict[str, int] = {}
        """What lines are about, those in order too -> how many wait."""
        self._bytes = 0
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._ended = False

    async def read(self, batches: AsyncGenerator[list[bytes], None]) -> None:
        """Takes lines in until the watch ends; raises what it does."""
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
        """Takes in lines that came together."""
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
        """Waits for lines; False where the watch has ended and none is left."""
        while not self._batches and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        return bool(self._batches)

    def take(self) -> tuple[bytes, bool] | None:
        """The next line, and whether it goes ahead of others; None where those that came together are done."""
        batch = self._batches[0][1]
        if self._turns.lines and (self._due or not batch or not batch[0][0] or batch[0][0] in self._new):
            self._due = max(0, self._due - 1)
            key, line = self._turns.next()
            self._new.remove(key)
            return self._taken(key, line), True
        self._due = len(self._turns.lines)
        return (self._taken(*batch.popleft()), False) if batch else None

    def done(self) -> float:
        """Ends those that came together and are done; since when they were there."""
        return self._batches.popleft()[0]

    def _taken(self, key: str, line: bytes) -> bytes:
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]
        self._bytes -= len(line)
        if self._bytes <= MOST_BYTES:
            self._room.set()
        return line

    def _about(self, line: bytes) -> tuple[str, bool]:
        """The `namespace/name` that a line is about, empty where it does not say, and whether that is new and waits."""
        if self._knows is None or (found := _NAMES.match(line)) is None:
            return "", False
        key = f"{found[3].decode()}/{found[2].decode()}"
        waits = found[1] == b"ADDED" and b'"nodeName"' not in line
        # what is made anew under its name comes after the end of the other
        return key, waits and key not in self._waiting and not self._knows(key)
