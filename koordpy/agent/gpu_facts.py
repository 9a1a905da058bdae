"""What a backend tells about the GPUs of a node: plain values, the same whether NVML, a file or a text said them.

Source: gpu-topology.md 9. Index (NVML's order), minor (/dev/nvidiaN) and a CUDA ordinal are three different
numberings; the UUID is the key wherever there is one.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class BackendError(Exception):
    """The source of facts cannot be read; the text says what and where."""


@dataclass(frozen=True, slots=True)
class MachineGpu:
    """One GPU as the driver sees it. bus: PCI address, as in 0000:3b:00.0; memory_bytes: 0 where unknown."""

    index: int
    minor: int
    uuid: str = ""
    """Empty where the source knows none (the text of topo -m)."""
    bus: str = ""
    numa: int | None = None
    socket: int | None = None
    pcie_root: str = ""
    memory_bytes: int = 0
    mig: bool = False
    """Partitioned into MIG instances: listed, without links."""

    @property
    def key(self) -> str:
        """What the GPU is known by between calls."""
        return self.uuid or f"index-{self.index}"


class Fabric(StrEnum):
    """The other end of an NVLink that is no GPU of this node."""

    SWITCH = "switch"
    UNKNOWN = "unknown"


Peer = str | Fabric
"""Key of the GPU at the other end of an active NVLink, or the fabric."""


@dataclass(frozen=True, slots=True)
class P2P:
    """What two GPUs may do with each other's memory; None where the source does not say."""

    read: bool | None = None
    nvlink: bool | None = None


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A driver error. uuid is empty where the event names no GPU."""

    uuid: str
    xid: int


class GpuBackend(ABC):
    """A source of facts about the GPUs of one node. Every call may raise BackendError."""

    @abstractmethod
    def gpus(self) -> Sequence[MachineGpu]:
        """The GPUs that are there now."""

    @abstractmethod
    def pcie(self, a: MachineGpu, b: MachineGpu) -> str | None:
        """Class of the PCIe path (PSB, PIX, PXB, PHB, NODE, SYS), None where unknown."""

    @abstractmethod
    def nvlinks(self, a: MachineGpu) -> Sequence[Peer]:
        """The other end of each active NVLink of a GPU."""

    def p2p(self, a: MachineGpu, b: MachineGpu) -> P2P:
        return P2P()

    def health_events(self, timeout: float) -> Sequence[XidEvent]:
        """Errors since the last call; waits up to `timeout` seconds for the first."""
        return ()

    def boot(self) -> str:
        """What changes when the node starts anew; empty where unknown."""
        return ""

    def measured(self) -> list[list[float]] | None:
        """Measured bandwidth in GB/s in the order of minors, None where nobody measured."""
        return None
