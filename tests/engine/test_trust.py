# SPDX-License-Identifier: Apache-2.0
"""Whom koordpy takes for the API server: what clients in Go take, whichever Python runs; a refusal says which it is.

Python 3.13 judges certificates more strictly by default; its defaults are set here, so that every Python has them.
"""

import asyncio
import logging
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import Untrusted
from koordpy.engine.client.credentials import ClusterAccess, load_access
from koordpy.engine.engine_settings import EngineSettings
from koordpy.engine.scheduler import Scheduler
from koordpy.plan.round_plan import RoundPlan
from tests.engine.certificates import AUTHORITY, BARE, FUTURE, ISSUER, KEY_USAGE, PAST, Maker, Pair
from tests.engine.scripted import until
from tests.engine.tuning import QUICK_LEASE, tuned
from tests.loudly import skip_loudly

HERE, ELSEWHERE = "subjectAltName=IP:127.0.0.1\n", "subjectAltName=DNS:other.example\n"
NOBODY = RoundPlan((), (), (), (), ())
STRICT = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Authorities and servers by name."""
    if shutil.which("openssl") is None:
        skip_loudly(request, "tests of certificates", "the command openssl is not on PATH")
    make = Maker(tmp_path_factory.mktemp("certificates")).pair
    root = make("root", "root", AUTHORITY + KEY_USAGE)
    plain = make("plain", "plain", AUTHORITY + BARE)
    over = make("over", "over", AUTHORITY + KEY_USAGE, valid=PAST)
    middle = make("middle", "middle", AUTHORITY + KEY_USAGE + ISSUER, by=root)
    return {
        "root": root,
        "plain": plain,
        "over": over,
        "middle": middle,
        "namesake": make("namesake", "root", AUTHORITY + KEY_USAGE),
        "modern": make("modern", "api", HERE + ISSUER, by=root),
        "no identifiers": make("bare", "api", HERE + BARE, by=root),
        "of plain": make("of-plain", "api", HERE, by=plain),
        "of middle": make("of-middle", "api", HERE + ISSUER, by=middle),
        "of over": make("of-over", "api", HERE + ISSUER, by=over),
        "expired": make("expired", "api", HERE + ISSUER, by=root, valid=PAST),
        "early": make("early", "api", HERE + ISSUER, by=root, valid=FUTURE),
        "elsewhere": make("elsewhere", "api", ELSEWHERE + ISSUER, by=root),
        "self-signed": make("self-signed", "api", HERE),
    }


@pytest.fixture(autouse=True)
def newest_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every context starts as strict as those of Python 3.13."""
    usual = ssl.create_default_context

    def strict(*args: object, **options: object) -> ssl.SSLContext:
        context: ssl.SSLContext = usual(*args, **options)  # type: ignore[arg-type]
        context.verify_flags |= STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


def server_context(pair: Pair) -> ssl.SSLContext:
    """That of a server which shows this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[str]:
    """A server on loopback; its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def access(folder: Path, url: str, authority: Pair, expected_name: str = "") -> ClusterAccess:
    """What a kubeconfig file with that authority gives."""
    trust = f"certificate-authority: {authority.certificate}"
    if expected_name:
        trust += f", tls-server-name: {expected_name}"
    text = (
        "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}],"
        f" clusters: [{{name: c, cluster: {{server: '{url}', {trust}}}}}]}}"
    )
    file = folder / "config"
    file.write_text(text)
    return await load_access(str(file))


@pytest.mark.parametrize(
    ("server", "authority", "name"),
    [
        ("modern", "root", ""),
        ("no identifiers", "root", ""),
        ("of plain", "plain", ""),
        ("of middle", "middle", ""),
        ("elsewhere", "root", "other.example"),
        ("self-signed", "self-signed", ""),
    ],
)
async def test_a_certificate_that_go_takes_is_taken(
    made: dict[str, Pair], tmp_path: Path, server: str, authority: str, name: str
) -> None:
    async with (
        serving(server_context(made[server])) as url,
        ApiClient(await access(tmp_path, url, made[authority], name)) as client,
    ):
        assert await client.request("GET", "/version") == b"{}"


@pytest.mark.parametrize(("server", "authority"), [("no identifiers", "root"), ("of plain", "plain")])
async def test_the_defaults_of_the_newest_python_alone_would_refuse_it(
    made: dict[str, Pair], server: str, authority: str
) -> None:
    context = ssl.create_default_context(cafile=str(made[authority].certificate))
    async with (
        serving(server_context(made[server])) as url,
        ApiClient(ClusterAccess(url, ssl_context=context)) as client,
    ):
        with pytest.raises(Untrusted, match=r"is not valid \((Missing Authority Key|CA cert does not include key us)"):
            await client.request("GET", "/version")


@pytest.mark.parametrize(
    ("server", "authority", "why"),
    [
        ("modern", "plain", "the certificate authority of {source} has not signed it (unable to get local issuer"),
        ("modern", "namesake", "the certificate authority of {source} has not signed it ("),
        ("self-signed", "root", "the certificate authority of {source} has not signed it (self-signed certificate"),
        ("expired", "root", "it has expired (certificate has expired)"),
        (
            "of over",
            "over",
            "the certificate authority of {source} has expired: it was valid until Feb  1 00:00:00 2020",
        ),
        ("early", "root", "it is not valid yet (is the clock right?) (certificate is not yet valid)"),
        (
            "elsewhere",
            "root",
            "it is for other host names; if one of them is expected, set tls-server-name (IP address mismatch",
        ),
    ],
)
async def test_a_refusal_names_the_host_and_says_what_is_wrong(
    made: dict[str, Pair], tmp_path: Path, server: str, authority: str, why: str
) -> None:
    async with serving(server_context(made[server])) as url:
        given = await access(tmp_path, url, made[authority])
        async with ApiClient(given) as client:
            with pytest.raises(Untrusted) as refused:
                await client.request("GET", "/version")
    start = f"the certificate of {url.removeprefix('https://')} is refused: {why.format(source=given.source)}"
    assert str(refused.value).startswith(start) and not refused.value.sent


async def test_a_scheduler_that_refuses_says_so_once_and_in_its_readiness_and_again_when_it_changes(
    made: dict[str, Pair], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="koordpy")
    calls = 0

    def count(method: str, code: str, seconds: float) -> None:
        nonlocal calls
        calls += 1

    def loud() -> list[str]:
        """Warnings and errors, without the lease's TimeoutError, which a busy machine adds."""
        texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        return [text for text in texts if not (text.startswith("lease ") and text.endswith("TimeoutError"))]

    context = server_context(made["elsewhere"])
    async with serving(context) as url:
        given = await access(tmp_path, url, made["root"])
        async with ApiClient(given, qps=0) as client:
            scheduler = Scheduler(client, lambda *_: NOBODY, settings=tuned(EngineSettings(), lease=QUICK_LEASE))
            client.on_answer = count
            task = asyncio.create_task(scheduler.run())
            try:
                await until(lambda: calls > 100)
                (line,) = loud()
                assert "refused: it is for other host names;" in line and line.endswith("; retrying")
                checks = scheduler.inspection.ready_checks()
                assert {name for name, check in checks.items() if check()} == {"caches"}
                said = checks["caches"]()
                assert said.startswith("not in sync: pods, nodes, ") and f"; pods: {line[:60]}" in said
                context.load_cert_chain(made["expired"].certificate, made["expired"].key)
                await until(lambda: "it has expired" in checks["caches"]())
                calls = 0
                await until(lambda: calls > 100)
                assert len(loud()) == 2 and "refused: it has expired" in loud()[1]
            finally:
                scheduler.stop()
                await asyncio.wait_for(task, 60)
