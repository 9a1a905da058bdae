"""Who may be connected to a port of ours: so many at most, and where there are more, who holds most gives way.

A probe of the kubelet and a review of the API server come in however many connections somebody else holds open. A
connection counts from its first packet on: before the TLS handshake it takes as much memory as after it.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from aiohttp import web

MOST = 512
"""Open connections; of the address that holds most of more, the oldest is closed."""
HANDSHAKE_SECONDS = 10.0
BACKLOG = 128


class Doors:
    """Listens for one server. Owned by the event loop."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, most: int = MOST) -> None:
        self.tls, self._most, self._count = tls, most, 0
        self._guests: dict[str, dict[_Guest, asyncio.Transport]] = {}
        """Address -> its connections, the oldest first."""
        self._listening: asyncio.Server | None = None

    def __len__(self) -> int:
        return self._count

    async def open(self, server: web.Server, host: str | None, port: int) -> int:
        """Listens; the port. Raises OSError where the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: _Guest(self, server), host, port, backlog=BACKLOG)
        return int(self._listening.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Lets nobody in any more; those who are connected stay."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def enter(self, guest: "_Guest", transport: asyncio.Transport) -> None:
        """A connection was made."""
        self._guests.setdefault(guest.address, {})[guest] = transport
        self._count += 1
        if self._count > self._most:
            most = max(self._guests.values(), key=len)
            oldest = next(iter(most))
            transport = most[oldest]
            self.leave(oldest)
            transport.abort()

    def leave(self, guest: "_Guest") -> None:
        """A connection was lost, or is about to be."""
        own = self._guests.get(guest.address, {})
        if own.pop(guest, None) is not None:
            self._count -= 1
            if not own:
                del self._guests[guest.address]


class _Guest(asyncio.Protocol):
    """One connection, which hands everything on to the server once it may."""

    def __init__(self, doors: Doors, server: Callable[[], asyncio.Protocol]) -> None:
        self.address = ""
        self._doors, self._greeting = doors, cast(asyncio.Task[None] | None, None)
        self._greeted = False
        self._inner = inner = server()
        self.data_received, self.eof_received = inner.data_received, inner.eof_received  # type: ignore[method-assign]
        self.pause_writing, self.resume_writing = inner.pause_writing, inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        self.address = str((plain.get_extra_info("peername") or ("",))[0])
        self._doors.enter(self, plain)
        if self._doors.tls is None:
            self._greeted = True
            self._inner.connection_made(plain)
        else:
            plain.pause_reading()
            self._greeting = asyncio.create_task(self._greet(plain, self._doors.tls))

    async def _greet(self, plain: asyncio.Transport, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            secret = await loop.start_tls(plain, self, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS)
        except (OSError, TimeoutError):
            secret = None
        if secret is None:
            self._doors.leave(self)
            plain.abort()
        else:
            self._greeted = True
            self._inner.connection_made(secret)

    def connection_lost(self, exc: Exception | None) -> None:
        self._doors.leave(self)
        if self._greeted:
            self._inner.connection_lost(exc)
