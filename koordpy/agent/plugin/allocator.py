# SPDX-License-Identifier: Apache-2.0
"""Answers the kubelet's requests for GPUs from the node's current pods. Each delivery is on disk before the answer.

If a request is refused, the kubelet fails the pod. So the allocator waits if an answer may become possible soon: while
the API server or the kubelet's list cannot be read, and while containers of a deleted pod may still use the GPUs. The
kubelet itself would wait without a limit, but it handles no other pod during a call, and reports itself unhealthy after
two minutes. So a wait ends `WAIT_SECONDS` after the trouble (such as an unreadable list) began.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import grpc

from koordpy.agent.plugin.checkpoint import read_checkpoint, write_checkpoint
from koordpy.agent.plugin.delivery_ledger import Delivery, NoCandidateError, ReservedGpus, StillHeldError, View
from koordpy.agent.plugin.kubelet_api import listed_pods, said
from koordpy.agent.plugin.orphans import Orphans

logger = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Seconds between two attempts to answer."""
WAIT_SECONDS = 50.0
"""Maximum seconds between the beginning of a trouble (see above) and the answer."""
READ_SECONDS = 10.0
"""Timeout for reading the node's pods, in seconds."""

PodSource = Callable[[], Awaitable[Sequence[ReservedGpus]]]
"""Returns the pods that are bound to the node now; raises if the API server does not answer."""


class Allocator:
    """Answers the kubelet's requests from the ledger of one node."""

    def __init__(
        self,
        pods: PodSource,
        orphans: Orphans,
        *,
        resource: str,
        pod_resources: Path,
        checkpoint: Path,
        look_seconds: float = LOOK_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """pods: returns the node's pods with their reserved GPUs. orphans: decides whether containers of deleted pods
        still run. resource: name of the GPU resource. pod_resources: socket on which the kubelet lists its pods.
        checkpoint: file with the deliveries."""
        self._pods, self._orphans = pods, orphans
        self._resource, self._pod_resources, self._checkpoint = resource, pod_resources, checkpoint
        self._look_seconds, self._wait_seconds = look_seconds, wait_seconds
        self.ledger = read_checkpoint(checkpoint)
        self._since: dict[str, float] = {}
        """Name of a lasting trouble ("list" or "pods": which of them cannot be read) -> time at which it began, on the
        monotonic clock."""
        self.unwritten = ""
        """Why the checkpoint cannot be written; empty if it can be written."""
        self.unavailable: Mapping[str, str] = {}
        """UUID of a GPU -> reason why the GPU is not free although no pod at the API server uses it."""
        self.due = asyncio.Event()
        """Set if the kubelet's list must be read soon."""
        self.turn = asyncio.Lock()
        """Must be held to read or change the ledger."""
        self.changed: Callable[[], None] = lambda: None
        """Called when `unavailable` or `unwritten` has changed."""

    # -- answers -------------------------------------------------------------------------------------------------

    async def deliver(self, offered: Sequence[str]) -> Delivery:
        """Delivers GPUs to the container that the kubelet asks for, and writes the delivery to disk.

        Raises NoCandidateError, and grpc.RpcError if the kubelet's list cannot be read; nothing is changed then.
        """

        def serve(view: View) -> Delivery:
            before = self.ledger.state()
            delivery = self.ledger.deliver(view, offered)
            if not self.write():
                self.ledger.restore(before)
                raise NoCandidateError(f"the delivery cannot be recorded: {self.unwritten}")
            self.due.set()
            return delivery

        return await self._patiently(serve)

    async def prefer(self, available: Sequence[str], required: Sequence[str], size: int) -> tuple[str, ...]:
        """Returns the ids that the kubelet should prefer. If the pod is unclear, reserved GPUs are not considered."""

        def choose(view: View) -> tuple[str, ...]:
            self.ledger.asking(view, size)
            return self.ledger.prefer(view, available, required, size)

        try:
            return await self._patiently(choose)
        except (NoCandidateError, grpc.RpcError):  # `deliver` reports the error
            return self.ledger.prefer({}, available, required, size)

    async def _patiently(self, answer: Callable[[View], T]) -> T:
        """Returns the result of `answer`, which gets the kubelet's list. Repeats it while waiting may help.

        Raises the last error if waiting does not help.
        """
        while True:
            try:
                return answer(await self.refresh())
            except (NoCandidateError, grpc.RpcError) as why:
                if isinstance(why, StillHeldError):
                    left = self._wait_seconds - self._orphans.gone_for(why.uid)
                else:
                    left = max((at + self._wait_seconds for at in self._since.values()), default=0.0) - time.monotonic()
                if left <= 0:
                    raise
                logger.info("the kubelet waits up to %.0f s: %s", left, said(why))
            await asyncio.sleep(self._look_seconds)

    # -- the node's pods -----------------------------------------------------------------------------------------

    async def refresh(self) -> View:
        """Reads the kubelet's list, then the node's pods; returns the list.

        The pods are read after the list, so that they include every listed pod. If the API server does not answer, the
        pods of the last read are used, and a pod that is not among them gets no GPUs. Raises grpc.RpcError.
        """
        with _Trouble(self._since, "list"):
            view = await listed_pods(self._pod_resources, resource=self._resource)
        try:
            with _Trouble(self._since, "pods"):
                async with asyncio.timeout(READ_SECONDS):
                    pods = await self._pods()
        except Exception as fault:
            logger.warning("the node's pods cannot be read: %s", str(fault) or type(fault).__name__)
            return view
        self.ledger.pods(pods, view, self._orphans.may_run)
        self._orphans.keep({one.slot[0] for one in self.ledger.deliveries})
        self._tell_held()
        return view

    def look(self) -> None:
        """Records which pods have processes, from the node's control groups. Cheap enough for every look of the
        service."""
        self._orphans.look({one.slot[0] for one in self.ledger.deliveries})

    @property
    def urgent(self) -> bool:
        """True if the next look must reconcile: GPUs are withheld, the checkpoint is not written, or a pod waits."""
        return bool(self.unavailable or self.unwritten or (self._since and self.ledger.awaited()))

    async def reconcile(self) -> list[ReservedGpus]:
        """Updates the ledger from the kubelet's list. Returns the pods with an exchange of GPUs that their annotations
        do not show yet.

        Raises grpc.RpcError.
        """
        async with self.turn:
            before = self.ledger.state()
            self.ledger.reconcile(await self.refresh())
            if self.unwritten or self.ledger.state() != before:
                self.write()
            return self.ledger.corrections()

    async def awaited(self) -> bool:
        """Returns True if the kubelet may still ask for GPUs of a pod of this node, as far as is known."""
        async with self.turn:
            await self.refresh()
            return self.ledger.awaited()

    def write(self) -> bool:
        """Writes the checkpoint, and returns True on success."""
        unwritten = ""
        try:
            write_checkpoint(self._checkpoint, self.ledger)
        except OSError as fault:
            unwritten = f"{self._checkpoint}: {fault.strerror or fault}"
            logger.error("the checkpoint of deliveries cannot be written: %s", unwritten)
        if unwritten != self.unwritten:
            self.unwritten = unwritten
            self.changed()
        return not unwritten

    def _tell_held(self) -> None:
        """Updates `unavailable` with the GPUs of deleted pods that may still run."""
        held = {
            gpu: f"containers of the deleted pod {one.pod or one.slot[0]} may still use it"
            for one in self.ledger.orphans()
            for gpu in one.gpus
        }
        if held != self.unavailable:
            self.unavailable = held
            self.changed()


class _Trouble:
    """Context manager that records since when a block of code fails; the record ends when the block succeeds."""

    def __init__(self, since: dict[str, float], name: str) -> None:
        """since: name -> time of the first failure; updated on exit. name: name of this block."""
        self._since, self._name = since, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._since.pop(self._name, None)
        elif issubclass(kind, Exception):
            self._since.setdefault(self._name, time.monotonic())
