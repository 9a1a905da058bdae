# SPDX-License-Identifier: Apache-2.0
"""Limits the number of open connections of a server, fairly between client addresses.

Probes of the kubelet and requests of the API server must be answered even if another client has many open connections.
If there are more than `MOST` connections, the oldest connection of the address with the most connections is closed. A
connection is counted when it is accepted, before its TLS handshake, because a silent client costs as much memory as a
served client.

`sock_accept` accepts each connection; then it is counted, and passed to the event loop together with the TLS context.
So the loop does the handshake from the first byte on. (`start_tls` on an open transport loses bytes on uvloop, where
`pause_reading` in `connection_made` takes effect too late.)
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import cast

from aiohttp import web

logger = logging.getLogger(__name__)

MOST = 512
"""Maximum number of open connections of one server."""
HANDSHAKE_SECONDS = 10.0
BACKLOG = 128
PAUSE_SECONDS = 0.5
"""Pause in seconds after a failed attempt to accept a connection, for example without free file descriptors."""
NOT_ON_THIS_HOST = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ConnectionLimiter:
    """Accepts and counts the connections of one server. Must only be used on the event loop."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, most: int = MOST) -> None:
        self.tls, self._most, self._count = tls, most, 0
        self._connections: dict[str, dict[_Connection, None]] = {}
        """Address -> its connections, the oldest first."""
        self._accepting: list[asyncio.Task[None]] = []
        self._runner: web.AppRunner | None = None

    def __len__(self) -> int:
        return self._count

    async def serve(
        self, app: web.Application, host: str | None, port: int, *, shutdown_timeout: float, keepalive_timeout: float
    ) -> int:
        """Serves an application on a host (None: all addresses) and returns the port, until `stop`.

        shutdown_timeout: seconds that open requests have at the end. keepalive_timeout: seconds that a connection stays
        open without a request. Raises OSError if the address is unusable.
        """
        runner = self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=shutdown_timeout, keepalive_timeout=keepalive_timeout
        )
        await runner.setup()
        assert runner.server is not None
        return await self.open(runner.server, host, port)

    async def stop(self) -> None:
        """Closes the port, answers open requests, and closes the connections."""
        self.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def open(self, server: web.Server, host: str | None, port: int) -> int:
        """Listens on a host (None: all addresses) and returns the port. Raises OSError if the address is unusable."""
        listeners = await _listeners(host, port)
        self._accepting = [asyncio.create_task(self._accept(one, server)) for one in listeners]
        return int(listeners[0].getsockname()[1])

    def close(self) -> None:
        """Stops accepting connections. Open connections stay open."""
        for task in self._accepting:
            task.cancel()
        self._accepting.clear()

    async def _accept(self, listener: socket.socket, server: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, peer = await loop.sock_accept(listener)
                except OSError as fault:
                    logger.warning("a connection could not be accepted: %s", fault)
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                one = _Connection(self, server(), str(peer[0]))
                self._add(one)
                one.start(connection)

    def _add(self, one: "_Connection") -> None:
        self._connections.setdefault(one.address, {})[one] = None
        self._count += 1
        if self._count > self._most:
            most = max(self._connections.values(), key=len)
            oldest = next(iter(most))
            self.remove(oldest)
            oldest.close()

    def remove(self, one: "_Connection") -> None:
        """Stops counting a connection that is closed, or is about to be closed."""
        own = self._connections.get(one.address, {})
        if one in own:
            del own[one]
            self._count -= 1
            if not own:
                del self._connections[one.address]


class _Connection(asyncio.Protocol):
    """One connection. The server's protocol receives everything that follows the handshake."""

    def __init__(self, limiter: ConnectionLimiter, server: asyncio.Protocol, address: str) -> None:
        self.address, self._limiter, self._server = address, limiter, server
        self._transport: asyncio.Transport | None = None
        """None until the handshake is done."""
        self._handshake: asyncio.Task[None] | None = None
        self.data_received, self.eof_received = server.data_received, server.eof_received  # type: ignore[method-assign]
        self.pause_writing, self.resume_writing = server.pause_writing, server.resume_writing  # type: ignore[method-assign]

    def start(self, connection: socket.socket) -> None:
        """Starts the handshake. Without TLS it starts the server's protocol at once."""
        self._handshake = asyncio.create_task(self._shake_hands(connection))

    async def _shake_hands(self, connection: socket.socket) -> None:
        loop, tls = asyncio.get_running_loop(), self._limiter.tls
        patience = None if tls is None else HANDSHAKE_SECONDS
        try:
            with contextlib.suppress(OSError, TimeoutError):  # the client disconnected, or the handshake failed
                await loop.connect_accepted_socket(lambda: self, connection, ssl=tls, ssl_handshake_timeout=patience)
        finally:
            if self._transport is None:
                self._limiter.remove(self)
                connection.close()

    def close(self) -> None:
        """Closes the connection at once, even during its handshake."""
        if self._transport is not None:
            self._transport.abort()
        elif self._handshake is not None:
            self._handshake.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass of it
        self._server.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limiter.remove(self)
        if self._transport is not None:
            self._server.connection_lost(exc)


async def _listeners(host: str | None, port: int) -> list[socket.socket]:
    """Returns one listening socket per address of the host, without address families that this machine lacks."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
        try:
            listener = socket.create_server((address[0], port, *address[2:]), family=family, backlog=BACKLOG)
        except OSError as fault:
            missing = fault
            if fault.errno in NOT_ON_THIS_HOST:
                continue
            for one in listeners:
                one.close()
            raise
        listener.setblocking(False)
        listeners.append(listener)
        port = int(listener.getsockname()[1])
    if not listeners:
        raise missing or OSError(f"{host}: no address")
    return listeners
