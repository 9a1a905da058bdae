# SPDX-License-Identifier: Apache-2.0
"""Bindings, and what is made of every answer to one (kube-parity.md 4.4)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from aiohttp import web

from koordpy.engine.binding.binder import Binder, Binding, BindOutcome, BindResult
from tests.engine.scripted import (
    Handler,
    ScriptedServer,
    client_of,
    drop,
    pod,
    reply,
    scripted_server,
    status,
    text,
    until,
)

POD = "/api/v1/namespaces/default/pods/a"
BIND = f"{POD}/binding"
A_TO_N1 = Binding("default", "a", "uid-a", "n1", {"scheduling.koordinator.sh/rank": "0"})
CREATED = reply({"kind": "Status", "status": "Success"}, 201)
CONFLICT = status(409, "Conflict", "already assigned")


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as scripted:
        yield scripted


async def bind(
    server: ScriptedServer, *, may_send: Callable[[], bool] = lambda: True, settle: float = 0.1, **options: Any
) -> BindOutcome:
    async with client_of(server, **options) as client:
        async with asyncio.timeout(60):
            return await Binder(client, settle_seconds=settle).bind(A_TO_N1, may_send=may_send)


async def test_a_binding_names_uid_node_and_annotations_in_one_write(server: ScriptedServer) -> None:
    server.on("POST", BIND, CREATED)
    outcome = await bind(server)
    assert outcome == BindOutcome(BindResult.BOUND, seconds=outcome.seconds)
    assert [request.verb for request in server.seen] == ["POST"]
    assert server.seen[0].body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": "a",
            "namespace": "default",
            "uid": "uid-a",
            "annotations": {"scheduling.koordinator.sh/rank": "0"},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


gated = pod("a", "5")
gated["spec"]["schedulingGates"] = [{"name": "wait"}]
READS: dict[str, tuple[Handler, BindResult, str]] = {
    "on our node": (reply(pod("a", "5", node="n1")), BindResult.BOUND, ""),
    "on another node": (reply(pod("a", "5", node="n2")), BindResult.CONFLICT, "n2"),
    "gone": (status(404, "NotFound"), BindResult.GONE, ""),
    "another uid on our node": (reply(pod("a", "5", uid="other", node="n1")), BindResult.GONE, ""),
    "being deleted": (reply(pod("a", "5", deletionTimestamp="2026-01-01T00:00:00Z")), BindResult.TERMINATING, ""),
    "on our node and being deleted": (
        reply(pod("a", "5", node="n1", deletionTimestamp="2026-01-01T00:00:00Z")),
        BindResult.BOUND,
        "",
    ),
    "gated": (reply(gated), BindResult.GATED, ""),
    "simply unbound": (reply(pod("a", "5")), BindResult.REFUSED, ""),
}
UNCLEAR = {
    "404": status(404, "NotFound", 'pods "a" not found'),
    "409": CONFLICT,
    "500": status(500, "InternalError"),
    "503": status(503),
    "504": status(504, "Timeout"),
    "dropped": drop(),
    "no object": text("<html>welcome</html>", 201),
}


@pytest.mark.parametrize("answer", UNCLEAR.values(), ids=UNCLEAR.keys())
@pytest.mark.parametrize(("read", "result", "node"), READS.values(), ids=READS.keys())
async def test_after_an_unclear_answer_the_pod_itself_tells(
    server: ScriptedServer, answer: Handler, read: Handler, result: BindResult, node: str
) -> None:
    server.on("POST", BIND, answer)
    server.on("GET", POD, read)
    outcome = await bind(server)
    assert (outcome.result, outcome.pod.spec.node_name if outcome.pod is not None else "") == (result, node)
    assert len(server.sent("POST")) == 1, "never posted again blindly"


async def test_a_timeout_after_the_server_has_bound_counts_as_bound(server: ScriptedServer) -> None:
    bound = False

    async def bind_and_hang(request: web.Request) -> web.StreamResponse:
        nonlocal bound
        bound = True
        await asyncio.sleep(5)
        return web.Response()

    async def read(request: web.Request) -> web.StreamResponse:
        return await reply(pod("a", "5", node="n1" if bound else ""))(request)

    server.on("POST", BIND, bind_and_hang)
    server.on("GET", POD, read)
    outcome = await bind(server, timeout_seconds=0.1)
    assert outcome.result is BindResult.BOUND
    assert len(server.sent("POST")) == 1


async def test_a_binding_carried_out_after_its_reply_was_lost_is_still_found(server: ScriptedServer) -> None:
    server.on("POST", BIND, drop())
    server.on("GET", POD, reply(pod("a", "5")), reply(pod("a", "5")), reply(pod("a", "6", node="n1")))
    outcome = await bind(server, settle=5.0)
    assert outcome.result is BindResult.BOUND and len(server.sent("GET")) == 3


@pytest.mark.parametrize(
    ("answer", "result", "reads"),
    [
        (status(504), BindResult.BOUND, 2),
        (status(500, "InternalError", "etcdserver: request timed out"), BindResult.BOUND, 2),
        (status(500, "InternalError", "etcdserver: leader changed"), BindResult.BOUND, 2),
        (status(500), BindResult.REFUSED, 1),
        (status(503), BindResult.REFUSED, 1),
    ],
)
async def test_only_a_timeout_of_server_or_store_leaves_a_binding_on_its_way(
    server: ScriptedServer, answer: Handler, result: BindResult, reads: int
) -> None:
    server.on("POST", BIND, answer)
    server.on("GET", POD, reply(pod("a", "5")), reply(pod("a", "6", node="n1")))
    outcome = await bind(server, settle=5.0)
    assert (outcome.result, len(server.sent("GET"))) == (result, reads)


async def test_an_outcome_is_looked_for_through_an_outage(server: ScriptedServer) -> None:
    server.on("POST", BIND, status(500))
    server.on("GET", POD, status(503), drop(), status(500), reply(pod("a", "5", node="n1")))
    assert (await bind(server)).result is BindResult.BOUND


async def test_an_outcome_still_open_when_leadership_ends_stays_unknown(server: ScriptedServer) -> None:
    server.on("POST", BIND, status(500))
    server.on("GET", POD, status(503))
    outcome = await bind(server, may_send=lambda: len(server.sent("GET")) < 2)
    assert outcome.result is BindResult.UNKNOWN and "503" in outcome.message


@pytest.mark.parametrize(
    "answer",
    [
        reply(pod("b", "5", node="n1")),
        reply({**pod("a", "5", node="n1"), "metadata": {"name": "a", "namespace": "another", "uid": "uid-a"}}),
        reply({"kind": "Status", "status": "Failure"}),
        text("<html>welcome</html>", 200),
        text('{"metadata": {"name"', 200),
    ],
    ids=["of-another-name", "of-another-namespace", "a-status", "no-json", "half-of-it"],
)
async def test_an_answer_that_is_not_of_the_pod_tells_nothing_of_it(server: ScriptedServer, answer: Handler) -> None:
    server.on("POST", BIND, status(404))
    server.on("GET", POD, answer, reply(pod("a", "5", node="n1")))
    assert (await bind(server)).result is BindResult.BOUND
    assert len(server.sent("GET")) == 2


async def test_too_many_requests_tells_when_to_come_back(server: ScriptedServer) -> None:
    server.on("POST", BIND, status(429, "TooManyRequests", headers={"Retry-After": "7"}))
    outcome = await bind(server)
    assert (outcome.result, outcome.retry_after) == (BindResult.REFUSED, 7.0)
    assert len(server.seen) == 1


@pytest.mark.parametrize("code", [400, 403, 422])
async def test_a_definite_refusal_needs_no_read(server: ScriptedServer, code: int) -> None:
    server.on("POST", BIND, status(code, "Nope", "because"))
    outcome = await bind(server)
    assert outcome.result is BindResult.REFUSED and "because" in outcome.message and len(server.seen) == 1


async def test_a_connection_refused_is_known_not_to_have_bound() -> None:
    async with scripted_server() as server:
        pass
    outcome = await bind(server)
    assert outcome.result is BindResult.REFUSED


def gang(size: int) -> list[Binding]:
    return [Binding("default", f"p{n}", f"uid-p{n}", "n1") for n in range(size)]


def path_of(n: int) -> str:
    return f"/api/v1/namespaces/default/pods/p{n}"


async def bind_all(
    binder: Binder, bindings: Sequence[Binding], *, may_send: Callable[[], bool] = lambda: True
) -> list[BindOutcome]:
    """One after the other, each when the rate limit allows it."""
    outcomes = []
    for binding in bindings:
        await binder.take_turn()
        outcomes.append(await binder.bind(binding, may_send=may_send))
    return outcomes


async def test_a_gang_is_sent_in_rank_order_and_one_failure_stops_nobody(server: ScriptedServer) -> None:
    for n in range(8):
        server.on("POST", f"{path_of(n)}/binding", CONFLICT if n == 3 else CREATED)
    server.on("GET", path_of(3), reply(pod("p3", "5", node="elsewhere")))
    async with client_of(server) as client:
        outcomes = await bind_all(Binder(client), gang(8))
    expected = [BindResult.BOUND] * 8
    expected[3] = BindResult.CONFLICT
    assert [outcome.result for outcome in outcomes] == expected
    assert [request.path for request in server.sent("POST")] == [f"{path_of(n)}/binding" for n in range(8)]


async def test_nothing_is_sent_once_leadership_has_ended(server: ScriptedServer) -> None:
    for n in range(6):
        server.on("POST", f"{path_of(n)}/binding", CREATED)
    async with client_of(server) as client:
        outcomes = await bind_all(Binder(client), gang(6), may_send=lambda: len(server.sent("POST")) < 2)
    results = [outcome.result for outcome in outcomes]
    sent = len(server.sent("POST"))
    assert sent < 6 and results == [BindResult.BOUND] * sent + [BindResult.NOT_SENT] * (6 - sent)


async def test_the_rate_limit_holds_bindings_back(server: ScriptedServer) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    for n in range(5):
        server.on("POST", f"{path_of(n)}/binding", CREATED)
    async with client_of(server, qps=0.001, burst=2, sleep=sleep) as client:
        await bind_all(Binder(client), gang(5))
    assert len(waits) == 3 and waits == sorted(waits)


async def test_bindings_under_way_are_finished_when_the_caller_waits(server: ScriptedServer) -> None:
    release = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await CREATED(request)

    server.on("POST", BIND, hang)
    async with client_of(server) as client:
        binder = Binder(client)
        task = asyncio.create_task(binder.bind(A_TO_N1))
        await until(lambda: len(server.sent("POST")) == 1)
        release.set()
        assert (await task).result is BindResult.BOUND
