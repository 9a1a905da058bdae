# SPDX-License-Identifier: Apache-2.0
"""Two tenants ask the scheduler through the API server, each with rights in one namespace; one of them is hostile."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from koordpy.api import keys
from koordpy.plan.limits import ASKED_AT_ONCE
from tests.e2e.chart import EVERYBODY, Helm
from tests.e2e.client import Client, Refused, pod_manifest, pods_path
from tests.e2e.controlplane import CLIENT, ControlPlane, free_port
from tests.e2e.installed import Installed, installer
from tests.e2e.process import Process, eventually, koordpy_run
from tests.engine.certificates import AUTHORITY, KEY_USAGE, Maker

pytestmark = pytest.mark.asyncio(loop_scope="module")
Json = dict[str, Any]
OURS = keys.DEFAULT_SCHEDULER_NAME
GPU = "nvidia.com/gpu"
HONEST, HOSTILE = "team-a", "team-zq"
CANARY = "zqcanary"
"""In every name of the hostile tenant's objects, which answers to the other must not have, and the other way round."""
SECRET = "xjsecret"
USERS = {"ann": (), "eve": (), "nobody": ()}
VALUES: Json = {
    "tenants": {"enabled": True, "renderCertificate": True},
    "config": {"quota": EVERYBODY},
    "quotaPolicies": {"enabled": False},
}
API = "/apis/view.koordpy.io/v1alpha1"


def own_address() -> str:
    """An address of this machine that is not loopback: endpoints may have no other. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return address


@pytest.fixture(scope="module")
def plane(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with an aggregation layer and users of few rights."""
    folder = tmp_path_factory.mktemp("tenants")
    with ControlPlane(assets, aggregated=True, users=USERS, folder=folder) as running:
        yield running


@dataclass
class World:
    """Two tenants beside a running scheduler that was installed by the chart."""

    plane: ControlPlane
    api: Client
    installed: Installed
    process: Process
    port: int
    authority: Path

    def ask(self, user: str, *words: str, namespace: str = "") -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "KUBECONFIG": str(self.plane.kubeconfig(user))}
        more = ["--namespace", namespace] if namespace else []
        command = [str(self.plane.assets / "kubectl"), "koordpy", *more, *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    async def answer(self, user: str, path: str) -> Json:
        async with self.plane.client(user) as client:
            return await client.get(path)


def role(namespace: str, user: str) -> list[tuple[str, Json]]:
    """`get pods` of a namespace for a user, and no other right."""
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    to = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "see"}
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "see", "namespace": namespace}}
    return [
        (f"{rbac}/{namespace}/roles/see", {**head, "kind": "Role", "rules": rules}),
        (f"{rbac}/{namespace}/rolebindings/see", {**head, "kind": "RoleBinding", "subjects": [subject], "roleRef": to}),
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    assets: Path, plane: ControlPlane, helm: Helm, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    folder, port = tmp_path_factory.mktemp("world"), free_port()
    async with plane.client() as api:
        await api.apply_crds(Path(__file__).parents[2] / "crds")
        space = await api.make_namespace("koordpy-tests")
        for namespace in (HONEST, HOSTILE):
            await api.make_namespace(namespace)
        async with installer(api, plane, helm, space) as install:
            installed = await install(VALUES)
            secret = installed.release.of("Secret", component="tenants")
            files = folder / "certificates"
            files.mkdir()
            write_files(secret, files)
            await point_service(api, space, port)
            for namespace, user in ((HONEST, "ann"), (HOSTILE, "eve")):
                for path, manifest in role(namespace, user):
                    await api.apply(path, manifest)
            await make_work(api)
            flags = ["--tenants-address", f"0.0.0.0:{port}", "--tenants-certificates", str(files)]
            flags += ["--bind-address", "127.0.0.1:0", "--leader-elect=false"]
            kubeconfig = plane.kubeconfig("tenants", token=installed.token)
            with koordpy_run(*flags, kubeconfig=kubeconfig, folder=folder) as process:
                await eventually(lambda: available(api), what="the APIService is available", processes=[process])
                await eventually(lambda: decided(api), what="pods are told why they wait", processes=[process])
                yield World(plane, api, installed, process, port, files / "ca.crt")


def write_files(secret: Json, folder: Path) -> None:
    for name, text in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(text))


async def point_service(api: Client, namespace: str, port: int) -> None:
    """What the endpoint controller and the kubelet would write for a ready replica."""
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "koordpy-tenants-1",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": "koordpy-tenants"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
        "ports": [{"name": "tenants", "port": port, "protocol": "TCP"}],
    }
    await api.create(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", slice_)


async def available(api: Client) -> bool:
    service = await api.get("/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.view.koordpy.io")
    conditions = service.get("status", {}).get("conditions", [])
    return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)


async def decided(api: Client) -> bool:
    pods = [pod for space in (HONEST, HOSTILE) for pod in await api.items(pods_path(space))]
    waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
    told = [pod for pod in waiting if pod.get("status", {}).get("conditions")]
    return len(told) == len(waiting) >= 4


async def make_work(api: Client) -> None:
    """Two nodes with four GPUs; each tenant has a pod that runs, a gang of a Job that waits, and pods that wait."""
    await api.make_nodes(2, allocatable={"cpu": "16", "memory": "64Gi", "pods": "20", GPU: "4"}, name=lambda i: f"g{i}")
    groups = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{}/podgroups"
    for namespace, mark in ((HONEST, SECRET), (HOSTILE, CANARY)):
        head = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup"}
        await api.create(
            groups.format(namespace), {**head, "metadata": {"name": f"{mark}-wide"}, "spec": {"minMember": 3}}
        )
        owner = [
            {"apiVersion": "batch/v1", "kind": "Job", "name": f"{mark}-train", "uid": f"u-{mark}", "controller": True}
        ]
        for i in range(3):
            labels = {keys.LABEL_POD_GROUP: f"{mark}-wide", keys.QUOTA_USER: f"{mark}-user"}
            pod = pod_manifest(
                f"{mark}-wide-{i}",
                scheduler=OURS,
                requests={"cpu": "1", GPU: "4"},
                labels=labels,
            )
            pod["metadata"]["ownerReferences"] = owner
            await api.create(pods_path(namespace), pod)
        labels = {keys.QUOTA_USER: f"{mark}-user"}
        for name, gpus in (("vast", "5"), ("fits", "1")):
            requests = {"cpu": "1", GPU: gpus}
            pod = pod_manifest(f"{mark}-{name}", scheduler=OURS, requests=requests, labels=labels)
            await api.create(pods_path(namespace), pod)


async def test_a_tenant_with_get_pods_alone_asks_why_for_the_queue_and_for_slots(world: World) -> None:
    for words in (
        ("why", f"job/{SECRET}-train"),
        ("why", f"{SECRET}-train"),
        ("why", f"{SECRET}-wide"),
        ("why", f"podgroup/{SECRET}-wide"),
        ("why", f"pod/{SECRET}-wide-0"),
        ("why", f"{SECRET}-vast", "-o", "wide"),
        ("queue",),
        ("queue", "-o", "wide"),
        ("slots",),
        ("slots", "--gpus", "4", "-o", "wide"),
        ("queue", "-o", "json"),
    ):
        done = world.ask("ann", *words, namespace=HONEST)
        assert (done.returncode, done.stderr) == (0, ""), (words, done.stderr)
        assert CANARY not in done.stdout and HOSTILE not in done.stdout, (words, done.stdout)
    told = (await world.api.get(f"{pods_path(HONEST)}/{SECRET}-vast"))["status"]["conditions"][0]["message"]
    assert f"    {told}\n" in world.ask("ann", "why", f"{SECRET}-vast", namespace=HONEST).stdout


async def test_an_answer_is_that_of_the_administrator_but_for_others(world: World) -> None:
    all_units = json.loads(world.ask("admin", "queue", "-o", "json").stdout)["units"]
    own = json.loads(world.ask("ann", "queue", "-o", "json", namespace=HONEST).stdout)
    places = {one["unit"]: one["place"] for one in all_units}
    assert {one["unit"]: one["place"] for one in own["units"]} == {
        unit: place for unit, place in places.items() if SECRET in unit
    }
    others = [one for one in all_units if SECRET not in one["unit"]]
    assert own["others"]["waiting"] == sum(one["place"] is not None for one in others)
    assert own["others"]["pods"] == sum(one["pods"] for one in others)
    found = json.loads(world.ask("admin", "why", f"job/{SECRET}-train", "-o", "json", namespace=HONEST).stdout)
    asked = json.loads(world.ask("ann", "why", f"job/{SECRET}-train", "-o", "json", namespace=HONEST).stdout)
    assert (found["kind"], found["name"]) == (asked["kind"], asked["name"]) == ("Job", f"{HONEST}/{SECRET}-train")
    assert {one["pod"] for one in found["pods"]} == {one["pod"] for one in asked["pods"]}
    assert found["explanation"]["queue"]["place"] == asked["queue"]["place"]


async def test_the_page_of_a_tenant_names_no_other(world: World) -> None:
    async def page() -> Json | None:
        """None while the answer is to ask again later, as on a busy machine."""
        report = (await world.answer("ann", f"{API}/namespaces/{HONEST}/pages/current"))["report"]
        shown: Json | None = report["page"]
        assert shown is not None or report["retryInSeconds"] >= 1
        return shown

    found = await eventually(page, what="the page is answered", every_s=0.5)
    text = json.dumps(found)
    assert CANARY not in text and HOSTILE not in text
    assert {one["unit"] for one in found["queue"]["units"]} == {
        f"gang:{HONEST}/{SECRET}-wide",
        f"{HONEST}/{SECRET}-vast",
    }
    assert f"{HONEST}/{SECRET}-fits" in found["pods"]
    with pytest.raises(Refused, match="eve may not get pods in namespace team-a"):
        await world.answer("eve", f"{API}/namespaces/{HONEST}/pages/current")


async def test_one_tenant_is_not_answered_about_another(world: World) -> None:
    for words in (("why", f"job/{SECRET}-train"), ("queue",), ("slots",), ("why", "no-such-pod")):
        for namespace in (HONEST, "no-such-namespace", "kube-system"):
            done = world.ask("eve", *words, namespace=namespace)
            assert done.returncode == 1 and done.stdout == ""
            assert done.stderr.startswith(f"error: eve may not get pods in namespace {namespace}: ask for a Role there")
    # names of others, asked for in the own namespace, are as unknown as names of nothing
    for name in (f"{SECRET}-train", f"{SECRET}-wide-0", f"job/{SECRET}-train", "zz-nothing"):
        done = world.ask("eve", "why", name, namespace=HOSTILE)
        assert done.returncode == 1 and done.stderr.startswith("error: no pending or running ")
        assert done.stderr.endswith(f" named {HOSTILE}/{name.rpartition('/')[2]}\n")
        assert "did you mean" not in done.stderr
    other = world.ask("eve", "why", f"{HONEST}/{SECRET}-vast", namespace=HOSTILE)
    assert other.returncode == 1 and "may not get pods in namespace team-a" in other.stderr
    nobody = world.ask("nobody", "queue", namespace=HONEST)
    assert nobody.returncode == 1 and "nobody may not get pods" in nobody.stderr
    tree = world.ask("ann", "tree", namespace=HONEST)
    assert tree.returncode == 1 and "tree needs the right to list pods and nodes" in tree.stderr


async def test_a_service_account_asks_as_a_user_does(world: World) -> None:
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}
    await world.api.create(f"/api/v1/namespaces/{HONEST}/serviceaccounts", account)
    path = f"/api/v1/namespaces/{HONEST}/serviceaccounts/robot/token"
    token = (await world.api.create(path, wanted))["status"]["token"]
    async with Client(world.plane.url, token=token, ca=world.plane.ca) as client:
        with pytest.raises(Refused, match=f"robot may not get pods in namespace {HONEST}"):
            await client.get(f"{API}/namespaces/{HONEST}/queues/current")
        await allow(world.api, HONEST, f"system:serviceaccount:{HONEST}:robot")

        async def answered() -> bool:
            try:
                await client.get(f"{API}/namespaces/{HONEST}/queues/current")
            except Refused:
                return False
            return True

        await eventually(answered, what="the right that was given counts", every_s=1.0, processes=[world.process])


async def allow(api: Client, namespace: str, user: str) -> None:
    (_, binding) = role(namespace, user)[1]
    binding["metadata"]["name"] = "see-too"
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/see-too"
    await api.apply(path, binding)


async def test_headers_of_a_user_count_neither_through_the_api_server_nor_past_it(world: World, tmp_path: Path) -> None:
    path = f"{API}/namespaces/{HONEST}/queues/current"
    forged = {
        "X-Remote-User": "ann",
        "X-Remote-Group": "system:masters",
        "X-Remote-Extra-Scopes": "all",
        "X-Remote-Uid": "uid-ann",
        "Impersonate-User": "ann",
    }
    token = {"Authorization": f"Bearer {world.plane.tokens['eve']}"}
    trusted = ssl.create_default_context(cafile=str(world.plane.ca))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session:
        for count in (4, 5):
            headers = {**token, **dict(list(forged.items())[:count])}
            async with session.get(world.plane.url + path, headers=headers) as answer:
                assert answer.status == 403
    maker = Maker(tmp_path)
    authority = maker.pair("ca", "front-proxy-ca", AUTHORITY + KEY_USAGE)
    pair = maker.pair("forged", "front-proxy-client", CLIENT, by=authority)
    for certificate in (None, pair):
        context = ssl.create_default_context(cafile=str(world.authority))
        context.check_hostname = False
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            with pytest.raises((aiohttp.ClientError, OSError)):
                async with session.get(f"https://127.0.0.1:{world.port}{path}", headers=forged) as answer:
                    await answer.read()


ODD = [
    "namespaces/team-zq/../team-a/queues/current",
    "namespaces/team-zq/%2e%2e/team-a/queues/current",
    "namespaces/team-zq%2f..%2fteam-a/queues/current",
    "namespaces/team-zq/explanations/..%2f..%2fteam-a%2fqueues%2fcurrent",
    "namespaces/team-zq/explanations/any.x%2f..%2f..%2f..%2fteam-a%2fqueues%2fcurrent",
    "namespaces/team-zq%00/queues/current",
    "namespaces//queues/current",
    "namespaces/%20/queues/current",
    "namespaces/TEAM-A/queues/current",
    "namespaces/team-a%20/queues/current",
    "namespaces/team-zq/queues",
    "namespaces/team-zq/queues/current/status",
    "queues/current",
    "queues",
    "namespaces/team-zq/queues/current?namespace=team-a",
    "namespaces/team-zq/queues/team-a",
    "namespaces/team-zq/explanations/team-a.x",
]


@pytest.mark.parametrize("path", ODD)
async def test_an_odd_path_shows_nothing_of_the_other_tenant(world: World, path: str) -> None:
    token = {"Authorization": f"Bearer {world.plane.tokens['eve']}"}
    trusted = ssl.create_default_context(cafile=str(world.plane.ca))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session:
        for method in ("GET", "POST", "DELETE", "PATCH", "PUT"):
            url = URL(f"{world.plane.url}{API}/{path}", encoded=True)
            async with session.request(method, url, headers=token, allow_redirects=False) as answer:
                text = await answer.text()
                assert SECRET not in text
                assert answer.status in (301, 307, 308, 400, 403, 404, 405, 415, 429) or (
                    answer.status == 200 and json.loads(text)["report"]["namespace"] == HOSTILE
                ), (method, answer.status, text)
    world.process.must_run()


async def test_a_flood_of_questions_is_refused_and_the_other_tenant_is_answered_and_scheduled(world: World) -> None:
    token = {"Authorization": f"Bearer {world.plane.tokens['eve']}"}
    trusted = ssl.create_default_context(cafile=str(world.plane.ca))
    statuses: list[int] = []
    stop = asyncio.Event()
    urls = [f"{world.plane.url}{API}/namespaces/{HOSTILE}/explanations/any.{CANARY}-wide-{i % 3}" for i in range(40)]
    urls += [f"{world.plane.url}{API}/namespaces/{HONEST}/slots/current?gpus={i}" for i in range(1, 20)]

    async def flood(session: aiohttp.ClientSession, number: int) -> None:
        while not stop.is_set():
            for url in urls[number:] + urls[:number]:
                async with session.get(url, headers=token) as answer:
                    await answer.read()
                    statuses.append(answer.status)
                if stop.is_set():
                    return

    connector = aiohttp.TCPConnector(ssl=trusted, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        tasks = [asyncio.create_task(flood(session, i)) for i in range(32)]
        try:
            await eventually(lambda: statuses.count(429) > ASKED_AT_ONCE, what="refusals", processes=[world.process])
            pod = pod_manifest(f"{SECRET}-late", scheduler=OURS, requests={"cpu": "1"})
            await world.api.create(pods_path(HONEST), pod)

            async def bound() -> bool:
                late = await world.api.get(f"{pods_path(HONEST)}/{SECRET}-late")
                return bool(late["spec"].get("nodeName"))

            await eventually(bound, what="the honest pod is bound", processes=[world.process])
            done = await asyncio.to_thread(world.ask, "ann", "queue", namespace=HONEST)
            assert (done.returncode, done.stderr) == (0, "")
            done = await asyncio.to_thread(world.ask, "ann", "why", f"{SECRET}-vast", namespace=HONEST)
            assert done.returncode == 0 and "Insufficient" in done.stdout
        finally:
            stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert set(statuses) <= {200, 403, 429}
    world.process.must_run()
