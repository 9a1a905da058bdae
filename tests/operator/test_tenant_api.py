# SPDX-License-Identifier: Apache-2.0
"""The API for tenants over TLS: whom it answers, for which namespace, how often, and what odd paths get."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from koordpy.api.objects import ConfigMap
from koordpy.engine.client.api_errors import Unreachable
from koordpy.operator import tenant_limits
from koordpy.operator.debug_access import AccessReview
from koordpy.operator.front_proxy import NoTrustError, User, read_front_proxy
from koordpy.operator.tenant_api import TenantApi, question, segments
from koordpy.operator.tenant_limits import Bucket, Meter, RefusedError
from koordpy.plan.limits import ASKED_AT_ONCE, QUESTIONS_OPEN_EACH
from koordpy.view.live_documents import NotReadyError
from koordpy.view.subjects import UnknownSubjectError
from tests.engine.certificates import AUTHORITY, ISSUER, KEY_USAGE, Maker, Pair
from tests.engine.scripted import until

CLIENT = f"extendedKeyUsage=clientAuth\nsubjectKeyIdentifier=hash\n{ISSUER}"
SERVER = f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\nsubjectKeyIdentifier=hash\n{ISSUER}"
API = "/apis/view.koordpy.io/v1alpha1"
WHY = f"{API}/namespaces/team-a/explanations/job.train"
HEADERS = {
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}


@dataclass
class Rights:
    """An API server: ann may get pods in team-a, and its ConfigMap says whom to trust."""

    data: dict[str, str]
    reviews: list[dict[str, Any]] = field(default_factory=list)
    down: bool = False

    async def get(self, path: str, *, type: Any) -> Any:
        if self.down:
            raise Unreachable("no route")
        return ConfigMap(data=dict(self.data))

    async def post(self, path: str, body: Any, *, type: Any) -> Any:
        spec = body["spec"]
        self.reviews.append(spec)
        if self.down:
            raise Unreachable("no route")
        review = AccessReview()
        asked = spec["resourceAttributes"]
        assert (asked["verb"], asked["group"], asked["resource"]) == ("get", "", "pods")
        review.status.allowed = (spec["user"], asked["namespace"]) == ("ann", "team-a")
        return review


@dataclass
class Told:
    """Who answers: repeats the question."""

    asked: list[tuple[str, ...]] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def why(self, namespace: str, name: str) -> dict[str, Any]:
        self.asked.append(("why", namespace, name))
        if self.gate is not None:
            await self.gate.wait()
        if name == "any":
            raise NotReadyError("the cluster is still being read")
        if name == "none":
            raise UnknownSubjectError(f"no pod {namespace}/none")
        return {"namespace": namespace, "name": name}

    async def queue(self, namespace: str) -> dict[str, Any]:
        self.asked.append(("queue", namespace))
        return {"namespace": namespace}

    async def slots(self, namespace: str, resource: str, each: int) -> dict[str, Any]:
        self.asked.append(("slots", namespace, resource, str(each)))
        return {"each": each}

    async def page(self, namespace: str) -> dict[str, Any]:
        self.asked.append(("page", namespace))
        return {"page": {}}

    def close(self) -> None: ...


@dataclass
class Stage:
    api: TenantApi
    rights: Rights
    told: Told
    authority: Pair
    files: Mapping[str, Pair]

    def tls(self, pair: Pair | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.files["server authority"].certificate))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    async def ask(
        self,
        path: str,
        user: str | None = "ann",
        *,
        by: str = "proxy",
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """(status, body), or status 0 where the connection is refused."""
        sent = {**({"X-Remote-User": user} if user is not None else {}), **(headers or {})}
        connector = aiohttp.TCPConnector(ssl=self.tls(self.files.get(by)))
        url = URL(f"https://127.0.0.1:{self.api.port}{path}", encoded=True)
        try:
            session = aiohttp.ClientSession(connector=connector)
            async with session, session.request(method, url, headers=sent) as answer:
                return answer.status, orjson.loads(await answer.read() or b"{}")
        except (aiohttp.ClientError, OSError):
            return 0, {}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("certificates")
    maker = Maker(folder)
    proxies = maker.pair("authority", "front-proxy-ca", AUTHORITY + KEY_USAGE)
    servers = maker.pair("servers", "server-ca", AUTHORITY + KEY_USAGE)
    users = maker.pair("users", "user-ca", AUTHORITY + KEY_USAGE)
    return {
        "authority": proxies,
        "server authority": servers,
        "users": users,
        "server": maker.pair("tls", "127.0.0.1", SERVER, by=servers),
        "proxy": maker.pair("proxy", "front-proxy-client", CLIENT, by=proxies),
        "other name": maker.pair("name", "someone", CLIENT, by=proxies),
        "user": maker.pair("user", "front-proxy-client", CLIENT, by=users),
        "itself": maker.pair("itself", "front-proxy-client", AUTHORITY + KEY_USAGE),
    }


@pytest.fixture
async def stage(files: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(tenant_limits, "REFUSAL_SECONDS", 0.0)
    data = {**HEADERS, "requestheader-client-ca-file": files["authority"].certificate.read_text()}
    rights, told = Rights(data), Told()
    api = TenantApi("127.0.0.1:0", files["server"].certificate.parent, client=rights)  # type: ignore[arg-type]
    api.answers = told  # type: ignore[assignment]
    await api.reload()
    await api.start()
    yield Stage(api, rights, told, files["authority"], files)
    await api.stop()


async def test_a_user_is_answered_for_a_namespace_whose_pods_it_may_get(stage: Stage) -> None:
    status, found = await stage.ask(WHY, headers={"X-Remote-Group": "devs", "X-Remote-Extra-Team%2fId": "7"})
    assert status == 200 and found["report"] == {"namespace": "team-a", "name": "job/train"}
    assert (found["kind"], found["metadata"]["namespace"]) == ("Explanation", "team-a")
    (spec,) = stage.rights.reviews
    assert (spec["user"], spec["groups"], spec["extra"]) == ("ann", ["devs"], {"team/id": ["7"]})
    assert (await stage.ask(f"{API}/namespaces/team-a/queues/current"))[0] == 200
    assert (await stage.ask(f"{API}/namespaces/team-a/slots/current?gpus=8&resource=nvidia.com/gpu"))[0] == 200
    assert stage.told.asked[1:] == [("queue", "team-a"), ("slots", "team-a", "nvidia.com/gpu", "8")]


async def test_another_namespace_is_refused_and_the_scheduler_is_not_asked(stage: Stage) -> None:
    for space in ("team-b", "kube-system", "no-such-namespace"):
        status, found = await stage.ask(f"{API}/namespaces/{space}/explanations/job.train")
        assert (status, found["message"]) == (403, f"ann may not get pods in namespace {space}")
    assert stage.told.asked == []


@pytest.mark.parametrize("by", ["nobody", "other name", "user", "itself"])
async def test_headers_count_on_no_connection_but_the_front_proxys(stage: Stage, by: str) -> None:
    status, _ = await stage.ask(WHY, by=by, headers={"X-Remote-Group": "system:masters"})
    assert status == (401 if by == "other name" else 0)
    assert stage.told.asked == [] and stage.rights.reviews == []


async def test_a_request_of_the_proxy_without_a_user_is_refused(stage: Stage) -> None:
    for headers in ({}, {"X-Remote-User": ""}, {"X_Remote_User": "ann"}, {"X-Remote-Group": "system:masters"}):
        assert (await stage.ask(WHY, None, headers=headers))[0] == 401
    assert stage.rights.reviews == []


ODD_PATHS = [
    f"{API}/namespaces/team-a/../team-b/explanations/job.x",
    f"{API}/namespaces/team-a/%2e%2e/team-b/explanations/job.x",
    f"{API}/namespaces/team-a%2f..%2fteam-b/explanations/job.x",
    f"{API}/namespaces/team-b%00/explanations/job.x",
    f"{API}/namespaces/team-a%5cteam-b/explanations/job.x",
    f"{API}/namespaces//explanations/job.x",
    f"{API}/namespaces/%20/explanations/job.x",
    f"{API}/namespaces/TEAM-A/explanations/job.x",
    f"{API}/namespaces/team-a/explanations/job.x/status",
    f"{API}/namespaces/team-a/explanations/..%2f..%2fteam-b%2fexplanations%2fjob.x",
    f"{API}/namespaces/team-a/explanations/job.%ff",
    f"{API}/namespaces/team-a/explanations//job.x",
    f"{API}/namespaces/team-a/explanations",
    f"{API}/namespaces/team-a/secrets/x",
    f"{API}/explanations/job.x",
    f"/{API}/namespaces/team-a/explanations/job.x",
    "/debug/snapshot",
    "/metrics",
    "/",
]


@pytest.mark.parametrize("path", ODD_PATHS)
async def test_a_path_with_two_readings_or_none_is_not_found(stage: Stage, path: str) -> None:
    assert (await stage.ask(path))[0] in (400, 404)
    assert stage.told.asked == [] and stage.rights.reviews == []


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_get_is_the_only_verb(stage: Stage, method: str) -> None:
    assert (await stage.ask(WHY, method=method))[0] == 405
    assert stage.told.asked == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("explanations/train", 400),
        ("explanations/secret.train", 400),
        ("explanations/job.", 400),
        (f"explanations/job.{'x' * 600}", 400),
        ("explanations/any.none", 404),
        ("explanations/any.any", 503),
        ("queues/other", 404),
        ("slots/current?gpus=0", 400),
        ("slots/current?gpus=-1", 400),
        ("slots/current?gpus=1e9", 400),
        ("slots/current?gpus=99999", 400),
        ("slots/current?gpus=%D9%A3", 400),
        ("slots/current?resource=a%20b", 400),
    ],
)
async def test_what_is_asked_wrongly_is_one_status(stage: Stage, path: str, status: int) -> None:
    found, body = await stage.ask(f"{API}/namespaces/team-a/{path}")
    assert (found, body["kind"], body["code"]) == (status, "Status", status)


async def test_discovery_is_for_everybody_behind_the_proxy(stage: Stage) -> None:
    _, found = await stage.ask(API, "eve")
    assert {one["name"]: one["verbs"] for one in found["resources"]} == {
        name: ["get"] for name in ("explanations", "queues", "slots", "pages")
    }
    assert all(one["namespaced"] for one in found["resources"])
    assert (await stage.ask("/apis", "eve"))[1]["groups"][0]["name"] == "view.koordpy.io"
    as_list = {"Accept": "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io"}
    assert (await stage.ask("/apis", "eve", headers=as_list))[0] == 406


async def test_a_tenant_that_asks_in_a_loop_is_refused_and_another_is_answered(stage: Stage) -> None:
    path = f"{API}/namespaces/team-b/queues/current"
    account = "system:serviceaccount:team-b:robot-{}"
    answers = [await stage.ask(path, account.format(i)) for i in range(ASKED_AT_ONCE + 10)]
    statuses = [status for status, _ in answers]
    assert statuses.count(429) >= 5 and set(statuses) == {403, 429}
    assert all(body["details"]["retryAfterSeconds"] >= 1 for status, body in answers if status == 429)
    assert (await stage.ask(WHY))[0] == 200
    # the API server is asked once for each user, and not for questions above the limit
    assert len(stage.rights.reviews) <= statuses.count(403) + 1


async def test_discovery_and_odd_paths_count_as_questions_but_for_the_api_server_itself(stage: Stage) -> None:
    for path in (API, "/nothing", f"{API}/namespaces/team-a/secrets/x"):
        user = f"eve{path}"
        statuses = [(await stage.ask(path, user))[0] for _ in range(ASKED_AT_ONCE + 5)]
        assert 429 in statuses and statuses.index(429) >= ASKED_AT_ONCE
        masters = {"X-Remote-Group": "system:masters"}
        found = {(await stage.ask(path, user, headers=masters))[0] for _ in range(3)}
        assert 429 not in found


async def test_few_questions_of_a_tenant_are_open_at_once(stage: Stage) -> None:
    stage.told.gate = asyncio.Event()
    running = [asyncio.create_task(stage.ask(WHY)) for _ in range(QUESTIONS_OPEN_EACH + 3)]
    await until(lambda: sum(task.done() for task in running) >= 3)
    assert {task.result()[0] for task in running if task.done()} == {429}
    stage.told.gate.set()
    statuses = [(await task)[0] for task in running]
    assert statuses.count(200) == QUESTIONS_OPEN_EACH


async def test_an_answer_of_a_review_holds_and_no_answer_does_not(stage: Stage) -> None:
    stage.rights.down = True
    status, found = await stage.ask(WHY)
    assert status == 503 and "route" not in found["message"]
    stage.rights.down = False
    for _ in range(5):
        assert (await stage.ask(WHY))[0] == 200
    assert len(stage.rights.reviews) == 2


async def test_a_new_authority_counts_without_a_restart_and_an_unreadable_map_changes_nothing(stage: Stage) -> None:
    before = dict(stage.rights.data)
    stage.rights.data["requestheader-client-ca-file"] = stage.files["users"].certificate.read_text()
    await stage.api.reload()
    assert (await stage.ask(WHY, by="user"))[0] == 200
    assert (await stage.ask(WHY))[0] == 0
    stage.rights.data = {}
    with pytest.raises(NoTrustError):
        await stage.api.reload()
    assert (await stage.ask(WHY, by="user"))[0] == 200
    stage.rights.data = before
    await stage.api.reload()
    assert (await stage.ask(WHY))[0] == 200


async def test_nobody_is_answered_before_it_is_known_whom_to_trust(files: dict[str, Pair]) -> None:
    rights = Rights({}, down=True)
    api = TenantApi("127.0.0.1:0", files["server"].certificate.parent, client=rights)  # type: ignore[arg-type]
    api.answers = told = Told()  # type: ignore[assignment]
    await api.start()
    try:
        assert (await Stage(api, rights, told, files["authority"], files).ask(WHY))[0] == 0
        assert told.asked == []
    finally:
        await api.stop()


# -- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"requestheader-client-ca-file": ""}, "is empty"),
        ({"requestheader-username-headers": "[]"}, "names no header"),
        ({"requestheader-allowed-names": "front"}, "requestheader-allowed-names"),
        ({"requestheader-allowed-names": "[]", "client-ca-file": "same"}, "any user could act as another"),
    ],
)
def test_a_config_map_that_trusts_nobody_or_everybody_is_refused(
    files: dict[str, Pair], change: dict[str, str], said: str
) -> None:
    pem = files["authority"].certificate.read_text()
    data = {**HEADERS, "requestheader-client-ca-file": pem, **change}
    data = {key: pem if value == "same" else value for key, value in data.items()}
    with pytest.raises(NoTrustError, match=said):
        read_front_proxy(data)


def test_a_user_of_bytes_that_are_no_text_is_no_user(files: dict[str, Pair]) -> None:
    proxy = read_front_proxy({**HEADERS, "requestheader-client-ca-file": files["authority"].certificate.read_text()})
    headers = CIMultiDictProxy(CIMultiDict({"X-Remote-User": "a\udcff"}))
    assert proxy.user(headers) is None


def test_accounts_of_a_namespace_are_one_tenant_and_users_are_each_their_own() -> None:
    assert User("system:serviceaccount:team-b:a").tenant == User("system:serviceaccount:team-b:b").tenant
    assert User("system:serviceaccount:team-b:a").tenant != User("system:serviceaccount:team-c:a").tenant
    assert User("ann").tenant == "ann"


def test_a_bucket_gives_no_more_than_its_rate_and_a_refusal_takes_nothing() -> None:
    now = SimpleNamespace(at=0.0)
    bucket = Bucket(2.0, 5, lambda: now.at)
    assert [bucket.take() for _ in range(7)] == [True] * 5 + [False] * 2
    now.at = 0.5
    assert [bucket.take(), bucket.take()] == [True, False]
    for _ in range(1000):
        bucket.take()
    now.at = 1.0
    assert bucket.take()
    now.at = 1e6
    assert sum(bucket.take() for _ in range(50)) == 5


def test_a_meter_keeps_no_more_tenants_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_limits, "TENANTS_METERED", 3)
    meter = Meter(lambda: 0.0)
    for i in range(50):
        assert meter.take(f"u{i}")
    assert len(meter._buckets) == 3


@pytest.mark.parametrize("text", ["a/../b", "a//b", "a/./b", "a%2fb", "%2e%2e", "a%5cb", "a%0ab", "%ff", "%7f", ""])
def test_a_part_of_a_path_that_is_odd_is_refused(text: str) -> None:
    with pytest.raises(RefusedError):
        segments(f"/{text}")


def test_a_name_is_decoded_once() -> None:
    path = segments(f"{API}/namespaces/team-a/explanations/any.run%252f..%40beyond")
    assert question(path) == ("team-a", "explanations", "run%2f..@beyond")


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("no")
    with pytest.raises(OSError, match="cannot be used"):
        TenantApi("127.0.0.1:0", tmp_path, client=Rights({}))  # type: ignore[arg-type]
