# SPDX-License-Identifier: Apache-2.0
"""A simulated machine that is described by a YAML file, with errors at scripted polls, for tests without GPUs.

Rules: gpu-topology.md 9. Format of the file:

    gpus: 8                      # or a list: {uuid, minor, index, bus, numa, socket, pcie, memory, mig}
    links: [[X, NV4, ...], ...]  # classes as in topo -m, also NV4+PHB; default: all SYS
    fabric: 18                   # NVLinks of every GPU to a switch, instead of NVLinks in `links`
    bandwidth: [[0, 48.3], ...]  # measured GB/s, optional
    boot: first                  # identifier of the node's boot
    faults:                      # events by poll, from 1
      - {poll: 2, uuid: GPU-1, xid: 79}
      - {poll: 3, gone: GPU-2}   # the GPU vanishes; `back: GPU-2` restores it
      - {poll: 4, fail: wait}    # waiting for events fails (`gpus`: listing GPUs fails)
"""

import re
from collections.abc import Sequence

import msgspec

from koordpy.agent.gpu_facts import P2P, BackendError, Fabric, GpuBackend, MachineGpu, Peer, XidEvent
from koordpy.agent.link_matrix import NO_PEER, NO_PEER_SHARED, PCIE, SELF
from koordpy.decoding.manifest_documents import read_documents
from koordpy.decoding.strict_decoding import decode

_CELL = re.compile(r"(?:NV([1-9]\d*))?(?:\+?([A-Z]+))?$")
"""A cell of `links`: number of NVLinks and class of the PCIe path, each optional."""


class FakeGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU in the file; the fields are those of `MachineGpu`."""

    uuid: str = ""
    minor: int | None = None
    index: int | None = None
    bus: str = ""
    numa: int | None = None
    socket: int | None = None
    pcie: str = ""
    memory: int = 0
    mig: bool = False


class FakeFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scripted event in the list `faults` of the file."""

    poll: int
    """Number of the poll at which the event happens, from 1."""
    uuid: str = ""
    xid: int = 0
    gone: str = ""
    """Key of a GPU that vanishes; empty if none does. The next field, `back`: key of a GPU that returns."""
    back: str = ""
    fail: str = ""
    """What fails at this poll: `wait` (waiting for events) or `gpus` (listing GPUs); empty for nothing."""


class FakeMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    gpus: int | list[FakeGpu] = 0
    links: list[list[str]] = []
    fabric: int | list[int] = 0
    """Number of NVLinks to a switch: one number for every GPU, or a list with one number per GPU."""
    bandwidth: list[list[float]] | None = None
    boot: str = "boot"
    faults: list[FakeFault] = []


class FakeBackend(GpuBackend):
    """The simulated machine. Each call of `health_events` is one poll."""

    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine
        self._gpus = _gpus(machine)
        self._poll = 0
        self._gone: set[str] = set()
        self._fail = ""

    def gpus(self) -> Sequence[MachineGpu]:
        """Implements `GpuBackend.gpus`."""
        if self._fail == "gpus":
            raise BackendError("fake: the driver does not answer")
        return [gpu for gpu in self._gpus if gpu.key not in self._gone]

    def pcie(self, a: MachineGpu, b: MachineGpu) -> str | None:
        """Implements `GpuBackend.pcie`.

        The classes HOST and HOSTPIX of the file mean no peer access (`link_matrix.py`); their paths are SYS and PIX.
        """
        path = self._cell(a, b)[1]
        return {NO_PEER: "SYS", NO_PEER_SHARED: "PIX"}.get(path, path) or None

    def nvlinks(self, a: MachineGpu) -> Sequence[Peer]:
        """Implements `GpuBackend.nvlinks`."""
        fabric = self._machine.fabric
        own = fabric[self._gpus.index(a)] if isinstance(fabric, list) else fabric
        ends: list[Peer] = [Fabric.SWITCH] * own
        for b in self._gpus:
            if b is not a and b != a:
                ends += [b.key] * self._cell(a, b)[0]
        return ends

    def p2p(self, a: MachineGpu, b: MachineGpu) -> P2P:
        """Implements `GpuBackend.p2p`: reads are denied for pairs of the class HOST or HOSTPIX."""
        links, path = self._cell(a, b)
        return P2P(read=path not in (NO_PEER, NO_PEER_SHARED), nvlink=True if links else None)

    def health_events(self, timeout: float) -> Sequence[XidEvent]:
        """Implements `GpuBackend.health_events`: applies the faults of the next poll."""
        self._poll += 1
        self._fail = ""
        events = []
        for fault in self._machine.faults:
            if fault.poll != self._poll:
                continue
            if fault.gone:
                self._gone.add(fault.gone)
            if fault.back:
                self._gone.discard(fault.back)
            if fault.xid:
                events.append(XidEvent(fault.uuid, fault.xid))
            self._fail = fault.fail or self._fail
        if self._fail == "wait":
            raise BackendError("fake: waiting for events failed")
        return events

    def boot(self) -> str:
        """Implements `GpuBackend.boot`."""
        return self._machine.boot

    def measured(self) -> list[list[float]] | None:
        """Implements `GpuBackend.measured`."""
        return self._machine.bandwidth

    def _cell(self, a: MachineGpu, b: MachineGpu) -> tuple[int, str]:
        """Returns (number of NVLinks, PCIe class) of a pair, from `links`, where rows have the order of `gpus`."""
        if not self._machine.links:
            return 0, "SYS"
        found = _CELL.match(self._machine.links[self._gpus.index(a)][self._gpus.index(b)])
        return (int(found[1] or 0), found[2] or "") if found else (0, "")


def _gpus(machine: FakeMachine) -> list[MachineGpu]:
    """Returns the GPUs of the file; a number of GPUs means GPUs `GPU-0`, `GPU-1`, ..."""
    if isinstance(machine.gpus, int):
        return [MachineGpu(index=n, minor=n, uuid=f"GPU-{n}") for n in range(machine.gpus)]
    return [
        MachineGpu(
            index=n if gpu.index is None else gpu.index,
            minor=n if gpu.minor is None else gpu.minor,
            uuid=gpu.uuid or f"GPU-{n}",
            bus=gpu.bus,
            numa=gpu.numa,
            socket=gpu.socket,
            pcie_root=gpu.pcie,
            memory_bytes=gpu.memory,
            mig=gpu.mig,
        )
        for n, gpu in enumerate(machine.gpus)
    ]


def read_fake(text: str, *, name: str) -> FakeBackend:
    """Reads the machine from a file's text. Raises BackendError with file and field."""
    documents = list(read_documents(text.encode(errors="surrogateescape"), as_json=False))
    broken = [document.fault for document in documents if document.fault]
    if broken or len(documents) != 1:
        raise BackendError(f"{name}: {broken[0] if broken else f'must have one document, not {len(documents)}'}")
    read = decode(documents[0].value, FakeMachine, closed=True)
    machine = read.value
    if machine is None:
        raise BackendError(f"{name}: {'; '.join(map(str, read.faults))}")
    size = machine.gpus if isinstance(machine.gpus, int) else len(machine.gpus)
    if machine.links and (len(machine.links) != size or any(len(row) != size for row in machine.links)):
        raise BackendError(f"{name}: links: must be {size} rows of {size} cells")
    if isinstance(machine.fabric, list) and len(machine.fabric) != size:
        raise BackendError(f"{name}: fabric: must be {size} numbers")
    for i, row in enumerate(machine.links):
        for j, cell in enumerate(row):
            found = _CELL.match(cell)
            good = {SELF} if i == j else {"", *PCIE, NO_PEER, NO_PEER_SHARED}
            if not cell or found is None or (found[2] or "") not in good:
                raise BackendError(f"{name}: links[{i}][{j}]: {cell!r} is not a link class")
    return FakeBackend(machine)
