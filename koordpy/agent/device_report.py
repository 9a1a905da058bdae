# SPDX-License-Identifier: Apache-2.0
"""Builds the Device of a node: its GPUs, their health, their links, and the conditions.

The Device is the custom object from which the scheduler reads the GPUs of a node. Rules: gpu-topology.md 1 and 9,
vocabulary.md 3.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordpy.agent.gpu_facts import GpuBackend, MachineGpu
from koordpy.agent.gpu_health import HealthBook
from koordpy.agent.link_matrix import LinkMatrix, in_order, link_matrix
from koordpy.api import keys
from koordpy.api.custom_objects import DELIVERY_UNAVAILABLE
from koordpy.api.field_faults import literal
from koordpy.api.objects import Condition
from koordpy.devices.gpu.gpu_links import describe_links

API_VERSION = f"{keys.GROUP_KOORDINATOR}/v1alpha1"
"""apiVersion of the Device."""
FOREIGN, ENV, DEVICE_PLUGIN = "foreign", "env", "device-plugin"
"""Values of `agent.delivery`: the ways in which containers get their GPUs (gpu-topology.md 10)."""
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Report:
    """What one look at the node found, ready to be written to the API server."""

    device: Mapping[str, Any]
    """The Device as a server-side apply patch, without status and owner reference."""
    conditions: tuple[Condition, ...]
    """Conditions of the Device's status, without times."""
    matrix: LinkMatrix
    """Link classes of all pairs of GPUs."""
    described: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the Node: `GSOC_ID_<a>_<b>` -> link of the pair of GPUs (minors a and b)."""


def check_measurement(value: Any, size: int) -> tuple[list[list[float]], str]:
    """Returns (matrix in GB/s, ""), or ([], error) if the value is invalid.

    size: number of GPUs. Rows and columns must be in the order of minors; the diagonal is ignored.
    """
    if isinstance(value, Mapping):
        value = value.get("bandwidth")
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        return [], "not a list of lists"
    if len(value) != size or any(len(row) != size for row in value):
        return [], f"not {size} rows of {size} numbers"
    for i, row in enumerate(value):
        for j, cell in enumerate(row):
            number = isinstance(cell, int | float) and not isinstance(cell, bool)
            if i != j and not (number and 0 <= cell < math.inf):
                return [], f"[{i}][{j}]: {literal(cell)} is not a bandwidth in GB/s"
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
    held: Mapping[str, str] | None = None,
    asked: bool = True,
) -> Report:
    """Reads the links and returns the report.

    measured: content of the measurement file; None if there is no file. before: link classes of the last report, used
    for GPUs that have vanished. undeliverable: why GPUs cannot be delivered by `delivery`; empty if they can. held: GPU
    key -> reason why a healthy GPU must not be used. asked: False if the driver does not answer; then every pair keeps
    its link class. Raises BackendError.
    """
    gpus = in_order(book.gpus)
    present = [gpu.key for gpu in book.present] if asked else []
    matrix = link_matrix(backend, gpus, present=present, before=before, without_nvlink=book.without_nvlink)
    bandwidth, unread = check_measurement(measured, len(gpus)) if measured is not None else ([], "")
    withheld = [(gpu, _why_withheld(gpu, book, held or {})) for gpu in gpus]
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
        "spec": {
            "topologies": {"gpu": topologies if gpus else []},
            "devices": [_entry(gpu, why) for gpu, why in withheld],
        },
    }
    described = describe_links(
        matrix.classes, prefix=keys.GSOC_PREFIX, minors=[gpu.minor for gpu in gpus], ids=[gpu.uuid for gpu in gpus]
    )
    return Report(device, _conditions(withheld, matrix, unread, undeliverable), matrix, described)


def node_annotations(node: str, described: Mapping[str, str], uid: str = "") -> dict[str, Any]:
    """Returns the Node as a server-side apply patch that sets the links of its GPUs as annotations.

    uid: uid of the Node, so that the patch fails for a later Node with the same name; empty if it is unknown.
    """
    metadata: dict[str, Any] = {"name": node, **({"uid": uid} if uid else {}), "annotations": dict(described)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


def _why_withheld(gpu: MachineGpu, book: HealthBook, held: Mapping[str, str]) -> str:
    """Returns why a GPU must not be used; empty if it may be used."""
    if why := book.why_sick(gpu.key):
        return why
    # a GPU that is divided into MIG instances cannot be assigned as a whole
    return "divided into MIG instances" if gpu.mig else held.get(gpu.key, "")


def _entry(gpu: MachineGpu, withheld: str) -> dict[str, Any]:
    """Returns the entry of a GPU in the Device. withheld: why it must not be used; empty if it may be used."""
    topology: dict[str, Any] = {}
    if gpu.socket is not None:
        topology["socketID"] = gpu.socket
    if gpu.numa is not None:
        topology["nodeID"] = gpu.numa
    if gpu.pcie_root:
        topology["pcieID"] = gpu.pcie_root
    if gpu.bus:
        topology["busID"] = gpu.bus
    entry: dict[str, Any] = {"type": "gpu", "minor": gpu.minor, "health": not withheld}
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
    gpus: Sequence[tuple[MachineGpu, str]], matrix: LinkMatrix, unread: str, undeliverable: str
) -> tuple[Condition, ...]:
    """Returns the conditions of the Device.

    gpus: (GPU, reason why it must not be used; empty if it may be used). unread: why links cannot be read; empty if
    they can. undeliverable: why GPUs cannot be delivered; empty if they can.
    """
    ready = _listed([f"{gpu.uuid or gpu.minor}: {why}" for gpu, why in gpus if why]) or f"{len(gpus)} GPUs healthy"
    unread = unread and f"measured bandwidth: {unread}"
    return (
        _condition("Ready", bool(gpus), ("Reported", "NoGpus"), ready),
        _condition(
            "TopologyDegraded", bool(matrix.degraded), ("LinksMissing", "LinksComplete"), _listed(matrix.degraded)
        ),
        _condition("TopologyMalformed", bool(unread), ("MeasurementUnreadable", "Readable"), unread),
        _condition(DELIVERY_UNAVAILABLE, bool(undeliverable), ("CannotDeliver", "Available"), undeliverable),
    )


def _condition(type: str, holds: bool, reasons: tuple[str, str], message: str) -> Condition:
    """Returns a condition of a type. holds: True for status True. reasons: (reason if True, reason if False)."""
    return Condition(type=type, status=str(holds), reason=reasons[not holds], message=message)


def _listed(texts: Sequence[str], most: int = 8) -> str:
    """Joins texts; of more than `most` texts only the first ones, with the number of the remaining ones."""
    more = f"; {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def _json(matrix: Sequence[Sequence[Any]]) -> str:
    """Returns a matrix as JSON without spaces."""
    return json.dumps([list(row) for row in matrix], separators=(",", ":"))
