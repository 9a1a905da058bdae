# SPDX-License-Identifier: Apache-2.0
"""Writes the status of Devices: which pods use which GPUs, and faults in the matrices of GPU links.

A node's agent writes the spec of its Device, and conditions about the hardware. The scheduler writes the conditions
AsymmetricLink and TopologyMalformed, because only the scheduler interprets the matrices. Agent and scheduler use
server-side apply with different field managers, so that each changes only the conditions that it owns.
Sources: vocabulary.md 3, gpu-topology.md 1.
"""

from collections.abc import Iterable, Sequence

from koordpy.api.custom_objects import Device, DeviceAllocation, DeviceHolder, DeviceStatus
from koordpy.api.natural_order import natural_key
from koordpy.api.objects import Condition, condition_of
from koordpy.cache.cluster_state import ClusterState
from koordpy.devices.gpu.gpu_book import gpu_book
from koordpy.engine.client.api_resources import DEVICES, Resource
from koordpy.engine.status.reconciler import WholeStatusWriter
from koordpy.engine.status.status_patches import condition_body, merged_conditions, patch_status

ASYMMETRIC, MALFORMED = "AsymmetricLink", "TopologyMalformed"
_REASONS = {ASYMMETRIC: ("DirectionsDiffer", "DirectionsAgree"), MALFORMED: ("MatrixUnreadable", "MatrixReadable")}
"""Type of a condition -> (reason while it is True, reason when it becomes False). Other writers use other reasons."""


def device_conditions(device: Device, faults: Sequence[tuple[str, str]]) -> list[Condition]:
    """Returns the conditions that the scheduler writes: True for current faults, False for faults that have ended.

    faults: (type of condition, message). If another writer has set such a condition, it is left unchanged while there
    is no fault.
    """
    out = []
    for type, (wrong, right) in _REASONS.items():
        texts = [text for found, text in faults if found == type]
        there = condition_of(device.status.conditions, type)
        if texts:
            out.append(Condition(type=type, status="True", reason=wrong, message="; ".join(texts)))
        elif there is not None and there.reason in (wrong, right):
            out.append(Condition(type=type, status="False", reason=right))
    return out


def device_allocations(state: ClusterState, name: str) -> list[DeviceAllocation]:
    """Returns the GPUs of each pod on a node, without pods that are only assumed on the node, and without pods with
    unknown GPUs."""
    entries = []
    for key, minors in sorted(gpu_book(state).minors_held(name).items(), key=lambda one: natural_key(one[0])):
        info = state.pod(key)
        if info is not None and info.pod.spec.node_name == name:
            entries.append(DeviceHolder(namespace=info.namespace, name=info.name, uuid=info.uid, minors=list(minors)))
    return [DeviceAllocation(type="gpu", entries=entries)] if entries else []


class DeviceStatusWriter(WholeStatusWriter[Device, DeviceStatus]):
    """Writes all Devices, by name."""

    def _overdue(self) -> Iterable[str]:
        """Returns the Devices with allocations or faults that changed since the last call."""
        return gpu_book(self._context.state).take_unreported()

    def _find(self, key: str) -> tuple[Device, Resource] | None:
        device = gpu_book(self._context.state).devices.get(key)
        return (device, DEVICES) if device is not None else None

    def _render(self, key: str, obj: Device, there: DeviceStatus) -> DeviceStatus:
        state = self._context.state
        ours = device_conditions(obj, gpu_book(state).faults(key))
        conditions = merged_conditions(obj.status.conditions, ours, now=self._context.now())
        return DeviceStatus(allocations=device_allocations(state, key), conditions=conditions)

    async def _send(self, obj: Device, resource: Resource, wanted: DeviceStatus, there: DeviceStatus | None) -> bool:
        ours = [condition_body(one) for one in wanted.conditions if one.reason in _REASONS.get(one.type, ())]
        status = {"conditions": ours, **({"allocations": wanted.allocations} if wanted.allocations else {})}
        return await patch_status(self._context.client, resource, obj.metadata, status, kind="apply")
