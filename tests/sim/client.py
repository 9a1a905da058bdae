# SPDX-License-Identifier: Apache-2.0
"""A small HTTP client for the tests of the embedded API server: raw answers, and watches as lists of events."""

import asyncio
from typing import Any

import aiohttp
import orjson

PODS = "/api/v1/namespaces/default/pods"
PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """The smallest pod manifest, plus fields of its spec."""
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "pause"}], **spec}}


class Watch:
    """One open watch, read event by event."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> dict[str, Any]:
        """The next event; asyncio.IncompleteReadError at the end of the stream."""
        line = await asyncio.wait_for(self._response.content.readline(), 60)
        if not line:
            raise asyncio.IncompleteReadError(b"", None)
        found: dict[str, Any] = orjson.loads(line)
        return found

    async def kinds_and_names(self, count: int) -> list[tuple[str, str]]:
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]

    async def ended(self) -> bool:
        """Whether the stream ends without another event."""
        try:
            await self.next()
        except (asyncio.IncompleteReadError, aiohttp.ClientError):
            return True
        return False

    def close(self) -> None:
        self._response.close()


class Client:
    """Requests of one test. Every call returns the status and the decoded body."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))

    async def call(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", accept: str = "*/*"
    ) -> tuple[int, Any]:
        data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Content-Type": kind, "Accept": accept}
        async with self._session.request(method, self.url + path, data=data, headers=headers) as response:
            raw = await response.read()
            self.headers = response.headers
            return response.status, orjson.loads(raw) if raw[:1] in b"{[" and raw else raw.decode()

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        return await self.call("GET", path, **options)

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        return await self.call("POST", path, body)

    async def put(self, path: str, body: Any) -> tuple[int, Any]:
        return await self.call("PUT", path, body)

    async def patch(self, path: str, body: Any, kind: str = "merge") -> tuple[int, Any]:
        return await self.call("PATCH", path, body, kind=PATCHES[kind])

    async def delete(self, path: str, body: Any = None) -> tuple[int, Any]:
        return await self.call("DELETE", path, body)

    async def bind(self, name: str, node: str, **meta: Any) -> tuple[int, Any]:
        body = {"metadata": {"name": name, **meta}, "target": {"kind": "Node", "name": node}}
        return await self.post(f"{PODS}/{name}/binding", body)

    async def watch(self, path: str, query: str = "") -> Watch:
        response = await self._session.get(f"{self.url}{path}?watch=true&{query}", timeout=aiohttp.ClientTimeout())
        assert response.status == 200, await response.text()
        return Watch(response)

    async def close(self) -> None:
        await self._session.close()
