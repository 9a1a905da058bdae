"""The Device that a node's agent writes: its GPUs, how they are, how they are linked, and the conditions.

Source: gpu-topology.md 1 and 9, vocabulary.md 3.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koordpy.agent.health import HealthBook
from koordpy.agent.links import LinkMatrix, in_order, link_matrix
from koordpy.agent.machine import GpuBackend, MachineGpu
from koordpy.api import keys
from koordpy.api.faults import literal
from koordpy.api.objects import Condition

API_VERSION = f"{keys.GROUP_KOORDINATOR}/v1alpha1"
FOREIGN, ENV, DEVICE_PLUGIN = "foreign", "env", "device-plugin"
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Report:
    """One look at the node."""

    device: Mapping[str, Any]
    """The Device as server-side apply takes it; no status, no owner."""
    conditions: tuple[Condition, ...]
    """Of the Device's status, without their times."""
    matrix: LinkMatrix


def check_measurement(value: Any, size: int) -> tuple[list[list[float]], str]:
    """A matrix of GB/s for so many GPUs (the diagonal is not read), rows and columns in the order of minors, or what is
    wrong with it."""
    if isinstance(value, Mapping):
        value = value.get("bandwidth")
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        return [], "no list of lists"
    if len(value) != size or any(len(row) != size for row in value):
        return [], f"not {size} rows of {size} numbers"
    for i, row in enumerate(value):
        for j, cell in enumerate(row):
            number = isinstance(cell, int | float) and not isinstance(cell, bool)
            if i != j and not (number and 0 <= cell < math.inf):
                return [], f"[{i}][{j}]: {literal(cell)} is no bandwidth in GB/s"
    return [[float(cell) if i != j else 0.0 for j, cell in enumerate(row)] for i, row in enumerate(value)], ""


def make_report(
    node: str,
    backend: GpuBackend,
    book: HealthBook,
    *,
    delivery: str = FOREIGN,
    measured: Any = None,
    before: Mapping[tuple[str, str], str] | None = None,
    undeliverable: str = "",
    asked: bool = True,
) -> Report:
    """Looks at the links and writes everything down.

    measured: a matrix as the measurement file has it, None without one. before: cells of the last report, for GPUs
    that have vanished. undeliverable: why GPUs cannot be delivered in the way that `delivery` says. asked: False where
    the driver does not answer; then every pair keeps its cell. Raises BackendError.
    """
    gpus = in_order(book.gpus)
    present = [gpu.key for gpu in book.present] if asked else []
    matrix = link_matrix(backend, gpus, present=present, before=before, without_nvlink=book.without_nvlink)
    bandwidth, unread = check_measurement(measured, len(gpus)) if measured is not None else ([], "")
    topologies = [{"name": "links", "topology": _json(matrix.classes)}]
    if bandwidth:
        topologies.insert(0, {"name": "bandwidth", "topology": _json(bandwidth)})
    metadata: dict[str, Any] = {"name": node, "labels": {keys.GPU_DELIVERY: delivery}}
    if boot := backend.boot():
        metadata["annotations"] = {keys.DEVICE_BOOT: boot}
    device = {
        "apiVersion": API_VERSION,
        "kind": "Device",
        "metadata": metadata,
        "spec": {"topologies": {"gpu": topologies if gpus else []}, "devices": [_entry(gpu, book) for gpu in gpus]},
    }
    return Report(device, _conditions(gpus, book, matrix, unread, undeliverable), matrix)


def _entry(gpu: MachineGpu, book: HealthBook) -> dict[str, Any]:
    topology: dict[str, Any] = {}
    if gpu.socket is not None:
        topology["socketID"] = gpu.socket
    if gpu.numa is not None:
        topology["nodeID"] = gpu.numa
    if gpu.pcie_root:
        topology["pcieID"] = gpu.pcie_root
    if gpu.bus:
        topology["busID"] = gpu.bus
    # a GPU that is divided into MIG instances is no whole card to give away
    healthy = not book.why_sick(gpu.key) and not gpu.mig
    entry: dict[str, Any] = {"type": "gpu", "minor": gpu.minor, "health": healthy}
    if gpu.uuid:
        entry["id"] = gpu.uuid
    resources = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    if gpu.memory_bytes:
        resources["koordinator.sh/gpu-memory"] = f"{gpu.memory_bytes // MEBIBYTE}Mi"
    entry["resources"] = resources
    if topology:
        entry["topology"] = topology
    return entry


def _conditions(
    gpus: Sequence[MachineGpu], book: HealthBook, matrix: LinkMatrix, unread: str, undeliverable: str
) -> tuple[Condition, ...]:
    sick = [
        f"{gpu.uuid or gpu.minor}: {why}"
        for gpu in gpus
        if (why := book.why_sick(gpu.key) or ("divided into MIG instances" if gpu.mig else ""))
    ]
    ready = _listed(sick) or f"{len(gpus)} GPUs healthy"
    unread = unread and f"measured bandwidth: {unread}"
    return (
        _condition("Ready", bool(gpus), ("Reported", "NoGpus"), ready),
        _condition(
            "TopologyDegraded", bool(matrix.degraded), ("LinksMissing", "LinksComplete"), _listed(matrix.degraded)
        ),
        _condition("TopologyMalformed", bool(unread), ("MeasurementUnreadable", "Readable"), unread),
        _condition("DeliveryUnavailable", bool(undeliverable), ("CannotDeliver", "Available"), undeliverable),
    )


def _condition(type: str, holds: bool, reasons: tuple[str, str], message: str) -> Condition:
    """reasons: where it holds, and where it does not."""
    return Condition(type=type, status=str(holds), reason=reasons[not holds], message=message)


def _listed(texts: Sequence[str], most: int = 8) -> str:
    more = f"; {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def _json(matrix: Sequence[Sequence[Any]]) -> str:
    return json.dumps([list(row) for row in matrix], separators=(",", ":"))
