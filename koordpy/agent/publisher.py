"""Writes a node's Device: server-side apply of the spec, and the conditions, each only when something changed.

Source: gpu-topology.md 9. The Device belongs to its Node, so it goes when the node goes.
"""

import time
from typing import Any

from msgspec import to_builtins

from koordpy.agent.machine import MachineGpu
from koordpy.agent.report import API_VERSION, Report
from koordpy.api import keys
from koordpy.api.custom import Device
from koordpy.api.objects import Condition, Node
from koordpy.engine.apiserver.client import ApiClient, ApiError
from koordpy.engine.status.patches import merged_conditions

DEVICES = f"/apis/{keys.GROUP_KOORDINATOR}/v1alpha1/devices"
RUNTIME_CLASS = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"
FIELD_MANAGER = "koordpy-agent"


class DevicePublisher:
    """One node's Device at the API server."""

    def __init__(self, client: ApiClient, node: str) -> None:
        self._client, self._node = client, node
        self._written: Any = None
        self._conditions: list[Condition] = []
        self._owner: dict[str, Any] | None = None

    async def reported_before(self, boot: str) -> list[MachineGpu]:
        """GPUs that the Device lists from this start of the node; none after a restart of the node."""
        device = await self._client.get_or_none(f"{DEVICES}/{self._node}", type=Device)
        if device is None or not boot or device.metadata.annotations.get(keys.DEVICE_BOOT) != boot:
            return []
        return [_gpu(entry) for entry in device.spec.devices if entry.type == "gpu" and entry.minor is not None]

    async def publish(self, report: Report) -> bool:
        """Writes what differs from what was written last; whether anything did. Raises ApiError, Unreachable."""
        if self._owner is None:
            node = await self._client.get(f"/api/v1/nodes/{self._node}", type=Node)
            self._owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}
        device = {**report.device, "metadata": {**report.device["metadata"], "ownerReferences": [self._owner]}}
        path = f"{DEVICES}/{self._node}"
        changed = bool(device != self._written)
        if changed:
            await self._client.patch(path, device, kind="apply", field_manager=FIELD_MANAGER)
            self._written = device
        conditions = merged_conditions(self._conditions, report.conditions, now=time.time())
        if conditions == self._conditions:
            return changed
        body = {
            "apiVersion": API_VERSION,
            "kind": "Device",
            "metadata": {"name": self._node},
            "status": {"conditions": [{"message": "", **to_builtins(one)} for one in conditions]},
        }
        await self._client.patch(f"{path}/status", body, kind="apply", field_manager=FIELD_MANAGER)
        self._conditions = conditions
        return True

    async def lacks_runtime(self) -> str:
        """Why GPUs cannot be delivered by env, empty where they can: it needs the RuntimeClass nvidia."""
        try:
            await self._client.request("GET", RUNTIME_CLASS)
        except ApiError as fault:
            if fault.status == 404:
                return "delivery env needs the RuntimeClass nvidia, which the cluster lacks"
            raise
        return ""

    def forget(self) -> None:
        """Writes everything anew at the next report (the Device was changed or deleted by others)."""
        self._written, self._owner, self._conditions = None, None, []


def _gpu(entry: Any) -> MachineGpu:
    place = entry.topology
    return MachineGpu(
        index=-1,
        minor=entry.minor,
        uuid=entry.id,
        bus=place.bus_id or "" if place is not None else "",
        numa=place.node_id if place is not None else None,
        socket=place.socket_id if place is not None else None,
        pcie_root=place.pcie_id or "" if place is not None else "",
    )
