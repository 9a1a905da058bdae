"""The gRPC side: what the kubelet calls on us, over a unix socket.

Source: gpu-topology.md 10; k8s.io/kubelet deviceplugin/v1beta1. One instance serves one registration: when the
kubelet starts anew its socket folder is emptied, and a new server with a new socket registers.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from koordpy.agent.plugin.ledger import Delivery, Ledger, NoCandidateError, View
from koordpy.agent.plugin.messages import (
    DEVICE_PLUGIN,
    HEALTHY,
    MESSAGES,
    POD_RESOURCES,
    REGISTRATION,
    UNHEALTHY,
    VERSION,
    message,
)
from koordpy.api.keys import NVIDIA_VISIBLE_DEVICES

logger = logging.getLogger(__name__)

CHANNEL_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
"""Servers in Go refuse the authority that a unix socket's path would give."""
REGISTER_SECONDS = 5.0
LIST_AGAIN_SECONDS = (0.02, 0.05, 0.1, 0.3)
CDI_KIND = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class PluginOffer:
    """One GPU as the kubelet is told of it."""

    id: str
    healthy: bool
    numa: int | None = None


def container_answer(gpus: Sequence[str], *, cdi: bool) -> dict[str, Any]:
    """What a container gets: the GPUs by name, in the environment and, where CDI is used, as CDI devices."""
    answer: dict[str, Any] = {"envs": {NVIDIA_VISIBLE_DEVICES: ",".join(gpus)}}
    if cdi:
        answer["cdi_devices"] = [message("CDIDevice", name=f"{CDI_KIND}={gpu}") for gpu in gpus]
    return answer


class PluginServer:
    """The DevicePlugin service. delivered: told of each delivery before the kubelet hears of it; refresh: brings the
    ledger up to date with the node's pods, and says which ones the kubelet lists. Raises grpc.RpcError."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        refresh: Callable[[], Awaitable[View]],
        delivered: Callable[[Delivery], None],
        cdi: bool = False,
    ) -> None:
        self._ledger, self._refresh, self._delivered, self._cdi = ledger, refresh, delivered, cdi
        self._offers: tuple[PluginOffer, ...] = ()
        self._changed = asyncio.Event()
        self._server: Any = None
        self.turn = asyncio.Lock()
        """Held by whoever asks or changes the ledger."""

    def offer(self, offers: Sequence[PluginOffer]) -> None:
        """The GPUs of the node; open ListAndWatch streams are told what changed."""
        if tuple(offers) != self._offers:
            self._offers = tuple(offers)
            self._changed.set()
            self._changed = asyncio.Event()

    async def start(self, socket: Path) -> None:
        """Serves on a unix socket, which it makes; one that is left over goes."""
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
        if self._server is not None:
            await self._server.stop(grace=0)
            self._server = None

    # -- answers -------------------------------------------------------------------------------------------------

    async def _options(self, request: Any, context: Any) -> Any:
        return message("DevicePluginOptions", get_preferred_allocation_available=True)

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        while True:
            changed = self._changed
            yield message("ListAndWatchResponse", devices=[_device(offer) for offer in self._offers])
            await changed.wait()

    async def _preferred(self, request: Any, context: Any) -> Any:
        async with self.turn:
            view: View = {}
            with contextlib.suppress(grpc.RpcError):  # Allocate says so
                view = await self._refresh()
            answers = [
                message(
                    "ContainerPreferredAllocationResponse",
                    deviceIDs=self._ledger.prefer(
                        view, one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
                    ),
                )
                for one in request.container_requests
            ]
        return message("PreferredAllocationResponse", container_responses=answers)

    async def _allocate(self, request: Any, context: Any) -> Any:
        async with self.turn:
            answers = []
            for one in request.container_requests:
                try:
                    delivery = self._ledger.deliver(await self._refresh(), one.devices_ids)
                except (NoCandidateError, grpc.RpcError) as why:
                    text = (
                        f"the kubelet's list of pods cannot be read: {said(why)}"
                        if isinstance(why, grpc.RpcError)
                        else str(why)
                    )
                    logger.warning("refused: %s", text)
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
                    raise  # abort raises; this is for readers
                self._delivered(delivery)
                logger.info("%s of pod %s gets %s", delivery.slot[1], delivery.slot[0], ", ".join(delivery.gpus))
                answers.append(message("ContainerAllocateResponse", **container_answer(delivery.gpus, cdi=self._cdi)))
        return message("AllocateResponse", container_responses=answers)

    async def _prestart(self, request: Any, context: Any) -> Any:
        return message("PreStartContainerResponse")


def _device(offer: PluginOffer) -> Any:
    device = message("Device", ID=offer.id, health=HEALTHY if offer.healthy else UNHEALTHY)
    if offer.numa is not None:
        device.topology.nodes.add(ID=offer.numa)
    return device


def _unary(request: str, response: str, call: Callable[[Any, Any], Any]) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        call,
        request_deserializer=MESSAGES[request].FromString,
        response_serializer=MESSAGES[response].SerializeToString,
    )


# -- calls to the kubelet ----------------------------------------------------------------------------------------------


async def register(kubelet: Path, *, endpoint: str, resource: str) -> None:
    """Tells the kubelet of a plugin whose socket `endpoint` lies in the kubelet's folder. Raises grpc.RpcError."""
    options = message("DevicePluginOptions", get_preferred_allocation_available=True)
    request = message("RegisterRequest", version=VERSION, endpoint=endpoint, resource_name=resource, options=options)
    async with _calling(kubelet, f"{REGISTRATION}Register", "RegisterRequest", "Empty") as call:
        await call(request, timeout=REGISTER_SECONDS)


@contextlib.asynccontextmanager
async def _calling(socket: Path, method: str, request: str, response: str) -> AsyncIterator[Any]:
    """The call of a method that the kubelet serves on a socket."""
    async with grpc.aio.insecure_channel(f"unix://{socket}", options=CHANNEL_OPTIONS) as channel:
        yield channel.unary_unary(
            method,
            request_serializer=MESSAGES[request].SerializeToString,
            response_deserializer=MESSAGES[response].FromString,
        )


async def listed_pods(socket: Path, *, resource: str) -> View:
    """The pods that the kubelet lists, with the ids of the resource that it books for their containers.

    It answers no more than so many calls a second; a refused one is made again. Raises grpc.RpcError.
    """
    kinds = "ListPodResourcesRequest", "ListPodResourcesResponse"
    async with _calling(socket, f"{POD_RESOURCES}List", *kinds) as call:
        for wait_s in (*LIST_AGAIN_SECONDS, None):
            try:
                answer = await call(message("ListPodResourcesRequest"), timeout=REGISTER_SECONDS, wait_for_ready=True)
                break
            except grpc.aio.AioRpcError as fault:
                if wait_s is None or fault.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                await asyncio.sleep(wait_s)
    view: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for pod in answer.pod_resources:
        booked = view.setdefault((pod.namespace, pod.name), {})
        for container in pod.containers:
            ids = tuple(gpu for one in container.devices if one.resource_name == resource for gpu in one.device_ids)
            if ids:
                booked[container.name] = ids
    return view


def said(fault: BaseException) -> str:
    """What an error of gRPC says."""
    details: str = getattr(fault, "details", lambda: str(fault))() or type(fault).__name__
    return details
