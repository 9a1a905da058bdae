"""The plugin's life: registered with the kubelet, again whenever the kubelet starts anew, and reconciled with its list.

Source: gpu-topology.md 10, `device-plugin`. The kubelet empties its folder of sockets when it starts: a kubelet
socket that is another file than before, or our own socket gone, means to serve and register anew. While no plugin is
registered the kubelet fails every pod that it is to admit, so a plugin that is to end says so first, and leaves once no
pod waits.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc

from koordpy.agent.plugin.allocator import LOOK_SECONDS, WAIT_SECONDS, Allocator, PodSource
from koordpy.agent.plugin.control_groups import ControlGroups
from koordpy.agent.plugin.delivery_ledger import ReservedGpus
from koordpy.agent.plugin.kubelet_api import register, said
from koordpy.agent.plugin.orphans import Orphans
from koordpy.agent.plugin.plugin_server import PluginServer

logger = logging.getLogger(__name__)

KUBELET_FOLDER = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
KUBELET_SOCKET = "kubelet.sock"
ENDPOINT = "koordpy-gpu.sock"
CHECKPOINT = "koordpy-gpu-checkpoint.json"
SOCKET_SECONDS = 0.1
"""Between two looks at the kubelet's socket: a kubelet that starts fails pods until the plugin is registered."""
RECONCILE_SECONDS = 30.0
QUIET_SECONDS = 3.0
"""Time without a pod that waits to be admitted after which an ending plugin leaves: the scheduler has read the Device,
and Bindings that were under way have arrived."""
DRAIN_SECONDS = 45.0
"""Time after which it leaves all the same."""
ENDING = "the agent is ending"

PodWriter = Callable[[Sequence[ReservedGpus]], Awaitable[None]]
"""Writes what pods have into their annotations; raises where one could not be written."""
ServedWriter = Callable[[Sequence[str]], Awaitable[None]]
"""Writes on pods, by their uids, that their GPUs were delivered; raises where one could not be written."""


class PluginService:
    """One node's plugin. `run()` goes on until it is cancelled; `server` is to be told of the GPUs."""

    def __init__(
        self,
        pods: PodSource,
        correct: PodWriter,
        *,
        resource: str = "nvidia.com/gpu",
        folder: Path = KUBELET_FOLDER,
        pod_resources: Path = POD_RESOURCES_SOCKET,
        orphans: Orphans | None = None,
        cdi: bool = False,
        confirm: ServedWriter | None = None,
        look_seconds: float = LOOK_SECONDS,
        reconcile_seconds: float = RECONCILE_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._correct, self._resource, self._folder = correct, resource, folder
        self._confirm = confirm
        self._look_seconds, self._reconcile_seconds = look_seconds, reconcile_seconds
        self._quiet_seconds = quiet_seconds
        self.allocator = Allocator(
            pods,
            orphans or Orphans(ControlGroups().has_processes),
            resource=resource,
            pod_resources=pod_resources,
            checkpoint=folder / CHECKPOINT,
            look_seconds=look_seconds,
            wait_seconds=wait_seconds,
        )
        self.allocator.changed = lambda: self.changed()
        self.server = PluginServer(self.allocator, cdi=cdi)
        self._unregistered = f"the device plugin is not registered: {folder / KUBELET_SOCKET} was not looked for yet"
        self._ending = ""
        self.changed: Callable[[], None] = lambda: None
        """Called when `obstacle` or the allocator's `held` is another one."""

    @property
    def obstacle(self) -> str:
        """Why containers cannot be given GPUs; empty where they can."""
        unwritten = self.allocator.unwritten
        return self._ending or self._unregistered or (unwritten and f"the checkpoint cannot be written: {unwritten}")

    async def run(self) -> None:
        """Serves, registers and reconciles until it is cancelled."""
        reconciling = asyncio.create_task(self._reconcile_for_ever())
        try:
            await self.server.offered.wait()
            while True:
                await self._serve_once()
        finally:
            reconciling.cancel()
            await self.server.stop()

    async def _serve_once(self) -> None:
        """One registration: until the kubelet starts anew or our socket is gone."""
        own, kubelet = self._folder / ENDPOINT, self._folder / KUBELET_SOCKET
        seen = _identity(kubelet)
        if seen is None:
            self._tell(f"the device plugin is not registered: there is no {kubelet}")
            await asyncio.sleep(self._socket_seconds)
            return
        self.allocator.ledger.registered()
        try:
            await self.server.start(own)
            await register(kubelet, endpoint=ENDPOINT, resource=self._resource)
        except (grpc.RpcError, OSError, RuntimeError) as fault:
            logger.warning("registration with the kubelet failed: %s", said(fault))
            self._tell(f"the device plugin is not registered: {said(fault)}")
            await self.server.stop()
            await asyncio.sleep(self._look_seconds)
            return
        logger.info("registered with the kubelet for %s", self._resource)
        self._tell("")
        self.allocator.due.set()
        # a look costs two system calls, and a watch of the file system would miss what happened before it was set up
        while _identity(own) is not None and _identity(kubelet) == seen:  # noqa: ASYNC110
            await asyncio.sleep(self._socket_seconds)
        logger.info("the kubelet has started anew or its folder was emptied")
        self._tell("the device plugin is not registered: the kubelet has started anew")
        await self.server.stop()

    @property
    def _socket_seconds(self) -> float:
        return min(SOCKET_SECONDS, self._look_seconds)

    def _tell(self, unregistered: str) -> None:
        if unregistered != self._unregistered:
            self._unregistered = unregistered
            self.changed()

    # -- the end -------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Says that no GPU can be delivered soon; the kubelet goes on being served."""
        self._ending = ENDING
        self.changed()

    async def drain(self) -> None:
        """Returns once no pod has waited to be admitted for a while, or the time for it is over."""
        quiet_since = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while time.monotonic() - quiet_since < self._quiet_seconds and not self._unregistered:
                    try:
                        waits = await self.allocator.awaited()
                    except grpc.RpcError as fault:
                        logger.warning("the kubelet's list of pods cannot be read: %s", said(fault))
                        return
                    if waits:
                        quiet_since = time.monotonic()
                    await asyncio.sleep(self._look_seconds / 2)

    # -- what the kubelet says -----------------------------------------------------------------------------------

    async def _reconcile_for_ever(self) -> None:
        allocator, since = self.allocator, time.monotonic()
        while True:
            # the kubelet books a delivery after our answer
            await asyncio.sleep(self._look_seconds)
            allocator.look()
            if not (allocator.due.is_set() or allocator.urgent or time.monotonic() - since > self._reconcile_seconds):
                continue
            allocator.due.clear()
            since = time.monotonic()
            try:
                await self.reconcile()
            except grpc.RpcError as fault:
                logger.warning("the kubelet's list of devices cannot be read: %s", said(fault))

    async def reconcile(self) -> None:
        """Reads the kubelet's list and puts right the annotations of pods that got each other's GPUs."""
        corrections = await self.allocator.reconcile()
        served = self.allocator.ledger.served()
        if corrections:
            for one in corrections:
                logger.info("%s/%s has %s", one.namespace, one.pod, one.gpus)
            try:
                await self._correct(corrections)
            except Exception as fault:
                logger.warning("annotations of swapped pods cannot be written, again later: %s", fault)
        if served and self._confirm is not None:
            try:
                await self._confirm(served)
            except Exception as fault:
                logger.warning("that pods have their GPUs cannot be written, again later: %s", fault)


def _identity(path: Path) -> tuple[int, int] | None:
    """What changes when a socket is made anew; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
