"""The plugin's life: registered with the kubelet, again whenever the kubelet starts anew, and reconciled with its list.

Source: gpu-topology.md 10, `device-plugin`. The kubelet empties its folder of sockets when it starts: a kubelet
socket that is another file than before, or our own socket gone, means to serve and register anew.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc

from koordpy.agent.plugin.checkpoint import read_checkpoint, write_checkpoint
from koordpy.agent.plugin.ledger import Delivery, ReservedGpus, View
from koordpy.agent.plugin.server import PluginServer, listed_pods, register, said

logger = logging.getLogger(__name__)

KUBELET_FOLDER = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
KUBELET_SOCKET = "kubelet.sock"
ENDPOINT = "koordpy-gpu.sock"
CHECKPOINT = "koordpy-gpu-checkpoint.json"
LOOK_SECONDS = 1.0
RECONCILE_SECONDS = 30.0

PodSource = Callable[[], Awaitable[Sequence[ReservedGpus]]]
"""The node's assigned pods now; raises where the API server cannot be asked."""
PodWriter = Callable[[Sequence[ReservedGpus]], Awaitable[None]]
"""Writes what pods have into their annotations; raises where one could not be written."""


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
        cdi: bool = False,
        look_seconds: float = LOOK_SECONDS,
        reconcile_seconds: float = RECONCILE_SECONDS,
    ) -> None:
        self._pods, self._correct = pods, correct
        self._resource, self._folder, self._pod_resources = resource, folder, pod_resources
        self._look_seconds, self._reconcile_seconds = look_seconds, reconcile_seconds
        self._checkpoint = folder / CHECKPOINT
        self._ledger = read_checkpoint(self._checkpoint)
        self._due = asyncio.Event()
        self.server = PluginServer(self._ledger, refresh=self._refresh, delivered=self._keep, cdi=cdi)
        self.obstacle = f"the device plugin is not registered: {folder / KUBELET_SOCKET} was not looked for yet"
        """Why the kubelet does not know of us; empty while it does."""
        self.changed: Callable[[], None] = lambda: None
        """Told when `obstacle` is another one."""

    async def run(self) -> None:
        """Serves, registers and reconciles until it is cancelled."""
        reconciling = asyncio.create_task(self._reconcile_for_ever())
        try:
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
            await asyncio.sleep(self._look_seconds)
            return
        self._ledger.registered()
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
        self._due.set()
        # a look a second costs nothing, and a watch of the file system would miss what happened before it was set up
        while _identity(own) is not None and _identity(kubelet) == seen:  # noqa: ASYNC110
            await asyncio.sleep(self._look_seconds)
        logger.info("the kubelet has started anew or its folder was emptied")
        self._tell("the device plugin is not registered: the kubelet has started anew")
        await self.server.stop()

    def _tell(self, obstacle: str) -> None:
        if obstacle != self.obstacle:
            self.obstacle = obstacle
            self.changed()

    # -- the node's pods -----------------------------------------------------------------------------------------

    async def _refresh(self) -> View:
        """Reads the kubelet's list, then the node's pods, among which those of the list are. Where the API server
        cannot be asked, the pods known last count: one that is not among them is refused. Raises grpc.RpcError."""
        view = await listed_pods(self._pod_resources, resource=self._resource)
        try:
            self._ledger.pods(await self._pods(), view)
        except Exception as fault:
            logger.warning("the node's pods cannot be read: %s", fault)
        return view

    def _keep(self, delivery: Delivery) -> None:
        write_checkpoint(self._checkpoint, self._ledger)
        self._due.set()

    # -- what the kubelet says -----------------------------------------------------------------------------------

    async def _reconcile_for_ever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._reconcile_seconds):
                    await self._due.wait()
                # the kubelet books a delivery after our answer
                await asyncio.sleep(self._look_seconds)
            except TimeoutError:
                pass
            self._due.clear()
            try:
                await self.reconcile()
            except (grpc.RpcError, OSError) as fault:
                logger.warning("the kubelet's list of devices cannot be read: %s", said(fault))

    async def reconcile(self) -> None:
        """Reads the kubelet's list and puts right the annotations of pods that got each other's GPUs."""
        async with self.server.turn:
            before = self._ledger.deliveries, dict(self._ledger.exchanged)
            view = await self._refresh()
            self._ledger.reconcile(view)
            if (self._ledger.deliveries, self._ledger.exchanged) != before:
                write_checkpoint(self._checkpoint, self._ledger)
            corrections = self._ledger.corrections()
        if corrections:
            for one in corrections:
                logger.info("%s/%s has %s", one.namespace, one.pod, one.gpus)
            try:
                await self._correct(corrections)
            except Exception as fault:
                logger.warning("annotations of swapped pods cannot be written, again later: %s", fault)


def _identity(path: Path) -> tuple[int, int] | None:
    """What changes when a socket is made anew; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
