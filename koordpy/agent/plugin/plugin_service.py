# SPDX-License-Identifier: Apache-2.0
"""Runs the device plugin: registers with the kubelet after each start of the kubelet, and reads its list of pods.

A device plugin is the gRPC service from which the kubelet gets the devices of containers. The kubelet empties its
folder of sockets when it starts. So the plugin serves and registers again if the kubelet's socket is another file than
before, or if the plugin's socket is missing. While no plugin is registered, the kubelet fails every pod with GPUs. So a
plugin that is about to end first writes this to the Device, then waits until no pod is waiting for admission. Rules:
gpu-topology.md 10, `device-plugin`.
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
"""Folder with the sockets of the kubelet and of all device plugins."""
POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
"""Socket on which the kubelet lists its pods with their devices."""
KUBELET_SOCKET = "kubelet.sock"
"""Name of the kubelet's socket."""
ENDPOINT = "koordpy-gpu.sock"
"""Name of the plugin's socket."""
CHECKPOINT = "koordpy-gpu-checkpoint.json"
"""Name of the file with the deliveries."""
SOCKET_SECONDS = 0.1
"""Seconds between two checks of the kubelet's socket. A restarted kubelet fails pods until the plugin is registered."""
RECONCILE_SECONDS = 30.0
"""Maximum seconds between two reconciliations with the kubelet's list."""
QUIET_SECONDS = 3.0
"""An ending plugin ends after this many seconds in which no pod waited for admission. By then the scheduler has read
the Device, and Bindings in progress have arrived."""
DRAIN_SECONDS = 45.0
"""Seconds after which an ending plugin ends in any case."""
ENDING = "the agent is ending"
"""Reason of the condition DeliveryUnavailable while the agent is ending."""

PodWriter = Callable[[Sequence[ReservedGpus]], Awaitable[None]]
"""Writes the GPUs of pods to their annotations; raises if the annotations of a pod could not be written."""
ServedWriter = Callable[[Sequence[str]], Awaitable[None]]
"""Writes to pods (uids) that their GPUs were delivered; raises if a pod could not be written."""


class PluginService:
    """The device plugin of one node. `run()` runs until it is cancelled; the caller passes the GPUs to
    `server.offer`."""

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
        """pods: returns the node's pods with their reserved GPUs. correct: writes the annotations of pods that have
        exchanged their GPUs. resource: name of the GPU resource. folder: folder of the sockets and the checkpoint. cdi:
        True to name GPUs also as CDI devices. confirm: writes that pods have got their GPUs; None if this is not
        written. look_seconds: seconds between two checks for due work. For other times see the constants."""
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
        self._unregistered = f"the device plugin is not registered: {folder / KUBELET_SOCKET} was not checked yet"
        self._ending = ""
        self.changed: Callable[[], None] = lambda: None
        """Called when `obstacle` or the allocator's `unavailable` has changed."""

    @property
    def obstacle(self) -> str:
        """Why containers cannot get GPUs; empty if they can."""
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
        """Serves one registration: until the kubelet restarts, or until the plugin's socket is missing.

        If the kubelet has no socket or rejects the registration, returns after a short wait; the caller tries again.
        """
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
        # a check costs two system calls; a file system watch would miss changes before it was set up
        while _identity(own) is not None and _identity(kubelet) == seen:  # noqa: ASYNC110
            await asyncio.sleep(self._socket_seconds)
        logger.info("the kubelet has restarted or its folder was emptied")
        self._tell("the device plugin is not registered: the kubelet has restarted")
        await self.server.stop()

    @property
    def _socket_seconds(self) -> float:
        """Seconds between two checks of the sockets."""
        return min(SOCKET_SECONDS, self._look_seconds)

    def _tell(self, unregistered: str) -> None:
        """Sets the reason why the plugin is not registered; empty if it is registered."""
        if unregistered != self._unregistered:
            self._unregistered = unregistered
            self.changed()

    # -- the end -------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Reports that GPUs cannot be delivered soon. Requests of the kubelet are still answered."""
        self._ending = ENDING
        self.changed()

    async def drain(self) -> None:
        """Returns once no pod has waited for admission for `quiet_seconds`, or after `DRAIN_SECONDS`."""
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

    # -- reconciliation ------------------------------------------------------------------------------------------

    async def _reconcile_for_ever(self) -> None:
        """Reconciles with the kubelet's list after each delivery, while a problem lasts, and every
        `reconcile_seconds`."""
        allocator, since = self.allocator, time.monotonic()
        while True:
            # the kubelet books the ids of a delivery only after the answer
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
        """Reads the kubelet's list, and writes the annotations of pods that got each other's GPUs.

        If annotations cannot be written, the next reconciliation writes them, because the ledger still has the
        exchange.
        """
        corrections = await self.allocator.reconcile()
        served = self.allocator.ledger.served()
        if corrections:
            for one in corrections:
                logger.info("pod %s/%s uses GPUs %s", one.namespace, one.pod, one.gpus)
            try:
                await self._correct(corrections)
            except Exception as fault:
                logger.warning("annotations after an exchange of GPUs cannot be written, retrying later: %s", fault)
        if served and self._confirm is not None:
            try:
                await self._confirm(served)
            except Exception as fault:
                logger.warning("the gpushare annotation of pods cannot be written, retrying later: %s", fault)


def _identity(path: Path) -> tuple[int, int] | None:
    """Returns a value that changes if a socket is deleted and created again; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
