# SPDX-License-Identifier: Apache-2.0
"""Calls to the kubelet by the device plugin: registration, and the list of pods with their devices (PodResources)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from koordpy.agent.plugin.delivery_ledger import View
from koordpy.agent.plugin.kubelet_messages import MESSAGES, POD_RESOURCES, REGISTRATION, VERSION, message

CHANNEL_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
"""Options of the gRPC channel: servers in Go reject the default authority, which is the path of the unix socket."""
REGISTER_SECONDS = 5.0
"""Timeout of one call, registration or list, in seconds."""
LIST_AGAIN_SECONDS = (0.02, 0.05, 0.1, 0.3)
"""Seconds before each repetition of a list call that the kubelet rejected."""


async def register(kubelet: Path, *, endpoint: str, resource: str) -> None:
    """Registers the plugin with the kubelet, so that the kubelet calls it. Raises grpc.RpcError.

    kubelet: path of the kubelet's socket. endpoint: name of the plugin's socket in the same folder.
    """
    options = message("DevicePluginOptions", get_preferred_allocation_available=True)
    request = message("RegisterRequest", version=VERSION, endpoint=endpoint, resource_name=resource, options=options)
    async with _calling(kubelet, f"{REGISTRATION}Register", "RegisterRequest", "Empty") as call:
        await call(request, timeout=REGISTER_SECONDS)


@contextlib.asynccontextmanager
async def _calling(socket: Path, method: str, request: str, response: str) -> AsyncIterator[Any]:
    """Opens a channel to a socket of the kubelet, and yields a function that calls a method.

    method: full name. request, response: names of the message types.
    """
    async with grpc.aio.insecure_channel(f"unix://{socket}", options=CHANNEL_OPTIONS) as channel:
        yield channel.unary_unary(
            method,
            request_serializer=MESSAGES[request].SerializeToString,
            response_deserializer=MESSAGES[response].FromString,
        )


async def listed_pods(socket: Path, *, resource: str) -> View:
    """Returns the pods that the kubelet lists, with the booked ids of `resource` of each container.

    The kubelet limits calls per second; a call rejected for that reason is repeated. Raises grpc.RpcError.
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
    """Returns the text of a gRPC error."""
    details: str = getattr(fault, "details", lambda: str(fault))() or type(fault).__name__
    return details
