# SPDX-License-Identifier: Apache-2.0
"""A plain JSON client of an API server for tests: what is sent and answered is visible, and nothing is retried.

It is deliberately not koordpy's own client: the tests must not share its mistakes. Works against the real API server
and, without TLS, against the embedded one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp
import orjson
import yaml

from tests.e2e.gang_api import GangApi
from tests.e2e.hesitation import hesitate
from tests.e2e.process import eventually

T = TypeVar("T")
Json = dict[str, Any]

IN_FLIGHT = 32
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

# An ordinary node of a training cluster: eight accelerators, room for much else.
ALLOCATABLE: Mapping[str, str] = {"cpu": "96", "memory": "1024Gi", "pods": "110", "nvidia.com/gpu": "8"}


class Refused(Exception):
    """The server answered 4xx or 5xx. `status`, and of the Status object `reason`, `message` and `causes` (fields)."""

    def __init__(self, status: int, body: bytes) -> None:
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = {"message": body.decode(errors="replace")}
        self.status = status
        self.reason: str = answer.get("reason", "")
        self.message: str = answer.get("message", "")
        self.fields = [cause.get("field", "") for cause in (answer.get("details") or {}).get("causes") or []]
        super().__init__(f"{status} {self.reason}: {self.message}")


class Client:
    """One session; `async with` it. url without a trailing slash; ca is a PEM file (https only).

    gangs: the API of PodGroups that the server serves; None for none.
    """

    def __init__(
        self, url: str, *, token: str | None = None, ca: Path | None = None, gangs: GangApi | None = None
    ) -> None:
        self.url, self.token, self._ca, self._gangs = url, token, ca, gangs
        self._http: aiohttp.ClientSession | None = None

    @property
    def serves_gangs(self) -> bool:
        """True if PodGroups of scheduling.k8s.io are served."""
        return self._gangs is not None

    @property
    def gangs(self) -> GangApi:
        """The API of PodGroups of scheduling.k8s.io. Raises LookupError if the server serves none."""
        if self._gangs is None:
            raise LookupError("the control plane was started without upstream_gangs")
        return self._gangs

    async def __aenter__(self) -> Self:
        tls: ssl.SSLContext | bool = ssl.create_default_context(cafile=str(self._ca)) if self._ca else True
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
            connector=aiohttp.TCPConnector(limit=160, ssl=tls),
            timeout=aiohttp.ClientTimeout(total=60),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.close()

    @property
    def http(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise RuntimeError("the client is not entered")
        return self._http

    async def call(self, method: str, path: str, body: Any = None, *, content: str = "application/json") -> Json:
        """The answered object; raises Refused from status 400 on."""
        data = None if body is None else orjson.dumps(body)
        if method != "GET":
            await hesitate()
        async with self.http.request(method, self.url + path, data=data, headers={"Content-Type": content}) as answer:
            text = await answer.read()
            if answer.status >= 400:
                raise Refused(answer.status, text)
            loaded: Json = orjson.loads(text)
            return loaded

    async def get(self, path: str) -> Json:
        return await self.call("GET", path)

    async def items(self, path: str) -> list[Json]:
        """The objects of a list, in the server's order."""
        listed: list[Json] = (await self.get(path))["items"]
        return listed

    async def create(self, path: str, body: Json) -> Json:
        return await self.call("POST", path, body)

    async def patch(self, path: str, body: Json, *, content: str = MERGE) -> Json:
        return await self.call("PATCH", path, body, content=content)

    async def delete(self, path: str) -> None:
        """Deletes one object or a collection at once; no error when it is gone already."""
        try:
            await self.call("DELETE", path + ("&" if "?" in path else "?") + "gracePeriodSeconds=0")
        except Refused as refused:
            if refused.status != 404:
                raise

    async def each(
        self, things: Iterable[T], call: Callable[[T], Awaitable[object]], *, in_flight: int = IN_FLIGHT
    ) -> None:
        """call(thing) for all, in_flight at a time; the first failure ends the others and is raised."""
        todo = iter(things)

        async def work() -> None:
            for thing in todo:
                await call(thing)

        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(work())

    async def watch(self, path: str, *, since: str, seconds: int = 30) -> AsyncGenerator[tuple[str, Json], None]:
        """(event type, object) after resource version `since`, until the server ends the watch after `seconds`."""
        url = f"{self.url}{path}?watch=1&resourceVersion={since}&timeoutSeconds={seconds}"
        async with self.http.get(url, timeout=aiohttp.ClientTimeout(total=seconds + 10), read_bufsize=2**22) as answer:
            async for line in answer.content:
                event = orjson.loads(line)
                yield event["type"], event["object"]

    async def apply(self, path: str, manifest: Json, *, manager: str = "tests") -> Json:
        """Server-side apply at the object's own path."""
        return await self.patch(f"{path}?fieldManager={manager}&force=true", manifest, content=APPLY)

    async def apply_crds(self, folder: Path) -> list[str]:
        """Applies every CustomResourceDefinition of a folder and waits until all are Established; their names."""
        return await self.define(manifests_of(folder))

    async def define(self, crds: Sequence[Json]) -> list[str]:
        """Applies CustomResourceDefinitions and waits until all are Established; their names."""
        names: list[str] = [crd["metadata"]["name"] for crd in crds]

        async def established() -> bool:
            found = [condition(await self.get(f"{DEFINITIONS}/{name}"), "Established") for name in names]
            return all(one is not None and one["status"] == "True" for one in found)

        for name, crd in zip(names, crds, strict=True):
            await self.apply(f"{DEFINITIONS}/{name}", crd)
        await eventually(established, what=f"{', '.join(names)} established")
        return names

    async def remove_definition(self, name: str) -> None:
        """Deletes a CustomResourceDefinition and waits until it is gone: until then none of its name can be created."""
        path = f"{DEFINITIONS}/{name}"
        await self.delete(path)

        async def gone() -> bool:
            try:
                await self.get(path)
            except Refused as refused:
                return refused.status == 404
            return False

        await eventually(gone, what=f"{name} is deleted")

    async def make_nodes(
        self,
        count: int,
        *,
        labels: Callable[[int], Mapping[str, str]] = lambda index: {},
        allocatable: Mapping[str, str] = ALLOCATABLE,
        name: Callable[[int], str] = lambda index: f"n{index:05d}",
        in_flight: int = IN_FLIGHT,
    ) -> list[str]:
        """Ready nodes with these labels (kubernetes.io/hostname is added) and room; their names.

        Admission taints new nodes as not ready and nothing here runs that would take the taint away: it is removed.
        """
        names = [name(index) for index in range(count)]

        async def make(index: int) -> None:
            label = {"kubernetes.io/hostname": names[index], **labels(index)}
            room = dict(allocatable)
            ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
            status = {"capacity": room, "allocatable": room, "conditions": ready}
            meta = {"name": names[index], "labels": label}
            await self.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status})
            await self.patch(f"/api/v1/nodes/{names[index]}", {"spec": {"taints": None}})

        await self.each(range(count), make, in_flight=in_flight)
        return names

    async def make_namespace(self, name: str) -> str:
        await self.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name

    async def bind(
        self, pod: Json, node: str, *, uid: str | None = None, annotations: Mapping[str, str] | None = None
    ) -> Json:
        """Binds a pod (as answered by create) to a node; uid defaults to the pod's own."""
        meta = pod["metadata"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": uid or meta["uid"],
                "annotations": dict(annotations or {}),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        return await self.create(f"{pods_path(meta['namespace'])}/{meta['name']}/binding", binding)

    async def clear(self) -> None:
        """Removes the pods of all namespaces and all nodes, so that the next test starts from an empty cluster."""

        async def remove(pod: Json) -> None:
            path = f"{pods_path(pod['metadata']['namespace'])}/{pod['metadata']['name']}"
            if pod["metadata"].get("finalizers"):
                try:
                    await self.patch(path, {"metadata": {"finalizers": None}})
                except Refused as refused:  # its controller was first
                    if refused.status != 404:
                        raise
            await self.delete(path)

        await self.each(await self.items("/api/v1/pods"), remove)
        await self.delete("/api/v1/nodes")


def manifests_of(folder: Path) -> list[Json]:
    """Every document of the *.yaml files of a folder and those below it, in the order of their names."""
    texts = [file.read_text() for file in sorted(folder.rglob("*.yaml"))]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def condition(manifest: Json, type_: str) -> Json | None:
    """The condition of a type in an object's status, None when it has none."""
    found = [c for c in manifest.get("status", {}).get("conditions") or [] if c["type"] == type_]
    return found[0] if found else None


def pods_path(namespace: str = "default") -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def pod_manifest(
    name: str,
    *,
    scheduler: str,
    requests: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Json:
    """A pod of one container; extended resources in requests become limits too, as the API demands."""
    wanted = dict(requests or {"cpu": "100m"})
    extended = {key: amount for key, amount in wanted.items() if "/" in key}
    container = {"name": "main", "image": "example/train:1", "resources": {"requests": wanted, "limits": extended}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            **(spec or {}),
        },
    }
