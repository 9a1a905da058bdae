# SPDX-License-Identifier: Apache-2.0
"""The gRPC service DevicePlugin, which the kubelet calls on a unix socket.

A restarted kubelet empties its folder of sockets; the plugin then serves on a new socket and registers again. Each
method answers one call of the kubelet; the allocator decides on the answer. Rules: gpu-topology.md 10. API:
k8s.io/kubelet deviceplugin/v1beta1.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from koordpy.agent.plugin.allocator import Allocator
from koordpy.agent.plugin.delivery_ledger import NoCandidateError
from koordpy.agent.plugin.kubelet_api import said
from koordpy.agent.plugin.kubelet_messages import DEVICE_PLUGIN, HEALTHY, MESSAGES, UNHEALTHY, message
from koordpy.api.keys import NVIDIA_VISIBLE_DEVICES

logger = logging.getLogger(__name__)

CDI_KIND = "nvidia.com/gpu"
"""Kind of the CDI devices that name the GPUs (Container Device Interface)."""


@dataclass(frozen=True, slots=True)
class PluginOffer:
    """One GPU as it is reported to the kubelet."""

    id: str
    """UUID of the GPU."""
    healthy: bool
    """False for a GPU that must not be allocated."""
    numa: int | None = None
    """NUMA node; None if unknown."""


def container_answer(gpus: Sequence[str], *, cdi: bool) -> dict[str, Any]:
    """Returns the answer for a container: its GPUs in an environment variable; with `cdi` also as CDI devices."""
    answer: dict[str, Any] = {"envs": {NVIDIA_VISIBLE_DEVICES: ",".join(gpus)}}
    if cdi:
        answer["cdi_devices"] = [message("CDIDevice", name=f"{CDI_KIND}={gpu}") for gpu in gpus]
    return answer


class PluginServer:
    """The DevicePlugin service. The allocator gives the answers."""

    def __init__(self, allocator: Allocator, *, cdi: bool = False) -> None:
        self._allocator, self._cdi = allocator, cdi
        self._offers: tuple[PluginOffer, ...] = ()
        self._changed = asyncio.Event()
        """Set, and replaced by a new event, when the GPUs have changed."""
        self.offered = asyncio.Event()
        """Set once the GPUs are known. Before, nothing is sent: a kubelet with an empty list removes the Node's
        resource."""
        self._server: Any = None

    def offer(self, offers: Sequence[PluginOffer]) -> None:
        """Sets the GPUs of the node, and sends changes to open ListAndWatch streams."""
        if tuple(offers) != self._offers:
            self._offers = tuple(offers)
            self._changed.set()
            self._changed = asyncio.Event()
        self.offered.set()

    async def start(self, socket: Path) -> None:
        """Serves on a new unix socket; an existing socket is deleted first."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket)
        self._server = grpc.aio.server()
        handlers = {
            "GetDevicePluginOptions": _unary("Empty", "DevicePluginOptions", self._options),
            "GetPreferredAllocation": _unary(
                "PreferredAllocationRequest", "PreferredAllocationResponse", self._preferred
            ),
            "Allocate": _unary("AllocateRequest", "AllocateResponse", self._allocate),
            "PreStartContainer": _unary("PreStartContainerRequest", "PreStartContainerResponse", self._prestart),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=MESSAGES["Empty"].FromString,
                response_serializer=MESSAGES["ListAndWatchResponse"].SerializeToString,
            ),
        }
        service = DEVICE_PLUGIN.strip("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(f"unix://{socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Stops serving at once; open calls are aborted."""
        if self._server is not None:
            await self._server.stop(grace=0)
            self._server = None

    # -- answers -------------------------------------------------------------------------------------------------

    async def _options(self, request: Any, context: Any) -> Any:
        """Answers GetDevicePluginOptions."""
        return message("DevicePluginOptions", get_preferred_allocation_available=True)

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Answers ListAndWatch: sends the GPUs of the node now and after each change."""
        while True:
            changed = self._changed
            yield message("ListAndWatchResponse", devices=[_device(offer) for offer in self._offers])
            await changed.wait()

    async def _preferred(self, request: Any, context: Any) -> Any:
        """Answers GetPreferredAllocation."""
        async with self._allocator.turn:
            answers = [
                message(
                    "ContainerPreferredAllocationResponse",
                    deviceIDs=await self._allocator.prefer(
                        one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
                    ),
                )
                for one in request.container_requests
            ]
        return message("PreferredAllocationResponse", container_responses=answers)

    async def _allocate(self, request: Any, context: Any) -> Any:
        """Answers Allocate with the GPUs of each container; an error fails the pod in the kubelet."""
        async with self._allocator.turn:
            answers = []
            for one in request.container_requests:
                try:
                    delivery = await self._allocator.deliver(one.devices_ids)
                except (NoCandidateError, grpc.RpcError) as why:
                    text = (
                        f"the kubelet's list of pods cannot be read: {said(why)}"
                        if isinstance(why, grpc.RpcError)
                        else str(why)
                    )
                    logger.warning("Allocate request refused: %s", text)
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
                    raise  # not reached, because `abort` raises
                logger.info("%s of pod %s gets %s", delivery.slot[1], delivery.pod, ", ".join(delivery.gpus))
                answers.append(message("ContainerAllocateResponse", **container_answer(delivery.gpus, cdi=self._cdi)))
        return message("AllocateResponse", container_responses=answers)

    async def _prestart(self, request: Any, context: Any) -> Any:
        """Answers PreStartContainer; nothing has to be done."""
        return message("PreStartContainerResponse")


def _device(offer: PluginOffer) -> Any:
    """Returns the kubelet's message for a GPU."""
    device = message("Device", ID=offer.id, health=HEALTHY if offer.healthy else UNHEALTHY)
    if offer.numa is not None:
        device.topology.nodes.add(ID=offer.numa)
    return device


def _unary(request: str, response: str, call: Callable[[Any, Any], Any]) -> Any:
    """Returns the handler of a gRPC method with one request and one response. request, response: message names."""
    return grpc.unary_unary_rpc_method_handler(
        call,
        request_deserializer=MESSAGES[request].FromString,
        response_serializer=MESSAGES[response].SerializeToString,
    )
