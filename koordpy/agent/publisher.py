# SPDX-License-Identifier: Apache-2.0
"""Writes a node's Device with server-side apply: the spec and the conditions, each only if it has changed.

The Node object owns the Device, so the Device is deleted with its Node. If `gsoc` is set, the links are also written as
GSOC annotations of the Node; no other field of the Node is written. Rules: gpu-topology.md 9.
"""

import time
from typing import Any

from msgspec import to_builtins

from koordpy.agent.device_report import API_VERSION, Report, node_annotations
from koordpy.agent.gpu_facts import MachineGpu
from koordpy.api import keys
from koordpy.api.custom_objects import Device
from koordpy.api.objects import Condition, Node
from koordpy.engine.client.api_client import ApiClient
from koordpy.engine.client.api_errors import ApiError
from koordpy.engine.status.status_patches import merged_conditions

DEVICES = f"/apis/{keys.GROUP_KOORDINATOR}/v1alpha1/devices"
"""Path of the Devices at the API server."""
RUNTIME_CLASS = "/apis/node.k8s.io/v1/runtimeclasses/nvidia"
"""Path of the RuntimeClass `nvidia`."""
FIELD_MANAGER = "koordpy-agent"
"""Owner of the written fields, for server-side apply."""


class DevicePublisher:
    """Writes one node's Device."""

    def __init__(self, client: ApiClient, node: str, *, gsoc: bool = False) -> None:
        """node: name of the node. gsoc: True to write the links also as GSOC annotations of the Node."""
        self._client, self._node, self._gsoc = client, node, gsoc
        self._written: Any = None
        """The Device as it was last written; None before the first write."""
        self._conditions: list[Condition] = []
        """Conditions as they were last written."""
        self._owner: dict[str, Any] | None = None
        """Owner reference to the Node; None while it is unknown."""
        self._described: dict[str, str] | None = None
        """GSOC annotations as they were last written; None before the first write."""

    async def reported_before(self, boot: str) -> list[MachineGpu]:
        """Returns the GPUs in the existing Device if the Device was written since the node's last boot, else none.

        boot: identifier of the current boot. GPUs that were lost before a reboot do not matter after it.
        """
        device = await self._client.get_or_none(f"{DEVICES}/{self._node}", type=Device)
        if device is None or not boot or device.metadata.annotations.get(keys.DEVICE_BOOT) != boot:
            return []
        return [_gpu(entry) for entry in device.spec.devices if entry.type == "gpu" and entry.minor is not None]

    async def publish(self, report: Report) -> bool:
        """Writes the changes since the last write, and returns True if there were any. Raises ApiError, Unreachable."""
        if self._owner is None:
            node = await self._client.get(f"/api/v1/nodes/{self._node}", type=Node)
            self._owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}
        device = {**report.device, "metadata": {**report.device["metadata"], "ownerReferences": [self._owner]}}
        path = f"{DEVICES}/{self._node}"
        changed = bool(device != self._written)
        if changed:
            await self._client.patch(path, device, kind="apply", field_manager=FIELD_MANAGER)
            self._written = device
        if self._gsoc and report.described != self._described:
            body = node_annotations(self._node, report.described, self._owner["uid"])
            await self._client.patch(f"/api/v1/nodes/{self._node}", body, kind="apply", field_manager=FIELD_MANAGER)
            self._described = dict(report.described)
            changed = True
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
        """Returns why GPUs cannot be delivered by `env`, which needs the RuntimeClass nvidia; empty if it exists."""
        try:
            await self._client.request("GET", RUNTIME_CLASS)
        except ApiError as fault:
            if fault.status == 404:
                return "delivery env needs the RuntimeClass nvidia, which the cluster lacks"
            raise
        return ""

    async def check(self) -> None:
        """If the Device was deleted, makes the next `publish` write everything. Raises ApiError, Unreachable."""
        if self._written is not None and await self._client.get_or_none(f"{DEVICES}/{self._node}", type=Device) is None:
            self.forget()

    def forget(self) -> None:
        """Makes the next `publish` write everything, because the Device may have been changed or deleted."""
        self._written, self._owner, self._conditions, self._described = None, None, [], None


def _gpu(entry: Any) -> MachineGpu:
    """Returns the GPU of an entry in a Device. Its index is unknown (-1)."""
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
