"""PCIe paths from the kernel's view of the machine, for drivers that do not tell how two GPUs are connected.

Source: gpu-topology.md 9 (common ancestor not supported: compare the resolved sysfs paths of the functions). A
path reads /sys/devices/pciDDDD:BB/<root port>/<switch port>/.../<function>.
"""

from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")


@dataclass(frozen=True, slots=True)
class PciPath:
    """Where a function sits. parts: from the root complex down to the function itself."""

    parts: tuple[str, ...]
    numa: int | None = None

    @property
    def root(self) -> str:
        """The port below the host bridge that leads to the function."""
        return self.parts[1] if len(self.parts) > 2 else self.parts[0] if self.parts else ""


def sysfs_address(bus: str) -> str:
    """NVML's PCI address (00000000:3B:00.0) as the kernel writes it (0000:3b:00.0)."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}"


def read_path(bus: str, *, sysfs: Path = SYSFS) -> PciPath | None:
    """The path of a function by its address; None where the kernel does not show it."""
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
    """The CPU socket of a NUMA node; None where the kernel does not show it."""
    if numa is None:
        return None
    try:
        first = (sysfs / f"devices/system/node/node{numa}/cpulist").read_text().strip().replace("-", ",").split(",")[0]
        return int((sysfs / f"devices/system/cpu/cpu{int(first)}/topology/physical_package_id").read_text())
    except (OSError, ValueError):
        return None


def path_class(a: PciPath, b: PciPath) -> str:
    """PSB, PIX, PXB, PHB, NODE or SYS, as nvidia-smi names them."""
    if a.parts[0] != b.parts[0]:
        return "NODE" if a.numa is not None and a.numa == b.numa else "SYS"
    shared = 0
    while shared < min(len(a.parts), len(b.parts)) and a.parts[shared] == b.parts[shared]:
        shared += 1
    if a.parts[-1].rpartition(".")[0] == b.parts[-1].rpartition(".")[0]:
        return "PSB"
    if shared <= 1:
        return "PHB"
    # below one switch each way goes through its own downstream port to the function; more ports are more switches
    return "PIX" if max(len(a.parts), len(b.parts)) - shared <= 2 else "PXB"
