# SPDX-License-Identifier: Apache-2.0
"""Reads facts from NVML, the library of NVIDIA's driver, through NVIDIA's Python bindings.

This is the only module that imports pynvml. A call that the driver or the GPU does not support returns "unknown", not
an error. A GPU that fell off the bus is left out. If the library does not answer, it is closed and opened again,
because a reloaded driver requires that; if this fails, BackendError is raised. Rules: gpu-topology.md 9, and NVML's API
reference for each call.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from koordpy.agent.gpu_facts import P2P, BackendError, Fabric, GpuBackend, MachineGpu, Peer, XidEvent
from koordpy.agent.pcie_paths import path_class, read_path, read_socket, sysfs_address

READ_INDEX = 0
"""Value of nvmlGpuP2PCapsIndex_t for reads; pynvml defines this constant as a tuple by mistake."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""File with the identifier of the current boot."""
MILLISECONDS = 1000


class _LostError(Exception):
    """The GPU has fallen off the bus."""


class NvmlLibrary(GpuBackend):
    """Backend on the loaded library. nvml: the module pynvml, or a substitute in tests."""

    def __init__(self, nvml: Any, *, boot_id: Path = BOOT_ID) -> None:
        self._nvml = nvml
        self._boot_id = boot_id
        self._handles: dict[str, Any] = {}
        """Key of a GPU -> NVML's handle."""
        self._by_address: dict[object, str] = {}
        """Address of a handle (`_address`) -> key of the GPU."""
        self._events: Any = None
        """NVML's event set; None while no GPU is registered for events."""
        self._by_bus: dict[str, str] = {}
        """PCI address -> key of the GPU."""

    # -- GPUs ----------------------------------------------------------------------------------------------------

    def gpus(self) -> Sequence[MachineGpu]:
        """Implements `GpuBackend.gpus`; after an error it opens the library again and repeats the call."""
        try:
            return self._list()
        except BackendError as fault:
            self._reopen(fault)
            return self._list()

    def _reopen(self, fault: BackendError) -> None:
        """Closes the library and opens it again. fault: the error to raise if that fails."""
        self._close_events()
        self._optional(self._nvml.nvmlShutdown)
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as why:
            raise BackendError(f"{fault}; opening the library again failed: {why}") from None

    def _list(self) -> list[MachineGpu]:
        """Returns the GPUs that the driver knows, and stores their handles. Raises BackendError.

        If a GPU is new, the event set is closed, because the GPU must be registered for events.
        """
        nvml = self._nvml
        found: list[MachineGpu] = []
        handles: dict[str, Any] = {}
        for index in range(int(self._required(nvml.nvmlDeviceGetCount))):
            handle = self._optional(nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is None:
                continue  # the GPU has fallen off the bus; NVML's count still includes it
            try:
                gpu = self._gpu(index, handle)
            except _LostError:
                continue
            found.append(gpu)
            handles[gpu.key] = handle
        if set(handles) - set(self._handles):
            self._close_events()
        self._handles = handles
        self._by_address = {_address(handle): key for key, handle in handles.items()}
        self._by_bus = {gpu.bus: gpu.key for gpu in found if gpu.bus}
        return found

    def _gpu(self, index: int, handle: Any) -> MachineGpu:
        """Returns the properties of a GPU. Raises _LostError, BackendError."""
        nvml = self._nvml
        uuid = _text(self._gpu_property(nvml.nvmlDeviceGetUUID, handle))
        minor = self._gpu_property(nvml.nvmlDeviceGetMinorNumber, handle, needed=False)
        info = self._gpu_property(nvml.nvmlDeviceGetPciInfo, handle, needed=False)
        bus = sysfs_address(_text(info.busId)) if info is not None else ""
        path = read_path(bus) if bus else None
        memory = self._optional(nvml.nvmlDeviceGetMemoryInfo, handle)
        mig = self._optional(nvml.nvmlDeviceGetMigMode, handle)
        return MachineGpu(
            index=index,
            minor=index if minor is None else int(minor),
            uuid=uuid,
            bus=bus,
            # not nvmlDeviceGetNumaNodeId, which returns the NUMA node of the GPU's memory
            numa=None if path is None else path.numa,
            socket=read_socket(None if path is None else path.numa),
            pcie_root=path.root if path is not None else "",
            memory_bytes=int(memory.total) if memory is not None else 0,
            mig=bool(mig and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE),
        )

    # -- links ---------------------------------------------------------------------------------------------------

    def pcie(self, a: MachineGpu, b: MachineGpu) -> str | None:
        """Implements `GpuBackend.pcie`: asks the driver; if it does not know, sysfs."""
        nvml = self._nvml
        classes = {
            nvml.NVML_TOPOLOGY_INTERNAL: "PSB",
            nvml.NVML_TOPOLOGY_SINGLE: "PIX",
            nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
            nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
            nvml.NVML_TOPOLOGY_NODE: "NODE",
            nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
        }
        level = self._optional(nvml.nvmlDeviceGetTopologyCommonAncestor, self._handle(a), self._handle(b))
        if level in classes:
            return classes[level]
        here, there = (read_path(gpu.bus) if gpu.bus else None for gpu in (a, b))
        return path_class(here, there) if here is not None and there is not None else None

    def nvlinks(self, a: MachineGpu) -> Sequence[Peer]:
        """Implements `GpuBackend.nvlinks`: queries link by link until the driver does not support the next number."""
        nvml, handle = self._nvml, self._handle(a)
        ends: list[Peer] = []
        for link in range(int(nvml.NVML_NVLINK_MAX_LINKS)):
            try:
                active = nvml.nvmlDeviceGetNvLinkState(handle, link)
            except nvml.NVMLError as fault:
                if fault.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    break
                continue
            if active == nvml.NVML_FEATURE_ENABLED and (end := self._far_end(handle, link)) is not None:
                ends.append(end)
        return ends

    def _far_end(self, handle: Any, link: int) -> Peer | None:
        """Returns the other end of a link; None if the link leads to the processor."""
        nvml = self._nvml
        kind = self._optional(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU:
            return None
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return Fabric.SWITCH
        info = self._optional(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        bus = sysfs_address(_text(info.busId)) if info is not None else ""
        return self._by_bus.get(bus, Fabric.UNKNOWN)

    def p2p(self, a: MachineGpu, b: MachineGpu) -> P2P:
        """Implements `GpuBackend.p2p`."""
        nvml = self._nvml
        read = self._peer(a, b, READ_INDEX)
        nvlink = self._peer(a, b, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        return P2P(
            read=None if read in (None, nvml.NVML_P2P_STATUS_UNKNOWN) else read == nvml.NVML_P2P_STATUS_OK,
            # True only if the driver reports OK; None if the driver does not have the call
            nvlink=None if nvlink is None else nvlink == nvml.NVML_P2P_STATUS_OK,
        )

    def _peer(self, a: MachineGpu, b: MachineGpu, what: int) -> int | None:
        """Returns the driver's status of one kind of peer access (`what`) between two GPUs; None if unknown."""
        status = self._optional(self._nvml.nvmlDeviceGetP2PStatus, self._handle(a), self._handle(b), what)
        return None if status is None else int(status)

    # -- health --------------------------------------------------------------------------------------------------

    def health_events(self, timeout: float) -> Sequence[XidEvent]:
        """Implements `GpuBackend.health_events`: waits for the first event, then takes all further ones without
        waiting."""
        nvml = self._nvml
        if self._events is None:
            self._events = self._register()
        out: list[XidEvent] = []
        wait = int(timeout * MILLISECONDS)
        while True:
            try:
                data = nvml.nvmlEventSetWait_v2(self._events, wait)
            except nvml.NVMLError as fault:
                if fault.value == nvml.NVML_ERROR_TIMEOUT:
                    return out
                self._close_events()
                raise BackendError(f"NVML reports an error while events are awaited: {fault}") from None
            # NVML no longer returns the UUID of a GPU that has just been lost
            uuid = self._by_address.get(_address(data.device)) or self._optional(nvml.nvmlDeviceGetUUID, data.device)
            out.append(XidEvent(_text(uuid or ""), int(data.eventData)))
            wait = 0

    def _register(self) -> Any:
        """Returns a new event set, in which all GPUs that support Xid events are registered. Raises BackendError."""
        nvml = self._nvml
        events = self._required(nvml.nvmlEventSetCreate)
        for handle in self._handles.values():
            wanted = nvml.nvmlEventTypeXidCriticalError
            offered = self._optional(nvml.nvmlDeviceGetSupportedEventTypes, handle)
            if offered is None or offered & wanted:
                self._optional(nvml.nvmlDeviceRegisterEvents, handle, wanted, events)
        return events

    def _close_events(self) -> None:
        """Frees the event set; the next wait registers again."""
        if self._events is not None:
            self._optional(self._nvml.nvmlEventSetFree, self._events)
            self._events = None

    def boot(self) -> str:
        """Implements `GpuBackend.boot`."""
        try:
            return self._boot_id.read_text().strip()
        except OSError:
            return ""

    # -- calls ---------------------------------------------------------------------------------------------------

    def _handle(self, gpu: MachineGpu) -> Any:
        """Returns NVML's handle of a GPU. Raises BackendError."""
        handle = self._handles.get(gpu.key)
        if handle is None:
            raise BackendError(f"NVML does not know GPU {gpu.uuid} any more")
        return handle

    def _required(self, call: Callable[..., Any], *args: Any) -> Any:
        """Returns the result of a call. Raises BackendError if it fails."""
        try:
            return call(*args)
        except self._nvml.NVMLError as fault:
            raise BackendError(f"NVML reports an error: {fault}") from None

    def _gpu_property(self, call: Callable[..., Any], handle: Any, *, needed: bool = True) -> Any:
        """Returns a property of a GPU; None if it is unknown and `needed` is False. Raises _LostError, BackendError."""
        try:
            return call(handle)
        except self._nvml.NVMLError as fault:
            if fault.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                raise _LostError from None
            if needed:
                raise BackendError(f"NVML reports an error: {fault}") from None
            return None

    def _optional(self, call: Callable[..., Any], *args: Any) -> Any:
        """Returns the result of a call; None if it fails."""
        try:
            return call(*args)
        except self._nvml.NVMLError:
            return None


def _address(handle: Any) -> object:
    """Returns a value that is equal for all handles of one GPU, because the bindings compare pointers by identity."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (TypeError, ctypes.ArgumentError):
        return handle


def _text(value: Any) -> str:
    """Returns a text of NVML, which some versions of the bindings return as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def open_nvml() -> NvmlLibrary:
    """Opens the driver's library. Raises BackendError if there is none."""
    try:
        import pynvml
    except ImportError:
        raise BackendError("the package nvidia-ml-py, which NVML needs, is missing: install koordpy[agent]") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as fault:
        raise BackendError(f"NVML reports an error: {fault}") from None
    return NvmlLibrary(pynvml)
