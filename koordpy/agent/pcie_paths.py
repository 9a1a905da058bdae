# SPDX-License-Identifier: Apache-2.0
"""Reads PCIe paths from sysfs, for drivers that do not report how two GPUs are connected.

A resolved path is /sys/devices/pciDDDD:BB/<root port>/<switch port>/.../<function>. The class of the path between two
GPUs follows from the names that their two paths share, what is left of each path, and the NUMA nodes. Rules:
gpu-topology.md 9.
"""

from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")


@dataclass(frozen=True, slots=True)
class PciPath:
    """Path of a PCI function, such as a GPU, from the root complex down."""

    parts: tuple[str, ...]
    """Names from the root complex down to the function."""
    numa: int | None = None
    """NUMA node; None if unknown."""

    @property
    def root(self) -> str:
        """Root port above the function; the root complex if there is no port between, and empty without a path."""
        return self.parts[1] if len(self.parts) > 2 else self.parts[0] if self.parts else ""


def sysfs_address(bus: str) -> str:
    """Converts NVML's PCI address (00000000:3B:00.0) to the kernel's form (0000:3b:00.0)."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}"


def read_path(bus: str, *, sysfs: Path = SYSFS) -> PciPath | None:
    """Returns the path of the PCI function with an address; None if sysfs does not have it."""
    link = sysfs / "bus" / "pci" / "devices" / sysfs_address(bus)
    try:
        parts = link.resolve(strict=True).parts
        start = next(i for i, part in enumerate(parts) if part.startswith("pci"))
    except (OSError, StopIteration):
        return None
    try:
        numa = int((link / "numa_node").read_text())
    except (OSError, ValueError):
        numa = -1
    return PciPath(parts[start:], numa if numa >= 0 else None)


def read_socket(numa: int | None, *, sysfs: Path = SYSFS) -> int | None:
    """Returns the CPU socket of a NUMA node; None if sysfs does not have it."""
    if numa is None:
        return None
    try:
        first = (sysfs / f"devices/system/node/node{numa}/cpulist").read_text().strip().replace("-", ",").split(",")[0]
        return int((sysfs / f"devices/system/cpu/cpu{int(first)}/topology/physical_package_id").read_text())
    except (OSError, ValueError):
        return None


def path_class(a: PciPath, b: PciPath) -> str:
    """Returns the class of the path between two PCI functions, with nvidia-smi's names.

    PSB: one board (addresses differ only in the function). PIX: one switch. PXB: several switches. PHB: one root
    complex. NODE: two root complexes of one NUMA node. SYS: two root complexes of different or unknown NUMA
    nodes.
    """
    if a.parts[0] != b.parts[0]:
        return "NODE" if a.numa is not None and a.numa == b.numa else "SYS"
    shared = 0
    while shared < min(len(a.parts), len(b.parts)) and a.parts[shared] == b.parts[shared]:
        shared += 1
    if a.parts[-1].rpartition(".")[0] == b.parts[-1].rpartition(".")[0]:
        return "PSB"
    if shared <= 1:
        return "PHB"
    # below one switch, each path ends with a downstream port and the function; more names after the common part mean
    # further switches
    return "PIX" if max(len(a.parts), len(b.parts)) - shared <= 2 else "PXB"
