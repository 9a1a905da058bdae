"""The plugin's life: registered with the kubelet, again whenever the kubelet starts anew, and reconciled with its list.

Source: gpu-topology.md section 10, `device-plugin`. The kubelet empties its folder of sockets when it starts: a kubelet
socket that is another file than before, or our own socket gone, means to serve and register anew.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import grpc

from koordpy.agent.plugin.checkpoint import read_checkpoint, write_checkpoint
from koordpy.agent.plugin.ledger import Correction, Delivery, Ledger, Reserved, Slot
from koordpy.agent.plugin.server import Offer, PluginServer, held_devices, register

logger = logging.getLogger(__name__)

KUBELET_FOLDER = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
KUBELET_SOCKET = "kubelet.sock"
ENDPOINT = "koordpy-gpu.sock"
CHECKPOINT = "koordpy-gpu-checkpoint.json"
LOOK_SECONDS = 1.0
RECONCILE_SECONDS = 30.0

PodSource = Callable[[], Awaitable[Sequence[Reserved]]]
"""The node's assigned pods now; raises where the API server cannot be asked."""
PodWriter = Callable[[Sequence[Correction]], Awaitable[None]]
"""Writes corrected annotations; raises where one could not be written."""


class PluginService:
    """One node's plugin. `run()` goes on until it is cancelled; `offer` tells it of the GPUs."""

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
        self._ledger = Ledger(read_checkpoint(self._checkpoint))
        self._slots: dict[tuple[str, str, str], Slot] = {}
        self._due = asyncio.Event()
        self._unwritten: dict[Slot, Correction] = {}
        self.server = PluginServer(self._ledger, refresh=self._refresh, delivered=self._keep, cdi=cdi)
        self.registered = asyncio.Event()
        """Set while the kubelet knows of us."""

    def offer(self, offers: Sequence[Offer]) -> None:
        """The GPUs of the node as they are now."""
        self.server.offer(offers)

    async def run(self) -> None:
        """Serves, registers and reconciles until it is cancelled."""
        reconciling = asyncio.create_task(self._reconcile_for_ever())
        try:
            while True:
                await self._serve_once()
        finally:
            reconciling.cancel()
            self.registered.clear()
            await self.server.stop()

    async def _serve_once(self) -> None:
        """One registration: until the kubelet starts anew or our socket is gone."""
        own, kubelet = self._folder / ENDPOINT, self._folder / KUBELET_SOCKET
        seen = _identity(kubelet)
        if seen is None:
            await asyncio.sleep(self._look_seconds)
            return
        try:
            await self.server.start(own)
            await register(kubelet, endpoint=ENDPOINT, resource=self._resource)
        except (grpc.RpcError, OSError, RuntimeError) as fault:
            logger.warning("registration with the kubelet failed: %s", _said(fault))
            await self.server.stop()
            await asyncio.sleep(self._look_seconds)
            return
        logger.info("registered with the kubelet for %s", self._resource)
        self.registered.set()
        self._due.set()
        # a look a second costs nothing, and a watch of the file system would miss what happened before it was set up
        while _identity(own) is not None and _identity(kubelet) == seen:  # noqa: ASYNC110
            await asyncio.sleep(self._look_seconds)
        logger.info("the kubelet has started anew or its folder was emptied")
        self.registered.clear()
        await self.server.stop()

    # -- the node's pods -----------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        """Reads the node's pods. Where the API server cannot be asked, the pods known last count: one that is not among
        them is refused, none is served by guess."""
        try:
            reserved = list(await self._pods())
        except Exception as fault:
            logger.warning("the node's pods cannot be read: %s", fault)
            return
        self._slots = {(one.namespace, one.pod, one.container): one.slot for one in reserved}
        # what could not be written yet is true all the same
        self._ledger.pods([_as_given(one, self._unwritten.get(one.slot)) for one in reserved])

    def _keep(self, delivery: Delivery) -> None:
        write_checkpoint(self._checkpoint, self._ledger.deliveries)
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
                logger.warning("the kubelet's list of devices cannot be read: %s", _said(fault))

    async def reconcile(self) -> None:
        """Reads the kubelet's list and puts right the annotations of pods that got each other's GPUs."""
        await self._refresh()
        held = await held_devices(self._pod_resources, resource=self._resource)
        by_slot = {self._slots[key]: ids for key, ids in held.items() if key in self._slots}
        before = self._ledger.deliveries
        for correction in self._ledger.reconcile(by_slot):
            known = self._unwritten.get(correction.one.slot)
            one = known.one if known is not None else correction.one
            self._unwritten[one.slot] = Correction(one, correction.gpus)
            logger.info("%s/%s has %s in place of %s", one.namespace, one.pod, correction.gpus, one.gpus)
        if self._ledger.deliveries != before:
            write_checkpoint(self._checkpoint, self._ledger.deliveries)
        if self._unwritten:
            corrections = list(self._unwritten.values())
            try:
                await self._correct(corrections)
            except Exception as fault:
                logger.warning("annotations of swapped pods cannot be written, again later: %s", fault)
                return
            for correction in corrections:
                self._unwritten.pop(correction.one.slot, None)


def _as_given(one: Reserved, correction: Correction | None) -> Reserved:
    if correction is None or set(one.gpus) != set(correction.one.gpus):
        return one
    return Reserved(one.uid, one.namespace, one.pod, one.container, correction.gpus, one.created)


def _identity(path: Path) -> tuple[int, int] | None:
    """What changes when a socket is made anew; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _said(fault: BaseException) -> str:
    details: Mapping[str, str] | str = getattr(fault, "details", lambda: str(fault))() or type(fault).__name__
    return str(details)
