# SPDX-License-Identifier: Apache-2.0
"""A kubelet as a device plugin sees it: the real gRPC API over unix sockets, its bookkeeping of ids, its restarts."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from koordpy.agent.plugin.kubelet_messages import DEVICE_PLUGIN, MESSAGES, message


class RefusedError(Exception):
    """The plugin answered with an error: the kubelet reports UnexpectedAdmissionError."""


class Kubelet:
    """Sockets in a folder. `admit` does what the kubelet does for one container."""

    def __init__(self, folder: Path, pod_resources: Path | None = None) -> None:
        self.folder = folder
        self.pod_resources = pod_resources or folder / "pod-resources.sock"
        self.devices: dict[str, tuple[str, tuple[int, ...]]] = {}
        """Id -> (health, NUMA nodes), as ListAndWatch said last."""
        self.registrations: list[Any] = []
        self.booked: dict[tuple[str, str, str], tuple[str, ...]] = {}
        """(namespace, pod, container) -> ids."""
        self.known: set[str] = set()
        """Pods that it lists."""
        self.busy = 0
        """Lists that are refused before one is answered: there are too many in a second."""
        self.changed = asyncio.Condition()
        self._servers: list[Any] = []
        self._channel: Any = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Empties the folder of sockets, as the kubelet does, and serves."""
        self.empty()
        await self._serve(
            self.folder / "kubelet.sock", "v1beta1.Registration", "Register", "RegisterRequest", "Empty", self._register
        )
        await self._serve(
            self.pod_resources,
            "v1.PodResourcesLister",
            "List",
            "ListPodResourcesRequest",
            "ListPodResourcesResponse",
            self._list,
        )

    def empty(self) -> None:
        """Removes the sockets of its folder."""
        for socket in self.folder.glob("*.sock"):
            socket.unlink()

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
        for server in self._servers:
            await server.stop(grace=0)
        self._servers.clear()

    async def _serve(self, socket: Path, service: str, method: str, request: str, response: str, call: Any) -> None:
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            call,
            request_deserializer=MESSAGES[request].FromString,
            response_serializer=MESSAGES[response].SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        server.add_insecure_port(f"unix://{socket}")
        await server.start()
        self._servers.append(server)

    async def _register(self, request: Any, context: Any) -> Any:
        self.registrations.append(request)
        self._channel = grpc.aio.insecure_channel(
            f"unix://{self.folder / request.endpoint}", options=(("grpc.default_authority", "localhost"),)
        )
        self._watch = asyncio.create_task(self._follow())
        return message("Empty")

    async def _follow(self) -> None:
        call = self._channel.unary_stream(
            f"{DEVICE_PLUGIN}ListAndWatch",
            request_serializer=MESSAGES["Empty"].SerializeToString,
            response_deserializer=MESSAGES["ListAndWatchResponse"].FromString,
        )
        try:
            async for answer in call(message("Empty")):
                async with self.changed:
                    self.devices = {
                        d.ID: (d.health, tuple(node.ID for node in d.topology.nodes)) for d in answer.devices
                    }
                    self.changed.notify_all()
        except grpc.aio.AioRpcError:
            pass

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(condition)

    async def call(self, method: str, request: str, response: str, body: Any) -> Any:
        stub = self._channel.unary_unary(
            f"{DEVICE_PLUGIN}{method}",
            request_serializer=MESSAGES[request].SerializeToString,
            response_deserializer=MESSAGES[response].FromString,
        )
        try:
            return await stub(body, timeout=60)
        except grpc.aio.AioRpcError as fault:
            raise RefusedError(fault.details()) from None

    def free(self) -> list[str]:
        taken = {gpu for ids in self.booked.values() for gpu in ids}
        return sorted(gpu for gpu, (health, _) in self.devices.items() if health == "Healthy" and gpu not in taken)

    async def prefer(self, size: int, available: Sequence[str] | None = None) -> list[str]:
        body = message("PreferredAllocationRequest")
        body.container_requests.add(available_deviceIDs=available or self.free(), allocation_size=size)
        answer = await self.call(
            "GetPreferredAllocation", "PreferredAllocationRequest", "PreferredAllocationResponse", body
        )
        return list(answer.container_responses[0].deviceIDs)

    async def admit(self, pod: str, size: int, *, container: str = "c", ids: Sequence[str] | None = None) -> list[str]:
        """What the container sees. ids: offered in place of the preferred ones."""
        self.known.add(pod)
        offered = list(ids) if ids is not None else await self.prefer(size)
        body = message("AllocateRequest")
        body.container_requests.add(devices_ids=offered)
        try:
            answer = await self.call("Allocate", "AllocateRequest", "AllocateResponse", body)
        except RefusedError:
            self.known.discard(pod)
            raise
        self.booked["default", pod, container] = tuple(offered)
        return str(answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"]).split(",")

    async def _list(self, request: Any, context: Any) -> Any:
        if self.busy:
            self.busy -= 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        answer = message("ListPodResourcesResponse")
        for name in sorted(self.known):
            one = answer.pod_resources.add(name=name, namespace="default")
            for (_, pod, container), ids in self.booked.items():
                if pod == name:
                    one.containers.add(name=container).devices.add(resource_name="nvidia.com/gpu", device_ids=ids)
        return answer
