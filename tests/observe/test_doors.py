# SPDX-License-Identifier: Apache-2.0
"""Who may be connected to a port of ours, and that nobody keeps others out."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from koordpy.observe import connection_limits
from koordpy.observe.connection_limits import ConnectionLimiter
from tests.engine.certificates import AUTHORITY, Maker

MOST = 4
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Guest = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(
    tls: ssl.SSLContext | None = None, host: str | None = "127.0.0.1"
) -> AsyncIterator[tuple[ConnectionLimiter, int]]:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(text=f"{request.remote}")

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    own = ConnectionLimiter(tls, most=MOST)
    assert runner.server is not None
    port = await own.open(runner.server, host, 0)
    try:
        yield own, port
    finally:
        own.close()
        await runner.cleanup()


async def guest(port: int, address: str, tls: ssl.SSLContext | None = None) -> Guest:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), ssl=tls)


async def asked(visitor: Guest) -> bytes:
    """The end of an answer; nothing where the connection was closed."""
    reader, writer = visitor
    writer.write(ASK)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        return await reader.readexactly(int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def test_of_more_than_may_be_the_oldest_of_who_has_most_is_closed() -> None:
    async with listening() as (_, port):
        kubelet = await guest(port, "127.0.0.2")
        others = [await guest(port, "127.0.0.1") for _ in range(MOST + 2)]
        late = await guest(port, "127.0.0.3")
        assert await asked(kubelet) == b"127.0.0.2"
        assert await asked(late) == b"127.0.0.3"
        assert [bool(await asked(one)) for one in others] == [False] * 4 + [True] * 2
        for _, writer in (kubelet, late, *others):
            writer.close()


async def test_who_goes_makes_room() -> None:
    async with listening() as (own, port):
        first = await guest(port, "127.0.0.1")
        assert await asked(first)
        for _ in range(3 * MOST):
            other = await guest(port, "127.0.0.1")
            assert await asked(other)
            other[1].close()
            while len(own) > 1:  # noqa: ASYNC110 - the loop itself tells
                await asyncio.sleep(0)
        assert await asked(first)
        first[1].close()


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's and a client's."""
    maker = Maker(folder)
    pair = maker.pair("server", "localhost", AUTHORITY)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.certificate, pair.key)
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return server, client


async def test_who_is_silent_before_the_handshake_counts_and_keeps_nobody_out(tmp_path: Path) -> None:
    server, client = contexts(tmp_path)
    async with listening(server) as (own, port):
        silent = [await guest(port, "127.0.0.1") for _ in range(MOST + 2)]
        honest = await guest(port, "127.0.0.2", client)
        assert await asked(honest) == b"127.0.0.2"
        assert len(own) == MOST
        for _, writer in (honest, *silent):
            writer.close()


@pytest.mark.parametrize("says", [b"", b"no handshake at all\r\n\r\n"])
async def test_a_handshake_that_does_not_come_is_not_waited_for(
    says: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HANDSHAKE_SECONDS", 0.001 if not says else 60.0)
    async with listening(contexts(tmp_path)[0]) as (own, port):
        reader, writer = await guest(port, "127.0.0.1")
        writer.write(says)
        await reader.read()  # until it is closed
        writer.close()
        while len(own):  # noqa: ASYNC110 - the loop itself tells
            await asyncio.sleep(0)


class SplitHandshake:
    """A TLS client over a plain socket that decides when each part of its ClientHello is sent."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._into, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._into, self._out, server_hostname="localhost")
        self._socket = socket.create_connection(("127.0.0.1", port))
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._hello = self._out.read()

    def send_first(self, size: int) -> None:
        """Send the first bytes without a turn of the event loop, so before the server accepts the connection."""
        self._socket.sendall(self._hello[:size])
        self._hello = self._hello[size:]
        self._socket.setblocking(False)

    async def ask(self) -> bytes:
        """Send the rest of the ClientHello, finish the handshake, and return the answer to one request."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, self._hello)
        await self._pump(self._tls.do_handshake)
        self._tls.write(ASK)
        answer = b""
        while not answer.endswith(b"127.0.0.1"):
            answer += await self._pump(lambda: self._tls.read(65536))
        self._socket.close()
        return answer

    async def _pump(self, step: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                done = None
            if self._out.pending:
                await loop.sock_sendall(self._socket, self._out.read())
            if done is not None or (step == self._tls.do_handshake and self._tls.version() is not None):
                return done
            got = await loop.sock_recv(self._socket, 65536)
            assert got, "the server has closed the connection"
            self._into.write(got)


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("size", [0, 1, 200])
async def test_a_handshake_in_two_packets_is_answered(size: int, turns: int, tmp_path: Path) -> None:
    """A ClientHello larger than a packet may be read in part before the connection is accepted."""
    server, client = contexts(tmp_path)
    async with listening(server) as (own, port):
        visitor = SplitHandshake(port, client)
        visitor.send_first(size)
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(30.0):
            assert (await visitor.ask()).startswith(b"HTTP/1.1 200 OK")
            while len(own):  # noqa: ASYNC110 - the loop itself tells
                await asyncio.sleep(0)


@pytest.mark.parametrize("host", [None, "localhost", "127.0.0.1"])
async def test_listens_on_each_address_of_a_host(host: str | None) -> None:
    async with listening(host=host) as (_, port):
        visitor = await guest(port, "127.0.0.1")
        assert await asked(visitor) == b"127.0.0.1"
        visitor[1].close()


async def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError):
        async with listening(host="192.0.2.1"):
            pass


async def test_no_connection_is_accepted_after_close() -> None:
    async with listening() as (own, port):
        first = await guest(port, "127.0.0.1")
        assert await asked(first)
        own.close()
        await asyncio.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            await guest(port, "127.0.0.1")
        assert await asked(first) == b"127.0.0.1"
        first[1].close()
