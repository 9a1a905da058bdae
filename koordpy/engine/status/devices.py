"""The status of Devices: who holds which GPUs, and what is wrong with the matrices that the scheduler reads.

Sources: vocabulary.md 3, gpu-topology.md 1. The node's agent writes the conditions that it can judge,
this writes AsymmetricLink and TopologyMalformed, which whoever reads the matrices finds out. Server-side apply with a
manager of its own keeps the two apart: each owns the conditions that it names. The spec is never written.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from koordpy.api.custom import Device, DeviceStatus
from koordpy.api.natural import natural_key
from koordpy.api.objects import Condition
from koordpy.cluster.state import ClusterState
from koordpy.engine.apiserver.client import ApiError, Unreachable
from koordpy.engine.apiserver.resources import DEVICES
from koordpy.engine.status.patches import condition_of, merged_conditions
from koordpy.engine.status.writing import Writing

logger = logging.getLogger(__name__)

FIELD_MANAGER = "koordpy-scheduler"
ASYMMETRIC, MALFORMED = "AsymmetricLink", "TopologyMalformed"
_REASONS = {ASYMMETRIC: ("DirectionsDiffer", "DirectionsAgree"), MALFORMED: ("MatrixUnreadable", "MatrixReadable")}
"""Type -> reason where it is True, and where it no longer is. Others give their own reasons."""
_RETRY_SECONDS = 30.0


def device_conditions(device: Device, faults: Sequence[tuple[str, str]]) -> list[Condition]:
    """The conditions that are ours to write: what is wrong, and what was and no longer is.

    A condition that somebody else wrote stays theirs as long as nothing is wrong.
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


def device_allocations(state: ClusterState, name: str) -> list[dict[str, Any]]:
    """Holders of a node's GPUs whose GPUs can be told, pods that are not seen on the node yet left out."""
    entries = []
    for key, minors in sorted(state.gpu_book.minors_held(name).items(), key=lambda one: natural_key(one[0])):
        info = state.pod(key)
        if info is not None and info.pod.spec.node_name == name:
            entries.append({"namespace": info.namespace, "name": info.name, "uuid": info.uid, "minors": list(minors)})
    return [{"type": "gpu", "entries": entries}] if entries else []


class DeviceStatusWriter:
    """Writes what changed, one Device after the other, half as often as other statuses."""

    def __init__(self, writing: Writing) -> None:
        self.sent = 0
        self._writing, self._state = writing, writing.state

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await asyncio.sleep(2 * self._writing.settings.group_status_seconds)
            if not await self.flush():
                await asyncio.sleep(_RETRY_SECONDS)

    async def flush(self) -> bool:
        """Writes every status that is not as it should be; False where one could not be written, and what is left is
        kept for later."""
        if not self._writing.may_write():
            return True
        book = self._state.gpu_book
        names = book.take_unreported()
        for at, name in enumerate(names):
            device = book.device(name)
            # asked before each: the lease may run out between two
            if device is not None and not (self._writing.may_write() and await self._write(device)):
                for left in names[at:]:
                    book.report_again(left)
                return False
        return True

    async def _write(self, device: Device) -> bool:
        name = device.metadata.name
        allocations = device_allocations(self._state, name)
        conditions = device_conditions(device, self._state.gpu_book.faults(name))
        if _says(device.status, allocations, conditions):
            return True
        ours = {condition.type for condition in conditions}
        before = [condition for condition in device.status.conditions if condition.type in ours]
        status: dict[str, Any] = {"conditions": merged_conditions(before, conditions, now=self._writing.now())}
        if allocations:
            status["allocations"] = allocations
        meta = {"name": name, "uid": device.metadata.uid}
        body = {"apiVersion": DEVICES.api_version, "kind": DEVICES.kind, "metadata": meta, "status": status}
        path = DEVICES.path("", name, "status")
        try:
            await self._writing.client.patch(path, body, kind="apply", field_manager=FIELD_MANAGER, force=True)
        except (ApiError, Unreachable) as error:
            if isinstance(error, ApiError) and error.status in (404, 409):
                return True  # gone or another one: the watch says what is there now
            logger.warning("Device %s: its status was not written: %s", name, error)
            return False
        self.sent += 1
        return True


def _says(status: DeviceStatus, allocations: Sequence[dict[str, Any]], conditions: Sequence[Condition]) -> bool:
    """Whether a status says all that already."""
    there = [
        {
            "type": one.type,
            "entries": [
                {"namespace": e.namespace, "name": e.name, "uuid": e.uuid, "minors": list(e.minors)}
                for e in one.entries
            ],
        }
        for one in status.allocations
    ]
    if there != list(allocations):
        return False
    for condition in conditions:
        old = condition_of(status.conditions, condition.type)
        if old is None or (old.status, old.reason, old.message) != (
            condition.status,
            condition.reason,
            condition.message,
        ):
            return False
    return True
