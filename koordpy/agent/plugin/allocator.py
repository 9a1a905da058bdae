"""Answers of the plugin: by the node's pods as they are now, and written to the disk before they are given.

A refusal ends a pod, and the kubelet waits for an answer without a limit of time. So an answer that may be known soon
is waited for: while the API server or the kubelet's list cannot be read, and while containers of a pod that is gone may
still use the GPUs. The wait is counted from the beginning of the trouble and not from the call, because the kubelet
handles no other pod while it waits, and calls itself unhealthy after two minutes.
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
WAIT_SECONDS = 50.0
"""Time that an answer may take from the beginning of what holds it up."""
READ_SECONDS = 10.0
"""Time that one read of the node's pods may take."""

PodSource = Callable[[], Awaitable[Sequence[ReservedGpus]]]
"""The node's assigned pods now; raises where the API server cannot be asked."""


class Allocator:
    """Serves what the kubelet asks from the ledger of one node. checkpoint: file that keeps the ledger."""

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
        self._pods, self._orphans = pods, orphans
        self._resource, self._pod_resources, self._checkpoint = resource, pod_resources, checkpoint
        self._look_seconds, self._wait_seconds = look_seconds, wait_seconds
        self.ledger = read_checkpoint(checkpoint)
        self._since: dict[str, float] = {}
        """Trouble that a wait may end -> when it began."""
        self.unwritten = ""
        """Why the checkpoint cannot be written; empty where it can."""
        self.held: Mapping[str, str] = {}
        """GPU -> why it is not free though no pod of the API server has it."""
        self.due = asyncio.Event()
        """Set when the kubelet's list is to be read soon."""
        self.turn = asyncio.Lock()
        """Held by whoever asks or changes the ledger."""
        self.changed: Callable[[], None] = lambda: None
        """Told when `held` or `unwritten` is another one."""

    # -- answers -------------------------------------------------------------------------------------------------

    async def deliver(self, offered: Sequence[str]) -> Delivery:
        """Serves the container that the kubelet asks for: its delivery is on the disk. Raises NoCandidateError, and
        grpc.RpcError where the kubelet's list cannot be read; then nothing has changed."""

        def serve(view: View) -> Delivery:
            before = self.ledger.state()
            delivery = self.ledger.deliver(view, offered)
            if not self.write():
                self.ledger.restore(before)
                raise NoCandidateError(f"what is delivered cannot be written down: {self.unwritten}")
            self.due.set()
            return delivery

        return await self._patiently(serve)

    async def prefer(self, available: Sequence[str], required: Sequence[str], size: int) -> tuple[str, ...]:
        """Ids that the kubelet should book."""

        def choose(view: View) -> tuple[str, ...]:
            self.ledger.asking(view, size)
            return self.ledger.prefer(view, available, required, size)

        try:
            return await self._patiently(choose)
        except (NoCandidateError, grpc.RpcError):  # deliver says so
            return self.ledger.prefer({}, available, required, size)

    async def _patiently(self, answer: Callable[[View], T]) -> T:
        """What `answer` returns once it does; raises what it raises where no wait can help, or none any longer."""
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
        """Reads the kubelet's list, then the node's pods, among which those of the list are. Where the API server
        cannot be asked, the pods known last count: one that is not among them is not served. Raises grpc.RpcError."""
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
        """Remembers which pods have processes. Nothing is asked but the node itself."""
        self._orphans.look({one.slot[0] for one in self.ledger.deliveries})

    @property
    def urgent(self) -> bool:
        """Whether the next reconciliation is due at the next look."""
        return bool(self.held or self.unwritten or (self._since and self.ledger.awaited()))

    async def reconcile(self) -> list[ReservedGpus]:
        """Reads the kubelet's list; pods whose annotations are to say something else. Raises grpc.RpcError."""
        async with self.turn:
            before = self.ledger.state()
            self.ledger.reconcile(await self.refresh())
            if self.unwritten or self.ledger.state() != before:
                self.write()
            return self.ledger.corrections()

    async def awaited(self) -> bool:
        """Whether a pod of this node waits to be admitted, as far as it can be read now."""
        async with self.turn:
            await self.refresh()
            return self.ledger.awaited()

    def write(self) -> bool:
        """Writes the checkpoint; whether it could be written."""
        unwritten = ""
        try:
            write_checkpoint(self._checkpoint, self.ledger)
        except OSError as fault:
            unwritten = f"{self._checkpoint}: {fault.strerror or fault}"
            logger.error("what was delivered cannot be written to %s", unwritten)
        if unwritten != self.unwritten:
            self.unwritten = unwritten
            self.changed()
        return not unwritten

    def _tell_held(self) -> None:
        held = {
            gpu: f"containers of pod {one.pod or one.slot[0]}, which is gone, may still use it"
            for one in self.ledger.orphans()
            for gpu in one.gpus
        }
        if held != self.held:
            self.held = held
            self.changed()


class _Trouble:
    """Remembers since when a block of code fails; forgets it once it does not."""

    def __init__(self, since: dict[str, float], name: str) -> None:
        self._since, self._name = since, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._since.pop(self._name, None)
        elif issubclass(kind, Exception):
            self._since.setdefault(self._name, time.monotonic())
