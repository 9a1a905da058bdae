# SPDX-License-Identifier: Apache-2.0
"""A watch of pods, for measurements: what is true of each pod, and since when this process has known it.

It shares the cores with what it measures, so it reads no more of a pod than it needs, and lists in chunks: 50,000 pods
as whole objects would be a gigabyte here and pauses of seconds, in which the server ends the watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

import aiohttp
import msgspec

from tests.e2e.client import Client

PODS = "/api/v1/pods"
CHUNK = 1000
WATCH_SECONDS = 3600
RETRY_SECONDS = 0.1


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Condition(msgspec.Struct):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class WatchedPod(msgspec.Struct):
    """What measurements read of a pod."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def verdict(self) -> str:
        """The message of PodScheduled=False; empty where there is none."""
        return next((c.message for c in self.status.conditions if c.type == "PodScheduled" and c.status == "False"), "")


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[WatchedPod]


_event, _pod, _list = msgspec.json.Decoder(_Event), msgspec.json.Decoder(WatchedPod), msgspec.json.Decoder(_List)


class PodWatch:
    """Times are of time.monotonic(). selector: a label selector; all pods without one.

    A watch that the server ends is resumed (it ends slow readers), one whose version is too old starts with a list.
    Whatever else ends it is raised by `until` and at the end of the block: no measurement waits for a dead watch.
    """

    def __init__(self, api: Client, *, selector: str = "") -> None:
        self._api, self._selector = api, f"&labelSelector={quote(selector)}" if selector else ""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.pods: dict[str, WatchedPod] = {}
        """uid -> pod."""
        self.bound_at: dict[str, float] = {}
        """uid -> when it was first seen with a node."""
        self.told_at: dict[str, float] = {}
        """uid -> when its PodScheduled=False with a message was first seen."""
        self.writes: dict[str, int] = {}
        """uid -> how often a new version of it was seen after the first."""
        self.moved: list[str] = []
        """Pods that were seen on two nodes."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[PodWatch]:
        """Watches while the block lasts; the pods that are there are known when it begins."""
        version = await self._relist()
        self._task = asyncio.create_task(self._watch(version))
        self._task.add_done_callback(lambda _: self._changed.set())
        try:
            yield self
        finally:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def until(self, done: Callable[[], bool], *, within_s: float) -> bool:
        """Waits for something that pods tell; False when it did not come true in time. Raises what ended the watch."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not done():
                    if self._task is not None and self._task.done():
                        await self._task
                    self._changed.clear()
                    await self._changed.wait()
        return done()

    async def _relist(self) -> str:
        """Takes in the pods that are there; their version."""
        known, token = set[str](), ""
        while True:
            async with self._api.http.get(
                f"{self._api.url}{PODS}?limit={CHUNK}{self._selector}{'&continue=' + quote(token) if token else ''}",
                raise_for_status=True,
            ) as answer:
                page = _list.decode(await answer.read())
            for pod in page.items:
                known.add(pod.metadata.uid)
                self._saw(pod)
            token = page.metadata.continue_
            if not token:
                break
        for uid in self.pods.keys() - known:
            del self.pods[uid]
        return page.metadata.resource_version

    async def _watch(self, version: str) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                version = version or await self._relist()
                self._changed.set()
                async for kind, body in self._events(version):
                    if kind == "ERROR":
                        version = ""
                        break
                    pod = _pod.decode(body)
                    version = pod.metadata.resource_version
                    if kind == "DELETED":
                        self.pods.pop(pod.metadata.uid, None)
                    elif kind != "BOOKMARK":
                        self._saw(pod)
                    self._changed.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def _events(self, version: str) -> AsyncIterator[tuple[str, bytes]]:
        url = f"{self._api.url}{PODS}?watch=1&resourceVersion={version}&timeoutSeconds={WATCH_SECONDS}{self._selector}"
        patience = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with self._api.http.get(url, timeout=patience, read_bufsize=2**22) as answer:
            if answer.status == 410:
                yield "ERROR", b""
                return
            answer.raise_for_status()
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = _event.decode(line)
                    yield event.type, bytes(event.object)

    def _saw(self, pod: WatchedPod) -> None:
        uid, now = pod.metadata.uid, time.monotonic()
        before = self.pods.get(uid)
        self.pods[uid] = pod
        if before is not None and before.metadata.resource_version != pod.metadata.resource_version:
            self.writes[uid] = self.writes.get(uid, 0) + 1
        if node := pod.spec.node_name:
            self.bound_at.setdefault(uid, now)
            if before is not None and before.spec.node_name not in ("", node):
                self.moved.append(pod.metadata.name)
        elif uid not in self.told_at and pod.verdict:
            self.told_at[uid] = now
