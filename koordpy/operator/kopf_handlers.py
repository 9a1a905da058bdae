"""kopf's part: handlers of our custom resources, in a thread and an event loop of their own.

Why apart: when a kopf operator ends, also by one of the errors that it does not survive (HTTP 410 at a watch's opening,
expired continue tokens, long 5xx), it cancels every task that was started on its event loop meanwhile; the scheduler's
Bindings would be among them. So the scheduler has its own loop, and this thread is started again after a pause. Only
event handlers are used: kopf's state handlers write annotations and finalizers to every object.
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

Asked = Callable[[], Coroutine[Any, Any, object]]


class _StopFlag(asyncio.Event):
    """kopf's stop flag, which also tells that kopf has failed: then, and last of all, kopf cancels its wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.abandoned = asyncio.Event()

    async def wait(self) -> Literal[True]:
        try:
            return await super().wait()
        except asyncio.CancelledError:
            self.abandoned.set()
            raise


class _Absent(importlib.abc.MetaPathFinder):
    """Makes imports of one top-level module fail in one thread. Other threads import it as usual."""

    def __init__(self, module: str) -> None:
        self._module, self._thread = module, threading.get_ident()

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == self._module and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is not imported here", name=fullname)


def _import_kopf() -> Any:
    """Import kopf without kubernetes_asyncio, which halves the time and saves 40 MB.

    kopf imports it only to recognize its classes, and koordpy passes no objects of these to kopf. A module that the
    credentials have imported already stays, and they can import it in another thread at the same time.
    """
    absent = _Absent("kubernetes_asyncio")
    sys.meta_path.insert(0, absent)
    try:
        import kopf
    finally:
        sys.meta_path.remove(absent)
    return kopf


class KopfThread:
    """Runs kopf until `stop()`, starting it anew with a growing pause whenever it ends by itself."""

    def __init__(
        self,
        access: ClusterAccess,
        loop: asyncio.AbstractEventLoop,
        *,
        started: Asked,
        drained: Asked,
        topology_seen: Callable[..., None],
        definitions_changed: Callable[[], None] | None = None,
    ) -> None:
        """`loop` is the scheduler's: all that is given is called there. started: returns when the scheduler is in sync;
        drained: stops it if it has not been, and returns when it has ended; topology_seen: hears of each
        ClusterNetworkTopology (body, deleted); definitions_changed: hears that a CustomResourceDefinition came, changed
        or went, None where they are not watched."""
        self.starts = 0
        self._access, self._loop = access, loop
        self._started, self._drained = started, drained
        self._topology_seen, self._definitions_changed = topology_seen, definitions_changed
        self._stop = threading.Event()
        self._flag: tuple[asyncio.AbstractEventLoop, _StopFlag] | None = None
        """kopf's own stop flag: a thread's would be waited for in a thread that outlives a failed operator."""
        self._pause = FIRST_PAUSE_SECONDS
        self._thread = threading.Thread(target=self._serve, name="kopf", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Asks kopf to end; `join` waits for it."""
        self._stop.set()
        if (flag := self._flag) is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                flag[0].call_soon_threadsafe(flag[1].set)

    async def join(self) -> None:
        """Waits a bounded time for the thread to end."""
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, JOIN_SECONDS)

    # in the thread

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
            logger.warning("the custom-resource handlers ended (%s); again in %.0f s; pods go on", reason, pause)
            self._stop.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _run_once(self) -> None:
        flag = _StopFlag()
        self._flag = (asyncio.get_running_loop(), flag)
        if self._stop.is_set():
            return
        kopf = _import_kopf()
        # it says that it is not in the main thread, where it would take the signals that are ours
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
        registry = kopf.OperatorRegistry()
        self._register(kopf, registry)
        # kopf spares the tasks that were there before it
        ending = asyncio.create_task(_end(flag.abandoned, asyncio.current_task()))
        try:
            await kopf.operator(
                registry=registry,
                settings=_settings(kopf, watch_definitions=self._definitions_changed is not None),
                standalone=True,
                clusterwide=True,
                stop_flag=flag,
                # else kopf asks for the name of the user, and the image's has none; nobody reads it without peering
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
            # a restart of kopf alone leaves the scheduler be
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
                # those of the first list, too: one may have come since the scheduler looked
                self._loop.call_soon_threadsafe(changed)

            kopf.on.event("apiextensions.k8s.io", "v1", "customresourcedefinitions", registry=registry)(definition)

    async def _there(self, coroutine: Any) -> Any:
        """Runs a coroutine on the scheduler's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))


async def _end(abandoned: asyncio.Event, main: asyncio.Task[Any] | None) -> None:
    """Cancels what a failed kopf has left, over and over: kopf cancels once and waits without end, but a watch whose
    answer has not begun takes a cancellation for a pause if the task that waits for pauses is cancelled with it
    (`stream` in kopf's client); that task ends with its watch."""
    await abandoned.wait()
    spared = {main, asyncio.current_task()}
    while True:
        await asyncio.sleep(CANCEL_AGAIN_SECONDS)
        for task in asyncio.all_tasks() - spared:
            if not task.get_name().startswith("pause-waiter "):
                task.cancel()


def _plain(value: Any) -> Any:
    """kopf's read-only views as plain values."""
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
    # kopf would kill the whole process by SIGKILL this long after it ended by itself
    settings.process.ultimate_exiting_timeout = None
    settings.watching.server_timeout = 240
    settings.watching.inactivity_timeout = 300
    settings.networking.error_backoffs = (1, 2, 5, 10)
    settings.queueing.exit_timeout = 0.5
    return settings


def _connection(kopf: Any, access: ClusterAccess, headers: Mapping[str, str]) -> Any:
    """Our credentials as kopf's; the TLS context, with its client certificate, is ours."""
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
