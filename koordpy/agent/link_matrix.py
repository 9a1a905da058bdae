# SPDX-License-Identifier: Apache-2.0
"""Computes the matrix of link classes of all pairs of GPUs from the facts of a backend, and finds degraded links.

A link class names the fastest connection of two GPUs: NVLinks (such as NV18), else the class of their PCIe path. Rules:
gpu-topology.md 3 and 9.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from koordpy.agent.gpu_facts import Fabric, GpuBackend, MachineGpu

SELF = "X"
"""Link class on the diagonal of a matrix: the GPU itself."""
PCIE = ("PSB", "PIX", "PXB", "PHB", "NODE", "SYS")
"""Classes of PCIe paths, the shortest first."""
NO_PEER, NO_PEER_SHARED = "HOST", "HOSTPIX"
"""Classes of pairs without peer access: over host memory; HOSTPIX if one PCIe switch is above both GPUs."""


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """Link classes of all pairs of GPUs."""

    classes: tuple[tuple[str, ...], ...]
    """Link classes, `[GPUs][GPUs]` in the order of minors, X on the diagonal."""
    keys: tuple[str, ...]
    """Row -> key of the GPU."""
    degraded: tuple[str, ...] = ()
    """One sentence for each missing or broken link."""

    def cells(self) -> dict[tuple[str, str], str]:
        """Returns (key, key) -> link class, for every pair."""
        return {(a, b): self.classes[i][j] for i, a in enumerate(self.keys) for j, b in enumerate(self.keys) if i != j}


def in_order(gpus: Sequence[MachineGpu]) -> list[MachineGpu]:
    """Returns the GPUs by minor, which is the order of rows in every matrix."""
    return sorted(gpus, key=lambda gpu: (gpu.minor, gpu.index))


def link_matrix(
    backend: GpuBackend,
    gpus: Sequence[MachineGpu],
    *,
    present: Collection[str] | None = None,
    before: Mapping[tuple[str, str], str] | None = None,
    without_nvlink: Collection[str] = (),
) -> LinkMatrix:
    """Returns the link classes of all pairs of GPUs, and descriptions of degraded links.

    present: keys of the GPUs that the driver lists now; None for all. before: (key, key) -> last known link class, used
    for vanished GPUs. without_nvlink: keys of GPUs with NVLink errors; their NVLinks are ignored. Raises BackendError.
    """
    rows = in_order(gpus)
    there_now = {gpu.key for gpu in rows} if present is None else set(present)
    peers = {gpu.key: Counter(backend.nvlinks(gpu)) for gpu in rows if not gpu.mig and gpu.key in there_now}
    degraded = [f"{_name(gpu)}: NVLink errors" for gpu in rows if gpu.key in without_nvlink]
    known = {gpu.key for gpu in rows}
    # number of NVLinks of each GPU that do not lead to another GPU of this node
    fabric = {
        key: sum(count for peer, count in ends.items() if isinstance(peer, Fabric) or peer not in known)
        for key, ends in peers.items()
    }
    most = max(fabric.values(), default=0)
    degraded += [
        f"{_name(gpu)}: {fabric[gpu.key]} of {most} links to the fabric are active"
        for gpu in rows
        if 0 < fabric.get(gpu.key, 0) < most
    ]
    cells: dict[tuple[int, int], str] = {}
    for i, a in enumerate(rows):
        for j in range(i + 1, len(rows)):
            b = rows[j]
            if a.key not in there_now or b.key not in there_now:
                cells[i, j] = cells[j, i] = (before or {}).get((a.key, b.key), "SYS")
                continue
            path = backend.pcie(a, b)
            links = 0
            if not (a.mig or b.mig or a.key in without_nvlink or b.key in without_nvlink):
                there, back = peers[a.key][b.key], peers[b.key][a.key]
                if there != back:
                    degraded.append(f"{_name(a)} - {_name(b)}: {there} NVLinks one way, {back} the other")
                # direct links; if there are none, the links over the fabric: the smaller number of both GPUs
                links = min(there, back) or min(fabric[a.key], fabric[b.key])
            cells[i, j] = cells[j, i] = _class(backend, (a, b), links, path)
    size = len(rows)
    matrix = tuple(tuple(SELF if i == j else cells[i, j] for j in range(size)) for i in range(size))
    return LinkMatrix(matrix, tuple(gpu.key for gpu in rows), tuple(degraded))


def _class(backend: GpuBackend, pair: tuple[MachineGpu, MachineGpu], links: int, path: str | None) -> str:
    """Returns the link class of a pair of GPUs.

    links: number of NVLinks. path: class of the PCIe path; None if unknown. A GPU in MIG mode has no peer access over
    any link.
    """
    a, b = pair
    if a.mig or b.mig:
        return NO_PEER_SHARED if path in ("PSB", "PIX") else NO_PEER
    access = backend.p2p(a, b)
    if links and access.nvlink is not False:
        return f"NV{links}+{path}" if path and access.read is not False else f"NV{links}"
    if access.read is False:
        return NO_PEER_SHARED if path in ("PSB", "PIX") else NO_PEER
    return path or "SYS"


def _name(gpu: MachineGpu) -> str:
    """Returns the name of a GPU in messages: its UUID, else its minor."""
    return gpu.uuid or f"GPU {gpu.minor}"
