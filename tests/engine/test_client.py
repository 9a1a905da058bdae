# SPDX-License-Identifier: Apache-2.0
"""The client and its credentials: what is sent, what is retried, and what an error says."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web

from koordpy.api.objects import Pod
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError, Unreachable
from koordpy.engine.client.api_resources import LEASES, NODES, PODS
from koordpy.engine.client.credentials import ClusterAccess, TokenFile, in_cluster, load_access
from koordpy.engine.client.kubeconfig import CredentialError
from koordpy.engine.client.token_bucket import TokenBucket
from tests.engine.scripted import (
    ScriptedServer,
    client_of,
    drop,
    listing,
    pod,
    reply,
    scripted_server,
    status,
    text,
    watching,
)

POD = "/api/v1/namespaces/default/pods/a"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as scripted:
        yield scripted


def test_paths_follow_the_api_conventions() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns", "a", "binding") == "/api/v1/namespaces/ns/pods/a/binding"
    assert NODES.path("ignored", "n1") == "/api/v1/nodes/n1"
    assert LEASES.path("ns", "x") == "/apis/coordination.k8s.io/v1/namespaces/ns/leases/x"


async def test_objects_are_decoded_as_the_type_asked_for(server: ScriptedServer) -> None:
    server.on("GET", POD, reply(pod("a", "5", node="n1")))
    async with client_of(server) as client:
        assert (await client.get(POD, type=Pod)).spec.node_name == "n1"
        assert (await client.get(POD, type=dict[str, Any]))["metadata"]["resourceVersion"] == "5"
        assert await client.get_or_none(POD + "x", type=Pod) is None


async def test_an_error_carries_what_the_server_said(server: ScriptedServer) -> None:
    server.on("GET", POD, status(403, "Forbidden", "pods is forbidden", {"Retry-After": "3"}))
    async with client_of(server) as client:
        with pytest.raises(ApiError) as caught:
            await client.get(POD, type=Pod)
    error = caught.value
    assert (error.status, error.reason, error.message, error.retry_after) == (403, "Forbidden", "pods is forbidden", 3)
    assert str(error) == "403 Forbidden: pods is forbidden"


async def test_an_error_page_of_a_proxy_is_quoted(server: ScriptedServer) -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>Bad Gateway</html>")

    server.on("GET", POD, page)
    async with client_of(server) as client:
        with pytest.raises(ApiError, match="502: <html>Bad Gateway"):
            await client.get(POD, type=Pod)


async def test_each_patch_kind_has_its_content_type(server: ScriptedServer) -> None:
    server.on("PATCH", POD, reply({}))
    async with client_of(server) as client:
        for kind in ("merge", "strategic", "json", "apply"):
            await client.patch(POD, {"a": 1}, kind=kind)  # type: ignore[arg-type]
    sent = server.sent("PATCH")
    assert [request.headers["Content-Type"] for request in sent] == [
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/json-patch+json",
        "application/apply-patch+yaml",
    ]
    assert [request.query for request in sent] == [{}, {}, {}, {"fieldManager": "koordpy", "force": "true"}]


async def test_a_delete_is_of_one_uid(server: ScriptedServer) -> None:
    server.on("DELETE", POD, reply({}))
    async with client_of(server) as client:
        await client.delete(POD, uid="u1")
    assert server.seen[0].body["preconditions"] == {"uid": "u1"}


async def recording_sleep(waits: list[float]) -> Any:
    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    return sleep


async def test_too_many_requests_is_waited_out_by_idempotent_calls_alone(server: ScriptedServer) -> None:
    waits: list[float] = []
    busy = status(429, "TooManyRequests", headers={"Retry-After": "2"})
    server.on("GET", POD, busy, busy, reply(pod("a", "5")))
    server.on("POST", POD, busy)
    async with client_of(server, sleep=await recording_sleep(waits)) as client:
        assert (await client.get(POD, type=Pod)).metadata.name == "a"
        assert len(waits) == 2 and all(2 <= wait <= 2.4 for wait in waits)
        with pytest.raises(ApiError) as caught:
            await client.post(POD, {})
    assert caught.value.retry_after == 2 and len(server.sent("POST")) == 1 and len(waits) == 2


async def test_too_many_requests_for_ever_ends_in_an_error(server: ScriptedServer) -> None:
    waits: list[float] = []
    server.on("PUT", POD, status(429, headers={"Retry-After": "86400"}))
    async with client_of(server, sleep=await recording_sleep(waits)) as client:
        with pytest.raises(ApiError, match="429"):
            await client.put(POD, {})
    assert len(waits) == 5 and max(waits) <= 36, "nobody is put to sleep for a day"


async def test_a_write_is_not_sent_again_by_whoever_may_not_write_any_more(server: ScriptedServer) -> None:
    """A leader whose lease runs out while the API server has it wait."""
    leads = True

    async def sleep(seconds: float) -> None:
        nonlocal leads
        leads = False

    busy = status(429, "TooManyRequests", headers={"Retry-After": "2"})
    server.on("PATCH", POD, busy)
    server.on("DELETE", POD, busy)
    server.on("GET", POD, busy, reply(pod("a", "5")))
    async with client_of(server, sleep=sleep) as client:
        client.may_repeat = lambda: leads
        for write in (client.patch(POD, {}), client.delete(POD)):
            leads = True
            with pytest.raises(ApiError, match="429"):
                await write
        assert (len(server.sent("PATCH")), len(server.sent("DELETE"))) == (1, 1)
        assert (await client.get(POD, type=Pod)).metadata.name == "a", "reading does no harm"


@pytest.mark.parametrize("said", ["inf", "nan", "Wed, 21 Oct 2026 07:28:00 GMT", "soon", "-3"])
async def test_a_retry_after_that_says_nothing_holds_nobody(server: ScriptedServer, said: str) -> None:
    server.on("POST", POD, status(429, headers={"Retry-After": said}))
    async with client_of(server) as client:
        with pytest.raises(ApiError) as caught:
            await client.post(POD, {})
    assert not caught.value.retry_after


async def test_a_write_that_was_cut_off_may_have_happened_and_one_never_sent_has_not(server: ScriptedServer) -> None:
    server.on("POST", POD, drop())
    async with client_of(server) as client:
        with pytest.raises(Unreachable) as caught:
            await client.post(POD, {})
    assert caught.value.sent and len(server.sent("POST")) == 1
    async with scripted_server() as gone:
        pass
    async with client_of(gone) as client:
        with pytest.raises(Unreachable) as refused:
            await client.post(POD, {})
    assert not refused.value.sent


async def test_a_timeout_is_unreachable(server: ScriptedServer) -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    server.on("GET", POD, hang)
    async with client_of(server, timeout_seconds=0.05) as client:
        with pytest.raises(Unreachable, match=r"GET .*pods/a: .*Timeout"):
            await client.get(POD, type=Pod)


async def test_a_reply_cut_in_its_body_is_unreachable(server: ScriptedServer) -> None:
    server.on("POST", POD, watching(b'{"metadata":', then="cut"))
    async with client_of(server) as client:
        with pytest.raises(Unreachable):
            await client.post(POD, {}, type=Pod)


@pytest.mark.parametrize("said", ["<html>Please log in</html>", "", "ok", "[]"])
async def test_an_answer_that_is_no_object_is_nobodys_answer(server: ScriptedServer, said: str) -> None:
    """Whoever gives it need not have asked the API server: a write may have happened, or not."""
    for verb in ("GET", "POST", "DELETE"):
        server.on(verb, POD, text(said, 200))
    async with client_of(server) as client:
        for asked in (client.get(POD, type=Pod), client.post(POD, {}), client.delete(POD)):
            with pytest.raises(Unreachable, match="is not from the API server") as caught:
                await asked
            assert caught.value.sent


async def test_a_401_renews_the_credentials_once(server: ScriptedServer) -> None:
    asked: list[bool] = []

    async def headers(rejected: bool) -> dict[str, str]:
        asked.append(rejected)
        return {"Authorization": "Bearer new" if rejected else "Bearer old"}

    async def guarded(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] != "Bearer new":
            return await status(401, "Unauthorized")(request)
        return await reply(pod("a", "5"))(request)

    server.on("POST", POD, guarded)
    async with ApiClient(ClusterAccess(server.url, headers=headers), qps=0) as client:
        await client.post(POD, {})
    assert asked == [False, True]


async def test_every_request_is_told_of_with_its_answer(server: ScriptedServer) -> None:
    heard: list[tuple[str, str]] = []
    server.on("GET", POD, reply(pod("a", "5")), status(404), drop())
    server.on("WATCH", "/api/v1/pods", text("", 200))
    async with client_of(server) as client:
        client.on_answer = lambda method, code, seconds: heard.append((method, code))
        await client.get(POD, type=Pod)
        await client.get_or_none(POD, type=Pod)
        with pytest.raises(Unreachable):
            await client.get(POD, type=Pod)
        async for _ in client.watch("/api/v1/pods", resource_version="1"):
            pass
    assert heard == [("GET", "200"), ("GET", "404"), ("GET", "<error>"), ("GET", "200")]


async def test_credentials_that_fail_for_now_make_the_server_unreachable(server: ScriptedServer) -> None:
    async def headers(rejected: bool) -> dict[str, str]:
        raise CredentialError("config: users[u].user.exec: the plugin ended with 1")

    async with ApiClient(ClusterAccess(server.url, headers=headers), qps=0) as client:
        with pytest.raises(Unreachable, match="the plugin ended") as caught:
            await client.post(POD, {})
    assert not caught.value.sent and not server.seen


async def test_a_watch_that_nobody_answers_is_given_up_as_soon_as_any_request(server: ScriptedServer) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    server.on("WATCH", "/api/v1/pods", silent)
    async with client_of(server, timeout_seconds=0.2) as client:
        with pytest.raises(Unreachable, match="TimeoutError"):
            async for _ in client.watch("/api/v1/pods", resource_version="1", stall_seconds=60.0):
                pass


async def test_pages_of_a_list_hold_raw_items_when_asked(server: ScriptedServer) -> None:
    server.on("LIST", "/api/v1/pods", listing(pod("a", "5"), {"broken": 1}, token="more"))
    async with client_of(server) as client:
        page = await client.list_page("/api/v1/pods", type=msgspec.Raw, limit=2, params={"labelSelector": "a=b"})
    assert page.metadata.continue_ == "more" and len(page.items or []) == 2
    assert server.seen[0].query == {"limit": "2", "labelSelector": "a=b"}


async def test_the_rate_limit_is_for_writes_and_lists(server: ScriptedServer) -> None:
    waits: list[float] = []
    server.on("LIST", "/api/v1/pods", listing())
    server.on("GET", POD, reply({}))
    server.on("PATCH", POD, reply({}))
    server.on("WATCH", "/api/v1/pods", watching(then="end"))
    async with client_of(server, qps=0.001, burst=1, sleep=await recording_sleep(waits)) as client:
        await client.list_page("/api/v1/pods", type=Pod)
        await client.get(POD, type=Pod)
        assert [batch async for batch in client.watch("/api/v1/pods", resource_version="1")] == []
        assert waits == []
        await client.patch(POD, {})
    assert len(waits) == 1


def test_a_token_bucket_saves_up_to_its_burst_and_then_gives_turns_in_order() -> None:
    now = 0.0
    bucket = TokenBucket(10, 3, clock=lambda: now)
    assert [bucket.reserve() for _ in range(3)] == [0, 0, 0]
    assert [bucket.reserve() for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    now = 100.0
    assert [bucket.reserve() for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])
    assert [TokenBucket(qps, 1).reserve() for qps in (0, -1) for _ in range(2)] == [0, 0, 0, 0]


# credentials


def kubeconfig(folder: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "clusters": [{"name": "c", "cluster": cluster or {"server": "http://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(config))
    return str(path)


ANSWER = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "from-exec"},
}
# a shell's: the path of an interpreter may have spaces, which the first line of a script cannot
PLUGIN = f"""#!/bin/sh
echo '{json.dumps(ANSWER)}'
"""


@pytest.mark.parametrize(
    ("user", "authorization"),
    [
        ({}, None),
        ({"token": "t"}, "Bearer t"),
        ({"tokenFile": "token"}, "Bearer from-file"),
        ({"username": "me", "password": "p"}, "Basic " + base64.b64encode(b"me:p").decode()),
        (
            {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "PLUGIN"}},
            "Bearer from-exec",
        ),
    ],
    ids=["nobody", "token", "tokenFile", "basic", "exec"],
)
async def test_kinds_of_credentials(tmp_path: Path, user: dict[str, Any], authorization: str | None) -> None:
    (tmp_path / "token").write_text("from-file\n")
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN)
    plugin.chmod(0o755)
    text = json.dumps(user).replace("PLUGIN", str(plugin))
    access = await load_access(kubeconfig(tmp_path, json.loads(text)))
    assert (access.server, access.namespace, access.ssl_context) == ("http://127.0.0.1:1", "ns", None)
    assert (await access.headers(False)).get("Authorization") == authorization
    assert (await access.headers(True)).get("Authorization") == authorization


BAD_DATA = {"server": "https://127.0.0.1:1", "certificate-authority-data": "!"}


@pytest.mark.parametrize(
    ("user", "cluster", "message"),
    [
        ({}, {"server": ""}, r"config: clusters\[c\].cluster.server: missing"),
        ({}, {"server": 7}, r"clusters\[c\].cluster.server: must be a string, not the number 7"),
        ({}, {"server": "ftp://x"}, r"server: 'ftp://x' is not an http or https URL"),
        ({}, BAD_DATA, r"clusters\[c\].cluster.certificate-authority-data: invalid base64"),
        ({}, {"server": "https://x", "certificate-authority": "no.crt"}, r"certificate-authority: .*no\.crt"),
        ({"client-certificate-data": "YQ=="}, None, r"users\[u\].user.client-key: .* go together"),
        ({"tokenFile": "absent"}, None, r"absent: token cannot be read"),
        ({"exec": {"command": "x"}}, None, r"users\[u\].user.exec: .*apiVersion"),
    ],
)
async def test_faults_of_a_kubeconfig_name_file_and_field(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(CredentialError, match=message):
        await load_access(kubeconfig(tmp_path, user, cluster))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [\nb: c", r"kubeconfig is not valid YAML: line [0-9]+, column [0-9]+: [^\n]*$"),
        ("a: \x07", r"kubeconfig is not valid YAML: [^\n]*$"),
        ("- 1", "a kubeconfig must be a mapping, this is a list"),
        ("", "a kubeconfig must be a mapping, the file is empty"),
        ("null", "a kubeconfig must be a mapping, the file is empty"),
        ("users: 3", r"users: must be a list, this is the number 3"),
        (
            "clusters: [{name: c, cluster: true}]",
            r"clusters\[0\].cluster: must be a mapping, this is the boolean true",
        ),
        ("current-context: 5", r"current-context: must be a string, not the number 5"),
        ("users: [{user: {}}]", r"users\[0\]: needs a name"),
        ("clusters: []", "current-context: not set"),
        ("current-context: x", r"contexts\[x\]: no such entry \(known: none\)"),
    ],
)
async def test_a_file_that_is_no_kubeconfig_is_said_so(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(CredentialError, match=message) as caught:
        await load_access(str(path))
    assert str(path) in str(caught.value)


async def test_kubeconfigs_are_merged_first_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
    paths = [kubeconfig(first, {"token": "one"}), str(tmp_path / "absent"), kubeconfig(second, {"token": "two"})]
    monkeypatch.setenv("KUBECONFIG", ":".join(paths))
    assert await (await load_access()).headers(False) == {"Authorization": "Bearer one"}


async def test_nothing_to_go_by_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CredentialError, match="use --kubeconfig or set KUBECONFIG"):
        await load_access()


async def test_a_user_without_a_name_and_a_home_is_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an image whose user is a number."""

    def nobody(uid: int) -> Any:
        raise KeyError(uid)

    for name in ("HOME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(CredentialError, match="use --kubeconfig or set KUBECONFIG"):
        await load_access()
    with pytest.raises(CredentialError, match="~/nowhere"):
        await load_access("~/nowhere")


async def test_the_service_accounts_token_is_read_again_as_it_rotates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    token = tmp_path / "token"
    token.write_text("one")
    source = TokenFile(token, clock=lambda: now)
    assert await source.headers(False) == {"Authorization": "Bearer one"}
    token.write_text("two")
    assert await source.headers(False) == {"Authorization": "Bearer one"}
    assert await source.headers(True) == {"Authorization": "Bearer two"}, "at once after a 401"
    token.write_text("three")
    now = 61.0
    assert await source.headers(False) == {"Authorization": "Bearer three"}, "after a minute"
    token.unlink()
    now = 130.0
    assert await source.headers(False) == {"Authorization": "Bearer three"}, "while the file is swapped"


async def test_outside_a_cluster_there_is_no_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CredentialError, match="KUBERNETES_SERVICE_HOST"):
        in_cluster(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(CredentialError, match="token cannot be read"):
        in_cluster(tmp_path)
