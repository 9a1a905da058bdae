# SPDX-License-Identifier: Apache-2.0
"""kopf's handlers of koordpy's custom resources, in a separate thread with its own event loop.

kopf has a separate event loop for two reasons. When a kopf operator ends, it cancels every task that was started on its
loop after it; on the scheduler's loop it would cancel Bindings. And some errors end kopf (HTTP 410 when a watch is
opened, expired continue tokens, long 5xx); it is then restarted after a pause. Only event handlers are used, because
kopf's other handlers write annotations and finalizers to every object.
"""

import asyncio
import contextlib
import dataclasses
import importlib.abc
import logging
import ssl
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

from koordpy.api.keys import GROUP_KOORDINATOR
from koordpy.engine.client.credentials import ClusterAccess

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
JOIN_SECONDS = 5.0
CANCEL_AGAIN_SECONDS = 1.0
IDENTITY = "koordpy"

AsyncCall = Callable[[], Coroutine[Any, Any, object]]


class _StopFlag(asyncio.Event):
    """kopf's stop flag. It also detects that kopf has failed, because kopf then cancels its wait for the flag."""

    def __init__(self) -> None:
        super().__init__()
        self.abandoned = asyncio.Event()
        """Set when kopf has cancelled its wait for the flag."""

    async def wait(self) -> Literal[True]:
        try:
            return await super().wait()
        except asyncio.CancelledError:
            self.abandoned.set()
            raise


class _Absent(importlib.abc.MetaPathFinder):
    """Makes imports of one top-level module fail in the current thread. Other threads import it as usual."""

    def __init__(self, module: str) -> None:
        self._module, self._thread = module, threading.get_ident()

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == self._module and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is not imported here", name=fullname)


def _import_kopf() -> Any:
    """Imports kopf without kubernetes_asyncio, which halves the time and saves 40 MB.

    kopf imports it only to recognize its classes, and koordpy passes no objects of these classes to kopf. If the module
    is imported already it stays so, and another thread can import it at the same time.
    """
    absent = _Absent("kubernetes_asyncio")
    sys.meta_path.insert(0, absent)
    try:
        import kopf
    finally:
        sys.meta_path.remove(absent)
    return kopf


class KopfThread:
    """Runs kopf until `stop()`, and restarts it after a growing pause whenever it ends by itself."""

    def __init__(
        self,
        access: ClusterAccess,
        loop: asyncio.AbstractEventLoop,
        *,
        started: AsyncCall,
        drained: AsyncCall,
        topology_seen: Callable[..., None],
        definitions_changed: Callable[[], None] | None = None,
    ) -> None:
        """loop: the scheduler's event loop, on which all callbacks run. started: waits until the scheduler is in sync.
        drained: stops the scheduler, and waits until it has ended. topology_seen: called for each
        ClusterNetworkTopology with its body and `deleted`. definitions_changed: called when a CustomResourceDefinition
        is created, changed or deleted; None if definitions are not watched."""
        self.starts = 0
        self._access, self._loop = access, loop
        self._started, self._drained = started, drained
        self._topology_seen, self._definitions_changed = topology_seen, definitions_changed
        self._stop = threading.Event()
        self._flag: tuple[asyncio.AbstractEventLoop, _StopFlag] | None = None
        """(event loop, stop flag) of kopf while it runs, else None. A `threading.Event` is not used, because kopf would
        wait for it in a thread that outlives a failed operator."""
        self._pause = FIRST_PAUSE_SECONDS
        self._thread = threading.Thread(target=self._serve, name="kopf", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Requests kopf to end; `join` waits for it."""
        self._stop.set()
        if (flag := self._flag) is not None:
            with contextlib.suppress(RuntimeError):  # kopf's loop has ended by itself
                flag[0].call_soon_threadsafe(flag[1].set)

    async def join(self) -> None:
        """Waits at most `JOIN_SECONDS` for the thread to end."""
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, JOIN_SECONDS)

    # methods that run in the thread

    def _serve(self) -> None:
        pause = self._pause
        while not self._stop.is_set():
            self.starts += 1
            try:
                asyncio.run(self._run_once())
                reason = "it ended by itself"
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                logger.debug("kopf ended", exc_info=True)
            self._flag = None
            if self._stop.is_set():
                return
            logger.warning(
                "custom-resource handlers ended (%s), restarting in %.0f s; scheduling continues", reason, pause
            )
            self._stop.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _run_once(self) -> None:
        flag = _StopFlag()
        self._flag = (asyncio.get_running_loop(), flag)
        if self._stop.is_set():
            return
        kopf = _import_kopf()
        # kopf warns that it is not in the main thread; there it would take over koordpy's signal handlers
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
        registry = kopf.OperatorRegistry()
        self._register(kopf, registry)
        # started before kopf, because kopf does not cancel tasks that are older than itself
        ending = asyncio.create_task(_end(flag.abandoned, asyncio.current_task()))
        try:
            await kopf.operator(
                registry=registry,
                settings=_settings(kopf, watch_definitions=self._definitions_changed is not None),
                standalone=True,
                clusterwide=True,
                stop_flag=flag,
                # without it kopf looks up the user's name, which does not exist in the image; only peering uses the
                # identity
                identity=IDENTITY,
            )
        finally:
            ending.cancel()

    def _register(self, kopf: Any, registry: Any) -> None:
        async def login(**_: Any) -> Any:
            headers = await self._there(self._access.headers(True))
            return _connection(kopf, self._access, headers)

        async def startup(**_: Any) -> None:
            await self._there(self._started())

        async def cleanup(**_: Any) -> None:
            # a restart of kopf alone must not stop the scheduler
            if self._stop.is_set():
                await self._there(self._drained())

        async def topology(body: Any, type: str | None, **_: Any) -> None:
            plain = {name: body[name] for name in ("metadata", "spec", "status") if name in body}
            self._loop.call_soon_threadsafe(lambda: self._topology_seen(_plain(plain), deleted=type == "DELETED"))

        kopf.on.login(registry=registry)(login)
        kopf.on.startup(registry=registry)(startup)
        kopf.on.cleanup(registry=registry)(cleanup)
        kopf.on.event(GROUP_KOORDINATOR, "v1alpha1", "clusternetworktopologies", registry=registry)(topology)
        if (changed := self._definitions_changed) is not None:

            async def definition(**_: Any) -> None:
                # also for objects of the first list: one may have been created since the scheduler listed them
                self._loop.call_soon_threadsafe(changed)

            kopf.on.event("apiextensions.k8s.io", "v1", "customresourcedefinitions", registry=registry)(definition)

    async def _there(self, coroutine: Any) -> Any:
        """Runs a coroutine on the scheduler's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))


async def _end(abandoned: asyncio.Event, main: asyncio.Task[Any] | None) -> None:
    """Cancels the remaining tasks of a failed kopf repeatedly.

    kopf cancels them once and waits without a limit. But a watch that gets no answer treats the cancellation as a pause
    if the task that waits for pauses is cancelled, too (`stream` in kopf's client). So that task is not cancelled; it
    ends with its watch.
    """
    await abandoned.wait()
    spared = {main, asyncio.current_task()}
    while True:
        await asyncio.sleep(CANCEL_AGAIN_SECONDS)
        for task in asyncio.all_tasks() - spared:
            if not task.get_name().startswith("pause-waiter "):
                task.cancel()


def _plain(value: Any) -> Any:
    """Returns kopf's read-only views as plain values."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _settings(kopf: Any, *, watch_definitions: bool) -> Any:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = not watch_definitions
    # otherwise kopf kills the whole process with SIGKILL this long after it ended by itself
    settings.process.ultimate_exiting_timeout = None
    settings.watching.server_timeout = 240
    settings.watching.inactivity_timeout = 300
    settings.networking.error_backoffs = (1, 2, 5, 10)
    settings.queueing.exit_timeout = 0.5
    return settings


def _connection(kopf: Any, access: ClusterAccess, headers: Mapping[str, str]) -> Any:
    """Returns koordpy's credentials as kopf's, with koordpy's TLS context and client certificate."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")

    @dataclasses.dataclass(frozen=True)
    class Connection(kopf.ConnectionInfo):  # type: ignore[misc]
        def as_ssl_context(self) -> ssl.SSLContext:
            return access.ssl_context if access.ssl_context is not None else ssl.create_default_context()

    return Connection(
        server=access.server,
        scheme=scheme or None,
        token=token or None,
        default_namespace=access.namespace,
        proxy_url=access.proxy,
    )
