"""Who may be connected to a port of ours, and that nobody keeps others out."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from koordpy.observe import doors
from koordpy.observe.doors import Doors
from tests.engine.certificates import AUTHORITY, Maker

MOST = 4
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Guest = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Doors, int]]:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(text=f"{request.remote}")

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    own = Doors(tls, most=MOST)
    assert runner.server is not None
    port = await own.open(runner.server, "127.0.0.1", 0)
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
    monkeypatch.setattr(doors, "HANDSHAKE_SECONDS", 0.001 if not says else 60.0)
    async with listening(contexts(tmp_path)[0]) as (own, port):
        reader, writer = await guest(port, "127.0.0.1")
        writer.write(says)
        await reader.read()  # until it is closed
        writer.close()
        while len(own):  # noqa: ASYNC110 - the loop itself tells
            await asyncio.sleep(0)
