"""From the facts of a backend to the matrix of link classes, and what is wrong with the links.

Source: gpu-topology.md 3 and 9.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from koordpy.agent.gpu_facts import Fabric, GpuBackend, MachineGpu

SELF = "X"
PCIE = ("PSB", "PIX", "PXB", "PHB", "NODE", "SYS")
"""Classes of PCIe paths, the nearest first."""
NO_PEER, NO_PEER_SHARED = "HOST", "HOSTPIX"


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """classes: rows and columns in the order of minors, X on the diagonal. degraded: what is less than it should be."""

    classes: tuple[tuple[str, ...], ...]
    keys: tuple[str, ...]
    """Key of the GPU of each row."""
    degraded: tuple[str, ...] = ()

    def cells(self) -> dict[tuple[str, str], str]:
        """(key, key) -> class of every pair."""
        return {(a, b): self.classes[i][j] for i, a in enumerate(self.keys) for j, b in enumerate(self.keys) if i != j}


def in_order(gpus: Sequence[MachineGpu]) -> list[MachineGpu]:
    """GPUs by minor, as the rows of every matrix stand."""
    return sorted(gpus, key=lambda gpu: (gpu.minor, gpu.index))


def link_matrix(
    backend: GpuBackend,
    gpus: Sequence[MachineGpu],
    *,
    present: Collection[str] | None = None,
    before: Mapping[tuple[str, str], str] | None = None,
    without_nvlink: Collection[str] = (),
) -> LinkMatrix:
    """The classes of all pairs.

    present: keys of the GPUs that can be asked (default: all); a vanished one keeps the class that `before` has of it.
    without_nvlink: keys of GPUs whose NVLinks are in trouble and do not count.
    """
    rows = in_order(gpus)
    there_now = {gpu.key for gpu in rows} if present is None else set(present)
    peers = {gpu.key: Counter(backend.nvlinks(gpu)) for gpu in rows if not gpu.mig and gpu.key in there_now}
    degraded = [f"{_name(gpu)}: NVLink errors" for gpu in rows if gpu.key in without_nvlink]
    known = {gpu.key for gpu in rows}
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
                links = min(there, back) or min(fabric[a.key], fabric[b.key])
            cells[i, j] = cells[j, i] = _class(backend, (a, b), links, path)
    size = len(rows)
    matrix = tuple(tuple(SELF if i == j else cells[i, j] for j in range(size)) for i in range(size))
    return LinkMatrix(matrix, tuple(gpu.key for gpu in rows), tuple(degraded))


def _class(backend: GpuBackend, pair: tuple[MachineGpu, MachineGpu], links: int, path: str | None) -> str:
    """The cell of a pair. MIG instances have no peer access whatever lies between their GPUs."""
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
    return gpu.uuid or f"GPU {gpu.minor}"
