# SPDX-License-Identifier: Apache-2.0
"""The facts that every backend (NVML, a file, a text) provides in the same form about the GPUs of a node.

Main types: `GpuBackend`, the interface of a backend, and `MachineGpu`, one GPU. A GPU has three numbers that can
differ: its index (NVML's order), its minor (N of /dev/nvidiaN) and its CUDA ordinal. So GPUs are identified by UUID if
the backend knows it. Rules: gpu-topology.md 9.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class BackendError(Exception):
    """The facts cannot be read; the text names the source and the reason."""


@dataclass(frozen=True, slots=True)
class MachineGpu:
    """One GPU as the driver reports it."""

    index: int
    """Position in NVML's order."""
    minor: int
    """Number N of its device file /dev/nvidiaN."""
    uuid: str = ""
    """UUID; empty if the backend does not know it (topo -m)."""
    bus: str = ""
    """PCI address, such as 0000:3b:00.0; empty if unknown."""
    numa: int | None = None
    """NUMA node; None if unknown."""
    socket: int | None = None
    """CPU socket; None if unknown."""
    pcie_root: str = ""
    """PCI address of the root port above the GPU; empty if unknown."""
    memory_bytes: int = 0
    """Memory in bytes; 0 if unknown."""
    mig: bool = False
    """True if the GPU is divided into MIG instances; then it is listed without links."""

    @property
    def key(self) -> str:
        """Identifier of the GPU in all calls: its UUID, else its minor."""
        return self.uuid or f"index-{self.index}"


class Fabric(StrEnum):
    """Other end of an NVLink that does not lead to a known GPU of this node."""

    SWITCH = "switch"
    """An NVSwitch."""
    UNKNOWN = "unknown"
    """An end that is neither a GPU of this node nor a known switch."""


Peer = str | Fabric
"""Other end of an active NVLink: the key of a GPU, or a `Fabric`."""


@dataclass(frozen=True, slots=True)
class P2P:
    """Peer-to-peer access between two GPUs."""

    read: bool | None = None
    """True if each GPU can read the memory of the other; None if unknown."""
    nvlink: bool | None = None
    """True if the two GPUs can communicate over NVLink; None if unknown."""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An error that the driver reports."""

    uuid: str
    """UUID of the GPU; empty if the event names none."""
    xid: int
    """NVIDIA's Xid error code."""


class GpuBackend(ABC):
    """Source of the facts about the GPUs of one node. Every method may raise BackendError."""

    @abstractmethod
    def gpus(self) -> Sequence[MachineGpu]:
        """Returns the GPUs that exist now."""

    @abstractmethod
    def pcie(self, a: MachineGpu, b: MachineGpu) -> str | None:
        """Returns the class of the PCIe path between two GPUs (PSB, PIX, PXB, PHB, NODE, SYS); None if unknown."""

    @abstractmethod
    def nvlinks(self, a: MachineGpu) -> Sequence[Peer]:
        """Returns the other end of each active NVLink of a GPU."""

    def p2p(self, a: MachineGpu, b: MachineGpu) -> P2P:
        """Returns the peer-to-peer access between two GPUs; unknown by default."""
        return P2P()

    def health_events(self, timeout: float) -> Sequence[XidEvent]:
        """Returns the errors since the last call. Without errors it waits up to `timeout` seconds for the first one."""
        return ()

    def boot(self) -> str:
        """Returns an identifier of the current boot of the node; empty if unknown."""
        return ""

    def measured(self) -> list[list[float]] | None:
        """Returns the measured bandwidths in GB/s, `[GPUs][GPUs]` in the order of minors; None without measurements."""
        return None
