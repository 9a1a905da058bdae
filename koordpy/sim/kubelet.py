"""A fake kubelet for all nodes at once, over HTTP against the embedded API server.

What a node would do and a scheduler's user wants to see: a bound pod starts, runs, ends after an annotated time, and
vanishes when it is deleted.

Annotation `sim.koordpy.io/runtime` (a Go duration, `5s`): the pod goes to Succeeded so long after it started to run.
"""

import asyncio
import contextlib
import heapq
import itertools
import logging
from datetime import UTC, datetime
from typing import Any, Self

import aiohttp
import orjson

from koordpy.api.durations import parse_duration
from koordpy.sim import pod_statuses

RUNTIME = "sim.koordpy.io/runtime"

_LOG = logging.getLogger(__name__)
_STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}  # conditions of others stay
_JSON = {"Content-Type": "application/json"}
_FINISHED = ("Succeeded", "Failed")
_LONGEST_LINE_BYTES = 16 * 1024 * 1024
_FIRST_BACKOFF_SECONDS, _LAST_BACKOFF_SECONDS = 0.1, 5.0
_PAGE = 500
_IN_FLIGHT = 32


class FakeKubelet:
    """Runs the pods of every node.

    `start_seconds` is how long a bound pod takes until it runs, `end_seconds` how long a deleted one takes to go. Use:
    `async with FakeKubelet(server.url): ...`, or `start` and `stop`.
    """

    def __init__(
        self,
        url: str,
        *,
        start_seconds: float = 0.0,
        end_seconds: float = 0.0,
    ) -> None:
        self._url = url.rstrip("/")
        self._start_seconds = start_seconds
        self._end_seconds = end_seconds
        self._due: list[tuple[float, int, str, dict[str, Any]]] = []
        self._order = itertools.count()
        self._wake = asyncio.Event()
        self._busy: dict[str, str] = {}
        self._started: dict[str, float] = {}
        self._version = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Begin to watch; returns at once."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_IN_FLIGHT + 2),
            read_bufsize=1024 * 1024,
            timeout=aiohttp.ClientTimeout(total=30),
        )
        self._tasks = [asyncio.create_task(self._watch_forever()), asyncio.create_task(self._work())]

    async def stop(self) -> None:
        """End watching; pods stay as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def run(self) -> None:
        """Serve until cancelled."""
        await self.start()
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await self.stop()

    # What is to be done, and when

    def _see(self, kind: str, pod: dict[str, Any]) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
        uid, phase = meta["uid"], status.get("phase")
        if kind == "DELETED" or not spec.get("nodeName"):
            self._busy.pop(uid, None)
            self._started.pop(uid, None)
            return
        if "deletionTimestamp" in meta:
            self._plan(uid, "end", self._end_seconds, pod)
        elif phase in _FINISHED:
            return
        elif phase != "Running":
            self._plan(uid, "start", self._start_seconds, pod)
        elif RUNTIME in (meta.get("annotations") or {}):
            self._plan_finish(uid, pod)

    def _plan_finish(self, uid: str, pod: dict[str, Any]) -> None:
        text = pod["metadata"]["annotations"][RUNTIME]
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            if self._busy.get(uid) != "finish":
                _LOG.warning("pod %s: annotation %s: %s", pod["metadata"]["name"], RUNTIME, error)
                self._busy[uid] = "finish"
            return
        known = self._started.get(uid)
        started = (pod.get("status") or {}).get("startTime")
        if known is not None:  # exacter than status.startTime, which has whole seconds
            seconds -= asyncio.get_running_loop().time() - known
        elif started:
            seconds -= datetime.now(UTC).timestamp() - datetime.fromisoformat(started).timestamp()
        self._plan(uid, "finish", max(0.0, seconds), pod)

    def _plan(self, uid: str, step: str, seconds: float, pod: dict[str, Any]) -> None:
        """Do a step of a pod later; one that is planned already is not planned twice."""
        if self._busy.get(uid) == step:
            return
        self._busy[uid] = step
        due = asyncio.get_running_loop().time() + seconds
        heapq.heappush(self._due, (due, next(self._order), step, pod))
        self._wake.set()

    async def _work(self) -> None:
        slots = asyncio.Semaphore(_IN_FLIGHT)
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                while self._due and self._due[0][0] <= loop.time():
                    _, _, step, pod = heapq.heappop(self._due)
                    await slots.acquire()
                    group.create_task(self._do(step, pod, slots))
                delay = self._due[0][0] - loop.time() if self._due else None
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), delay)

    async def _do(self, step: str, pod: dict[str, Any], slots: asyncio.Semaphore) -> None:
        try:
            if self._busy.get(pod["metadata"]["uid"]) == step:
                await self._step(step, pod)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            _LOG.info("pod %s: %s failed, tried again: %r", pod["metadata"]["name"], step, error)
            self._busy.pop(pod["metadata"]["uid"], None)
            self._plan(pod["metadata"]["uid"], step, 1.0, pod)
        finally:
            slots.release()

    async def _step(self, step: str, pod: dict[str, Any]) -> None:
        assert self._session is not None
        meta = pod["metadata"]
        url = f"{self._url}/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        uid = {"uid": meta["uid"]}
        if step == "end":
            body = orjson.dumps({"gracePeriodSeconds": 0, "preconditions": uid})
            request = self._session.delete(url, data=body, headers=_JSON)
        else:
            at = pod_statuses.now()
            status = pod_statuses.running_status(pod, at) if step == "start" else pod_statuses.succeeded_status(pod, at)
            body = orjson.dumps({"metadata": uid, "status": status})
            request = self._session.patch(url + "/status", data=body, headers=_STRATEGIC)
        async with request as response:
            await response.read()
            if response.status in (404, 409, 422):  # gone, or another pod of that name
                self._busy.pop(meta["uid"], None)
                return
            response.raise_for_status()
        if step == "start":
            self._started[meta["uid"]] = asyncio.get_running_loop().time()

    # Watching

    async def _watch_forever(self) -> None:
        backoff = _FIRST_BACKOFF_SECONDS
        while True:
            try:
                if not self._version:
                    self._version = await self._list()
                await self._watch()
                backoff = _FIRST_BACKOFF_SECONDS
            except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
                _LOG.info("watch of pods ended, tried again in %.1f s: %r", backoff, error)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _LAST_BACKOFF_SECONDS)

    async def _list(self) -> str:
        assert self._session is not None
        token = ""
        seen: set[str] = set()
        while True:
            params = {"limit": str(_PAGE), **({"continue": token} if token else {})}
            async with self._session.get(f"{self._url}/api/v1/pods", params=params) as response:
                response.raise_for_status()
                page = orjson.loads(await response.read())
            for pod in page["items"]:
                seen.add(pod["metadata"]["uid"])
                self._see("ADDED", pod)
            token = page["metadata"].get("continue") or ""
            if not token:
                for uid in [uid for uid in self._busy if uid not in seen]:
                    del self._busy[uid]
                    self._started.pop(uid, None)
                return str(page["metadata"]["resourceVersion"])

    async def _watch(self) -> None:
        """Watch until the stream ends. `_version` follows it, and is empty when the list has to be read anew."""
        assert self._session is not None
        params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "300"}
        params["resourceVersion"] = self._version
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=360)
        url = f"{self._url}/api/v1/pods"
        async with self._session.get(url, params=params, timeout=timeout) as response:
            if response.status == 410:
                self._version = ""
                return
            response.raise_for_status()
            rest = b""
            async for chunk in response.content.iter_any():
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                if len(rest) > _LONGEST_LINE_BYTES:
                    raise ValueError("a watch event is too long")
                for line in lines:
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        _LOG.info("watch of pods: %s", event["object"].get("message"))
                        self._version = ""
                        return
                    self._version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._see(event["type"], event["object"])
