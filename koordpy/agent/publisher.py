"""Writes a node's Device: server-side apply of the spec, and the conditions, each only when something changed.

Source: gpu-topology.md 9. The Device belongs to its Node, so it goes when the node goes.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from koordpy.agent.machine import MachineGpu
from koordpy.agent.report import API_VERSION, DeviceCondition, Report
from koordpy.api import keys
from koordpy.api.custom import Device
from koordpy.api.objects import Node
from koordpy.engine.apiserver.client import ApiClient, ApiError

DEVICES = f"/apis/{keys.GROUP_KOORDINATOR}/v1alpha1/devices"
RUNTIME_CLASS = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"
FIELD_MANAGER = "koordpy-agent"


class DevicePublisher:
    """One node's Device at the API server."""

    def __init__(self, client: ApiClient, node: str) -> None:
        self._client, self._node = client, node
        self._written: Any = None
        self._conditions: dict[str, tuple[DeviceCondition, str]] = {}
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
            await self._client.patch(path, device, kind="apply", field_manager=FIELD_MANAGER, force=True)
            self._written = device
        if {c.type: c for c in report.conditions} == {name: c for name, (c, _) in self._conditions.items()}:
            return changed
        conditions = self._stamped(report.conditions)
        body = {
            "apiVersion": API_VERSION,
            "kind": "Device",
            "metadata": {"name": self._node},
            "status": {"conditions": [_condition(c, since) for c, since in conditions.values()]},
        }
        await self._client.patch(f"{path}/status", body, kind="apply", field_manager=FIELD_MANAGER, force=True)
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
        self._written, self._owner, self._conditions = None, None, {}

    def _stamped(self, conditions: Sequence[DeviceCondition]) -> dict[str, tuple[DeviceCondition, str]]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        out = {}
        for condition in conditions:
            known = self._conditions.get(condition.type)
            out[condition.type] = (
                condition,
                known[1] if known is not None and known[0].status == condition.status else now,
            )
        return out


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


def _condition(condition: DeviceCondition, since: str) -> dict[str, Any]:
    return {
        "type": condition.type,
        "status": "True" if condition.status else "False",
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": since,
    }
